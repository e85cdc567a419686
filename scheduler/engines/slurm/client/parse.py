"""Output of Slurm's tools as records. The text forms read here are the same from 20.11 to 24.05.

A line that cannot be read is refused by name, because half of an answer is no ground to guess.
"""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Iterable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import NamedTuple

from agent.attempts.records import How
from profiles.errors import Unavailable
from scheduler.jobs.literals import duration_s

COLUMNS = ("%i", "%T", "%r", "%N", "%S", "%k")  # of squeue
OLDEST = (20, 11)  # version whose answers are known
MIB = 2**20 / 1e6  # megabytes in what Slurm calls one
FINAL = frozenset(
    {
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
        *("PREEMPTED", "REVOKED", "TIMEOUT"),
    }
)
ENDS: Mapping[str, How] = {
    "CANCELLED": "cancelled",
    "TIMEOUT": "time-limit",
    "DEADLINE": "time-limit",
    "OUT_OF_MEMORY": "memory-limit",
}
NODE_ENDS = frozenset({"NODE_FAIL", "BOOT_FAIL"})
FOREVER_S = 365 * 86400.0  # what Slurm shows of a job without limit that runs where there is none
ENDLESS = ("UNLIMITED", "Partition_Limit", "NOT_SET", "N/A", "INVALID", "")
NOWHERE = frozenset({"DOWN", "ERROR", "FAIL", "FUTURE", "POWERED_DOWN", "POWERING_DOWN"})
# After a restart, slurmctld does not know the state of a node until the node reports (UNKNOWN).
CLOSED = frozenset(
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
        return bool(self.states & NOWHERE)

    @property
    def silent(self) -> bool:
        """Say whether the node does not answer Slurm, which has not given it up yet."""
        return "NOT_RESPONDING" in self.states

    @property
    def usable(self) -> bool:
        """Say whether a job could start there."""
        return not self.lost and not self.silent and not self.states & CLOSED


def separator() -> str:
    """Make a separator of squeue's columns that no user can have written into a comment."""
    return f"|{secrets.token_hex(8)}|"


def rows(text: str, separator: str, columns: int) -> list[list[str]]:
    """Read ``squeue`` with the separator behind each column; columns may contain lines."""
    *cells, rest = text.split(separator)
    if len(cells) % columns or rest.strip():
        raise unknown("squeue", cells[-1] if not rest.strip() and cells else rest)
    found = [cells[first : first + columns] for first in range(0, len(cells), columns)]
    return [[first.removeprefix("\n"), *others] for first, *others in found]


def jobs(text: str, separator: str) -> list[SlurmJob]:
    """Read ``squeue -h`` with ``COLUMNS``, without tasks of arrays, which are never ours."""
    found = []
    for number, state, reason, nodes, start, comment in rows(text, separator, len(COLUMNS)):
        if number.isdecimal():
            said = "" if comment == "(null)" else comment
            found.append(SlurmJob(int(number), state, reason, hosts(nodes), said, seconds_of(start)))
    return found


def seconds_of(text: str) -> float:
    """Turn squeue's local time of day into seconds since 1970; 0 if there is none."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return float(text) if text.isdecimal() and text.isascii() else 0.0


def limit_s(text: str) -> float:
    """Read a limit of time as Slurm writes it (``2-03:04:05``); infinite for none."""
    if text in ENDLESS:
        return math.inf
    whole = duration_s(text, slurm=True)
    return math.inf if whole >= FOREVER_S else whole


def nodes(text: str) -> list[SlurmNode]:
    """Read ``scontrol -o show node``; a reason may have lines."""
    found = []
    for line in re.split(r"\n(?=NodeName=)", text.strip("\n")):
        if not line.strip() or line.startswith("No nodes"):
            continue
        try:
            found.append(_node(line))
        except (KeyError, ValueError):
            raise unknown("scontrol show node", line) from None
    return found


def _node(line: str) -> SlurmNode:
    words = words_of(line)
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
        gpus=gpus(words.get("Gres", "")),
    )


def gpus(text: str) -> dict[str, int]:
    """Count the GPUs of each type in ``gpu:a100:2(S:0-1),gpu:1,shard:8``."""
    found: dict[str, int] = {}
    for kind, count in re.findall(r"(?:^|,)gpu(?::([^:,()]*[A-Za-z_][^:,()]*))?(?::(\d+))?(?=[,(]|$)", text):
        found[kind] = found.get(kind, 0) + int(count or 1)
    return found


FLAGS = {"*": "+NOT_RESPONDING", "~": "+POWERED_DOWN", "#": "+POWERING_UP", "%": "+POWERING_DOWN"}


def partitions(text: str) -> dict[str, Mapping[str, str]]:
    """Read ``scontrol -o show partition``: words of each, by name."""
    found = {}
    for line in text.splitlines():
        if line.strip() and not line.startswith("No partitions"):
            words = words_of(line)
            if "PartitionName" not in words or "Nodes" not in words:
                raise unknown("scontrol show partition", line)
            found[words["PartitionName"]] = words
    return found


def config(text: str) -> dict[str, str]:
    """Read ``scontrol show config``: settings, by name."""
    found = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and name.strip() and " " not in name.strip():
            found[name.strip()] = value.strip()
    if "ClusterName" not in found:
        raise unknown("scontrol show config", text.splitlines()[0] if text else "")
    return found


def version(text: str) -> tuple[int, int]:
    """Read ``sbatch --version``: year and month."""
    found = re.search(r"\b(\d\d)\.(\d\d)\b", text)
    if found is None:
        raise unknown("sbatch --version", text)
    return int(found[1]), int(found[2])


def submitted(text: str) -> int:
    """Read the number that ``sbatch --parsable`` prints, with or without a cluster after it."""
    number = text.strip().split("\n")[-1].split(";")[0]
    if not number.isdecimal():
        raise unknown("sbatch --parsable", text)
    return int(number)


def hosts(text: str) -> tuple[str, ...]:
    """Expand a host list: ``node[1-3,08],x`` is node1, node2, node3, node08 and x."""
    found: list[str] = []
    for one in _parts(text):
        found += _expand(one)
    return tuple(found)


def _parts(text: str) -> Iterable[str]:
    """Split at the commas outside brackets."""
    if text.count("[") != text.count("]"):
        raise unknown("a list of nodes", text)
    return re.findall(r"(?:\[[^\]]*\]|[^,\[\]])+", text) if text not in ("", "(null)", "None") else ()


def _expand(text: str) -> list[str]:
    before, bracket, rest = text.partition("[")
    if not bracket:
        return [text]
    inside, closed, after = rest.partition("]")
    if not closed:
        raise unknown("a list of nodes", text)
    names = []
    for piece in inside.split(","):
        first, dash, last = piece.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise unknown("a list of nodes", text)
        numbers = range(int(first), int(last or first) + 1)
        names += [f"{before}{number:0{len(first)}d}" for number in numbers]
    return [name + end for name in names for end in _expand(after)]


def words_of(line: str) -> Mapping[str, str]:
    """Read ``key=value`` words; if a key comes twice (in a comment, a reason) the first counts."""
    found: dict[str, str] = {}
    for key, value in re.findall(r"(?:^|\s)([A-Za-z]\w*)=(\S*)", line):
        found.setdefault(key, "" if value in ("(null)", "N/A") else value)
    return found


def unknown(tool: str, line: str) -> Unavailable:
    """Make the error for an answer that cannot be read."""
    what = f"{tool} answered what tenbin does not know: {line.strip()[:200]!r}"
    return Unavailable(what, "is this a version of Slurm from 20.11 on? see: sinfo --version")
