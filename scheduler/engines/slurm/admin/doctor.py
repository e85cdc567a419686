"""``tenbin slurm doctor``: how far tenbin can steer this Slurm, and the remedy for each obstacle.

The checks change nothing in Slurm. Each node is asked by a job of a second.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path

from agent import doctor
from agent.doctor import Finding, limited, missing, ok
from profiles.errors import Unavailable
from scheduler.engines.slurm.slurm_commands import (
    DOCTOR,
    OLDEST,
    Rights,
    Slurm,
    SlurmNode,
    ask_nodes,
    own_rights,
)

# -- settings of slurm.conf --------------------------------------------------------------------------------


Config = Mapping[str, str]
APPLY = "in slurm.conf, then scontrol reconfigure"
RESTART = "in slurm.conf, then restart slurmctld and all slurmd"
DELAY_S = 3  # Slurm's own batch_sched_delay
EXPIRE_S = 120  # Slurm's own cred_expire
MOST_EXPIRE_S = 30
FEWEST_AGE_S = 300
MOST_TIMEOUT_S = 60

_ok = partial(doctor.ok, "settings")
_limited = partial(doctor.limited, "settings")


def config_findings(config: Config) -> list[Finding]:
    """Judge the settings that ``scontrol show config`` prints."""
    checks = (
        *(_start_delay, _credential_expiry, _returning_nodes, _requeue, _job_records, _job_age),
        *(_node_timeout, _shared_nodes, _process_tracking, _confinement, _private_data),
    )
    return [judged for judge in checks if (judged := judge(config)) is not None]


def options(text: str) -> dict[str, str]:
    """Read ``a=1,b,c=x`` as names and values; ``(null)`` has none."""
    parts = [] if text in ("", "(null)") else text.split(",")
    return {name.strip(): value for name, _, value in (part.partition("=") for part in parts)}


def _option_added(config: Config, setting: str, name: str, value: str) -> str:
    """Return the line that adds ``name=value`` to a setting and keeps its other options."""
    whole = options(config.get(setting, "")) | {name: value}
    return f"{setting}=" + ",".join(f"{k}={v}" if v else k for k, v in whole.items())


def _number(text: str | None) -> int | None:
    digits = re.match(r"\d+", text or "")
    return int(digits[0]) if digits else None


def _start_delay(config: Config) -> Finding:
    delay = _number(options(config.get("SchedulerParameters", "")).get("batch_sched_delay", str(DELAY_S)))
    if not delay:
        return _ok("batch_sched_delay is 0: jobs start within a second")
    return _limited(
        f"batch_sched_delay is {delay} s",
        f"a job that was submitted by sbatch starts up to {delay} s later than it could",
        f"{_option_added(config, 'SchedulerParameters', 'batch_sched_delay', '0')} {APPLY}",
    )


def _credential_expiry(config: Config) -> Finding:
    expire = _number(options(config.get("AuthInfo", "")).get("cred_expire")) or EXPIRE_S
    if expire <= MOST_EXPIRE_S:
        return _ok(f"cred_expire is {expire} s: a requeued job may run again soon")
    return _limited(
        f"cred_expire is {expire} s",
        f"a job that Slurm requeues by itself waits {expire + 1} s before it runs again",
        f"{_option_added(config, 'AuthInfo', 'cred_expire', '10')} {RESTART}",
    )


def _returning_nodes(config: Config) -> Finding:
    value = config.get("ReturnToService", "0")
    if _number(value) == 2:
        return _ok("ReturnToService is 2: a node that comes back is used again")
    down = "stays down" if _number(value) == 0 else "stays down if somebody had set it down"
    reason = f"a node that was lost and comes back {down} until an administrator resumes it"
    return _limited(f"ReturnToService is {value}", reason, f"ReturnToService=2 {APPLY}")


def _requeue(config: Config) -> Finding:
    if _number(config.get("JobRequeue")) != 0:
        return _ok("JobRequeue is 1: what a lost node ran may run again")
    reason = "jobs of plain sbatch are not run again when their node is lost; tenbin's own are, by tenbin"
    return _limited("JobRequeue is 0", reason, f"JobRequeue=1 {APPLY}")


def _job_records(config: Config) -> Finding:
    if config.get("AccountingStorageType", "").endswith("/slurmdbd"):
        return _ok("ends of jobs are kept by slurmdbd")
    if not config.get("JobCompType", "").endswith("/filetxt"):
        return _limited(
            "neither accounting nor jobcomp",
            "a job that ended is forgotten after MinJobAge; tenbin's own keep their results in their folders",
            f"JobCompType=jobcomp/filetxt and JobCompLoc=/var/log/slurm/jobcomp.txt {APPLY}; or slurmdbd",
        )
    file = config.get("JobCompLoc", "")
    if os.access(file, os.R_OK):
        return _ok(f"ends of jobs are kept in {file}")
    reason = "no right to" if Path(file).exists() else "it is on another machine, or not for this user"
    what = f"ends of jobs are kept in {file}, which cannot be read here"
    return _limited(what, reason, f"share it, and as root: chmod a+r {file}")


def _job_age(config: Config) -> Finding | None:
    age = _number(config.get("MinJobAge"))
    if age is None or age >= FEWEST_AGE_S:
        return None
    reason = "a job that ended is forgotten so soon that a coordinator which was away cannot ask for it"
    return _limited(f"MinJobAge is {age} s", reason, f"MinJobAge={FEWEST_AGE_S} {APPLY}")


def _node_timeout(config: Config) -> Finding | None:
    timeout = _number(config.get("SlurmdTimeout"))
    if timeout is None or 0 < timeout <= MOST_TIMEOUT_S:
        return None
    reason = "Slurm gives up a node that does not answer it, but runs on, only then"
    if timeout == 0:
        reason = "Slurm never gives up a node that does not answer"
    return _limited(f"SlurmdTimeout is {timeout} s", reason, f"SlurmdTimeout=30 {APPLY}")


def _shared_nodes(config: Config) -> Finding:
    if config.get("SelectType", "").endswith("/linear"):
        return _limited(
            "SelectType is select/linear",
            "Slurm gives whole nodes only: jobs cannot share one",
            f"SelectType=select/cons_tres and SelectTypeParameters=CR_Core_Memory {RESTART}",
        )
    parameters = config.get("SelectTypeParameters", "")
    if "MEMORY" in parameters.upper():
        return _ok("Slurm counts cores and memory")
    return _limited(
        f"SelectTypeParameters is {parameters}",
        "Slurm does not count memory: plain jobs beside tenbin's may use more than there is",
        f"SelectTypeParameters=CR_Core_Memory {RESTART}",
    )


def _process_tracking(config: Config) -> Finding | None:
    kind = config.get("ProctrackType", "not told")
    if kind.endswith("/cgroup"):
        return None
    reason = "processes that leave their job's session can outlive it"
    return _limited(f"ProctrackType is {kind}", reason, f"ProctrackType=proctrack/cgroup {RESTART}")


def _confinement(config: Config) -> Finding | None:
    """Judge whether jobs are kept to their cores and memory; cgroup.conf is shown if it is used."""
    plugins = config.get("TaskPlugin", "not told")
    if "task/cgroup" not in plugins.split(","):
        reason = "a job may use cores and memory that are not its own"
        return _limited(f"TaskPlugin is {plugins}", reason, f"TaskPlugin=task/cgroup,task/affinity {RESTART}")
    names = ("ConstrainCores", "ConstrainRAMSpace")
    missing_lines = [name for name in names if config.get(name, "yes") == "no"]
    if not missing_lines:
        return None
    lines = ", ".join(f"{name}=yes" for name in missing_lines)
    reason = "task/cgroup does not keep jobs to what they were given"
    return _limited(
        f"{', '.join(missing_lines)} not set", reason, f"{lines} in cgroup.conf, then restart all slurmd"
    )


def _private_data(config: Config) -> Finding | None:
    private = config.get("PrivateData", "").split(",")
    hidden = [what for what in ("jobs", "nodes", "partitions") if what in private]
    if not hidden:
        return None
    reason = "tenbin cannot see what others use, unless it runs as SlurmUser, root or an operator"
    return _limited(f"PrivateData hides {', '.join(hidden)}", reason, "run the coordinator as an operator")


# -- nodes -------------------------------------------------------------------------------------------------
#
# Each node is asked by a job of a second.


MOST_NODES = 64  # nodes that are asked
NODE_LIMIT_S = 30.0
NODE_PREFIX = "tenbin-node "
PRINT_VERSION = (
    "import sys, pathlib, importlib.metadata as m; f = pathlib.Path(sys.argv[1]); "
    f"print('{NODE_PREFIX}' + m.version('tenbin'), f.read_text() if f.exists() else '-')"
)


def node_findings(nodes: Sequence[SlurmNode], folder: Path) -> Iterator[Finding]:
    """Ask the nodes with a free CPU; ``folder`` is where the coordinator keeps its jobs."""
    idle = [node for node in nodes if node.usable and node.cpus_used < node.cpus and node.partitions][
        :MOST_NODES
    ]
    if not idle:
        what = "none has a CPU free to be asked whether tenbin is there"
        yield limited("nodes", what, "", "ask again later")
        return
    existing = (path for path in (folder, *folder.parents) if path.is_dir() and os.access(path, os.W_OK))
    place = next(existing, None)
    if place is None:
        yield limited("nodes", f"{folder} cannot be made here", "", "name another folder in TENBIN_HOME")
        return
    with tempfile.NamedTemporaryFile("w", dir=place, prefix=".tenbin-", suffix=".seen") as file:
        file.write("seen")
        file.flush()
        os.fsync(file.fileno())
        Path(file.name).chmod(0o644)
        answers = ask_nodes(idle, ["-c", PRINT_VERSION, file.name], NODE_PREFIX, limit_s=NODE_LIMIT_S)
    mine = version("tenbin")
    able = sum(isinstance(answer, str) and answer.split()[1] == mine for answer in answers)
    if able:
        yield ok("nodes", f"{able} of {len(idle)} that were asked have this tenbin ({mine})")
    for node, answer in zip(idle, answers, strict=True):
        yield from _node(node.name, answer, mine, place)
    if able and all(answer.endswith("seen") for answer in answers if isinstance(answer, str)):
        yield ok("nodes", f"they all see {place}")


def _node(name: str, answer: str | Unavailable, mine: str, place: Path) -> Iterator[Finding]:
    """Tell what keeps a node from running tenbin."""
    if isinstance(answer, Unavailable):
        yield limited("nodes", f"{name} cannot run tenbin: {answer.what}", "", answer.remedy)
    elif (theirs := answer.split()[1]) != mine:
        yield limited("nodes", f"{name} has tenbin {theirs}", f"this one is {mine}", "update it there")
    elif not answer.endswith("seen"):
        yield limited(
            "nodes",
            f"{name} does not see {place}",
            "jobs' files go through a folder that all nodes share",
            "share it (NFS), or name a shared one in TENBIN_HOME; measuring needs none",
        )


# -- all checks --------------------------------------------------------------------------------------------


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
        *config_findings(config),
    ]
    try:
        nodes = slurm.nodes()
    except Unavailable as error:
        return [*findings, _no_answer("nodes", "they cannot be seen", error)]
    return [*findings, *_nodes(nodes), *node_findings(nodes, folder), _mpi(slurm)]


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
    tried = ", ".join("{}.{:02d}".format(*year_and_month) for year_and_month in TRIED)
    reason = f"tenbin has been tried with {tried}; an answer that it cannot read it refuses"
    return limited("slurm", version, reason, "try: tenbin slurm profile --quick")


def _no_answer(topic: str, what: str, error: Unavailable) -> Finding:
    remedy = "ask the cluster's administrator; see: scontrol ping" if error.remedy == DOCTOR else error.remedy
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
