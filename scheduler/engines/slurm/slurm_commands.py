"""Slurm's commands: calls and their output, the rights that they take, and short programs on nodes."""

from __future__ import annotations

import math
import os
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from agent.attempts.records import How
from agent.processes import tree
from profiles.errors import Unavailable
from profiles.files.safe_files import user_name
from scheduler.jobs.literals import duration_s

# -- their output as records -------------------------------------------------------------------------------
#
# The text forms read here are the same from 20.11 to 24.05.
# A line that cannot be read is refused by name, because half of an answer is no ground to guess.


COLUMNS = ("%i", "%T", "%r", "%N", "%S", "%k")  # of squeue
OLDEST = (20, 11)  # version whose answers are known
MIB = 2**20 / 1e6  # megabytes in what Slurm calls one
FINAL = frozenset(
    {
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
        *("PREEMPTED", "REVOKED", "TIMEOUT"),
    }
)
ENDS_BY_STATE: Mapping[str, How] = {
    "CANCELLED": "cancelled",
    "TIMEOUT": "time-limit",
    "DEADLINE": "time-limit",
    "OUT_OF_MEMORY": "memory-limit",
}
NODE_ENDS = frozenset({"NODE_FAIL", "BOOT_FAIL"})
FOREVER_S = 365 * 86400.0  # what Slurm shows of a job without limit that runs where there is none
ENDLESS = ("UNLIMITED", "Partition_Limit", "NOT_SET", "N/A", "INVALID", "")
GONE_STATES = frozenset({"DOWN", "ERROR", "FAIL", "FUTURE", "POWERED_DOWN", "POWERING_DOWN"})
# After a restart, slurmctld does not know the state of a node until the node reports (UNKNOWN).
CLOSED_STATES = frozenset(
    {"UNKNOWN", "DRAIN", "DRAINED", "DRAINING", "FAILING", "MAINT", "RESERVED", "PLANNED_DOWN"}
)


class SlurmJob(NamedTuple):
    """A job as squeue shows it.

    Attributes:
        comment: whose it is. start_s: when it was started, or may be, in seconds since 1970; 0: unknown.
    """

    id: int
    state: str
    reason: str
    nodes: tuple[str, ...]
    comment: str
    start_s: float = 0.0

    @property
    def key(self) -> str:
        return str(self.id)

    @property
    def final(self) -> bool:
        return self.state in FINAL


class SlurmNode(NamedTuple):
    """A node as scontrol shows it.

    Attributes:
        states: the state and its flags, in capitals ("IDLE", "DRAIN", "NOT_RESPONDING", ...).
        cpus, memory_mb: what it has; cpus_used: what Slurm has given to jobs that are not suspended.
        threads: CPUs of each core. features: those of the site, with commas.
        address, port: where its slurmd listens; "", 0: by its name, at the port of all.
        gpus: how many generic resources of that name, by type ("" where they have none).
    """

    name: str
    states: frozenset[str]
    cpus: int
    cpus_used: int
    memory_mb: float
    partitions: tuple[str, ...]
    reason: str
    threads: int = 1
    features: str = ""
    address: str = ""
    port: int = 0
    gpus: Mapping[str, int] = MappingProxyType({})

    @property
    def state(self) -> str:
        """Write ``states`` in words ("drain+idle")."""
        return "+".join(sorted(self.states)).lower()

    @property
    def lost(self) -> bool:
        """Say whether Slurm has given the node up."""
        return bool(self.states & GONE_STATES)

    @property
    def silent(self) -> bool:
        """Say whether the node does not answer Slurm, which has not given it up yet."""
        return "NOT_RESPONDING" in self.states

    @property
    def usable(self) -> bool:
        """Say whether a job could start there."""
        return not self.lost and not self.silent and not self.states & CLOSED_STATES


def new_separator() -> str:
    """Make a separator of squeue's columns that no user can have written into a comment."""
    return f"|{secrets.token_hex(8)}|"


def parse_rows(text: str, separator: str, columns: int) -> list[list[str]]:
    """Read ``squeue`` with the separator behind each column; columns may contain lines."""
    *cells, rest = text.split(separator)
    if len(cells) % columns or rest.strip():
        raise unknown_answer("squeue", cells[-1] if not rest.strip() and cells else rest)
    lines = [cells[first : first + columns] for first in range(0, len(cells), columns)]
    return [[first.removeprefix("\n"), *others] for first, *others in lines]


def parse_jobs(text: str, separator: str) -> list[SlurmJob]:
    """Read ``squeue -h`` with ``COLUMNS``, without tasks of arrays, which are never ours."""
    jobs = []
    for number, state, reason, nodes, start, comment in parse_rows(text, separator, len(COLUMNS)):
        if number.isdecimal():
            said = "" if comment == "(null)" else comment
            jobs.append(SlurmJob(int(number), state, reason, parse_hosts(nodes), said, parse_time_s(start)))
    return jobs


def parse_time_s(text: str) -> float:
    """Turn squeue's local time of day, or seconds since 1970, into the latter; 0 if there is none."""
    if text.isdecimal() and text.isascii():
        return float(text)
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return 0.0


def parse_limit_s(text: str) -> float:
    """Read a limit of time as Slurm writes it (``2-03:04:05``); infinite for none."""
    if text in ENDLESS:
        return math.inf
    whole = duration_s(text, slurm=True)
    return math.inf if whole >= FOREVER_S else whole


def parse_nodes(text: str) -> list[SlurmNode]:
    """Read ``scontrol -o show node``; a reason may have lines."""
    nodes = []
    for line in re.split(r"\n(?=NodeName=)", text.strip("\n")):
        if not line.strip() or line.startswith("No nodes"):
            continue
        try:
            nodes.append(_node(line))
        except (KeyError, ValueError):
            raise unknown_answer("scontrol show node", line) from None
    return nodes


def _node(line: str) -> SlurmNode:
    words = parse_words(line)
    said = re.search(r" Reason=(.*?)(?: \[[^\]]*\])?\s*$", line)
    states = re.sub(r"[*~#!%$@^-]", lambda mark: FLAGS.get(mark[0], ""), words["State"])
    return SlurmNode(
        name=words["NodeName"],
        states=frozenset(states.upper().split("+")),
        cpus=int(words["CPUTot"]),
        cpus_used=int(words["CPUAlloc"]),
        memory_mb=float(words["RealMemory"]) * MIB,
        partitions=tuple(words.get("Partitions", "").split(",")) if words.get("Partitions") else (),
        reason=said[1] if said else "",
        threads=int(words.get("ThreadsPerCore") or 1),
        features=words.get("AvailableFeatures", ""),
        address=words.get("NodeAddr", ""),
        port=int(words.get("Port") or 0),
        gpus=parse_gpus(words.get("Gres", "")),
    )


def parse_gpus(text: str) -> dict[str, int]:
    """Count the GPUs of each type in ``gpu:a100:2(S:0-1),gpu:1,shard:8``."""
    counts: dict[str, int] = {}
    for kind, count in re.findall(r"(?:^|,)gpu(?::([^:,()]*[A-Za-z_][^:,()]*))?(?::(\d+))?(?=[,(]|$)", text):
        counts[kind] = counts.get(kind, 0) + int(count or 1)
    return counts


FLAGS = {"*": "+NOT_RESPONDING", "~": "+POWERED_DOWN", "#": "+POWERING_UP", "%": "+POWERING_DOWN"}


def parse_partitions(text: str) -> dict[str, Mapping[str, str]]:
    """Read ``scontrol -o show partition``: words of each, by name."""
    partitions = {}
    for line in text.splitlines():
        if line.strip() and not line.startswith("No partitions"):
            words = parse_words(line)
            if "PartitionName" not in words or "Nodes" not in words:
                raise unknown_answer("scontrol show partition", line)
            partitions[words["PartitionName"]] = words
    return partitions


def parse_config(text: str) -> dict[str, str]:
    """Read ``scontrol show config``: settings, by name."""
    settings = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and name.strip() and " " not in name.strip():
            settings[name.strip()] = value.strip()
    if "ClusterName" not in settings:
        raise unknown_answer("scontrol show config", text.splitlines()[0] if text else "")
    return settings


def parse_version(text: str) -> tuple[int, int]:
    """Read ``sbatch --version``: year and month."""
    match = re.search(r"\b(\d\d)\.(\d\d)\b", text)
    if match is None:
        raise unknown_answer("sbatch --version", text)
    return int(match[1]), int(match[2])


def parse_submitted(text: str) -> int:
    """Read the number that ``sbatch --parsable`` prints, with or without a cluster after it."""
    number = text.strip().split("\n")[-1].split(";")[0]
    if not number.isdecimal():
        raise unknown_answer("sbatch --parsable", text)
    return int(number)


def parse_hosts(text: str) -> tuple[str, ...]:
    """Expand a host list: ``node[1-3,08],x`` is node1, node2, node3, node08 and x."""
    names: list[str] = []
    for part in _parts(text):
        names += _expand(part)
    return tuple(names)


def _parts(text: str) -> Iterable[str]:
    """Split at the commas outside brackets."""
    if text.count("[") != text.count("]"):
        raise unknown_answer("a list of nodes", text)
    return re.findall(r"(?:\[[^\]]*\]|[^,\[\]])+", text) if text not in ("", "(null)", "None") else ()


def _expand(text: str) -> list[str]:
    before, bracket, rest = text.partition("[")
    if not bracket:
        return [text]
    inside, closed, after = rest.partition("]")
    if not closed:
        raise unknown_answer("a list of nodes", text)
    names = []
    for piece in inside.split(","):
        first, dash, last = piece.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise unknown_answer("a list of nodes", text)
        numbers = range(int(first), int(last or first) + 1)
        names += [f"{before}{number:0{len(first)}d}" for number in numbers]
    return [name + end for name in names for end in _expand(after)]


def parse_words(line: str) -> Mapping[str, str]:
    """Read ``key=value`` words; if a key comes twice (in a comment, a reason) the first counts."""
    words: dict[str, str] = {}
    for key, value in re.findall(r"(?:^|\s)([A-Za-z]\w*)=(\S*)", line):
        words.setdefault(key, "" if value in ("(null)", "N/A") else value)
    return words


def unknown_answer(tool: str, line: str) -> Unavailable:
    """Make the error for an answer that cannot be read."""
    what = f"{tool} answered what tenbin does not know: {line.strip()[:200]!r}"
    return Unavailable(what, "is this a version of Slurm from 20.11 on? see: sinfo --version")


# -- calls -------------------------------------------------------------------------------------------------


TIMEOUT_S = 20.0
FREE_S = 10  # until a node on which a job has just ended takes another
KEPT = ("PATH", "HOME", "USER", "LOGNAME", "SLURM_CONF", "SLURM_JWT", "PYTHONPATH", "LD_LIBRARY_PATH", "TZ")


class SlurmError(Unavailable):
    """A failed call: Slurm refused, and will again."""


class SlurmNotNow(SlurmError):
    """A call that Slurm does not take now; it may in a moment."""


class SlurmSilent(SlurmNotNow):
    """A call without an answer; Slurm may have done what it was told."""


class SlurmNodeRefused(SlurmError):
    """A call refused because of the nodes that it names; others may do."""


class SlurmForbidden(SlurmError):
    """A call that takes more rights than this user has."""


class SlurmTooLate(SlurmError):
    """A call for a job that has started or ended meanwhile."""


class SlurmUnknownJob(SlurmTooLate):
    """A call for a job that slurmctld does not know, or not any more."""


class SlurmNotSuspended(SlurmError):
    """A call to resume a job that is not suspended."""


class SlurmNoPartition(SlurmError):
    """A call for a partition that there is not."""


class SlurmPartitionInUse(SlurmError):
    """A call to delete a partition that has jobs."""


REACH = "is slurmctld running? see: scontrol ping"
DOCTOR = "see: tenbin slurm doctor"


class Answer(NamedTuple):
    """A reason why calls fail, by what Slurm prints then; ``signs``: any of these, as parts of words."""

    kind: type[SlurmError]
    signs: tuple[str, ...]
    remedy: str = DOCTOR


ANSWERS = (  # several jobs in one call may have several: the first one counts
    Answer(
        SlurmSilent,
        ("munge", "Munge", "authentication"),
        "does munged run here with the cluster's key? see: munge -n | unmunge",
    ),
    Answer(
        SlurmSilent,
        (
            *("Unable to contact slurm controller", "Connection refused", "onnection timed out"),
            *("Socket timed out", "Communication connection failure", "standby mode", "Try again"),
            *("Zero Bytes were transmitted", "missing socket", "Communication send failure"),
            *("eceive failure", "Communication shutdown failure", "Transport endpoint is not connected"),
            *("temporarily unable to accept", "Unable to establish control"),
        ),
        REACH,
    ),
    Answer(SlurmNotNow, ("try again later", "try again in a bit")),
    Answer(
        SlurmForbidden,
        ("Access/permission denied", "Invalid user id", "Operation not permitted", "ermission denied"),
    ),
    Answer(
        SlurmNodeRefused,
        (
            *("Invalid node name specified", "Requested nodes not in this partition"),
            *("Requested nodes are busy", "Required node not available"),
        ),
        "see: sinfo",
    ),
    Answer(SlurmUnknownJob, ("Invalid job id specified",)),
    Answer(
        SlurmTooLate,
        ("no longer pending execution", "already completing or completed", "Job has already finished"),
    ),
    Answer(SlurmNotSuspended, ("Job is not suspended",)),
    Answer(SlurmNoPartition, ("Invalid partition name specified",)),
    Answer(SlurmPartitionInUse, ("Partition is in use",)),
    Answer(
        SlurmError,
        ("configuration source", "unable to process configuration", "Unable to open", "slurm.conf"),
        "name the cluster's slurm.conf in SLURM_CONF",
    ),
)


def error_of(command: Sequence[str], said: str, code: int) -> SlurmError:
    """Explain a failed call: everything that follows from Slurm's words is decided here."""
    lines = [line.partition("error: ") for line in said.splitlines() if line.strip()]
    reasons = [reason.strip() for _, mark, reason in lines if mark]
    reasons = reasons or [line[0].strip() for line in lines[-1:]]
    what = f"{command[0]}: {'; '.join(reasons)[:300] or f'exit code {code}'}"
    for answer in ANSWERS:
        if any(sign in said for sign in answer.signs):
            return answer.kind(what, answer.remedy)
    return SlurmError(what, DOCTOR)


@dataclass(frozen=True)
class Batch:
    """A job for sbatch.

    Attributes:
        script: the whole script.
        comment: by which it is found again.
        nodes: where it has to run.
        tasks, cpus: tasks in all, CPUs of each.
        memory_mb: on each node; None: as the site has it by default.
        time_s: limit; None: that of the partition.
        output: file for what the script itself prints.
        gres: generic resources on each node, as ``--gres`` takes them; empty: none.
    """

    script: str
    name: str
    comment: str
    partition: str
    nodes: tuple[str, ...]
    tasks: int
    cpus: int
    memory_mb: float | None
    time_s: float | None
    output: Path
    gres: str = ""

    @property
    def minutes(self) -> int | None:
        """Slurm's limit; tenbin ends it first, to the second."""
        return None if self.time_s is None else int(self.time_s // 60) + 2

    def options(self) -> list[str]:
        options = [
            *("--parsable", "--no-requeue", "--open-mode=append", "--export=ALL", "--chdir=/"),
            *(f"--job-name={self.name}", f"--comment={self.comment}", f"--output={self.output}"),
            *(f"--partition={self.partition}", f"--nodelist={','.join(self.nodes)}"),
            *(f"--nodes={len(self.nodes)}", f"--ntasks={self.tasks}", f"--cpus-per-task={self.cpus}"),
        ]
        if self.memory_mb is not None:
            options.append(f"--mem={math.ceil(self.memory_mb / MIB - 1e-6)}M")
        if self.minutes is not None:
            options.append(f"--time={self.minutes}")
        if self.gres:
            options.append(f"--gres={self.gres}")
        return options


class Slurm:
    """The tools; safe to be used by several threads."""

    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        self.timeout_s = timeout_s
        # What the environment says of other jobs, or of defaults (SBATCH_PARTITION), must not come into ours.
        self.environment = {name: os.environ[name] for name in KEPT if name in os.environ} | {"LC_ALL": "C"}

    def submit(self, batch: Batch) -> int:
        """Hand a job to Slurm and return its number; after SlurmSilent it may be there all the same."""
        return parse_submitted(self.call("sbatch", *batch.options(), given=batch.script))

    def jobs(self) -> list[SlurmJob]:
        """List this user's jobs, with those that ended within the last minutes."""
        mark = new_separator()
        form = "".join(column + mark for column in COLUMNS)
        whose = ("--all", "--states=all", f"--user={os.getuid()}")
        return parse_jobs(self.call("squeue", "--noheader", *whose, f"--format={form}"), mark)

    def nodes(self) -> list[SlurmNode]:
        return parse_nodes(self.call("scontrol", "--oneliner", "--all", "show", "node"))

    def partitions(self) -> Mapping[str, Mapping[str, str]]:
        return parse_partitions(self.call("scontrol", "--oneliner", "--all", "show", "partition"))

    def config(self) -> Mapping[str, str]:
        return parse_config(self.call("scontrol", "show", "config"))

    def version(self) -> tuple[int, int]:
        return parse_version(self.call("sbatch", "--version"))

    def wake(self, job: int) -> None:
        """Signal the batch script's process (SIGUSR1) that there is a request in its folder."""
        self.call("scancel", "--batch", "--signal=USR1", str(job))

    def suspend(self, job: int | str) -> None:
        self.call("scontrol", "suspend", str(job))

    def resume(self, job: int | str) -> None:
        """Resume a job; Slurm does not check that its CPUs are free."""
        self.call("scontrol", "resume", str(job))

    def cancel(self, job: int | str) -> None:
        self.call("scancel", str(job))

    def ours(self, job: int, comment: str) -> bool:
        """Say whether the job of that number has the comment.

        A slurmctld that was killed may have forgotten the job, and given its number to another.
        """
        try:
            whose = ("--all", "--states=all", f"--user={os.getuid()}", f"--jobs={job}")
            said = self.call("squeue", "--noheader", *whose, "--format=%k")
        except SlurmUnknownJob:
            return False
        return said.removesuffix("\n") == comment

    def set_node(self, name: str, state: str, reason: str = "") -> None:
        """Set the state of a node; SlurmForbidden unless this user is an administrator, SlurmUser or root."""
        why = [f"Reason={reason}"] if reason else []
        self.call("scontrol", "update", f"NodeName={name}", f"State={state}", *why)

    def slurmd_port(self) -> int:
        """Return the port of slurmd on nodes that name none of their own; the first of several."""
        return int(self.config().get("SlurmdPort", "6818").split("-")[0])

    def run_on(self, nodes: Sequence[str], partition: str, program: Sequence[str]) -> str:
        """Run a short program on each of the nodes, and return its output; SlurmError if none is free."""
        return self.call(*step_command(nodes, partition, program))

    def call(self, *command: str, given: str = "") -> str:
        """Call a tool and return its output.

        Raises:
            SlurmError: of the class that says why.
        """
        path = shutil.which(command[0], path=self.environment.get("PATH"))
        if path is None:
            raise SlurmError(
                f"{command[0]}: no such program",
                "install Slurm's tools (Debian: slurm-client), or see: tenbin slurm doctor",
            )
        try:
            done = subprocess.run(
                [path, *command[1:]],
                input=given,
                env=self.environment,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=self.timeout_s,
                check=False,
                start_new_session=True,  # Ctrl-C is for the coordinator
                umask=tree.umask_of_jobs(),  # sbatch hands it on
            )
        except subprocess.TimeoutExpired:
            raise SlurmSilent(f"{command[0]} did not answer within {self.timeout_s:g} s", REACH) from None
        if done.returncode == 0:
            return done.stdout
        raise error_of(command, done.stderr or done.stdout, done.returncode)


def step_command(
    nodes: Sequence[str],
    partition: str,
    program: Sequence[str],
    *,
    memory_mb: int = 64,
    gres: str = "",
    minutes: int = 1,
) -> list[str]:
    """Return the command line that runs a short program once on each of the nodes, if they are free now."""
    count = len(nodes)
    return [
        *(
            "srun",
            "--quiet",
            f"--immediate={FREE_S}",
            f"--mem={memory_mb}M",
            f"--time={minutes}",
            "--mpi=none",
        ),
        *("--input=none", "--chdir=/", "--job-name=tenbin-node", f"--partition={partition}"),
        *("--ntasks-per-node=1", f"--nodes={count}", f"--ntasks={count}", f"--nodelist={','.join(nodes)}"),
        *([f"--gres={gres}"] if gres else []),
        *program,
    ]


# -- rights ------------------------------------------------------------------------------------------------
#
# Rights of this user in Slurm.
#
# As seen with Slurm 22.05, a plain user may hold, pin, release, requeue and cancel jobs of his own. An
# operator may also suspend jobs, and steer those of other users. Partitions and states of nodes take an
# administrator, SlurmUser or root.


RANKS = {"Operator": 1, "Administrator": 2, "Admin": 2}


@dataclass(frozen=True)
class Rights:
    """Rights of a user.

    Attributes:
        slurm_user: the user as whom slurmctld runs.
        level: from the accounting database: ``None``, ``Operator``, ``Administrator``; empty if not known.
        why_unknown: the reason if the level is not known.
    """

    user: str
    uid: int
    slurm_user: str
    level: str
    why_unknown: str = ""

    @property
    def unlimited(self) -> bool:
        return self.uid == 0 or self.user == self.slurm_user

    @property
    def rank(self) -> int:
        """0 for a plain user, 1 for an operator, 2 for an administrator."""
        return 2 if self.unlimited else RANKS.get(self.level, 0)

    @property
    def steers_jobs(self) -> bool:
        """Tell if the user may steer other users' jobs."""
        return self.rank > 0

    @property
    def steers_nodes(self) -> bool:
        """Tell if the user may set nodes down and make partitions."""
        return self.rank > 1

    @property
    def because(self) -> str:
        """The reason for an unknown level in brackets, for the end of a sentence."""
        return f" ({self.why_unknown})" if self.why_unknown else ""


def own_rights(slurm: Slurm, config: Mapping[str, str]) -> Rights:
    """Ask Slurm for the rights of the user of this process."""
    uid = os.getuid()
    user = user_name(uid)
    return Rights(user, uid, slurm_user(config), *_level(slurm, config, user))


def slurm_user(config: Mapping[str, str]) -> str:
    """Return ``SlurmUser`` as a name: ``slurm`` from ``slurm(64030)``."""
    return re.sub(r"\(\d+\)$", "", config.get("SlurmUser", "root")).strip()


def _level(slurm: Slurm, config: Mapping[str, str], user: str) -> tuple[str, str]:
    """Return the level in the accounting database, and why it is not known."""
    if config.get("AccountingStorageType") != "accounting_storage/slurmdbd":
        return "", "there is no accounting database (slurmdbd) that could give rights"
    try:
        said = slurm.call("sacctmgr", "-nP", "show", "user", user, "format=AdminLevel").strip()
    except Unavailable as error:
        return "", f"the accounting database cannot be asked ({error.what})"
    return said.split("\n")[0].strip(), ""


# -- programs on nodes -------------------------------------------------------------------------------------


def clean_environment() -> dict[str, str]:
    """Return this process's environment without the variables of a Slurm job around it."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    conf = os.environ.get("SLURM_CONF")
    return outside | ({"SLURM_CONF": conf} if conf else {}) | {"LC_ALL": "C.UTF-8"}


def run_on_node(
    node: SlurmNode,
    program: Sequence[str],
    limit_s: float,
    *,
    partition: str = "",
    memory_mb: int = 64,
    gres: str = "",
    minutes: int = 1,
) -> subprocess.CompletedProcess[str]:
    """Run a program on a node.

    Args:
        partition: empty for the node's first one.
        gres: generic resources of the job, as ``--gres`` takes them.
        minutes: Slurm's limit on it.

    Raises:
        Unavailable: the program did not end within ``limit_s``.
    """
    where = partition or node.partitions[0]
    command = step_command([node.name], where, program, memory_mb=memory_mb, gres=gres, minutes=minutes)
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env=clean_environment(),
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        what = f"it did not answer within {limit_s:g} s"
        raise Unavailable(what, f"see: scontrol show node {node.name}") from None


def ask_nodes(
    nodes: Sequence[SlurmNode],
    python: Sequence[str],
    prefix: str,
    *,
    limit_s: float,
    partition: str = "",
    at_once: int = 8,
) -> list[str | Unavailable]:
    """Run a Python program on each of the nodes, side by side.

    Args:
        python: arguments of the interpreter, which is at the same path on every node.
        prefix: the beginning of the line that is the program's answer.

    Returns:
        For each node the answer with its prefix, or why there is none.
    """

    def ask(node: SlurmNode) -> str | Unavailable:
        try:
            done = run_on_node(node, [sys.executable, "-P", *python], limit_s, partition=partition)
        except Unavailable as error:
            return error
        answers = (line for line in done.stdout.splitlines() if line.startswith(prefix))
        return next(answers, None) or step_failure(done.stderr.splitlines(), done.returncode)

    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(ask, nodes))


def step_failure(errors: Sequence[str], code: int) -> Unavailable:
    """Explain why a program failed on a node, from the lines that srun and Python wrote."""
    said = "\n".join(errors)
    words = [line for line in errors if line.strip()]
    last = words[-1].removeprefix("srun: error: ") if words else f"exit code {code}"
    same = f"install the same tenbin there, at the same path as here ({sys.prefix})"
    for sign, what, remedy in (
        ("No module named", "it has no tenbin in {python}", same),
        ("No such file or directory", "it has no {python}", same),
        ("Permission denied", "this user may not run {python} there", same),
        ("Unable to confirm allocation", "its slurmd does not know the job", "see its slurmd's log"),
        ("onnection", "its slurmd does not answer", "restart slurmd there"),
        ("Node failure", "it was lost while it was measured", "see: sinfo -R"),
    ):
        if sign in said:
            return Unavailable(f"{what.format(python=sys.executable)} ({last})", remedy)
    return Unavailable(f"it refused the probe ({last})", "try there by hand: tenbin profile --quick")
