"""A simulated schedule: pictures of who ran where and when, utilisation and power; results of each job."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from profiles.errors import BadInput
from scheduler.model.jobs import Cluster, Placement, Pool
from scheduler.simulator.metrics import BSLD_BOUND_S, Window
from scheduler.simulator.trace import Outcome, Segment
from scheduler.workloads.logs import swf
from tenbin.report.html import write
from tenbin.report.pictures import COLOURS, Figure, figure, picture

MOST_BARS = 5000
MOST_POINTS = 2000
BINS = 60  # of the time of submission
DAY_S = 86400.0
OVERHEAD_COLOUR = "#444444"

Bar = tuple[Outcome, Segment, int, int]  # on units from (inclusive) to (exclusive)


class TimeAxis(NamedTuple):
    """Time since ``first_s``, in a unit of ``scale`` seconds."""

    first_s: float
    scale: float
    unit: str

    def at(self, times_s: np.ndarray) -> np.ndarray:
        """Place moments on the axis."""
        return (times_s - self.first_s) / self.scale


def page(schedules: Sequence[tuple[str, Sequence[Outcome]]], cluster: Cluster) -> str:
    """Write one self-contained HTML page with the pictures of each (policy, outcomes), to be enlarged."""
    parts = [("Waits", WAITS, [picture(fig, interactive=True) for fig in waits(schedules)])]
    for title, outcomes in schedules:
        drawn = [picture(fig, interactive=True) for fig in figures(outcomes, cluster)]
        parts.append((title, f"{len(outcomes):,} jobs. {EXPLANATION}", drawn))
    return write("parts.html", interactive=True, title="Simulated schedules", parts=parts)


EXPLANATION = (
    "Each bar is a job (or a part of one) on its units, from start to end, coloured by user where there are "
    f"users; dark ends are checkpoints and restarts. At most {MOST_BARS:,} bars are drawn, those that began "
    "first; utilisation and power cover all jobs."
)


WAITS = (
    "Waits: the share of the jobs that waited at most this long; the higher the better. Mean wait: of "
    f"the jobs that were submitted in each of {BINS} equal parts of the time."
)


def waits(schedules: Sequence[tuple[str, Sequence[Outcome]]]) -> list[Figure]:
    """Draw the waits of all policies: their distribution, and their means over the time of submission."""
    every = [outcome for _, outcomes in schedules for outcome in outcomes]
    if not every:
        return []
    submitted = [outcome.job.submit_s for outcome in every]
    first, last = min(submitted), max(submitted)
    longest, unit = _scale(max(outcome.wait_s for outcome in every))
    time = TimeAxis(first, *_scale(last - first))
    shares = figure("Waits", f"wait, {unit}", "share of jobs, %")
    means_over = figure("Mean wait", f"time of submission, {time.unit}", f"mean wait, {unit}")
    edges = np.linspace(first, last, BINS + 1)
    for title, outcomes in schedules:
        waited = np.array([outcome.wait_s for outcome in outcomes]) / longest
        percents = np.linspace(0, 100, 101)
        shares.add_scatter(x=np.percentile(waited, percents), y=percents, mode="lines", name=title)
        part = np.clip(np.searchsorted(edges, [o.job.submit_s for o in outcomes], "right") - 1, 0, BINS - 1)
        counts = np.bincount(part, minlength=BINS)
        sums = np.bincount(part, weights=waited, minlength=BINS)
        middle = time.at((edges[:-1] + edges[1:]) / 2)
        drawn = counts > 0
        means_over.add_scatter(x=middle[drawn], y=sums[drawn] / counts[drawn], mode="lines", name=title)
    for fig in (shares, means_over):
        fig.update_yaxes(rangemode="tozero")
        fig.update_layout(showlegend=True)
    shares.update_xaxes(rangemode="tozero")
    return [shares, means_over]


def figures(outcomes: Sequence[Outcome], cluster: Cluster) -> list[Figure]:
    """Draw a Gantt chart of each pool, utilisation, and power where the pools' power is known."""
    if not outcomes:
        return []
    first = min(outcome.job.submit_s for outcome in outcomes)
    time = TimeAxis(first, *_scale(max(outcome.end_s for outcome in outcomes) - first))
    drawn = [_gantt(outcomes, pool, time) for pool in cluster.pools]
    drawn.append(_utilisation(outcomes, cluster, time))
    if any(pool.base_w or pool.peak_w for pool in cluster.pools):
        drawn.append(_power(outcomes, cluster, time))
    return drawn


def _scale(span_s: float) -> tuple[float, str]:
    for seconds, unit in ((DAY_S, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if span_s > 3 * seconds:
            return seconds, unit
    return 1.0, "seconds"


def _gantt(outcomes: Sequence[Outcome], pool: Pool, time: TimeAxis) -> Figure:
    fig = figure(f"Schedule of {pool.name}", f"time, {time.unit}", "unit" if pool.counted else "node")
    bars = lanes(outcomes, pool)
    users = {user: i for i, user in enumerate(dict.fromkeys(o.job.user for o, *_ in bars))}
    fig.add_bar(
        orientation="h",
        base=[(segment.start_s - time.first_s) / time.scale for _, segment, _, _ in bars],
        x=[(segment.end_s - segment.start_s) / time.scale for _, segment, _, _ in bars],
        y=[(low + high - 1) / 2 for *_, low, high in bars],
        width=[0.9 * (high - low) for *_, low, high in bars],
        marker={
            "color": [
                COLOURS[(users[o.job.user] if len(users) > 1 else o.job.id) % (len(COLOURS) - 1)]
                if segment.kind == "run"
                else OVERHEAD_COLOUR
                for o, segment, _, _ in bars
            ],
            "line": {"width": 0},
        },
        text=[_hover(o, segment) for o, segment, _, _ in bars],
        textposition="none",
        hovertemplate="%{text}<extra></extra>",
    )
    fig.update_layout(barmode="overlay", showlegend=False, height=520)
    return fig


def _hover(outcome: Outcome, segment: Segment) -> str:
    job, placement = outcome.job, segment.placement
    cap = f", cap {placement.cap_w:g} W" if placement.cap_w is not None else ""
    return (
        f"job {job.id}{f' of {job.user}' if job.user else ''}: {segment.kind}, "
        f"{placement.units} units{cap}<br>"
        f"submitted {job.submit_s:,.0f} s, {segment.start_s:,.0f} to {segment.end_s:,.0f} s"
    )


def lanes(outcomes: Sequence[Outcome], pool: Pool) -> list[Bar]:
    """Choose where to draw each segment: its own nodes, or of counted units the lowest free ones."""
    segments = [(s, o) for o in outcomes for s in o.segments if s.placement.pool == pool.name]
    segments = [(s, o) for s, o in segments if s.end_s > s.start_s]
    segments.sort(key=lambda pair: (pair[0].start_s, pair[1].job.id))
    bars: list[Bar] = []
    free: list[tuple[int, int]] = [(0, pool.units)]  # runs of free units, as a heap
    busy: list[tuple[float, int, list[tuple[int, int]]]] = []
    for i, (segment, outcome) in enumerate(segments[:MOST_BARS]):
        if not pool.counted:
            runs = [(node, node + 1) for node, _ in segment.placement.nodes]
        else:
            while busy and busy[0][0] <= segment.start_s:
                free.extend(heappop(busy)[2])
            free = _joined(free)
            runs = _take(free, segment.placement)
            heappush(busy, (segment.end_s, i, runs))
        bars.extend((outcome, segment, low, high) for low, high in runs)
    return bars


def _joined(runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join runs that touch; return them as a heap."""
    runs.sort()
    joined: list[tuple[int, int]] = []
    for low, high in runs:
        if joined and joined[-1][1] == low:
            joined[-1] = (joined[-1][0], high)
        else:
            joined.append((low, high))
    heapify(joined)
    return joined


def _take(free: list[tuple[int, int]], placement: Placement) -> list[tuple[int, int]]:
    """Take the lowest free units, as runs, out of the heap ``free``."""
    runs, needed = [], placement.units
    while needed and free:
        low, high = heappop(free)
        taken = min(high - low, needed)
        runs.append((low, low + taken))
        needed -= taken
        if low + taken < high:
            heappush(free, (low + taken, high))
    return runs


def _utilisation(outcomes: Sequence[Outcome], cluster: Cluster, time: TimeAxis) -> Figure:
    fig = figure("Utilisation", f"time, {time.unit}", "share of units in use")
    for pool in cluster.pools:
        changes = [
            (s.start_s, s.end_s, _units(s.placement, o, pool))
            for o in outcomes
            for s in o.segments
            if s.placement.pool == pool.name
        ]
        times, values = means(changes)
        fig.add_scatter(x=time.at(times), y=values / pool.units, name=pool.name, line={"shape": "hv"})
    fig.update_yaxes(range=[0, 1.05])
    fig.update_layout(meta="wide")
    return fig


def _units(placement: Placement, outcome: Outcome, pool: Pool) -> float:
    """Count units in use; on nodes, nodes' worth of the first resource."""
    return placement.units if pool.counted else pool.nodes_worth(outcome.job, placement)


def _power(outcomes: Sequence[Outcome], cluster: Cluster, time: TimeAxis) -> Figure:
    fig = figure("Power of the units in use", f"time, {time.unit}", "power, W")
    changes = [
        (s.start_s, s.end_s, cluster[s.placement.pool].power_of(o.job, s.placement))
        for o in outcomes
        for s in o.segments
    ]
    times, values = means(changes)
    fig.add_scatter(x=time.at(times), y=values, line={"shape": "hv"}, name="power")
    fig.update_layout(meta="wide")
    if cluster.budget_w is not None:
        fig.add_hline(y=cluster.budget_w, line={"dash": "dot"}, annotation_text="budget")
    return fig


def means(
    changes: Sequence[tuple[float, float, float]],
) -> tuple[np.ndarray[tuple[int], np.dtype[np.float64]], np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """Sum (start, end, amount) over time, as means over ``MOST_POINTS`` intervals: starts, values."""
    if not changes:
        return np.empty(0), np.empty(0)
    table = np.array(changes)
    begin, end = float(table[:, 0].min()), float(table[:, 1].max())
    edges = np.linspace(begin, end, MOST_POINTS + 1) if end > begin else np.array([begin, begin + 1.0])
    moments = np.concatenate((table[:, 0], table[:, 1]))
    steps = np.concatenate((table[:, 2], -table[:, 2]))
    order = np.argsort(moments, kind="stable")
    times, level = moments[order], np.cumsum(steps[order])
    area = np.concatenate(([0.0], np.cumsum(level[:-1] * np.diff(times))))
    at_edges = np.interp(edges, times, area)
    return edges[:-1], np.array([b - a for a, b in pairwise(at_edges)]) / np.diff(edges)


# -- results of each job, as CSV and in the Standard Workload Format ---------------------------------------


RESULT_KINDS = (".csv", ".swf")
RESULT_COLUMNS = (
    *("job", "user", "program", "units", "submit_s", "start_s", "end_s", "wait_s", "run_s", "turnaround_s"),
    *("bounded_slowdown", "requested_s", "how", "counted", "pool", "used_units", "nodes", "preemptions"),
    *("migrations", "failures", "overhead_s", "lost_s", "energy_j"),
)


def files_of(path: Path, policies: Sequence[str]) -> dict[str, Path]:
    """Name the file of each policy: ``path`` of a single one, else ``jobs.POLICY.csv`` for ``jobs.csv``.

    Characters of a policy's parameters other than letters, digits and ``.=-`` become ``-``.

    Raises:
        BadInput: the file is neither CSV nor SWF.
    """
    if path.suffix not in RESULT_KINDS:
        raise BadInput(f"--jobs-out {path}: neither .csv nor .swf", "end its name in .csv or .swf")
    if len(policies) == 1:
        return {policies[0]: path}
    files: dict[str, Path] = {}
    for text in policies:
        name, further = re.sub(r"[^A-Za-z0-9.=-]", "-", text), 1
        file = path.with_suffix(f".{name}{path.suffix}")
        while file in files.values():
            further += 1
            file = path.with_suffix(f".{name}-{further}{path.suffix}")
        files[text] = file
    return files


def results_text(
    file: Path, outcomes: Sequence[Outcome], cluster: Cluster, about: str, *, window: Window | None
) -> str:
    """Write all results, in the order of submission; CSV or SWF by the name of ``file``."""
    if file.suffix == ".swf":
        return "".join(swf.result_lines(outcomes, cluster, about))
    written = io.StringIO()
    rows = csv.writer(written, lineterminator="\n")
    rows.writerow(RESULT_COLUMNS)
    for outcome in sorted(outcomes, key=lambda outcome: (outcome.job.submit_s, outcome.job.id)):
        rows.writerow(_result(outcome, cluster, window))
    return written.getvalue()


def _result(outcome: Outcome, cluster: Cluster, window: Window | None) -> tuple[object, ...]:
    job, last = outcome.job, outcome.segments[-1].placement
    turnaround, run = outcome.end_s - job.submit_s, outcome.run_s - outcome.lost_s
    requested = job.reference_s(last.pool)
    return (
        job.id,
        job.user,
        job.program,
        job.units,
        _rounded(job.submit_s),
        _rounded(outcome.start_s),
        _rounded(outcome.end_s),
        _rounded(outcome.wait_s),
        _rounded(run),
        _rounded(turnaround),
        _rounded(max(1.0, turnaround / max(run, BSLD_BOUND_S))),
        "" if requested == float("inf") else _rounded(requested),
        outcome.how,
        "yes" if window is None or window.counts(job.submit_s) else "no",
        last.pool,
        last.units,
        " ".join(cluster[last.pool].name_of(node) for node, _ in last.nodes),
        outcome.preemptions,
        outcome.migrations,
        outcome.failures,
        _rounded(outcome.overhead_s),
        _rounded(outcome.lost_s),
        _rounded(outcome.energy_j),
    )


def _rounded(value: float) -> float:
    """Round to the simulator's grid of one microsecond."""
    return round(value, 6)
