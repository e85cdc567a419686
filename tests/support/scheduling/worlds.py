"""Small machines with small job mixes, one kind for each sort of policy, and a run of a policy on one."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import accumulate

from hypothesis import strategies as st

from scheduler.model.costs import LinearCost, LinearCosts
from scheduler.model.events import NodeDown, NodeUp
from scheduler.model.interference import PressureModel, SharedNodeInterference, SlowdownsByPool, load_pairs
from scheduler.model.jobs import Cluster, EstimateKind, Job, Pool, Stop, instant
from scheduler.model.quantiles import Quantiles
from scheduler.model.speeds import TabulatedSpeed
from scheduler.model.state import ClusterState
from scheduler.policies.base import Policy, View
from scheduler.simulator.simulator import Simulator
from scheduler.simulator.trace import Arrival, Outcome, OutcomeRecorder, SimulationSettings, SimulationSummary


@dataclass(frozen=True)
class World:
    """A machine, jobs, and how the simulated world behaves."""

    cluster: Cluster
    arrivals: tuple[Arrival, ...]
    settings: SimulationSettings = field(default_factory=SimulationSettings)


@dataclass(frozen=True)
class LinearSpeed:
    """Twice the units are twice as fast up to ``most``; each W above 30 adds 2 %."""

    least: int
    most: int

    def __call__(self, units: int, cap_w: float | None) -> float:
        return min(units, self.most) / self.least * (1.0 + 0.02 * ((50.0 if cap_w is None else cap_w) - 30.0))


@dataclass(frozen=True)
class PowerTable:
    """Watts on 1, 2, ... units, for each of ascending caps."""

    caps_w: tuple[float, ...]
    rows: tuple[tuple[float, ...], ...]

    def __call__(self, units: int, cap_w: float | None) -> float:
        return self.rows[units - 1][-1 if cap_w is None else self.caps_w.index(cap_w)]


def powers(most: int, caps_w: tuple[float, ...]) -> st.SearchStrategy[PowerTable | None]:
    """Draw what a job draws on up to ``most`` units, at most what its caps allow; None: just that."""

    def table(seed: int) -> PowerTable:
        chance, rows, row = random.Random(seed), list[tuple[float, ...]](), [0.0] * len(caps_w)
        for units in range(1, most + 1):
            drawn = [chance.uniform(least, units * cap) for least, cap in zip(row, caps_w, strict=True)]
            row = list(accumulate(drawn, max))
            rows.append(tuple(row))
        return PowerTable(caps_w, tuple(rows))

    return st.none() | st.integers(0, 10**6).map(table)


def run(
    policy: Policy, world: World, observer: Callable[[View], None] | None = None
) -> tuple[list[Outcome], SimulationSummary]:
    """Run the world under the policy; return the outcome of each job, in the order of the ends."""
    record = OutcomeRecorder()
    simulator = Simulator(
        world.cluster, iter(world.arrivals), policy, world.settings, sinks=[record], observer=observer
    )
    return record.outcomes, simulator.run()


def jobs_of(world: World) -> list[Job]:
    return [arrival.job for arrival in world.arrivals]


@st.composite
def counted(draw: st.DrawFn, most: int = 8, exact: bool = False, shortest: int = 0) -> World:
    """One counted pool; rigid jobs with limits that may be too long or too short, at whole seconds."""
    units = draw(st.integers(1, 8))
    now, arrivals = 0, []
    for number in range(1, draw(st.integers(1, most)) + 1):
        now += draw(st.sampled_from((0, 0, 1, 2, 3, 7)))
        run_s = draw(st.integers(shortest, 12))
        limit = run_s if exact else draw(st.one_of(st.just(run_s), st.integers(1, 15)))
        job = Job(
            number,
            now,
            draw(st.integers(1, units)),
            limit,
            estimate_kind=EstimateKind.EXACT if exact else EstimateKind.LIMIT,
        )
        arrivals.append(Arrival(job, run_s))
    return World(Cluster((Pool("node", units),)), tuple(arrivals))


@st.composite
def classes(draw: st.DrawFn, most: int = 8, exact: bool = True) -> World:
    """Two classes with run times of their own; jobs can be checkpointed on one and restarted on the other."""
    pools = (Pool("gpu", draw(st.integers(1, 4)), 0), Pool("cpu", draw(st.integers(1, 4)), 1))
    largest = max(pool.units for pool in pools)
    now, arrivals = 0, []
    for number in range(1, draw(st.integers(1, most)) + 1):
        now += draw(st.sampled_from((0, 0, 1, 5, 30)))
        slow = draw(st.integers(1, 200))
        times = {"gpu": slow / draw(st.sampled_from((1, 2, 4, 8))), "cpu": float(slow)}
        job = Job(
            number,
            now,
            draw(st.integers(1, largest)),
            memory_mb=draw(st.sampled_from((0.0, 100.0, 4000.0))),
            estimate_kind=EstimateKind.EXACT,
            stop=Stop.CHECKPOINT,
            estimates_s=times,
            quantiles_s={name: Quantiles(run_s / 2, run_s, 3 * run_s) for name, run_s in times.items()}
            if draw(st.booleans())
            else {},
        )
        arrivals.append(Arrival(job, 0.0, times))
    costs = LinearCosts(
        {"gpu": LinearCost(0.002, 0.5, 0.001), "cpu": LinearCost(0.002, 0.25)},
        {"gpu": LinearCost(0.001, 0.5), "cpu": LinearCost(0.001, 0)},
    )
    return World(Cluster(pools), tuple(arrivals), SimulationSettings(costs))


@st.composite
def sized_classes(draw: st.DrawFn) -> World:
    """Two classes; jobs that are faster on more units, and with a checkpoint may change class and size."""
    world, arrivals = draw(classes()), []
    for arrival in world.arrivals:
        most = arrival.job.units + draw(st.integers(0, 3))
        job = replace(
            arrival.job,
            max_units=most,
            speed=LinearSpeed(arrival.job.units, most),
            stop=draw(st.sampled_from((Stop.CHECKPOINT, Stop.CHECKPOINT, Stop.NEVER))),
            malleable=draw(st.booleans()),
        )
        arrivals.append(arrival._replace(job=job))
    return replace(world, arrivals=tuple(arrivals))


@st.composite
def limited_classes(draw: st.DrawFn, most: int = 8) -> World:
    """Two classes; jobs with limits, one for all classes or for each, on both or on one, whole seconds."""
    pools = (Pool("gpu", draw(st.integers(1, 5)), 0), Pool("cpu", draw(st.integers(1, 5)), 1))
    seconds = st.integers(1, 15)
    now, arrivals = 0, []
    for number in range(1, draw(st.integers(1, most)) + 1):
        now += draw(st.sampled_from((0, 0, 1, 2, 3, 7)))
        where = draw(st.sampled_from((pools, pools, pools, pools[:1], pools[1:])))
        wanted = draw(st.integers(1, max(pool.units for pool in where)))
        if len(where) == 2 and draw(st.booleans()):
            arrivals.append(Arrival(Job(number, now, wanted, draw(seconds)), draw(seconds)))
            continue
        limits = {pool.name: float(draw(seconds)) for pool in where}
        exact = draw(st.booleans())
        runs = {name: limit if exact else float(draw(seconds)) for name, limit in limits.items()}
        arrivals.append(Arrival(Job(number, now, wanted, estimates_s=limits), 0.0, runs))
    return World(Cluster(pools), tuple(arrivals))


@st.composite
def partly_unknown(draw: st.DrawFn, pools: int = 1, most: int = 12) -> World:
    """Jobs on one class or several, some without estimate; they end early, on time, or are killed."""
    names = ("gpu", "cpu", "tpu")[:pools]
    cluster = Cluster(tuple(Pool(name, draw(st.integers(1, 4)), rank) for rank, name in enumerate(names)))
    now, arrivals = 0, []
    for number in range(1, draw(st.integers(1, most)) + 1):
        now += draw(st.sampled_from((0, 0, 1, 2, 7)))
        where = draw(st.lists(st.sampled_from(cluster.pools), min_size=1, unique=True))
        wanted = draw(st.integers(1, max(pool.units for pool in where)))
        run_s = float(draw(st.integers(1, 9)))
        limit = draw(st.sampled_from((None, None, run_s, run_s, 3.0, 12.0)))
        if pools == 1:
            arrivals.append(Arrival(Job(number, now, wanted, limit), run_s))
            continue
        limits = {pool.name: math.inf if limit is None else limit for pool in where}
        arrivals.append(Arrival(Job(number, now, wanted, estimates_s=limits), run_s))
    return World(cluster, tuple(arrivals))


@st.composite
def nodes(draw: st.DrawFn, most: int = 10, exact: bool = False, several: bool = False) -> World:
    """Nodes with CPU and memory; jobs of one task (or several) of unknown run time that can be paused."""
    pool = Pool("node", draw(st.integers(1, 3)), resources=("cpu", "memory"), capacity=(1.0, 1.0))
    shares = st.sampled_from((0.1, 0.25, 0.3, 0.5, 0.7, 1.0))
    now, arrivals = 0, []
    for number in range(1, draw(st.integers(1, most)) + 1):
        now += draw(st.sampled_from((0, 0, 1, 5, 61)))
        tasks = draw(st.sampled_from((1, 1, 2, 3))) if several else 1
        demand = (draw(shares), draw(shares))
        job = Job(number, now, tasks, demand=demand, stop=Stop.PAUSE, user=str(number % 2))
        arrivals.append(Arrival(job, draw(st.integers(1, 200))))
    return World(Cluster((pool,)), tuple(arrivals))


@st.composite
def power(draw: st.DrawFn, most: int = 8, exact: bool = True) -> World:
    """Nodes under a power budget; moldable and malleable jobs whose speed depends on units and cap."""
    caps = (30.0, 40.0, 50.0)
    units = draw(st.integers(2, 8))
    pool = Pool("node", units, base_w=10.0, peak_w=50.0, caps_w=caps)
    budget = draw(st.sampled_from((40.0 * units, 50.0 * units, 60.0 * units)))
    now, arrivals = 0, []
    for number in range(1, draw(st.integers(1, most)) + 1):
        now += draw(st.sampled_from((0, 0, 1, 5, 20)))
        run_s = float(draw(st.integers(1, 60)))
        widest = draw(st.integers(1, units))
        job = Job(
            number,
            now,
            1,
            run_s,
            estimate_kind=EstimateKind.EXACT,
            max_units=widest,
            malleable=draw(st.booleans()),
            speed=LinearSpeed(1, widest),
            power=draw(powers(widest, caps)),
        )
        arrivals.append(Arrival(job, run_s))
    return World(Cluster((pool,), budget), tuple(arrivals))


@st.composite
def sharing(draw: st.DrawFn, most: int = 8, exact: bool = False) -> World:
    """Nodes of four cores; jobs of programs that slow each other down, nearly as predicted."""
    table = load_pairs("konishi2008")
    pool = Pool("node", draw(st.integers(1, 6)), resources=("cores",), capacity=(4.0,))
    now, arrivals = 0, []
    for number in range(1, draw(st.integers(1, most)) + 1):
        now += draw(st.sampled_from((0, 0, 1, 20, 300)))
        run_s = float(draw(st.integers(1, 200)))
        job = Job(
            number,
            now,
            draw(st.sampled_from((1, 2, 3, 4, 8, 8, 12))),
            draw(st.sampled_from((run_s, run_s, None))),
            estimate_kind=EstimateKind.PREDICTED,
            demand=(draw(st.sampled_from((1.0, 1.0, 2.0, 4.0))),),
            program=draw(st.sampled_from((*table.programs, "unknown"))),
        )
        arrivals.append(Arrival(job, run_s))
    known = draw(st.sampled_from((table, PressureModel.fit(table))))
    return World(
        Cluster((pool,)),
        tuple(arrivals),
        SimulationSettings(interference=SharedNodeInterference(table), slowdowns=known),
    )


@st.composite
def shared_classes(draw: st.DrawFn) -> World:
    """Two kinds of nodes, each with slow-downs of its own; jobs may move between them."""
    world, table, arrivals = draw(sharing()), load_pairs("konishi2008"), []
    old = replace(world.cluster.pools[0], name="old", units=draw(st.integers(1, 6)), rank=1)
    for arrival in world.arrivals:
        times = {"node": arrival.run_s, "old": arrival.run_s * draw(st.sampled_from((1, 2, 5)))}
        known = arrival.job.estimate_s is not None
        stop = draw(st.sampled_from((Stop.CHECKPOINT, Stop.CHECKPOINT, Stop.NEVER)))
        said = times if known else dict.fromkeys(times, math.inf)
        job = replace(arrival.job, estimate_s=None, estimates_s=said, stop=stop)
        arrivals.append(Arrival(job, arrival.run_s, times))
    slowdowns = SlowdownsByPool({"node": table, "old": PressureModel.fit(table)})
    line = dict.fromkeys(("node", "old"), LinearCost(0.0, 1.0))
    return World(
        Cluster((*world.cluster.pools, old)),
        tuple(arrivals),
        SimulationSettings(
            LinearCosts(line, line), interference=SharedNodeInterference(slowdowns), slowdowns=slowdowns
        ),
    )


LIKES = ((4.0, 8.0), (16.0, 0.0), (1.0, 1.0))  # cores and GPUs of a node


@st.composite
def machines(draw: st.DrawFn) -> Cluster:
    """Pools as users may describe them: counted, with equal or unequal nodes, or some of these."""
    pools = []
    for rank, kind in enumerate(
        draw(st.sampled_from(("u", "uu", "uuu", "n", "nn", "x", "xx", "nx", "un", "xu")))
    ):
        units = draw(st.integers(1, 5))
        pool = Pool("abc"[rank], units, rank)
        if kind != "u":
            rows = draw(st.lists(st.sampled_from(LIKES), min_size=units, max_size=units))
            equal = {"capacity": rows[0]} if kind == "n" else {"capacities": tuple(rows)}
            pool = replace(pool, resources=("cores", "gpu"), **equal)
        pools.append(pool)
    return Cluster(tuple(pools))


@st.composite
def anywhere(draw: st.DrawFn, most: int = 8) -> World:
    """Jobs of all sorts on any machine: priorities, alternatives, ranges, limits or none; failing nodes."""
    cluster = draw(machines())
    whole, seconds = (
        any(not pool.counted for pool in cluster.pools),
        st.sampled_from((0.0, 1.0, 5.0, 61.5, 600.0)),
    )
    now, arrivals = 0.0, list[Arrival]()
    for number in range(1, draw(st.integers(1, most)) + 1):
        now = instant(now + draw(st.sampled_from((0.0, 0.0, 1.0, 5.000001, 100.0))))
        run_s, kind = draw(seconds), draw(st.sampled_from(EstimateKind))
        known = draw(st.booleans())
        believed = (run_s if kind is EstimateKind.EXACT else draw(seconds)) if known else None
        job = Job(
            number,
            now,
            draw(st.integers(1, 4)),
            believed,
            estimate_kind=kind if known else EstimateKind.PREDICTED,
            stop=draw(st.sampled_from(Stop)),
            priority=draw(st.sampled_from((0, 0, 1, -1))),
            user=draw(st.sampled_from("ab")),
            demand=draw(st.sampled_from(((1.0, 0.0), (2.0, 1.0), (0.5, 0.0), (4.0, 8.0)))) if whole else (),
        )
        ways = draw(st.lists(st.integers(1, 2), max_size=2)) if draw(st.booleans()) else []
        others = tuple(
            replace(job, units=units, estimate_s=run_s if known else None, alternative=place)
            for place, units in enumerate(ways, 1)
        )
        if others and not ClusterState(cluster).misfit(job):
            job = replace(job, alternatives=others)
        elif not whole and draw(st.booleans()):
            gains = tuple(1.0 + gain / 2 for gain in range(draw(st.integers(1, 3))))
            most_units, malleable = job.units + len(gains) - 1, draw(st.booleans())
            speed = TabulatedSpeed(job.units, gains)
            job = replace(job, max_units=most_units, malleable=malleable, speed=speed)
        arrivals.append(Arrival(job, run_s, others_s=(run_s,) * len(job.alternatives)))
    failures = list[tuple[float, NodeDown | NodeUp]]()
    for _ in range(draw(st.sampled_from((0, 0, 1, 3)))):
        pool, at = draw(st.sampled_from(cluster.pools)), float(draw(st.integers(0, 200)))
        units = draw(st.integers(1, pool.units))
        what = (pool.name, units) if pool.counted else (pool.name, 1, units - 1)
        failures += [(at, NodeDown(*what)), (at + draw(st.sampled_from((1.0, 300.0))), NodeUp(*what))]
    failures.sort(key=lambda failure: failure[0])
    costs = {pool.name: LinearCost(0.0, draw(st.sampled_from((0.0, 2.0)))) for pool in cluster.pools}
    settings = SimulationSettings(costs=LinearCosts(costs, costs), disturbances=tuple(failures))
    return World(cluster, tuple(arrivals), settings)


WORLDS: dict[str, Callable[..., st.SearchStrategy[World]]] = {
    "counted": counted,
    "classes": classes,
    "nodes": nodes,
    "power": power,
    "sharing": sharing,
}
