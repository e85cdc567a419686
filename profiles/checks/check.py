"""Checks, whether a machine is as it was when it was measured: records, store, fitness of nodes.

    <root>/<node>/checks.jsonl

A check is a line of JSON, appended in one write. A torn last line (a full disk, a lost power) is passed over,
and the next check begins a line of its own.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import Field, ValidationError

from profiles.errors import BadInput, unwritable
from profiles.files.safe_files import make_folder, open_plain, read_regular, shared_mode
from profiles.files.store import default_root
from profiles.quantities import Better, better
from profiles.records import Absent, Record

Key = tuple[str, ...]
LEAST_LOSS = 0.02  # smaller ones do not matter to jobs, however surely they are told
State = Literal["same", "worse", "better", "unknown"]


class Verdict(StrEnum):
    """Verdict of a check."""

    PASS = "pass"  # no loss beyond what checks of the unchanged machine show
    CHANGED = "changed"  # a loss, and nobody else used the machine
    DISTURBED = "disturbed"  # others took processor time: no alarm
    UNKNOWN = "unknown"  # too few earlier checks, or nothing measured


EXIT_CODES = {Verdict.PASS: 0, Verdict.CHANGED: 1, Verdict.DISTURBED: 3, Verdict.UNKNOWN: 3}


class Subject(Record):
    """The subject of a number of a check."""

    quantity: str
    labels: dict[str, str] = Field(default_factory=dict, description="the subject, as in a profile's models")
    unit: str

    @property
    def key(self) -> Key:
        """Identity of the same figure in two checks."""
        return (self.quantity, *(f"{k}={v}" for k, v in sorted(self.labels.items())))


class Figure(Subject):
    """A quantity in a check: the mean over the rounds of the best tenth of each round's slices."""

    value: float = Field(gt=0)
    rounds: tuple[float, ...] = Field(description="the value of each round; a quick check has one")
    slices: int
    spread_ratio: float = Field(ge=0, description="interquartile range of the slices over their median")
    note: str = ""


class Consumer(Record):
    """A process that is not the check's, and the processors that it kept busy meanwhile."""

    name: str
    pid: int
    user: str
    processors: float


class CheckConditions(Record):
    """The machine while it was checked."""

    duration_s: float
    steal_ratio: float = Field(description="share of all CPU time that a hypervisor gave to other guests")
    others_processors: float = Field(description="processors that other processes kept busy, on average")
    processors: int = Field(description="logical CPUs")
    cpu_share_ratio: float | None = Field(
        default=None, description="share of their time in which the slices had their processor"
    )
    consumers: tuple[Consumer, ...] = ()
    temperature_c: float | None = Field(default=None, description="of the hottest sensor, at the end")
    throttled: int | None = Field(default=None, description="events of thermal throttling meanwhile")
    quiet: str = Field(default="", description="who was asked for a quiet moment, and the answer")


class Change(Subject):
    """A figure beside its reference. Losses are relative, above 0 where the machine became worse."""

    was: float = Field(description="mean of the reference")
    now: float = Field(description="mean of the last ``checks`` checks")
    loss_ratio: float
    low: float | None = Field(default=None, description="lower 95 % limit of the loss")
    high: float | None = None
    p: float | None = Field(default=None, description="chance of so large a change if nothing changed")
    tells_ratio: float | None = Field(
        default=None, description="the least loss that one check finds in 95 of 100 cases; of a device in 99"
    )
    tells_in_window_ratio: float | None = Field(default=None, description="likewise, that five in a row find")
    checks: int = Field(default=1, description="over how many of the last checks the change shows best")
    since: datetime | None = Field(default=None, description="the first of these checks")
    state: State = "unknown"
    references: int = Field(default=0, description="earlier checks that it is held against")
    note: str = ""

    @property
    def change_ratio(self) -> float:
        """The loss with the sign that the value has: of a bandwidth below 0, of a latency above 0."""
        return self.loss_ratio if better(self.quantity) is Better.LOWER else -self.loss_ratio


class Cause(Record):
    """A cause that explains the changes; ``name`` is fixed, for programs."""

    name: str
    sentence: str
    remedy: str = ""


class Finding(NamedTuple):
    """A figure that became worse, of a check or of a node over time.

    Attributes:
        change_ratio: of the value, so a latency that rises is above 0.
        limit_ratio: the least change that is called one; None: not known.
        since: when it was first seen.
        causes: what may explain it, each with its remedy, the surest first.
    """

    quantity: str
    labels: dict[str, str]
    change_ratio: float
    limit_ratio: float | None
    since: datetime | None
    causes: tuple[Cause, ...] = ()


class CheckedDevice(Record):
    """An OpenCL device that a check has measured.

    Attributes:
        device: its label in figures: what stays of it, the UUID of a GPU.
        name: by which people know it: ``GPU 3``, or its key.
        failure: what of its results was wrong; empty: nothing.
    """

    device: str
    name: str
    model: str = ""
    failure: str = ""


class Check(Record):
    """All that one check learned about one node."""

    schema_version: Literal[1] = 1
    id: str
    node: str
    created: datetime
    tenbin_version: str
    quick: bool
    profile: str | None = Field(description="id of the node's last profile at that time")
    kind: str = Field(default="", description="of node; nodes of one kind are siblings")
    figures: tuple[Figure, ...] = ()
    devices: tuple[CheckedDevice, ...] = ()
    facts: dict[str, str] = Field(default_factory=dict, description="what decides the machine's speed")
    amounts: dict[str, float] = Field(
        default_factory=dict, description="of facts that are amounts, how much there is"
    )
    conditions: CheckConditions
    absent: tuple[Absent, ...] = ()
    against: str = Field(default="", description="what it was held against")
    verdict: Verdict = Verdict.UNKNOWN
    reason: str = ""
    only_devices: bool = Field(default=False, description="it is changed, but by single devices alone")
    false_alarm_ratio: float | None = Field(
        default=None, description="share of checks of an unchanged machine that call it changed, at most"
    )
    changes: tuple[Change, ...] = ()
    differences: tuple[str, ...] = Field(default=(), description="facts that differ from the reference")
    causes: tuple[Cause, ...] = ()
    consequences: tuple[str, ...] = Field(default=(), description="for predictions of jobs on this node")

    @property
    def findings(self) -> list[Finding]:
        """The figures that became worse, the largest loss first."""
        worse = [change for change in self.changes if change.state == "worse"]
        return [
            Finding(c.quantity, c.labels, c.change_ratio, c.tells_ratio, c.since, self.causes)
            for c in sorted(worse, key=lambda change: -change.loss_ratio)
        ]


# -- store -------------------------------------------------------------------------------------------------


def usable(checks: Sequence[Check]) -> list[Check]:
    """Choose the checks that others did not disturb."""
    return [check for check in checks if check.verdict is not Verdict.DISTURBED and check.figures]


FILE = "checks.jsonl"
KEEP = 2000  # checks of a node that are read at most, the last ones


class CheckStore:
    """The checks of all nodes under a folder."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or default_root()

    def path(self, node: str) -> Path:
        """Name the file of a node's checks."""
        return self.root / node / FILE

    def append(self, check: Check) -> Path:
        """Append a check, durably.

        Raises:
            BadInput: the store cannot be written.
        """
        path = self.path(check.node)
        try:
            make_folder(path.parent)
            mode = shared_mode(path.parent, 0o644)
            descriptor = open_plain(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, mode)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                size = os.fstat(descriptor).st_size
                torn = size and os.pread(descriptor, 1, size - 1) != b"\n"
                line = check.model_dump_json() + "\n"
                os.write(descriptor, (("\n" if torn else "") + line).encode())
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise unwritable(f"store {path}", error, ", or choose --store") from error
        return path

    def of_node(self, node: str, last: int = KEEP) -> list[Check]:
        """Read the last checks of a node, oldest first, without lines that are torn or of another version.

        Raises:
            BadInput: the file is there and cannot be read.
        """
        path = self.path(node)
        try:
            lines = read_regular(path).decode(errors="replace").splitlines()[-last:]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise BadInput(f"{path}: {error.strerror}", "see who may read it") from error
        checks = []
        for line in filter(str.strip, lines):
            try:
                checks.append(Check.model_validate_json(line))
            except ValidationError:
                continue
        return sorted(checks, key=lambda check: check.created)

    def nodes(self) -> list[str]:
        """Name the nodes that have checks."""
        return sorted(path.parent.name for path in self.root.glob(f"[!.]*/{FILE}"))


def stamp(when: datetime) -> str:
    """Make the id of a check: its time to the microsecond, because quick ones may follow within a second."""
    return when.strftime("%Y%m%dT%H%M%S.%fZ")


# -- fitness of nodes for jobs, by the last check of each that could tell ----------------------------------


class DeviceFitness(NamedTuple):
    """An OpenCL device by its last checks: what it has lost of its speed, and what it got wrong."""

    loss_ratio: float = 0.0
    failure: str = ""


def slower(name: str, loss_ratio: float) -> str:
    """Say of a device that it has lost so much of its speed."""
    return f"{name} is {100 * loss_ratio:.1f} % slower than it was"


UNFIT = "tenbin check: "  # how the reason of a node that failed its check begins
LAST = 20  # checks in which one that could tell is looked for, because the coordinator waits meanwhile
TELLS = (Verdict.PASS, Verdict.CHANGED)


class Fitness:
    """The last checks of nodes, read again when their file has changed."""

    def __init__(self, root: Path | None = None) -> None:
        self._store = CheckStore(root)
        self._known: dict[str, tuple[float, Sequence[Check], dict[str, DeviceFitness]]] = {}

    def why_unfit(self, node: str, *, but_devices: bool = False) -> str | None:
        """Say why a node failed its last check; "" if it passed, None if no check could tell.

        Args:
            but_devices: what failed at single devices alone does not count.
        """
        last = next((check for check in reversed(self._read(node)[0]) if check.verdict in TELLS), None)
        if last is None:
            return None
        if last.verdict is Verdict.PASS or (but_devices and last.only_devices):
            return ""
        return UNFIT + "; ".join([last.reason, *(cause.sentence for cause in last.causes)])

    def devices(self, node: str) -> dict[str, DeviceFitness]:
        """Return the fitness of each device that the last checks of a node have measured, by its label."""
        return self._read(node)[1]

    def _read(self, node: str) -> tuple[Sequence[Check], dict[str, DeviceFitness]]:
        try:
            changed_s = self._store.path(node).stat().st_mtime
        except OSError:
            return (), {}
        known = self._known.get(node)
        if known is None or known[0] != changed_s:
            try:
                checks: Sequence[Check] = self._store.of_node(node, LAST)
            except BadInput:
                checks = ()
            self._known[node] = known = changed_s, checks, _devices(checks)
        return known[1:]


def _devices(checks: Sequence[Check]) -> dict[str, DeviceFitness]:
    fitness: dict[str, DeviceFitness] = {}
    for check in checks:
        for checked in check.devices:
            changes = [c for c in check.changes if c.labels.get("device") == checked.device]
            could_tell = check.verdict is not Verdict.DISTURBED and any(c.p is not None for c in changes)
            losses = [c.loss_ratio for c in changes if c.state == "worse"]
            if not could_tell and checked.device in fitness:
                losses = [fitness[checked.device].loss_ratio]
            fitness[checked.device] = DeviceFitness(max(losses, default=0.0), checked.failure)
    return fitness
