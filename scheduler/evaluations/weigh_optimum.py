"""One decision of ``weigh`` beside the optimum of a small state; tenbin's own evaluation.

Some jobs run, up to twelve wait, all of whole seconds, and nobody else comes. An integer program over jobs,
placements and starts finds the least sum of ends; once as it is, and once with what the policy starts now.
The second over the first is what the decision costs, if all goes on at best.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, combinations_with_replacement, count, product
from typing import NamedTuple

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_matrix

from scheduler.evaluations import Evaluation, Finding, Progress, Row, Scale, Table, exactly, run_all
from scheduler.model.jobs import Cluster, EstimateKind, Job, Placement, Pool
from scheduler.model.speeds import CapTable, TabulatedSpeed
from scheduler.model.state import estimate_under
from scheduler.policies.power.multiple_choice_knapsack import silent_solver
from scheduler.policies.registry import create
from scheduler.simulator.simulator import Simulator
from scheduler.simulator.trace import Arrival, Outcome, OutcomeRecorder

PAPER = "tenbin's own: one decision of weigh beside the optimum of small states"
STATES: dict[Scale, int] = {"small": 8, "full": 170}  # of each kind
FIRST = 5000  # the first seed
NOW_S = 1.0  # the jobs that wait come then, those that run before
GAP, LIMIT_S = 0.001, 60.0  # of the integer program
GOAL = (0.0, 3.0)  # percent above the optimum, in the median; fixed before the runs
WATTS, BUDGET_W = (30.0, 50.0), 200.0
OPTIMAL, IMPOSSIBLE = 0, 2  # states of the solver


class State(NamedTuple):
    """A machine, and jobs that run or wait at ``NOW_S``."""

    cluster: Cluster
    arrivals: tuple[Arrival, ...]


class Regret(NamedTuple):
    """Least sum of ends with what a policy starts now, over the least of all, - 1.

    ``exact``: both programs were solved within the time limit.
    """

    share: float
    exact: bool


# -- states ------------------------------------------------------------------------------------------------


def _arrival(number: int, seconds: dict[str, int], units: int = 1, demand: Sequence[float] = ()) -> Arrival:
    """Make a job that waits, or with a number below 0 one that ends so long after ``NOW_S``."""
    submit_s = 0.0 if number < 0 else NOW_S
    times = {pool: NOW_S - submit_s + length for pool, length in seconds.items()}
    exact = EstimateKind.EXACT
    job = Job(number, submit_s, units, estimate_kind=exact, estimates_s=times, demand=tuple(demand))
    return Arrival(job, max(times.values()), times)


def on_counted(chance: random.Random, classes: int = 1) -> State:
    """Draw classes of 3 to 6 units; jobs of 1 to 3 units and 1 to 6 s."""
    sizes = {name: chance.randint(3, 6) for name in "ab"[:classes]}
    arrivals, numbers = list[Arrival](), count(-1, -1)
    for name, units in sizes.items():
        left = units
        while left and chance.random() < 0.8:
            taken = chance.randint(1, min(left, 3))
            left -= taken
            arrivals.append(_arrival(next(numbers), {name: chance.randint(1, 6)}, taken))
    for number in range(chance.randint(2, 12)):
        units = chance.randint(1, 3)
        arrivals.append(_arrival(number, {name: chance.randint(1, 6) for name in sizes}, units))
    pools = tuple(Pool(name, units, rank) for rank, (name, units) in enumerate(sizes.items()))
    return State(Cluster(pools), tuple(arrivals))


def on_classes(chance: random.Random) -> State:
    return on_counted(chance, 2)


def on_nodes(chance: random.Random) -> State:
    """Draw one or two classes of two nodes, cores and memory; jobs of one task or two."""
    pools = tuple(
        Pool(name, 2, rank, ("cpu", "memory"), (float(chance.randint(4, 8)), float(chance.randint(4, 8))))
        for rank, name in enumerate("ab"[: chance.randint(1, 2)])
    )
    return _of_demands(chance, pools, lambda: (chance.randint(1, 4), chance.randint(1, 4)), tasks=2)


def on_gpus(chance: random.Random) -> State:
    """Draw one or two classes of two nodes with cores and two GPUs; jobs take half a GPU, or one or two."""
    pools = tuple(
        Pool(name, 2, rank, ("cpu", "gpu"), (float(chance.randint(4, 8)), 2.0))
        for rank, name in enumerate("ab"[: chance.randint(1, 2)])
    )
    return _of_demands(chance, pools, lambda: (chance.randint(1, 3), chance.choice((0.5, 0.5, 1, 2))))


def _of_demands(
    chance: random.Random, pools: tuple[Pool, ...], demand: Callable[[], tuple[float, ...]], tasks: int = 1
) -> State:
    lengths = [{pool.name: chance.randint(1, 6) for pool in pools} for _ in range(chance.randint(4, 16))]
    running = len(lengths) // 4
    arrivals = [
        _arrival(number, seconds, chance.randint(1, tasks) if number >= 0 else 1, demand())
        for number, seconds in enumerate(lengths, -running)
    ]
    return State(Cluster(pools), tuple(arrivals))


def of_sizes(chance: random.Random, *, caps: bool = False) -> State:
    """Draw five to eight units, and jobs of one to four, of which each adds no more than the one before."""
    watts = WATTS if caps else ()
    pool = Pool("node", chance.randint(5, 8), base_w=10.0 * caps, peak_w=50.0 * caps, caps_w=watts)
    jobs = [_arrival(-1, {"node": chance.randint(1, 4)}, 2)]
    for number in range(chance.randint(2, 12)):
        seconds, speed, most = _sized(chance, caps=caps)
        arrival = _arrival(number, {"node": seconds})
        jobs.append(arrival._replace(job=replace(arrival.job, max_units=most, speed=speed)))
    return State(Cluster((pool,), BUDGET_W if caps else None), tuple(jobs))


def under_caps(chance: random.Random) -> State:
    """Draw the same with two caps, and watts for a part of the units at the higher one."""
    return of_sizes(chance, caps=True)


def _sized(chance: random.Random, *, caps: bool) -> tuple[int, TabulatedSpeed, int]:
    """Draw a run time and speeds at which every size takes whole seconds."""
    while True:
        seconds, most = chance.choice((4, 6, 8, 12)), chance.randint(1, 4)
        gains = sorted(chance.choices((0.0, 0.5, 1.0), k=most - 1), reverse=True)
        capped = CapTable(WATTS, (1.0, chance.choice((1.0, 1.5, 2.0)))) if caps else None
        speed = TabulatedSpeed(1, tuple(accumulate((1.0, *gains))), capped)
        ways = product(range(1, most + 1), WATTS if caps else (None,))
        if all((seconds / speed(units, cap)).is_integer() for units, cap in ways):
            return seconds, speed, most


KINDS: dict[str, Callable[[random.Random], State]] = {
    "one class": on_counted,
    "two classes": on_classes,
    "nodes": on_nodes,
    "GPUs, halves of them": on_gpus,
    "sizes": of_sizes,
    "sizes and caps": under_caps,
}


# -- the optimum -------------------------------------------------------------------------------------------


def lived(policy: str, state: State) -> list[Outcome]:
    """Return what becomes of all jobs under a policy."""
    record = OutcomeRecorder()
    Simulator(state.cluster, state.arrivals, create(policy), sinks=[record]).run()
    return record.outcomes


def placements(job: Job, cluster: Cluster) -> Iterator[Placement]:
    """Yield every place of a job on an empty machine, in each size and under each cap."""
    for pool in cluster.pools:
        if not job.runs_on(pool.name):
            continue
        if pool.counted:
            most = min(job.max_units or job.units, pool.units)
            caps: Sequence[float | None] = pool.caps_w or (None,)
            for units, cap_w in product(range(job.units, most + 1), caps):
                yield Placement(pool.name, units, cap_w=cap_w)
            continue
        for chosen in combinations_with_replacement(range(pool.units), job.units):
            nodes = tuple((node, chosen.count(node)) for node in sorted(set(chosen)))
            if all(n * d <= c for _, n in nodes for d, c in zip(job.demand, pool.capacity, strict=True)):
                yield Placement(pool.name, job.units, nodes)


def _taken(job: Job, place: Placement, cluster: Cluster) -> dict[tuple[str | int, ...], float]:
    """Return what a placement takes: units of a class, resources of nodes, watts of the budget."""
    amounts: dict[tuple[str | int, ...], float] = {}
    for node, units in place.nodes:
        for resource, demand in enumerate(job.demand):
            amounts[place.pool, node, resource] = units * demand
    if not place.nodes:
        amounts[place.pool,] = place.units
    if cluster.budget_w is not None:
        amounts["budget",] = cluster[place.pool].power_of(job, place)
    return amounts


def _capacity(row: tuple[str | int, ...], cluster: Cluster) -> float:
    if row == ("budget",):
        return cluster.budget_w or 0.0
    pool = cluster[str(row[0])]
    return float(pool.units) if pool.counted else pool.capacity[int(row[2])]


class Program:
    """The integer program of a state, as a policy has left it at ``NOW_S``.

    Attributes:
        waiting: outcomes of those that wait then, in the order of the queue.
        now: what the policy has started then, by job.
    """

    def __init__(self, cluster: Cluster, outcomes: Sequence[Outcome]) -> None:
        self.cluster = cluster
        by_number = sorted(outcomes, key=lambda outcome: (outcome.job.submit_s, outcome.job.id))
        self.waiting = [outcome for outcome in by_number if outcome.start_s >= NOW_S]
        self.running = [outcome for outcome in by_number if outcome.start_s < NOW_S]
        self.now = {o.job.id: _key(o.segments[0].placement) for o in self.waiting if o.start_s == NOW_S}
        ends = [outcome.end_s for outcome in outcomes]
        self.horizon = math.ceil(max(ends) - NOW_S + max(o.end_s - o.start_s for o in self.waiting))

    def solve(self, latest_first: int, *, as_decided: bool) -> tuple[int, float]:
        """Return the solver's status, and the least sum of ends that it has found.

        Args:
            latest_first: the first of the queue starts by then.
            as_decided: what the policy has started starts now, and nobody else.
        """
        rows = dict[tuple[str | int, ...], int]()
        entries, costs = list[tuple[int, int, float]](), list[float]()
        for turn, outcome in enumerate(self.waiting):
            job = outcome.job
            for place in placements(job, self.cluster):
                length, amounts = round(estimate_under(job, place)), _taken(job, place, self.cluster)
                for start in range(latest_first + 1 if not turn else self.horizon - length + 1):
                    if as_decided and (None if start else _key(place)) != self.now.get(job.id):
                        continue
                    column = len(costs)
                    costs.append(start + length)
                    entries.append((rows.setdefault(("job", job.id), len(rows)), column, 1.0))
                    entries += [
                        (rows.setdefault(("at", second, *row), len(rows)), column, amount)
                        for row, amount in amounts.items()
                        for second in range(start, start + length)
                    ]
        if sum(name[0] == "job" for name in rows) < len(self.waiting):
            return IMPOSSIBLE, math.inf
        free = {name: 1.0 if name[0] == "job" else _capacity(name[2:], self.cluster) for name in rows}
        for outcome in self.running:
            amounts = _taken(outcome.job, outcome.segments[0].placement, self.cluster)
            for row, amount in amounts.items():
                for second in range(round(outcome.end_s - NOW_S)):
                    if ("at", second, *row) in free:
                        free["at", second, *row] -= amount
        most = np.array(list(free.values()))
        least = np.where([name[0] == "job" for name in rows], 1.0, -np.inf)
        places, columns, taken = zip(*entries, strict=True)
        with silent_solver():
            solved = milp(
                costs,
                constraints=LinearConstraint(csr_matrix((taken, (places, columns))), least, most),
                integrality=np.ones(len(costs)),
                bounds=Bounds(0, 1),
                options={"mip_rel_gap": GAP, "time_limit": LIMIT_S},
            )
        return solved.status, math.inf if solved.fun is None else float(solved.fun)


def _key(place: Placement) -> tuple[object, ...]:
    return place.pool, place.units, tuple(sorted(place.nodes))


def regret(policy: str, state: State) -> Regret:
    """Compare a policy with the optimum of a state."""
    program = Program(state.cluster, lived(policy, state))
    # Under caps it may start later: those that the policy changes in the meantime let it start there.
    for latest_first in (math.ceil(program.waiting[0].start_s - NOW_S), program.horizon):
        solved = [program.solve(latest_first, as_decided=as_decided) for as_decided in (False, True)]
        if all(status != IMPOSSIBLE for status, _ in solved):
            break
    (exact, least), (exact_too, decided) = solved
    return Regret(decided / least - 1.0, exact == exact_too == OPTIMAL)


# -- the evaluation ----------------------------------------------------------------------------------------


class StateCase(NamedTuple):
    """One state."""

    kind: str
    seed: int

    def __str__(self) -> str:
        return f"{self.kind}, seed {self.seed}"


def compare(case: StateCase) -> Regret:
    return regret("weigh", KINDS[case.kind](random.Random(case.seed)))


def evaluate(scale: Scale, progress: Progress) -> Evaluation:
    """See ``PAPER``."""
    cases = [StateCase(kind, FIRST + number) for kind in KINDS for number in range(STATES[scale])]
    results = run_all(compare, cases, progress)
    findings, rows = list[Finding](), list[Row]()
    for kind in KINDS:
        of = [result for case, result in zip(cases, results, strict=True) if case.kind == kind]
        percent = np.round(100 * np.array([result.share for result in of if result.exact]), 6)
        median, high, worst = np.percentile(percent, (50, 95, 100)).tolist()
        optimal = 100 * float(np.mean(percent <= 100 * GAP))
        limited = len(of) - len(percent)
        rows.append((kind, len(percent), limited, median, float(percent.mean()), high, worst, optimal))
        findings.append(Finding("median above the optimum", None, exactly(median), "%", GOAL, of=kind))
    columns = ("states", "solved", "at the limit", "median", "mean", "95 %", "worst", "optimal, % of states")
    table = Table("Sum of ends above the optimum, %", columns, tuple(rows))
    return Evaluation(PAPER, scale, ASSUMPTIONS, tuple(findings), (table,))


ASSUMPTIONS = (
    "Run times are exact, of whole seconds; those that wait have just come. Nothing is stopped or moved.",
    "In both programs the first of the queue starts as early as under weigh, and a job keeps its size and "
    "cap. Caps of what weigh starts are left to the program, because weigh changes them later.",
    "Jobs on one GPU do not slow each other down.",
    f"Gap of the integer program: {100 * GAP:g} %. Limit: {LIMIT_S:g} s each; states that need more are "
    "counted apart.",
)
