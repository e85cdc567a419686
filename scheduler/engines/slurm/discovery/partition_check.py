"""Regions of a policy as partitions of Slurm: whether that can be."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from pathlib import Path

from profiles.errors import BadInput
from scheduler.engines.slurm.client.rights import own_rights
from scheduler.engines.slurm.client.tools import Slurm
from scheduler.engines.slurm.discovery.slurm_machine import SlurmMachine
from scheduler.engines.slurm.nodes.partitions import own_names
from scheduler.model.parameters import split
from scheduler.policies.registry import policy_class

log = logging.getLogger("tenbin")


def partitioned(machine: SlurmMachine, policy: str, prefix: str, home: Path) -> SlurmMachine:
    """Give each region of the machine's policy a partition, and warn of what Slurm does to partitions.

    Args:
        prefix: of their names. home: the coordinator's folder, which knows its own ones.

    Raises:
        BadInput: the policy has no such regions, this user may not, or there are partitions of these names
            that are not this coordinator's.
    """
    site = machine.site
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", prefix):
        raise BadInput(f"--partitions {prefix!r} is no name", "begin with a letter, for instance tenbin")
    name, _ = split(policy)
    if not policy_class(policy).fences:
        what = f"--partitions: policy {name} has no regions of its own nodes"
        raise BadInput(what, "choose --policy regions")
    _may_make(site.slurm, prefix, home)
    return replace(machine, site=replace(site, partitions=prefix))


def _may_make(slurm: Slurm, prefix: str, home: Path) -> None:
    """BadInput if partitions of these names may not be made."""
    config = slurm.config()
    rights = own_rights(slurm, config)
    if not rights.steers_nodes:
        what = f"--partitions: {rights.user} may not make partitions{rights.because}"
        raise BadInput(what, "leave it out, or see: tenbin doctor --engine slurm")
    own, form = own_names(home), re.compile(rf"{re.escape(prefix)}-\d+")
    foreign = sorted(one for one in slurm.partitions() if form.fullmatch(one) and one not in own)
    if foreign:
        what = f"--partitions {prefix}: there is a partition {foreign[0]} that this coordinator has not made"
        raise BadInput(what, f"choose another name, or: scontrol delete PartitionName={foreign[0]}")
    if "KeepPartInfo" not in config.get("ReconfigFlags", ""):
        log.warning(
            "tenbin: partitions that are not in slurm.conf end, with their jobs, at scontrol reconfigure "
            "(those run again): add ReconfigFlags=KeepPartInfo there, and start slurmctld with -R"
        )
