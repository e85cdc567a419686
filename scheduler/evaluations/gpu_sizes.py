"""Programs with measured sizes on a node of four GPUs: EcoSched's queue and rule, the optimum, policies."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np

from profiles.errors import BadInput
from scheduler.evaluations import Estimate, Evaluation, Finding, Progress, Row, Scale, Table, exactly, run_all
from scheduler.evaluations.prediction import path_of
from scheduler.model.events import Action, Event, Start
from scheduler.model.jobs import Cluster, EstimateKind, Job, Pool, counted
from scheduler.model.speeds import TabulatedSpeed
from scheduler.policies.base import Policy, View
from scheduler.policies.registry import create
from scheduler.simulator.simulator import Simulator
from scheduler.simulator.trace import Arrival, OutcomeRecorder

PAPER = "EcoSched (arXiv 2604.17640), its measured programs on nodes of four A100 and of four V100"
FILE = "ecosched2026-profiles.csv"
GPUS = 4
AT_ONCE = 2  # jobs
SLOWER = 0.2  # than at its best size a job may be
IDLE_W = {"A100": 53.0, "V100": 43.0}
QUEUE = (
    *("minisweep", "lbm", "cloverleaf", "tealeaf", "miniweather", "bert", "gpt2", "resnet50"),
    *("conjugateGradientMultiDeviceCG", "pot3d", "simpleP2P", "streamOrderedAllocationP2P"),
    *("resnet101", "resnet152", "vgg19", "vgg16", "MonteCarloMultiGPU"),
)
MEASURED = {  # the authors' own runs: s and kJ of their rule, kJ of their exact schedule
    "A100": (404.5, 299.1, 287.6),
    "V100": (667.8, 435.0, 434.5),
}
RULE, LEAST, LANES = "EcoSched's rule", "no schedule takes less", "a schedule of two lanes"
ONE_ALL, ONE_BEST = "one after the other, all GPUs", "one after the other, best size"
OWN = "weigh, makespan"
POLICIES: Mapping[str, tuple[str, bool]] = {  # policy, and whether running jobs change their size
    OWN: ("weigh,aim=makespan", False),
    "weigh, makespan, malleable": ("weigh,aim=makespan", True),
    "weigh, turnaround": ("weigh", False),
    "weigh, turnaround, malleable": ("weigh", True),
    "easy, fewest GPUs": ("easy", False),
}


class Size(NamedTuple):
    """A number of GPUs on which a program was measured: its run time, and the power of all of them."""

    gpus: int
    run_s: float
    power_w: float

    @property
    def energy_j(self) -> float:
        return self.run_s * self.power_w


Sizes = Mapping[str, tuple[Size, ...]]  # of each program, by their number of GPUs


class Figures(NamedTuple):
    """Makespan, energy of the node, mean turnaround; ms of a simulation for each decision (0: none)."""

    makespan_s: float
    energy_j: float
    turnaround_s: float = 0.0
    decision_ms: float = 0.0


def read(path: Path) -> dict[str, Sizes]:
    """Read the sizes of each program on each kind of node.

    Raises:
        BadInput: the file cannot be read, or a field is no number.
    """
    tables: dict[str, dict[str, list[Size]]] = {}
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            for row in csv.DictReader(lines):
                gpus, run_s = int(row["gpus"]), float(row["run_s"])
                size = Size(gpus, run_s, gpus * float(row["power_w_per_gpu"]))
                tables.setdefault(row["node_gpu"], {}).setdefault(row["program"], []).append(size)
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or error}", f"let TENBIN_DATA name {FILE}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(f"{path}: a field is missing or no number", "get the file again") from error
    return {
        node: {program: tuple(sorted(rows)) for program, rows in programs.items()}
        for node, programs in tables.items()
    }


def allowed(sizes: Sequence[Size]) -> tuple[Size, ...]:
    """Return the sizes at which a program is not much slower than at its best."""
    limit = (1 + SLOWER) * min(size.run_s for size in sizes) + 1e-9
    return tuple(size for size in sizes if size.run_s <= limit)


def energy_j(idle_w: float, makespan_s: float, runs: Sequence[Size]) -> float:
    """Add the energy of all runs and that of GPUs which are idle until the last has ended."""
    idle = GPUS * makespan_s - sum(size.gpus * size.run_s for size in runs)
    return sum(size.energy_j for size in runs) + idle_w * idle


# -- EcoSched's rule ---------------------------------------------------------------------------------------


class EcoSched(Policy):
    """Of all jobs and couples of jobs that fit now, at each of their allowed sizes, start the cheapest.

    The cost is the mean of energy over that at the size of least energy - 1, plus the share of GPUs that
    stay idle times the power of an idle GPU over that of a busy one.

    Args:
        sizes: the measured ones (EcoSched predicts them from counters of short runs). NUMA is left out.
    """

    def __init__(self, sizes: Sizes, idle_w: float) -> None:
        super().__init__()
        rows = [size for program in sizes.values() for size in program]
        self._idle = idle_w / float(np.mean([size.power_w / size.gpus for size in rows]))
        self._sizes = {program: allowed(rows) for program, rows in sizes.items()}
        self._regret = {
            (program, size.gpus): size.energy_j / min(s.energy_j for s in rows) - 1
            for program, rows in sizes.items()
            for size in rows
        }

    def decide(self, view: View, event: Event) -> Sequence[Action]:
        if view.upcoming is not None:
            return ()
        free, slots = view.free["gpu"], AT_ONCE - len(view.running)
        ways = [
            (job, size) for job in view.waiting.values() for size in self._sizes[job.program] if slots >= 1
        ]
        groups = [(way,) for way in ways]
        couples = [(a, b) for a, b in combinations(ways, 2) if a[0] is not b[0]] if slots >= AT_ONCE else []
        best = min(
            (
                (self._cost(group, free), place, group)
                for place, group in enumerate((*groups, *couples))
                if sum(size.gpus for _, size in group) <= free
            ),
            default=None,
            key=lambda choice: choice[:2],
        )
        return [] if best is None else [Start(job.id, counted("gpu", size.gpus)) for job, size in best[2]]

    def _cost(self, group: Sequence[tuple[Job, Size]], free: int) -> tuple[float, float, int]:
        taken = sum(size.gpus for _, size in group)
        regret = sum(self._regret[job.program, size.gpus] for job, size in group) / len(group)
        return regret + self._idle * (free - taken) / GPUS, (free - taken) / GPUS, -taken


# -- the optimum -------------------------------------------------------------------------------------------


class Bounds(NamedTuple):
    """Energy that no schedule is below, and the figures of a schedule."""

    least_j: float
    schedule: Figures


def optimum(sizes: Sizes, idle_w: float) -> Bounds:
    """Bound the least energy of all schedules of at most two jobs at once, by two mixed-integer programs.

    Both choose a size for each job. Below: the makespan is at least the time on four GPUs, plus half of
    all others, and a job on three GPUs has none on two or three beside it. Above: a schedule of two lanes.
    The first has all jobs on three GPUs first, the second has those on one GPU first; those on four come
    last, alone.
    """
    energy = _solve(sizes, idle_w, lanes=False)
    above = _solve(sizes, idle_w, lanes=True)
    return Bounds(energy[0], Figures(above[1], above[0]))


def _solve(sizes: Sizes, idle_w: float, *, lanes: bool) -> tuple[float, float]:
    """Return energy and makespan of a program's solution."""
    from scipy.optimize import Bounds as Limits
    from scipy.optimize import LinearConstraint, milp

    ways = [
        (number, size, lane)
        for number, rows in enumerate(sizes.values())
        for size in allowed(rows)
        for lane in ((0, 1) if lanes and size.gpus < 3 else (0,))
    ]
    count, infinite = len(ways), np.inf
    # variables: ways (0 or 1), the makespan without four GPUs, the end of the first part of the second lane
    cost = np.array([size.energy_j - idle_w * size.gpus * size.run_s for _, size, _ in ways] + [0.0, 0.0])
    rows, lows, highs = [], [], []

    def add(row: np.ndarray, low: float, high: float = infinite) -> None:
        rows.append(row)
        lows.append(low)
        highs.append(high)

    def times(*shares: float, lane: int | None = None) -> np.ndarray:
        """Row of - the time of jobs on 1, 2, 3 GPUs times these shares."""
        row = np.zeros(count + 2)
        for place, (_, size, of) in enumerate(ways):
            if size.gpus < GPUS and lane in (None, of):
                row[place] = -shares[size.gpus - 1] * size.run_s
        return row

    makespan, part = np.eye(count + 2)[count:]
    for number in range(len(sizes)):
        add(np.array([float(way[0] == number) for way in ways] + [0.0, 0.0]), 1.0, 1.0)
    if lanes:
        add(makespan + times(1, 1, 1, lane=0), 0.0)
        add(part + times(1, 0, 0, lane=1), 0.0)
        add(part + times(0, 0, 1, lane=0), 0.0)  # who takes two GPUs begins after those on three
        add(makespan - part + times(0, 1, 0, lane=1), 0.0)
    else:
        add(makespan + times(0.5, 0.5, 0.5), 0.0)
        add(makespan + times(0, 0.5, 1), 0.0)
    alone = np.array([size.run_s * (size.gpus == GPUS) for _, size, _ in ways] + [0.0, 0.0])
    cost += idle_w * GPUS * (makespan + alone)
    result = milp(
        cost,
        integrality=np.array([1] * count + [0, 0]),
        bounds=Limits(np.zeros(count + 2), np.array([1.0] * count + [infinite, infinite])),
        constraints=LinearConstraint(np.array(rows), np.array(lows), np.array(highs)),
        options={"mip_rel_gap": 1e-6, "time_limit": 60},
    )
    least = float(result.fun if lanes else result.mip_dual_bound)
    return least, float(result.x @ (makespan + alone))


# -- simulations -------------------------------------------------------------------------------------------


def jobs(sizes: Sizes, *, malleable: bool = False) -> list[Arrival]:
    """Make a job of each program, all at 0 s, with its allowed sizes."""
    arrivals = []
    for number, (program, rows) in enumerate(sizes.items(), 1):
        able, by_gpus = allowed(rows), {size.gpus: size.run_s for size in rows}
        least, most = able[0], able[-1].gpus
        speeds = tuple(least.run_s / by_gpus[gpus] for gpus in range(least.gpus, most + 1))
        job = Job(
            number,
            0.0,
            least.gpus,
            least.run_s,
            estimate_kind=EstimateKind.EXACT,
            max_units=most if most > least.gpus else None,
            malleable=malleable and most > least.gpus,
            speed=TabulatedSpeed(least.gpus, speeds),
            program=program,
        )
        arrivals.append(Arrival(job, least.run_s))
    return arrivals


def simulate(policy: Policy, sizes: Sizes, idle_w: float, *, malleable: bool = False) -> Figures:
    """Simulate the queue; power is what was measured at each size."""
    record, cluster = OutcomeRecorder(), Cluster((Pool("gpu", GPUS),))
    summary = Simulator(cluster, jobs(sizes, malleable=malleable), policy, sinks=[record]).run()
    runs = []
    for outcome in record.outcomes:
        power = {size.gpus: size.power_w for size in sizes[outcome.job.program]}
        for segment in outcome.segments:
            units = segment.placement.units
            runs.append(Size(units, segment.end_s - segment.start_s, power[units]))
    return Figures(
        summary.end_s,
        energy_j(idle_w, summary.end_s, runs),
        float(np.mean([outcome.end_s for outcome in record.outcomes])),
        1e3 * summary.wall_s / max(1, summary.decisions),
    )


def one_after_the_other(sizes: Sizes, idle_w: float, *, best: bool) -> Figures:
    """Run each job alone: at its fastest size, or on all GPUs that it can use."""
    runs = [
        min(rows, key=lambda size: size.run_s) if best else max(rows, key=lambda size: size.gpus)
        for rows in sizes.values()
    ]
    ends = np.cumsum([size.run_s for size in runs])
    return Figures(float(ends[-1]), energy_j(idle_w, float(ends[-1]), runs), float(ends.mean()))


def compare(case: tuple[str, Sizes]) -> dict[str, Figures]:
    """Return the figures of every rule on one kind of node."""
    node, sizes = case
    idle_w = IDLE_W[node]
    bounds = optimum(sizes, idle_w)
    results = {
        ONE_ALL: one_after_the_other(sizes, idle_w, best=False),
        ONE_BEST: one_after_the_other(sizes, idle_w, best=True),
        RULE: simulate(EcoSched(sizes, idle_w), sizes, idle_w),
        LEAST: Figures(0.0, bounds.least_j),
        LANES: bounds.schedule,
    }
    for name, (text, malleable) in POLICIES.items():
        results[name] = simulate(create(text), sizes, idle_w, malleable=malleable)
    return results


def evaluate(scale: Scale, progress: Progress) -> Evaluation:
    """See ``PAPER``. Raises BadInput where TENBIN_DATA has no measured sizes."""
    path = path_of(FILE)
    tables = read(path)
    for node in IDLE_W:
        if lacks := [name for name in QUEUE if name not in tables.get(node, {})]:
            raise BadInput(f"{path}: no sizes of {lacks[0]} on {node}", "get the file again")
    cases = [(node, {name: tables[node][name] for name in QUEUE}) for node in IDLE_W]
    by_node = dict(zip(IDLE_W, run_all(compare, cases, progress, lambda case: case[0]), strict=True))
    findings, rows = [], list[Row]()
    for node, results in by_node.items():
        rule, least, lanes, own = (results[name] for name in (RULE, LEAST, LANES, OWN))
        rule_s, rule_kj, exact_kj = MEASURED[node]
        paper = 100 * (rule_kj / exact_kj - 1)
        findings += [
            Finding(
                "makespan of EcoSched's rule", rule_s, exactly(rule.makespan_s), "s", _near(rule_s), of=node
            ),
            Finding(
                "its energy over the least",
                paper,
                _over(rule.energy_j, least.energy_j),
                "%",
                (0.0, 10.0),
                of=node,
            ),
            Finding(
                f"energy of {OWN} over two lanes",
                None,
                _over(own.energy_j, lanes.energy_j),
                "%",
                (-100.0, 1.0),
                of=node,
            ),
            Finding(
                f"energy x time of {OWN} against the rule",
                None,
                _over(own.energy_j * own.makespan_s, rule.energy_j * rule.makespan_s),
                "%",
                (-100.0, 0.0),
                of=node,
            ),
        ]
        for name in POLICIES:
            change = _over(results[name].energy_j, rule.energy_j)
            findings.append(Finding(f"energy against the rule, {name}", None, change, "%", of=node))
        for name, figures in results.items():
            kj = figures.energy_j / 1e3
            time = figures.makespan_s or None
            rows.append(
                (
                    *(node, name, time, kj, kj * time / 1e3 if time else None),
                    *(figures.turnaround_s or None, figures.decision_ms or None),
                )
            )
    columns = ("node", "rule", "makespan, s", "energy, kJ", "MJ x s", "mean turnaround, s", "ms a decision")
    table = Table("17 programs, all there at once", columns, tuple(rows))
    return Evaluation(PAPER, scale, ASSUMPTIONS, tuple(findings), (table,), remarks=REMARKS)


def _over(value: float, base: float) -> Estimate:
    return exactly(100 * (value / base - 1))


def _near(value: float) -> tuple[float, float]:
    return 0.85 * value, 1.15 * value


ASSUMPTIONS = (
    f"A job is at most {100 * SLOWER:g} % slower than at its best size. EcoSched's rule and the optimum run "
    f"at most {AT_ONCE} jobs at once, as theirs; policies as many as fit.",
    "Run times and power are those measured alone, and known. EcoSched predicts the run times from counters; "
    "the paper's column has its measured runs, whose energy lies some 15 % below that of its own tables.",
    "NUMA nodes, and slow-downs by each other, are left out.",
)
REMARKS = (
    f"The least energy lies between '{LEAST}' (a relaxed program) and '{LANES}' (one that can be run).",
    "weigh,aim=makespan plans all jobs that wait, if their sizes do not change while they run. No rule of "
    "weigh knows the powers: less energy comes of less idle time.",
)
