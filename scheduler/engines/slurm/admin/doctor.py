"""``tenbin doctor --engine slurm``: how far tenbin can steer this Slurm, and the remedy for each obstacle.

The checks change nothing in Slurm. Each node is asked by a job of a second.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from agent.doctor.finding import Finding, limited, missing, ok
from profiles.errors import Unavailable
from scheduler.engines.slurm.admin import config_checks, node_checks
from scheduler.engines.slurm.client.parse import OLDEST, SlurmNode
from scheduler.engines.slurm.client.rights import Rights, own_rights
from scheduler.engines.slurm.client.tools import Slurm

TOOLS = ("sbatch", "squeue", "scontrol", "scancel", "sinfo", "srun", "salloc")
TRIED = ((22, 5),)  # versions on which tenbin's tests run
INSTALL = "install Slurm's tools (Debian: apt install slurm-client), or: module load slurm"
DEEDS = (  # with the rank that they take
    ("submit, pin, requeue and cancel jobs of one's own", 0),
    ("suspend and resume jobs, steer other users' jobs (tenbin up --take-over), reservations", 1),
    ("set dead nodes down, so that their jobs need not wait for SlurmdTimeout; make partitions", 2),
)
TITLES = ("a plain user", "an operator", "an administrator")  # by rank


def examine(slurm: Slurm, folder: Path) -> list[Finding]:
    """Check tools, controller, rights, settings and nodes.

    Args:
        folder: where the coordinator keeps its jobs; the nodes should see it.
    """
    tools = _tools(slurm)
    if tools.state == "missing":
        return [tools]
    try:
        config = slurm.config()
    except Unavailable as error:
        return [tools, _no_answer("slurm", "the controller cannot be asked", error)]
    findings = [
        tools,
        ok("slurm", f"cluster {config['ClusterName']} answers", config.get("SLURM_CONF", "")),
        *check_rights(own_rights(slurm, config)),
        *config_checks.check(config),
    ]
    try:
        nodes = slurm.nodes()
    except Unavailable as error:
        return [*findings, _no_answer("nodes", "they cannot be seen", error)]
    return [*findings, *_nodes(nodes), *node_checks.check(nodes, folder), _mpi(slurm)]


def usable(findings: list[Finding]) -> bool:
    """Tell if there is a Slurm that answers."""
    return not any(f.topic == "slurm" and f.state == "missing" for f in findings)


def _tools(slurm: Slurm) -> Finding:
    absent = [tool for tool in TOOLS if shutil.which(tool, path=slurm.environment.get("PATH")) is None]
    if absent:
        what = f"no {', '.join(absent)} in PATH" if len(absent) < len(TOOLS) else "no Slurm here"
        return missing("slurm", what, "tenbin steers Slurm by its command line tools", INSTALL)
    conf = slurm.environment.get("SLURM_CONF")
    if conf and not Path(conf).is_file():
        remedy = "export SLURM_CONF=/etc/slurm/slurm.conf, or where the cluster has it"
        return missing("slurm", f"SLURM_CONF names {conf}, which is not there", "", remedy)
    try:
        year_month = slurm.version()
    except Unavailable as error:
        return _no_answer("slurm", "its version cannot be told", error)
    version = "version {}.{:02d}".format(*year_month)
    if year_month < OLDEST:
        return limited("slurm", version, "tenbin knows Slurm from 20.11 on", "update Slurm")
    if year_month in TRIED:
        return ok("slurm", version)
    tried = ", ".join("{}.{:02d}".format(*one) for one in TRIED)
    reason = f"tenbin has been tried with {tried}; an answer that it cannot read it refuses"
    return limited("slurm", version, reason, "try: tenbin profile --nodes all --quick")


def _no_answer(topic: str, what: str, error: Unavailable) -> Finding:
    remedy = error.remedy
    if "doctor" in remedy:
        remedy = "ask the cluster's administrator; see: scontrol ping"
    return missing(topic, f"{what} ({error.what})", "", remedy)


def check_rights(rights: Rights) -> Iterator[Finding]:
    """Tell what the user may do, and what takes more rights."""
    user = rights.user
    if rights.unlimited:
        who = "root" if rights.uid == 0 else f"SlurmUser ({user})"
        yield ok("rights", f"{who}: everything, for every user")
        return
    may = "; ".join(deed for deed, needed in DEEDS if needed <= rights.rank)
    yield ok("rights", f"{user} is {TITLES[rights.rank]}: may {may}")
    lacking = "; ".join(deed for deed, needed in DEEDS if needed > rights.rank)
    if not lacking:
        return
    grant, why = f"sacctmgr modify user {user} set adminlevel=Administrator", rights.why_unknown
    remedy = f"as an administrator: {grant}"
    if why:
        remedy = f"run the coordinator as {rights.slurm_user} or root, or set up slurmdbd and then: {grant}"
    yield limited("rights", f"{user} may not {lacking}", why or "Slurm's database gives no more", remedy)


def _nodes(nodes: list[SlurmNode]) -> Iterator[Finding]:
    if not nodes:
        reason = "PrivateData hides them, or there are none"
        yield missing("nodes", "none can be seen", reason, "see: sinfo -N")
    good = [node for node in nodes if node.usable]
    if good:
        yield ok("nodes", f"{len(good)} of {len(nodes)} can take jobs")
    for node in nodes:
        if not node.usable:
            remedy = f"scontrol update NodeName={node.name} State=RESUME, when it is well again"
            yield limited("nodes", f"{node.name} is {node.state}", node.reason, remedy)


def _mpi(slurm: Slurm) -> Finding:
    try:
        kinds = slurm.call("srun", "--mpi=list").split()
    except Unavailable as error:
        return limited("mpi", f"srun --mpi=list: {error.what}", "")
    if "pmi2" in kinds:
        return ok("mpi", "srun starts MPICH's ranks (pmi2)")
    reason = "ranks of MPICH on several nodes would each be alone"
    remedy = "install Slurm's pmi2 plugin (Debian: slurm-wlm-basic-plugins)"
    return limited("mpi", "srun has no pmi2", reason, remedy)
