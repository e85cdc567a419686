"""Records of a check: whether a machine still is the machine that was measured before."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Literal

from pydantic import Field

from profiles.records import Absent, Record

Key = tuple[str, ...]
State = Literal["same", "worse", "better", "unknown"]


class Verdict(StrEnum):
    """Verdict of a check."""

    PASS = "pass"  # no loss beyond what checks of the unchanged machine show
    CHANGED = "changed"  # a loss, and nobody else used the machine
    DISTURBED = "disturbed"  # others took processor time: no alarm
    UNKNOWN = "unknown"  # too few earlier checks, or nothing measured


EXIT_CODES = {Verdict.PASS: 0, Verdict.CHANGED: 1, Verdict.DISTURBED: 3, Verdict.UNKNOWN: 3}


class Figure(Record):
    """A quantity in a check: the mean over the rounds of the best tenth of each round's slices."""

    quantity: str
    labels: dict[str, str] = Field(default_factory=dict, description="the subject, as in a profile's models")
    unit: str
    value: float = Field(gt=0)
    rounds: tuple[float, ...] = Field(description="the value of each round; a quick check has one")
    slices: int
    spread_ratio: float = Field(ge=0, description="interquartile range of the slices over their median")
    note: str = ""

    @property
    def key(self) -> Key:
        """Identity of the same figure in two checks."""
        return (self.quantity, *(f"{k}={v}" for k, v in sorted(self.labels.items())))

    @property
    def title(self) -> str:
        """The quantity with its labels."""
        return " ".join(self.key)


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


class Change(Record):
    """A figure beside its reference. Losses are relative, above 0 where the machine became worse."""

    quantity: str
    labels: dict[str, str]
    unit: str
    was: float = Field(description="mean of the reference")
    now: float = Field(description="mean of the last ``checks`` checks")
    loss_ratio: float
    low: float | None = Field(default=None, description="lower 95 % limit of the loss")
    high: float | None = None
    p: float | None = Field(default=None, description="chance of so large a change if nothing changed")
    tells_ratio: float | None = Field(
        default=None, description="the least loss that one check finds in 95 of 100 cases"
    )
    checks: int = Field(default=1, description="over how many of the last checks the change shows best")
    since: datetime | None = Field(default=None, description="the first of these checks")
    state: State = "unknown"
    references: int = Field(default=0, description="earlier checks that it is held against")
    note: str = ""

    @property
    def key(self) -> Key:
        return (self.quantity, *(f"{k}={v}" for k, v in sorted(self.labels.items())))


class Cause(Record):
    """A cause that explains the changes; ``name`` is fixed, for programs."""

    name: str
    sentence: str
    remedy: str = ""


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
    facts: dict[str, str] = Field(default_factory=dict, description="what decides the machine's speed")
    conditions: CheckConditions
    absent: tuple[Absent, ...] = ()
    against: str = Field(default="", description="what it was held against")
    verdict: Verdict = Verdict.UNKNOWN
    reason: str = ""
    false_alarm_ratio: float | None = Field(
        default=None, description="share of checks of an unchanged machine that call it changed, at most"
    )
    changes: tuple[Change, ...] = ()
    differences: tuple[str, ...] = Field(default=(), description="facts that differ from the reference")
    causes: tuple[Cause, ...] = ()
    consequences: tuple[str, ...] = Field(default=(), description="for predictions of jobs on this node")
