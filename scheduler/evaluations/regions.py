"""Paper E's evaluation: execution regions."""

from __future__ import annotations

import math
from bisect import bisect
from collections import defaultdict
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scheduler.evaluations import (
    Estimate,
    Evaluation,
    Finding,
    Picture,
    Progress,
    Row,
    Scale,
    Series,
    Table,
    changes,
    over_seeds,
    run_all,
)
from scheduler.model.jobs import Cluster, Pool
from scheduler.policies.regions.regions import PastWork, RegionLayout, layout, region_bounds, region_of
from scheduler.policies.registry import create
from scheduler.simulator.simulator import Simulator
from scheduler.simulator.trace import Arrival, Outcome
from scheduler.workloads import load
from scheduler.workloads.arrivals import stretched
from scheduler.workloads.generators.kmix import MIXES
from scheduler.workloads.generators.power_sets import theta_log

# -- nodes in a row ----------------------------------------------------------------------------------------
#
# A straight-line simulation beside the simulator, whose counted pools have no addresses: fcfs or first fit,
# and each job takes the first hole that is wide enough.


class NodeRow:
    """Nodes 0, 1, ... with holes between the jobs; a hole is (first node, number of nodes)."""

    def __init__(self, nodes: int) -> None:
        self.holes = [(0, nodes)]

    def widest(self) -> int:
        """Return the nodes of the widest hole."""
        return max((width for _, width in self.holes), default=0)

    def take(self, nodes: int) -> int:
        """Take the first hole that is wide enough (there must be one), and return its first node."""
        i = next(i for i, (_, width) in enumerate(self.holes) if width >= nodes)
        begin, width = self.holes[i]
        self.holes[i : i + 1] = [(begin + nodes, width - nodes)] if width > nodes else []
        return begin

    def give(self, begin: int, nodes: int) -> None:
        """Free nodes; holes that touch are joined."""
        end, i = begin + nodes, bisect(self.holes, (begin, 0))
        if i < len(self.holes) and self.holes[i][0] == end:
            end += self.holes.pop(i)[1]
        if i and sum(self.holes[i - 1]) == begin:
            i -= 1
            begin = self.holes.pop(i)[0]
        self.holes.insert(i, (begin, end - begin))


def starts_in_a_row(arrivals: Sequence[Arrival], nodes: int, may_pass: bool) -> dict[int, float]:
    """Find the start of each job on a row of nodes; with ``may_pass`` a later job that fits starts."""
    row, starts = NodeRow(nodes), dict[int, float]()
    queue: list[Arrival] = []
    ends: list[tuple[float, int, int]] = []  # end, first node, nodes
    coming = list(reversed(arrivals))
    while coming or queue:
        now = min(coming[-1].job.submit_s if coming else ends[0][0], ends[0][0] if ends else float("inf"))
        while ends and ends[0][0] <= now:
            row.give(*heappop(ends)[1:])
        while coming and coming[-1].job.submit_s <= now:
            queue.append(coming.pop())
        left: list[Arrival] = []
        widest = row.widest()
        for arrival in queue:
            job = arrival.job
            if job.units <= widest and (may_pass or not left):
                heappush(ends, (now + arrival.run_s, row.take(job.units), job.units))
                starts[job.id] = now
                widest = row.widest()
            else:
                left.append(arrival)
        queue = left
    return starts


# -- simulations -------------------------------------------------------------------------------------------


NODES, LARGEST = 9216, 1000
MACHINE = Cluster((Pool("node", NODES),))
HOUR_S, WEEK_S, INTERVAL_S = 3600.0, 7 * 86_400.0, 20_000.0
IN_A_ROW = {"fcfs, nodes in a row": False, "first-fit, nodes in a row": True}  # whether jobs may pass
INSIDES = ("fcfs", "easy", "first-fit", *IN_A_ROW)
COUNTS = (1, 2, 3, 4, 5)
OTHER_SEED = 1000  # the week whose sizes an operator would have: drawn with this much added to the seed
LONG = 5  # intervals of the longer window: 100,000 s

Floats = NDArray[np.float64]


class JobTimes:
    """A sink that keeps numbers only: per job nodes, submission, start and end."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, int, float, float, float]] = []

    def add(self, outcome: Outcome) -> None:
        job = outcome.job
        self._rows.append((job.id, job.units, job.submit_s, outcome.start_s, outcome.end_s))

    def columns(self) -> tuple[Floats, ...]:
        """Return number, nodes, submission, start and end, by number."""
        return tuple(np.array(sorted(self._rows)).T)


def simulate(arrivals: Iterable[Arrival], policy: str, seed: int = 0) -> tuple[Floats, ...]:
    """Return number, nodes, submission, start and end of each job."""
    jobs = JobTimes()
    Simulator(MACHINE, arrivals, create(policy, seed), sinks=[jobs]).run()
    return jobs.columns()


# -- single weeks -------------------------------------------------------------------------------------


class Week(NamedTuple):
    """A mix of table 5, drawn with a seed."""

    mix: int
    seed: int


class Split(NamedTuple):
    """A week under one number of regions.

    Attributes:
        spreads_h: longest wait less shortest, of each region.
        apart_h: the same of the undivided machine's jobs, in the groups of each number of regions.
        filling_percent: nodes in use over the week of submissions.
    """

    spreads_h: tuple[float, ...]
    apart_h: dict[int, tuple[float, ...]]
    longest_h: float
    filling_percent: float


class WeekResult(NamedTuple):
    """A week cut in every way; keys of ``splits``: inside, number of regions, sizes of the same week or not.

    ``densities``: submitted node-time of region 2 of 2 in each interval of 20,000 s, over its node-time.
    ``waits``: submission (s) and wait (h) of each job with 2 regions, fcfs inside.
    """

    week: Week
    layouts: dict[int, RegionLayout]
    splits: dict[tuple[str, int, bool], Split]
    densities: tuple[float, ...]
    waits: tuple[tuple[float, ...], tuple[float, ...]]


def drawn(mix: int, seed: int) -> list[Arrival]:
    """Draw the jobs of one mix."""
    return list(load(f"generator:k-mix,mix={mix}", MACHINE, seed).arrivals)  # type: ignore[arg-type]


def layouts_of(arrivals: Iterable[Arrival]) -> dict[int, RegionLayout]:
    """Cut the machine for these jobs, by number of regions."""
    work = [PastWork(a.job.units, a.job.units * a.run_s) for a in arrivals]
    return {count: layout(work, LARGEST, count, NODES) for count in COUNTS}


def run_week(week: Week) -> WeekResult:
    """Run the week under each of ``INSIDES``, in 1 to 5 regions, with sizes from this week and another."""
    arrivals = drawn(*week)
    own, others = layouts_of(arrivals), layouts_of(drawn(week.mix, week.seed + OTHER_SEED))
    splits = {}
    waits: tuple[tuple[float, ...], tuple[float, ...]] = ((), ())
    for inside in INSIDES:
        for count in COUNTS:
            for same in (True, False) if count > 1 else (True,):
                cut = (own if same else others)[count]
                _, nodes, submit, start, end = _in_regions(arrivals, cut, inside)
                splits[inside, count, same] = _split(nodes, submit, start, end, count=count)
                if (inside, count, same) == ("fcfs", 2, True):
                    waits = (tuple(submit), tuple((start - submit) / HOUR_S))
    return WeekResult(week, own, splits, _densities(arrivals, own[2]), waits)


def _in_regions(arrivals: list[Arrival], cut: RegionLayout, inside: str) -> tuple[Floats, ...]:
    """Return number, nodes, submission, start and end of each job in regions that never move."""
    if inside not in IN_A_ROW:
        policy = f"regions,inside={inside},bounds={_text(cut.bounds)},sizes={_text(cut.sizes)}"
        return simulate(arrivals, policy)
    starts: dict[int, float] = {}
    for index, size in enumerate(cut.sizes):
        part = [a for a in arrivals if region_of(a.job.units, cut.bounds) == index]
        starts |= starts_in_a_row(part, size, IN_A_ROW[inside])
    rows = [(a.job.id, a.job.units, a.job.submit_s, starts[a.job.id], a.run_s) for a in arrivals]
    number, nodes, submit, start, run_s = np.array(rows).T
    return number, nodes, submit, start, start + run_s


def _text(numbers: Iterable[int]) -> str:
    return "/".join(map(str, numbers))


def _split(nodes: Floats, submit: Floats, start: Floats, end: Floats, *, count: int) -> Split:
    waits = (start - submit) / HOUR_S
    groups = COUNTS if count == 1 else (count,)
    spreads = {k: _spreads(nodes, waits, region_bounds(LARGEST, k)) for k in groups}
    in_week = np.minimum(end, WEEK_S) - np.minimum(start, WEEK_S)
    filling = 100.0 * float((nodes * in_week).sum()) / (NODES * WEEK_S)
    return Split(spreads[count], spreads if count == 1 else {}, float(waits.max()), filling)


def _spreads(nodes: Floats, waits: Floats, bounds: tuple[int, ...]) -> tuple[float, ...]:
    """Subtract the shortest wait of each group of sizes from its longest."""
    group = np.searchsorted(bounds, nodes)
    return tuple(float(np.ptp(waits[group == i])) if (group == i).any() else 0.0 for i in range(len(bounds)))


def _densities(arrivals: list[Arrival], cut: RegionLayout) -> tuple[float, ...]:
    sums = np.zeros(int(np.ceil(WEEK_S / INTERVAL_S)))
    for a in arrivals:
        if region_of(a.job.units, cut.bounds) == 1:
            sums[int(a.job.submit_s / INTERVAL_S)] += a.job.units * a.run_s
    return tuple((sums / (cut.sizes[1] * INTERVAL_S)).tolist())


def densest(densities: tuple[float, ...], intervals: int) -> float:
    """Find the highest mean density of so many intervals in a row."""
    return float(np.convolve(densities, np.full(intervals, 1.0 / intervals), "valid").max())


# -- weeks on end -------------------------------------------------------------------------------------


class Stretch(NamedTuple):
    """Some weeks of a workload under one policy."""

    workload: str
    text: str
    policy: str
    seed: int


class StretchResult(NamedTuple):
    """Waits in hours; ``small_h``: the mean of jobs of up to 31 nodes.

    ``later_percent`` of the jobs started later than under fcfs without regions, by up to ``most_later_h``.
    """

    mean_h: float
    small_h: float | None
    longest_h: float
    later_percent: float
    most_later_h: float


def run_stretch(case: Stretch) -> StretchResult:
    """Run the workload under the policy, and under fcfs to compare each job's start with."""
    arrivals = _arrivals(case.text, case.seed)
    _, nodes, submit, start, _ = simulate(arrivals, case.policy, case.seed)
    plain = simulate(arrivals, "fcfs")[3]
    waits, later = (start - submit) / HOUR_S, (start - plain) / HOUR_S
    small = nodes <= region_bounds(LARGEST, 2)[0]
    return StretchResult(
        mean_h=float(waits.mean()),
        small_h=float(waits[small].mean()) if small.any() else None,
        longest_h=float(waits.max()),
        later_percent=100.0 * float((later > 1e-5).mean()),
        most_later_h=max(0.0, float(later.max())),
    )


def _arrivals(text: str, seed: int) -> list[Arrival]:
    """Generate jobs, or read a log's and stretch the times between arrivals to a load of 95 %."""
    workload: list[Arrival] = list(load(text, MACHINE, seed).arrivals)  # type: ignore[arg-type]
    return workload if text.startswith("generator:") else list(stretched(workload, MACHINE, 0.95))


# -- the evaluation ----------------------------------------------------------------------------------------


Long = dict[tuple[str, str], list[StretchResult]]  # by workload and policy

PAPER = "Takayama, Sekizawa, Suzuki, Yamamoto, Oguchi: dynamic execution regions for job scheduling, 2021"
SEEDS = {"small": 2, "full": 8}
LONG_SEEDS = {"small": 2, "full": 5}
LONG_WEEKS = {"small": 2, "full": 4}
THETA_JOBS = {"small": ",limit=3000", "full": ""}
TABLE_3 = {  # upper bounds and sizes as printed
    2: ((30, 1000), (193, 9023)),
    3: ((9, 99, 1000), (19, 1081, 8116)),
    4: ((5, 31, 177, 1000), (11, 190, 1487, 7528)),
    5: ((3, 15, 63, 251, 1000), (7, 66, 636, 1252, 7255)),
}
TABLE_4 = {1: (0.001, 0.001), 2: (0.030, 0.030), 3: (0.101, 0.111), 4: (0.178, 0.200), 5: (0.252, 0.333)}
CUTS = (
    "Tables 3 and 4, and what came out of mix 1 (9 and 99 are 9.99 and 99.9, cut; 19 is twice 9, and one; 30 "
    "follows from no rule that gives the other rows)"
)
WEEKS = (
    "Weeks on end: mean wait, that of jobs of up to 31 nodes, longest wait (h); jobs that start later than "
    "under fcfs (%), by at most (h)"
)
POLICIES = {
    "fcfs": "fcfs",
    "easy": "easy",
    "first fit": "regions,fixed=1,inside=first-fit",
    "2 regions, fcfs": "regions,fixed=2",
    "regions by the rule, fcfs": "regions",
    "regions by the rule, easy": "regions,inside=easy",
    "regions by the rule, first fit": "regions,inside=first-fit",
    "the same, every day": "regions,inside=first-fit,interval_s=86400",
    "soft regions": "soft-regions",
    "weigh": "weigh",
}
ASSUMPTIONS = (
    "K's job statistics are not public: generator k-mix makes mixes from tables 3 and 5, so these agree by "
    "construction. Chosen, because not printed: run times are log-normal (sigma 1.5) and cut at 24 h, "
    "submissions even at random, limits on average twice the run time.",
    "Spread: the longest wait less the shortest in a region; of several regions the largest. Sizes of "
    "regions come from the same week's jobs, as in the paper, unless another week is named, as an operator "
    "must do it.",
    "The paper says fcfs and no backfill inside a region, and 'no scattered allocation'. If that means that "
    "a job needs its nodes in a row, small jobs hinder large ones by the holes they leave: also run.",
    "Figures 4 to 16 have no numbers. Agreement is taken from the words: filling rates within 2 %; spreads "
    "at least 10 % smaller with 2 to 4 regions, larger with 5; spread of small jobs over that of large ones "
    "at most a half without regions, within a factor of 2 with them; longest waits with 2 regions about 20 h "
    "in two mixes and 40 h in the third; a rank correlation with density that lasts above 0.5.",
)


def evaluate(scale: Scale, progress: Progress) -> Evaluation:
    """Table 3 to figure 16 on weeks of the three mixes, then weeks on end with bursts and other jobs."""
    weeks = [Week(mix, seed) for seed in range(SEEDS[scale]) for mix in MIXES]
    results = run_all(run_week, weeks, progress, lambda w: f"mix {w.mix}, seed {w.seed}")
    stretches = _stretches(scale)
    ran = run_all(run_stretch, stretches, progress, lambda s: f"{s.workload}, {s.policy}, seed {s.seed}")
    return assemble(scale, results, stretches, ran)


def assemble(
    scale: Scale, results: Sequence[WeekResult], stretches: Sequence[Stretch], ran: Sequence[StretchResult]
) -> Evaluation:
    """Make findings, tables and pictures of the results."""
    long: Long = defaultdict(list)
    for stretch, result in zip(stretches, ran, strict=True):
        long[stretch.workload, stretch.policy].append(result)
    theta = "from TENBIN_DATA, its arrivals stretched to a load of 95 % on 9216 nodes"
    return Evaluation(
        paper=PAPER,
        scale=scale,
        assumptions=(
            *ASSUMPTIONS,
            f"{SEEDS[scale]} weeks of each mix; {LONG_SEEDS[scale]} times {LONG_WEEKS[scale]} weeks on end.",
            f"Theta's log is {theta if theta_log() else 'left out: TENBIN_DATA does not have it'}.",
        ),
        findings=(
            *_spread_findings(results),
            *_burst_findings(results),
            *_soft_findings(long),
        ),
        tables=(_cuts(results), _spread_table(results), _long_table(long)),
        pictures=_pictures(results, long),
        remarks=_remarks(results, long),
    )


def _stretches(scale: Scale) -> list[Stretch]:
    weeks = f"generator:k-mix,periods={LONG_WEEKS[scale]}"
    mixes = {
        "K's mix": weeks,
        "K's mix, bursts": f"{weeks},density=0.8,burst=0.2",
        "K's mix, bursts, exact limits": f"{weeks},density=0.8,burst=0.2,estimate=exact",
        "log-uniform sizes, bursts": f"{weeks},density=0.8,burst=0.2,sizes=log-uniform",
    }
    cases = [
        Stretch(name, text, policy, seed)
        for name, text in mixes.items()
        for policy in POLICIES.values()
        for seed in range(LONG_SEEDS[scale])
    ]
    if (log := theta_log()) is not None:
        cases.extend(Stretch("Theta", f"{log}{THETA_JOBS[scale]}", policy, 0) for policy in POLICIES.values())
    return cases


# -- findings -----------------------------------------------------------------------------------------


def _cuts(results: Sequence[WeekResult]) -> Table:
    """Tables 3 and 4: what is printed, and what came out."""
    rows: list[Row] = []
    for count, granularity in TABLE_4.items():
        bounds, sizes = TABLE_3.get(count, ((), ()))
        own = region_bounds(LARGEST, count)
        ratios = [(below + 1) / bound for below, bound in zip((0, *own), own, strict=False)]
        weeks = [r.layouts[count].sizes for r in results if r.week.mix == 1]
        means = tuple(round(over_seeds(size).mean, 2) for size in zip(*weeks, strict=True))
        here = (own[:-1], means if sizes else (), (min(ratios), max(ratios)))
        printed = (bounds[:-1], sizes, granularity)
        rows.append((count, *(cell for pair in zip(printed, here, strict=True) for cell in pair)))
    pairs = ("most nodes of a job", "nodes", "granularity: smallest, largest")
    columns = ("regions", *(text for name in pairs for text in (name, "here")))
    return Table(CUTS, columns, tuple(rows))


def _spread(results: Sequence[WeekResult], inside: str, count: int, same: bool = True) -> Estimate:
    return over_seeds([_widest(result, inside, count, same) for result in results])


def _widest(result: WeekResult, inside: str, count: int, same: bool = True) -> float:
    return max(result.splits[inside, count, same or count == 1].spreads_h)


def _spread_findings(results: Sequence[WeekResult]) -> list[Finding]:
    """Figures 4 to 14."""
    findings = []
    for count in (2, 5):
        got = changes(
            [r.splits["fcfs", count, True].filling_percent for r in results],
            [r.splits["fcfs", 1, True].filling_percent for r in results],
        )
        what = f"Figures 4 to 6: filling rate with {count} regions against none, fcfs"
        findings.append(Finding(what, None, got, "%", (-2.0, 2.0)))
    for inside in INSIDES:
        findings.extend(_of_inside(results, inside))
    return findings


def _of_inside(results: Sequence[WeekResult], inside: str) -> list[Finding]:
    findings = []
    for count in COUNTS[1:]:
        got = changes([_widest(r, inside, count) for r in results], [_widest(r, inside, 1) for r in results])
        same = (10.0, math.inf) if count == 5 else (-100.0, -10.0)
        what = f"Figure 7: spread with {count} regions against none"
        findings.append(Finding(what, None, got, "%", same, of=inside))
    undivided = over_seeds([_ratio(r.splits[inside, 1, True].apart_h[2]) for r in results])
    divided = over_seeds([_ratio(r.splits[inside, 2, True].spreads_h) for r in results])
    what = "Figure 8: spread of small jobs over that of large ones, no regions"
    findings.append(Finding(what, None, undivided, same=(0.0, 0.5), of=inside))
    what = "Figure 8: the same with 2 regions"
    findings.append(Finding(what, None, divided, same=(0.5, 2.0), of=inside))
    longest = defaultdict(list)
    for r in results:
        longest[r.week.seed].append(r.splits[inside, 2, True].longest_h)
    for what, pick, paper in (("middle", median, 20.0), ("worst", max, 40.0)):
        got = over_seeds([float(pick(three)) for three in longest.values()])
        name = f"Figures 13 to 15: longest wait, 2 regions, {what} of three mixes"
        findings.append(Finding(name, paper, got, "h", (paper / 2, paper * 1.5), of=inside))
    differ = [len(set(best)) > 1 for best in _best(results, inside).values()]
    what, share = "Figure 12: best number of regions differs between mixes", [100.0 * d for d in differ]
    findings.append(Finding(what, None, over_seeds(share), "%", (50.0, 100.0), of=inside))
    return findings


def _ratio(spreads_h: Sequence[float]) -> float:
    return spreads_h[0] / spreads_h[1]


def _best(results: Sequence[WeekResult], inside: str) -> dict[int, list[int]]:
    """Find, for each seed, the number of regions with the least spread, of each mix."""
    best: dict[int, list[int]] = defaultdict(list)
    for r in results:
        best[r.week.seed].append(min(COUNTS, key=lambda k: _widest(r, inside, k)))
    return best


def _burst_findings(results: Sequence[WeekResult]) -> list[Finding]:
    """Figure 16 and what it is to explain: spreads follow bursts that last."""
    findings = []
    for inside in INSIDES:
        spreads = [r.splits[inside, 2, True].spreads_h[1] for r in results]
        for intervals, same in ((1, None), (LONG, (0.5, 1.0))):
            got = _rank_correlation([densest(r.densities, intervals) for r in results], spreads)
            window = f"{intervals * INTERVAL_S:,.0f} s"
            what = f"Figure 16: rank correlation of region 2's spread and densest {window}"
            findings.append(Finding(what, None, got, "", same, of=inside))
    return findings


def _rank_correlation(x: Sequence[float], y: Sequence[float]) -> Estimate:
    """Compute Spearman's correlation, with the interval of Fisher's transformation."""
    from scipy.stats import spearmanr

    rho, n = float(spearmanr(x, y).statistic), len(x)
    if n < 4 or abs(rho) >= 1:
        return Estimate(rho, -1.0, 1.0, n)
    half = 1.96 / math.sqrt(n - 3)
    return Estimate(rho, math.tanh(math.atanh(rho) - half), math.tanh(math.atanh(rho) + half), n)


def _soft_findings(long: Long) -> list[Finding]:
    """Compare under bursts, which the paper left open."""
    findings = []
    for name in dict.fromkeys(workload for workload, _ in long):
        soft, plain = long[name, "soft-regions"], long[name, "fcfs"]
        for base, runs in (("fcfs", plain), ("EASY", long[name, "easy"])):
            got = changes([r.longest_h for r in soft], [r.longest_h for r in runs])
            what = f"longest wait, soft regions against {base} without regions"
            findings.append(Finding(what, None, got, "%", of=name))
        got = over_seeds([r.most_later_h for r in soft])
        what = "most that a job starts later under soft regions than under fcfs without regions"
        note = "guaranteed to be none where limits are exact" if "exact" in name else ""
        findings.append(Finding(what, None, got, "h", note=note, of=name))
    return findings


# -- tables and pictures ------------------------------------------------------------------------------


def _spread_table(results: Sequence[WeekResult]) -> Table:
    def means(inside: str, count: int) -> tuple[float, ...]:
        by_mix = [[r for r in results if r.week.mix == mix] for mix in MIXES]
        return tuple(round(_spread(weeks, inside, count, False).mean, 2) for weeks in by_mix)

    rows: list[Row] = [(inside, *(means(inside, count) for count in COUNTS)) for inside in INSIDES]
    columns = ("inside", "none", *(f"{k} regions" for k in COUNTS[1:]))
    title = "Largest spread of waits in hours, of mixes 1, 2, 3, with sizes from another week"
    return Table(title, columns, tuple(rows))


def _long_table(long: Long) -> Table:
    fields = ("mean_h", "small_h", "longest_h", "later_percent", "most_later_h")
    workloads = tuple(dict.fromkeys(workload for workload, _ in long))

    def means(runs: Sequence[StretchResult]) -> tuple[float | None, ...]:
        columns = [[getattr(run, field) for run in runs] for field in fields]
        return tuple(None if None in values else round(over_seeds(values).mean, 2) for values in columns)

    rows: list[Row] = [(name, *(means(long[w, text]) for w in workloads)) for name, text in POLICIES.items()]
    return Table(WEEKS, ("policy", *workloads), tuple(rows))


def _pictures(results: Sequence[WeekResult], long: Long) -> tuple[Picture, ...]:
    counts = tuple("none" if k == 1 else str(k) for k in COUNTS)
    spreads = [
        Series.of(f"{inside}, {'same week' if same else 'another week'}", counts,
              [_spread(results, inside, k, same) for k in COUNTS])
        for inside in INSIDES for same in (True, False)
    ]  # fmt: skip
    small = [
        Series.of(f"{kind}, {inside}", ("up to 31 nodes", "more"),
              [_spread_of(results, inside, k, group) for group in (0, 1)])
        for inside in INSIDES for kind, k in (("no regions", 1), ("2 regions", 2))
    ]  # fmt: skip
    first = results[: len(MIXES)]
    waits = [Series(f"mix {r.week.mix}", *r.waits) for r in first]
    ticks = tuple(i * INTERVAL_S for i in range(len(first[0].densities)))
    dense = [Series(f"mix {r.week.mix}", ticks, r.densities) for r in first]
    workloads = tuple(dict.fromkeys(workload for workload, _ in long))
    longest = [
        Series.of(name, workloads, [over_seeds([r.longest_h for r in long[w, text]]) for w in workloads])
        for name, text in POLICIES.items()
    ]
    return (
        Picture("Figures 7 and 12: largest spread of waits", "regions", "h", tuple(spreads)),
        Picture("Figure 8: spread of small and large jobs", "jobs", "h", tuple(small)),
        Picture(
            "Figures 13 to 15: 2 regions, fcfs, one seed", "submitted (s)", "wait (h)", tuple(waits), "points"
        ),
        Picture("Figure 16: submitted density of region 2", "s", "", tuple(dense), "lines"),
        Picture("Weeks on end: longest wait", "jobs", "h", tuple(longest), log_y=True),
    )


def _spread_of(results: Sequence[WeekResult], inside: str, count: int, group: int) -> Estimate:
    splits = [r.splits[inside, count, True] for r in results]
    return over_seeds([(s.apart_h[2] if count == 1 else s.spreads_h)[group] for s in splits])


def _remarks(results: Sequence[WeekResult], long: Long) -> tuple[str, ...]:
    """Say what the numbers show."""
    helped = []
    for inside in INSIDES:
        better = [min(_widest(r, inside, k) for k in COUNTS[1:]) < _widest(r, inside, 1) for r in results]
        helped.append(f"{100.0 * sum(better) / len(better):.0f} % ({inside})")
    other = changes([_widest(r, "fcfs", 2, False) for r in results], [_widest(r, "fcfs", 2) for r in results])
    soft = [name for name in dict.fromkeys(workload for workload, _ in long) if _later_h(long, name) > 1e-5]
    return (
        f"Some cut, chosen afterwards, has a smaller spread than none in {', '.join(helped)} of the weeks. "
        f"With sizes from another week the spread with two regions changes by another {other.mean:+.0f} % "
        "(fcfs).",
        "Under strict fcfs small and large jobs wait alike without regions, so figure 8 cannot come from it; "
        "where small jobs may pass it comes out as printed. Regions make the spreads alike by making small "
        "jobs wait: what is idle in one region is of no use to another.",
        "Only with nodes in a row does some cut help in most weeks under strict fcfs, and does the best "
        "number differ from mix to mix; the gain is small, and waits exceed the printed ones.",
        "Sections 5.1 and 5.2 contradict each other about Job1, so no number is tied to one of the mixes.",
        "Nothing can be cut where one job needs half the machine: a region must hold twice its largest job.",
        "Soft regions start jobs later than fcfs without regions only where limits are too long (here: "
        f"{', '.join(soft) or 'nowhere'}), because what passes is planned by its limit.",
    )


def _later_h(long: Long, workload: str) -> float:
    return max(run.most_later_h for run in long[workload, "soft-regions"])
