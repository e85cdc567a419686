"""Jobs, pools of resources, placements, and the state of a job. Names end in their units.

A *pool* is one class of resource (all GPUs, all nodes of a type). A counted pool has units without identity
(``Pool(name, units=512)``). Another pool has nodes with a capacity for each resource (``Pool(name, units=256,
resources=("cpu", "memory"), capacity=(1.0, 1.0))``). A job asks for *units* of a counted pool, or for tasks
that each take the job's ``demand`` on a node.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from types import MappingProxyType
from typing import Protocol, TypeVar, dataclass_transform

from scheduler.model.quantiles import Quantiles, exactly
from scheduler.model.speeds import SpeedRatios

T = TypeVar("T")

# Sums of fractional demands carry rounding errors; comparisons allow this much.
EPSILON = 1e-9
EMPTY: Mapping[str, float] = MappingProxyType({})
NO_QUANTILES: Mapping[str, Quantiles] = MappingProxyType({})
NEAREST = 1.5 * 2**52  # added and subtracted again, it rounds a float to a whole number
FAR = 1e14  # microseconds; up to there a float of them is off by less than 0.01


def instant(time_s: float) -> float:
    """Round ``time_s`` to the grid of one microsecond that events lie on.

    Plan with ``instant``, because a planned time meets its event only if both are rounded.
    """
    micros = time_s * 1e6  # simulations take 7 to 9 % longer with ``round`` alone
    whole = micros + NEAREST - NEAREST
    off = micros - whole
    if off * off < 0.24 and micros < FAR:
        return whole / 1e6
    return round(time_s, 6)  # the same, four times slower: between two steps of the grid, far off, infinite


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(kind: type[T]) -> type[T]:
    """Make a dataclass that is frozen for the type checker, and cheap at run time.

    A ``dataclass(frozen=True)`` sets each field by ``object.__setattr__``, at ten times the cost of a plain
    assignment. Simulations take 3 to 7 % longer with it (``tests/benchmarks/policies``).
    """
    return dataclass(slots=True, unsafe_hash=True)(kind)


class Stop(StrEnum):
    """Ways to stop a running job."""

    NEVER = "never"  # it runs to its end
    PAUSE = "pause"  # it can be suspended and resumed where it is
    CHECKPOINT = "checkpoint"  # it can also go on elsewhere, on any class it can run on


# Looked up in a tenth of the time; simulations take 2 to 5 % longer without these.
NEVER, PAUSE, CHECKPOINT = Stop.NEVER, Stop.PAUSE, Stop.CHECKPOINT


class EstimateKind(StrEnum):
    """Kind of an estimate of a run time."""

    LIMIT = "limit"  # the user's limit: the job is killed there
    EXACT = "exact"  # the run time itself
    PREDICTED = "predicted"  # from history or a model; the job may take longer


class Speed(Protocol):
    """Speed of a program on ``units`` units under ``cap_w`` (None: uncapped).

    It is 1 at its fewest units and lowest cap; a job's estimate belongs to speed 1. Best a frozen dataclass.
    """

    def __call__(self, units: int, cap_w: float | None) -> float: ...


class Power(Protocol):
    """Watts that a program draws on ``units`` units under ``cap_w``, of what a cap governs.

    More units, or a higher cap, never draw less. Best a frozen dataclass.
    """

    def __call__(self, units: int, cap_w: float | None) -> float: ...


@record
class Job:
    """A submitted job, as policies know it; its true run time is not known.

    Attributes:
        id: unique number.
        submit_s: time of submission; if it was held then, since when it could have started.
        units: units it needs; the fewest, when it can take a range.
        max_units: the most units it can use (moldable, malleable); None: exactly ``units``. A restart from a
            checkpoint may have another number than the run before.
        malleable: its number of units may change while it runs.
        estimate_s: believed run time (on ``units`` units); None: unknown.
        estimate_kind: limit, exact or predicted.
        estimates_s: believed run time per class of resource, when classes differ; the job can run on the
            classes named here only. Empty: ``estimate_s`` holds everywhere.
        quantiles_s: of believed run times that are predicted, per class; "": of ``estimate_s``.
        speed: how the run time depends on units and power cap; None: not at all.
        power: what it draws, from its submission on; None: as any job under its cap (``Pool``).
        demand: what one unit takes of each resource of a node, in the order of ``Pool.resources``.
        memory_mb: peak memory of the whole job (decides the cost of a checkpoint); None: unknown.
        stop: whether it can be paused or checkpointed.
        user, program: owner, and key to profiles of the program.
        priority: waiting jobs of a higher priority come first.
        share: weight of its user from now on, for policies that share between users; None: not stated.
        alternatives: other ways to run it, each a job of this number, with what it takes and how long.
            Policies that know of none run the job as it is. alternative: number of this way.
        stays: where its paused processes are, and must go on; None: they may begin anywhere.
        label: what users call it, ``7[3]``; "": they use the number.
    """

    id: int
    submit_s: float
    units: int = 1
    estimate_s: float | None = None
    user: str = ""
    memory_mb: float | None = None
    estimate_kind: EstimateKind = EstimateKind.LIMIT
    stop: Stop = Stop.NEVER
    max_units: int | None = None
    malleable: bool = False
    estimates_s: Mapping[str, float] = field(default_factory=lambda: EMPTY, hash=False)
    demand: tuple[float, ...] = ()
    speed: Speed | None = None
    power: Power | None = None
    program: str = ""
    priority: int = 0
    share: float | None = None
    alternatives: tuple[Job, ...] = ()
    alternative: int = 0
    stays: Placement | None = None
    label: str = field(default="", compare=False)
    quantiles_s: Mapping[str, Quantiles] = field(default_factory=lambda: NO_QUANTILES, hash=False)

    @property
    def name(self) -> str:
        """The job's name for users."""
        return self.label or str(self.id)

    @property
    def ways(self) -> tuple[Job, ...]:
        """The job as it is, and its alternatives."""
        return (self, *self.alternatives)

    def way(self, placement: Placement) -> Job:
        """Return the job as it runs there."""
        for way in self.alternatives:
            if way.alternative == placement.alternative:
                return way
        return self

    def runs_on(self, pool: str) -> bool:
        """Tell if the job can run on that class of resource."""
        return not self.estimates_s or pool in self.estimates_s

    def reference_s(self, pool: str) -> float:
        """Return the believed run time on that class at speed 1 (fewest units, lowest cap), or infinity.

        Raises:
            KeyError: the job cannot run on that class.
        """
        if self.estimates_s:
            return self.estimates_s[pool]
        return math.inf if self.estimate_s is None else self.estimate_s

    def estimate_on(self, pool: str, units: int | None = None, cap_w: float | None = None) -> float:
        """Return the believed run time of the whole job in seconds, or infinity if unknown.

        Raises:
            KeyError: the job cannot run on that class.
        """
        if self.speed is not None:
            return self.reference_s(pool) / self.speed(units or self.units, cap_w)
        if self.estimates_s:
            return self.estimates_s[pool]
        return math.inf if self.estimate_s is None else self.estimate_s


@record
class Placement:
    """The place of a job, and how it runs there.

    Attributes:
        pool: class of resource.
        units: how many.
        nodes: (node, units there) for a pool with nodes; empty for a counted pool.
        cap_w: power cap of each unit; None: uncapped.
        region: the region that the units are charged to ("": none), see ``events.Repartition``.
        binding: layout of the tasks inside each node (see ``interference``); the engine turns it into cores.
        alternative: in which of its ways the job runs (``Job.alternatives``).
    """

    pool: str
    units: int = 1
    nodes: tuple[tuple[int, int], ...] = ()
    cap_w: float | None = None
    region: str = ""
    binding: str = ""
    alternative: int = 0


@cache
def counted(pool: str, units: int, alternative: int = 0) -> Placement:
    """Return the placement on units without identity, cached because most are asked for repeatedly."""
    return Placement(pool, units, alternative=alternative)


@dataclass(frozen=True, slots=True)
class Pool:
    """One class of resource.

    Attributes:
        name: what placements call it.
        units: number of units, or of nodes when ``resources`` are named.
        kind: of a pool of devices: "gpu", "cpu", ...; empty for other pools.
        rank: preference between classes as a tie-break, 0 is the best.
        resources: names of what a node has; empty: a counted pool.
        capacity: of every node, in the order of ``resources``.
        capacities: of each node, when nodes differ.
        base_w: power that a unit in use draws besides what a cap governs.
        peak_w: power of an uncapped unit in use, beside ``base_w``, of a job that does not state its own.
        idle_w: power of a unit not in use.
        caps_w: the power caps that can be set, ascending; empty: none.
        names: of the nodes, for people; empty: the pool's name with a number.
    """

    name: str
    units: int
    rank: int = 0
    resources: tuple[str, ...] = ()
    capacity: tuple[float, ...] = ()
    capacities: tuple[tuple[float, ...], ...] = ()
    base_w: float = 0.0
    peak_w: float = 0.0
    idle_w: float = 0.0
    caps_w: tuple[float, ...] = ()
    kind: str = ""
    names: tuple[str, ...] = ()

    @property
    def counted(self) -> bool:
        """True if the units have no identity."""
        return not self.resources

    @property
    def has_power(self) -> bool:
        """True if its power is known."""
        return bool(self.base_w or self.peak_w or self.caps_w)

    def name_of(self, node: int) -> str:
        """Return the name of a node for people."""
        return self.names[node] if self.names else f"{self.name}{node}"

    def capacity_of(self, node: int) -> tuple[float, ...]:
        """Return the capacity of one node, in the order of ``resources``."""
        return self.capacities[node] if self.capacities else self.capacity

    def nodes_worth(self, job: Job, placement: Placement) -> float:
        """Count how many whole nodes a placement amounts to, each by the first resource that it has."""
        demand, worth = job.way(placement).demand, 0.0
        for node, units in placement.nodes:
            capacity = self.capacity_of(node)
            first = 0 if capacity[0] else next(r for r, amount in enumerate(capacity) if amount)
            worth += units * demand[first] / capacity[first]
        return worth

    def power_w(self, units: int, cap_w: float | None, power: Power | None = None) -> float:
        """Compute the power of ``units`` units in use, by a job of that ``power``."""
        if power is not None:
            return units * self.base_w + power(units, cap_w)
        return units * (self.base_w + (self.peak_w if cap_w is None else cap_w))

    def power_of(self, job: Job, placement: Placement) -> float:
        """Compute the power of a job's units at a placement in this pool."""
        return self.power_w(placement.units, placement.cap_w, job.way(placement).power)


@record
class Region:
    """A part of a pool for the jobs of some sizes: from the region before it (exclusive) to ``max_units``."""

    name: str
    units: int
    max_units: int


@dataclass(frozen=True)
class Cluster:
    """The machine: pools, best class first, and the power it may draw (None: not limited).

    Attributes:
        memory_mb: limit on the memory of all jobs, paused ones included (infinite: none). The simulator
            ignores it, because logs seldom tell the memory of a job.
        ratios: bounds of the speed of one pool over another, where both were measured.
    """

    pools: tuple[Pool, ...]
    budget_w: float | None = None
    memory_mb: float = math.inf
    ratios: SpeedRatios = field(default_factory=lambda: MappingProxyType({}), hash=False)

    def __getitem__(self, name: str) -> Pool:
        for pool in self.pools:
            if pool.name == name:
                return pool
        raise KeyError(name)

    @property
    def unit(self) -> str:
        """A unit for people: "core", "node", "device"; "unit" where the pools differ."""
        names = {"device" if pool.kind else pool.name for pool in self.pools}
        name = names.pop()
        return "unit" if names or not name.isalpha() else name

    def amount(self, units: int) -> str:
        """Write ``"1 core"``, ``"8 nodes"``."""
        return f"{units} {self.unit}{'s' * (units != 1)}"

    @property
    def units(self) -> int:
        """Units (or nodes) of all pools."""
        return sum(pool.units for pool in self.pools)


class Stage(StrEnum):
    """The stage of a job; the last four are final."""

    # A cluster state has only jobs that wait, run, stop or are suspended.
    HELD = "held"  # waits for others, or for a time; in the journal also: suspended by its owner
    WAITING = "waiting"
    RUNNING = "running"
    STOPPING = "stopping"  # holds its units until it has left them, or goes on
    SUSPENDED = "suspended"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    KILLED = "killed"  # at its limit of time or memory

    @property
    def final(self) -> bool:
        return self in FINAL

    @property
    def begun(self) -> bool:
        """Return true if a job of this stage has begun to run and has not ended."""
        return self in (RUNNING, STOPPING, SUSPENDED)

    @property
    def placed(self) -> bool:
        """Return true if a job of this stage has its place."""
        return self in (RUNNING, STOPPING)


# As those of ``Stop``: looked up in a tenth of the time.
HELD, WAITING, RUNNING, STOPPING, SUSPENDED, *_ENDS = Stage
FINAL = tuple(_ENDS)


@dataclass(slots=True, kw_only=True)
class JobState:
    """State of one job in the system, for policies to read.

    Attributes:
        placement: current or last place; None: it never ran.
        start_s: first start; None: it never started.
        since_s: begin of the current stage.
        works_from_s: begin of progress in the current run (after its restart); infinite: it stops.
        lag_s: what it has lost in the current run (below 0: gained) while others were on its nodes than now.
        served_s: attained service up to ``since_s``: seconds of progress, on whatever class.
        done: believed share of its work that was done by ``works_from_s`` (estimates, not the truth).
        whole_s: believed run time of the whole job at ``placement``, beside the jobs that are there now.
        expected_end_s: believed end of the current run; infinite: unknown; in the past: it is late.
        preemptions, migrations, failures: their numbers.
        promised_s: when it is to start by the last ``Promise`` since it waits; None: there is none.
        moves_to: a second place, to which it moves and which it holds until it goes on there; its stage is
            ``STOPPING`` meanwhile. None: it does not move.
    """

    job: Job
    since_s: float
    stage: Stage = WAITING
    placement: Placement | None = None
    start_s: float | None = None
    works_from_s: float = field(default=0.0, compare=False)
    lag_s: float = field(default=0.0, compare=False)
    served_s: float = 0.0
    done: float = 0.0
    whole_s: float = field(default=math.inf, compare=False)
    expected_end_s: float = field(default=math.inf, compare=False)
    preemptions: int = 0
    migrations: int = 0
    failures: int = 0
    promised_s: float | None = None
    moves_to: Placement | None = field(default=None, compare=False)

    @property
    def places(self) -> tuple[Placement, ...]:
        """The places that a running job holds."""
        return (self.place,) if self.moves_to is None else (self.place, self.moves_to)

    @property
    def as_it_runs(self) -> Job:
        """The job in the way in which it has begun."""
        begun = None if self.stage is WAITING else self.placement
        return self.job if begun is None else self.job.way(begun)

    @property
    def works(self) -> bool:
        """Return true if the job makes progress."""
        moves = self.moves_to is not None and self.works_from_s < math.inf
        return self.stage is RUNNING or moves

    @property
    def place(self) -> Placement:
        """The placement of a job that has started."""
        assert self.placement is not None
        return self.placement

    def shift(self, step_s: float) -> None:
        """Move all instants with a clock that was set, so that durations stay as they are."""
        self.since_s += step_s
        self.works_from_s += step_s
        self.expected_end_s += step_s
        if self.start_s is not None:
            self.start_s += step_s
        if self.promised_s is not None:
            self.promised_s += step_s

    def attained_s(self, now: float) -> float:
        """Return the attained service in seconds, the time in which the job made progress."""
        if self.works and now > self.works_from_s:
            return self.served_s + now - self.works_from_s
        return self.served_s

    def waited_s(self, now: float) -> float:
        """Return for how long it has not made progress; 0 for a job submitted before a clock was set back."""
        return max(now - self.job.submit_s - self.attained_s(now), 0.0)

    def done_by(self, now: float) -> float:
        """Return the believed share of the work done, 0 to 1; ``done`` for a job of unknown run time."""
        if (self.stage is not RUNNING and self.moves_to is None) or now <= self.works_from_s:
            return self.done
        works_s = now - self.works_from_s - self.lag_s
        done = self.done + works_s / self.whole_s if self.whole_s > 0 else 1.0
        return done if done < 1.0 else 1.0

    def remaining_s(self, now: float, pool: str | None = None) -> float:
        """Return the believed time left at speed 1 on ``pool`` (default: the job's own), or infinity."""
        where = pool or (self.placement.pool if self.placement else "")
        return (1.0 - self.done_by(now)) * self.as_it_runs.reference_s(where)

    def left(self, now: float, pool: str | None = None) -> Quantiles:
        """Return quantiles of the time left at speed 1 on ``pool`` (default: the job's own), or infinity.

        All are ``remaining_s`` unless the run time is predicted.
        """
        where, job = pool or (self.placement.pool if self.placement else ""), self.as_it_runs
        whole = job.quantiles_s.get(where) or job.quantiles_s.get("")
        if whole is None:
            return exactly(self.remaining_s(now, where))
        share = self.done_by(now)
        if self.works and now > self.expected_end_s and self.whole_s > 0:
            share += (now - self.expected_end_s) / self.whole_s
        return whole.left_after(share * job.reference_s(where))
