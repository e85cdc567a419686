"""Whether this Slurm can be steered by tenbin, how far, and what would change that.

Nothing is changed; a job of a second looks at each node.
"""

from __future__ import annotations

import os
import pwd
import shutil
from collections.abc import Iterator
from pathlib import Path

from agent.doctor.finding import Finding, limited, missing, ok
from profiles.errors import Unavailable
from scheduler.engines.slurm.admin import reach, rights, settings
from scheduler.engines.slurm.client.parse import OLDEST, SlurmNode
from scheduler.engines.slurm.client.tools import Slurm

TOOLS = ("sbatch", "squeue", "scontrol", "scancel", "sinfo", "srun", "salloc")
TRIED = {(22, 5)}  # versions on which tenbin's tests run
INSTALL = "install Slurm's tools (Debian: apt install slurm-client), or: module load slurm"


def examine(slurm: Slurm, folder: Path) -> list[Finding]:
    """All findings: tools, controller, rights, settings, nodes; what cannot be asked is ``missing``.

    Args:
        folder: where the coordinator keeps its jobs, which nodes should see.
    """
    findings = list(_tools(slurm))
    if any(finding.state == "missing" for finding in findings):
        return findings
    try:
        config = slurm.config()
    except Unavailable as error:
        return [
            *findings,
            missing("slurm", f"the controller cannot be asked ({error.what})", "", _remedy(error)),
        ]
    findings.append(ok("slurm", f"cluster {config['ClusterName']} answers", config.get("SLURM_CONF", "")))
    uid = os.getuid()
    name = _name(uid)
    level, why = rights.admin_level(slurm, config, name)
    findings += rights.check(name, uid, rights.slurm_user(config), level, why)
    findings += settings.check(config)
    try:
        nodes = slurm.nodes()
    except Unavailable as error:
        return [*findings, missing("nodes", f"they cannot be seen ({error.what})", "", _remedy(error))]
    return [*findings, *_nodes(nodes), *reach.check(nodes, folder), *_mpi(slurm)]


def usable(findings: list[Finding]) -> bool:
    """Whether there is a Slurm that answers."""
    return not any(f.topic == "slurm" and f.state == "missing" for f in findings)


def _tools(slurm: Slurm) -> Iterator[Finding]:
    absent = [tool for tool in TOOLS if shutil.which(tool, path=slurm.environment.get("PATH")) is None]
    if absent:
        what = f"no {', '.join(absent)} in PATH" if len(absent) < len(TOOLS) else "no Slurm here"
        yield missing("slurm", what, "tenbin steers Slurm by its command line tools", INSTALL)
        return
    conf = slurm.environment.get("SLURM_CONF")
    if conf and not Path(conf).is_file():
        remedy = "export SLURM_CONF=/etc/slurm/slurm.conf, or where the cluster has it"
        yield missing("slurm", f"SLURM_CONF names {conf}, which is not there", "", remedy)
        return
    try:
        said = slurm.version()
    except Unavailable as error:
        yield missing("slurm", f"its version cannot be told ({error.what})", "", _remedy(error))
        return
    version = f"{said[0]}.{said[1]:02d}"
    if said < OLDEST:
        yield limited("slurm", f"version {version}", "tenbin knows Slurm from 20.11 on", "update Slurm")
    elif said not in TRIED:
        tried = ", ".join(f"{a}.{b:02d}" for a, b in sorted(TRIED))
        reason = f"tenbin has been tried with {tried}; an answer that it cannot read it refuses"
        yield limited("slurm", f"version {version}", reason, "try: tenbin profile --nodes all --quick")
    else:
        yield ok("slurm", f"version {version}")


def _remedy(error: Unavailable) -> str:
    return (
        error.remedy
        if "doctor" not in error.remedy
        else "ask the cluster's administrator; see: scontrol ping"
    )


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _nodes(nodes: list[SlurmNode]) -> Iterator[Finding]:
    if not nodes:
        yield missing(
            "nodes", "none can be seen", "PrivateData hides them, or there are none", "see: sinfo -N"
        )
    good = [node for node in nodes if node.usable]
    if good:
        yield ok("nodes", f"{len(good)} of {len(nodes)} can take jobs")
    for node in nodes:
        if not node.usable:
            remedy = f"scontrol update NodeName={node.name} State=RESUME, when it is well again"
            yield limited("nodes", f"{node.name} is {node.state}", node.reason, remedy)


def _mpi(slurm: Slurm) -> Iterator[Finding]:
    try:
        said = slurm.call("srun", "--mpi=list")
    except Unavailable as error:
        yield limited("mpi", f"srun --mpi=list: {error.what}", "")
        return
    kinds = set(said.split())
    if "pmi2" in kinds:
        yield ok("mpi", "srun starts MPICH's ranks (pmi2)")
    else:
        yield limited(
            "mpi",
            "srun has no pmi2",
            "ranks of MPICH on several nodes would each be alone",
            "install Slurm's pmi2 plugin (Debian: slurm-wlm-basic-plugins)",
        )
