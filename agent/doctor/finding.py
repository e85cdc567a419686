"""The machine that the doctor's checks examine, and their findings."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from agent.inventory.files import Roots, fields, read
from probes.topology import Topology, cpu_list, read_topology
from profiles.inventory import Inventory, Missing
from profiles.records import Record


class Finding(Record):
    """A finding: a thing can be measured here, cannot, or only with limits.

    ``what`` and ``reason`` are sentences without a full stop; ``remedy`` is the next step, or empty.
    """

    topic: str  # a probe's name, or machine
    state: Literal["ok", "limited", "missing"]
    what: str
    reason: str = ""
    remedy: str = ""


def ok(topic: str, what: str, reason: str = "") -> Finding:
    return Finding(topic=topic, state="ok", what=what, reason=reason)


def limited(topic: str, what: str, reason: str, remedy: str = "") -> Finding:
    return Finding(topic=topic, state="limited", what=what, reason=reason, remedy=remedy)


def missing(topic: str, what: str, reason: str, remedy: str = "") -> Finding:
    return Finding(topic=topic, state="missing", what=what, reason=reason, remedy=remedy)


@dataclass(frozen=True)
class Case:
    """The machine under examination."""

    inventory: Inventory
    roots: Roots

    @cached_property
    def topology(self) -> Topology:
        """The CPUs that this process may use, as the probes see them."""
        status = fields(read(self.roots.procfs / "self/status"))
        allowed = cpu_list(status.get("Cpus_allowed_list")) or os.sched_getaffinity(0)
        return read_topology(self.roots.sysfs, set(allowed))

    @property
    def virtual(self) -> bool:
        return self.inventory.virtualisation != "none"

    @property
    def usable_cores(self) -> int:
        """Cores that this process may use, and has the CPU time for."""
        cores, quota = len(self.topology.cores), self.inventory.limits.quota_cores
        return cores if quota is None else min(cores, max(int(quota), 1))

    def unknown(self, what: str) -> list[Missing]:
        """Return why something is not in the inventory."""
        return [m for m in self.inventory.missing if m.what == what]
