"""The simulations behind the evaluation of regions: single weeks cut in every way, and weeks on end."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scheduler.evaluations.regions.nodes_in_a_row import starts_in_a_row
from scheduler.model.jobs import Cluster, Pool
from scheduler.policies.regions.region_sizing import PastWork, RegionLayout, layout, region_bounds, region_of
from scheduler.policies.registry import create
from scheduler.simulator.simulator import Simulator
from scheduler.simulator.trace import Arrival, Outcome
from scheduler.workloads import load
from scheduler.workloads.generators.closed import stretched

NODES, LARGEST = 9216, 1000
MACHINE = Cluster((Pool("node", NODES),))
HOUR_S, WEEK_S, INTERVAL_S = 3600.0, 7 * 86_400.0, 20_000.0
IN_A_ROW = {"fcfs, nodes in a row": False, "first-fit, nodes in a row": True}  # whether jobs may pass
INSIDES = ("fcfs", "easy", "first-fit", *IN_A_ROW)
COUNTS = (1, 2, 3, 4, 5)
OTHER_SEED = 1000  # the week whose sizes an operator would have: drawn with this much added to the seed
LONG = 5  # intervals of the longer window: 100,000 s
THETA = "theta_2022.swf.gz"

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
    """Waits in hours; ``small_h`` and ``large_h``: means of jobs of up to 31 nodes, and of more.

    ``later_percent`` of the jobs started later than under fcfs without regions, by up to ``most_later_h``.
    """

    mean_h: float
    small_h: float | None
    large_h: float
    longest_h: float
    utilisation_percent: float
    later_percent: float
    most_later_h: float


def run_stretch(case: Stretch) -> StretchResult:
    """Run the workload under the policy, and under fcfs to compare each job's start with."""
    arrivals = _arrivals(case.text, case.seed)
    _, nodes, submit, start, end = simulate(arrivals, case.policy, case.seed)
    plain = simulate(arrivals, "fcfs")[3]
    waits, later = (start - submit) / HOUR_S, (start - plain) / HOUR_S
    small = nodes <= region_bounds(LARGEST, 2)[0]
    held = float((nodes * (end - start)).sum())
    return StretchResult(
        mean_h=float(waits.mean()),
        small_h=float(waits[small].mean()) if small.any() else None,
        large_h=float(waits[~small].mean()),
        longest_h=float(waits.max()),
        utilisation_percent=100.0 * held / (NODES * float(end.max() - submit.min())),
        later_percent=100.0 * float((later > 1e-5).mean()),
        most_later_h=max(0.0, float(later.max())),
    )


def _arrivals(text: str, seed: int) -> list[Arrival]:
    """Generate jobs, or read a log's and stretch the times between arrivals to a load of 95 %."""
    workload: list[Arrival] = list(load(text, MACHINE, seed).arrivals)  # type: ignore[arg-type]
    return workload if text.startswith("generator:") else list(stretched(workload, MACHINE, 0.95))


def theta_log() -> Path | None:
    """Find the log of Theta in TENBIN_DATA."""
    folder = os.environ.get("TENBIN_DATA")
    path = Path(folder) / THETA if folder else None
    return path if path is not None and path.exists() else None
