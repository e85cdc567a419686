"""Speed of memory, as medians with order-statistic intervals: of memprobe's samples, and of ``streams``.

- ``memory_bandwidth_gbs`` {cores, numa}: bytes of lines that all cores wrote together in a window, over the
  longest of their times. 1 GB = 1e9 B. The bus carries up to twice that: a line is read, then written back.
- ``memory_slowdown_ratio`` {pair, clock}: time per byte beside the other core over time per byte alone,
  paired by repetition. ``clock`` is ``wall``, or ``thread`` (CPU time, blind to being descheduled).
- ``stream_bandwidth_gbs`` {kernel, cores, numa}: bytes as STREAM counts them, of all cores in a window, over
  the longest of their times.
- ``access_latency_ns`` {level}: of an access that waits for the one before; ``level``: L1, L2, ... or memory.
- ``cache_size_kib`` {level}: the working set at which the latency is half way up to the next level.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from profiles.models import constant
from profiles.models.constant import judged
from profiles.records import Model

PAIRED_REPETITIONS = 10  # single pairs range from 0.9 to 3.7 on a machine whose median is 1.7
OVERLAP = 0.8  # least share of a window in which all writers wrote
PLACED = 0.95
INTERFERENCE = 1.2
CLEARLY_SLOWER = 1.05
SHARE_CLEARLY_SLOWER = 0.7
CLOCKS = {"wall": "wall_s", "thread": "thread_cpu_s"}
WRITER_WINDOW = ["round", "repetition", "cpus"]  # with what was measured, the name of one window of time
BANDWIDTH = [*WRITER_WINDOW, "cores", "numa"]
PAIR = [*WRITER_WINDOW, "pair_kind"]


def fit(samples: pd.DataFrame) -> list[Model]:
    """Fit every bandwidth and slow-down with enough complete, well-placed windows."""
    models = _bandwidths(bandwidths(samples), "memory", "memory_bandwidth_gbs", ["cores", "numa"])
    return [*models, *_slowdowns(samples)]


def bandwidths(samples: pd.DataFrame, window: Sequence[str] = BANDWIDTH) -> pd.DataFrame:
    """Make a row a window, with its columns, and ``gbs``; incomplete windows are left out."""
    rows = _usable(samples, "bandwidth", [*window, "core", "wall_s"])
    windows = (
        rows.groupby(list(window), sort=False)
        .agg(n=("core", "size"), bytes=("bytes", "sum"), wall_s=("wall_s", "max"))
        .reset_index()
    )
    windows = windows[windows["n"] == windows["cores"]].astype({"cores": int})
    return windows.assign(gbs=windows["bytes"] / windows["wall_s"] / 1e9)


def slowdowns(samples: pd.DataFrame) -> pd.DataFrame:
    """Make a row a complete repetition: ``pair_kind``, ``cpus``, and the ratios ``wall`` and ``thread``."""
    rows = _usable(samples, "pair", [*PAIR, "condition", *CLOCKS.values()])
    per_byte = rows[[*PAIR, "condition"]].assign(
        **{clock: rows[column] / rows["bytes"] for clock, column in CLOCKS.items()}
    )
    both = per_byte[per_byte["condition"] == "alone"].merge(
        per_byte[per_byte["condition"] == "beside"], on=PAIR, suffixes=("_alone", "_beside")
    )
    return both[PAIR].assign(**{clock: both[f"{clock}_beside"] / both[f"{clock}_alone"] for clock in CLOCKS})


def _usable(samples: pd.DataFrame, kind: str, columns: list[str]) -> pd.DataFrame:
    """Select the rows of one kind in which the writers overlapped and wrote to the wanted node.

    Missing columns become empty, because a run interrupted early, or on one core, has rows of one kind only.
    """
    samples = samples.reindex(columns=["kind", "overlap", "placed", "bytes", *columns])
    placed = samples["placed"].astype(float)  # absent on machines with one NUMA node
    met = (samples["overlap"] >= OVERLAP) & (samples["bytes"] > 0)
    return samples[(samples["kind"] == kind) & met & ~(placed < PLACED)]


def _bandwidths(windows: pd.DataFrame, probe: str, quantity: str, labels: list[str]) -> list[Model]:
    return [
        constant.fit(
            group["gbs"].tolist(),
            probe=probe,
            quantity=quantity,
            name="bandwidth",
            unit="GB/s",
            labels={label: str(group[label].iloc[0]) for label in labels},
            note=f"CPUs {group['cpus'].iloc[0]}",
        )
        for _, group in windows.groupby(labels[::-1])
    ]


def _slowdowns(samples: pd.DataFrame) -> list[Model]:
    models = []
    for kind, group in slowdowns(samples).groupby("pair_kind", sort=False):
        if len(group) < PAIRED_REPETITIONS:
            continue
        for clock in CLOCKS:
            model = constant.fit(
                group[clock].tolist(),
                probe="memory",
                quantity="memory_slowdown_ratio",
                name="slowdown",
                unit="ratio",
                labels={"pair": str(kind), "clock": clock},
            )
            note = f"CPUs {group['cpus'].iloc[0]}; {verdict(group[clock])}"
            models.append(model.model_copy(update={"note": note}))
    return models


def verdict(ratios: pd.Series[float]) -> str:
    """Say whether the slow-down is real: median above 1.2, and 70 % of the repetitions above 1.05."""
    clear = float((ratios > CLEARLY_SLOWER).mean())
    interferes = ratios.median() > INTERFERENCE and clear >= SHARE_CLEARLY_SLOWER
    return (
        f"{'interference' if interferes else 'no clear interference'}: {clear:.0%} of repetitions above 1.05"
    )


# -- streams -----------------------------------------------------------------------------------------------
#
# A cache is a step of the latency over the working set. Where sysfs names the caches, a step belongs to
# the cache that is nearest in size, and steps that belong to none (a TLB's) are left out.


STREAM_WINDOW = ["round", "repetition", "kernel", "cores", "cpus", "numa"]
SET = ["round", "repetition", "working_set_kib"]
SAME_CACHE = 8.0  # a step further than this times from a cache is not that cache's
UNDISTURBED = 0.25  # quantile of the windows of one working set: others can only slow them down
MEMORY = "memory"
KERNELS = ("read", "write", "write_nt", "copy", "scale", "add", "triad")


def fit_streams(samples: pd.DataFrame) -> list[Model]:
    """Fit every bandwidth, and the levels of memory that the latency shows."""
    labels = ["kernel", "cores", "numa"]
    models = _bandwidths(stream_bandwidths(samples), "streams", "stream_bandwidth_gbs", labels)
    models.sort(key=lambda model: KERNELS.index(model.labels["kernel"]))
    return [*models, *_levels(samples)]


def stream_bandwidths(samples: pd.DataFrame) -> pd.DataFrame:
    """Make a row a complete window: ``kernel``, ``cores``, ``numa``, ``cpus``, ``gbs``."""
    return bandwidths(samples, STREAM_WINDOW)


def latencies(samples: pd.DataFrame) -> pd.DataFrame:
    """Make a row a working set and sweep: ``working_set_kib``, ``ns`` (the lower quartile of the windows)."""
    rows = samples.reindex(columns=["kind", *SET, "accesses", "wall_s"])
    rows = rows[(rows["kind"] == "latency") & (rows["accesses"] > 0)]
    rows = rows.assign(ns=rows["wall_s"] / rows["accesses"] * 1e9)
    return rows.groupby(SET)["ns"].quantile(UNDISTURBED).reset_index()


def named_caches(samples: pd.DataFrame) -> dict[int, float]:
    """Return the size in KiB of each level of cache that sysfs names; empty where it names none."""
    rows = samples.reindex(columns=["kind", "level", "size_kib"])
    sizes = rows[rows["kind"] == "cache"].groupby("level")["size_kib"].median()
    return {int(str(level).split(".", maxsplit=1)[0]): float(size) for level, size in sizes.items()}


def find_caches(curve: pd.DataFrame, named: Mapping[int, float]) -> dict[int, Step]:
    """Find the step behind each level of cache in ``curve`` (as of ``latencies``)."""
    middle = curve.groupby("working_set_kib")["ns"].median()
    steps = find_steps(middle.index.tolist(), middle.tolist())
    return assign(steps, named) if named else dict(enumerate(steps, 1))


def assign(steps: Sequence[Step], named: Mapping[int, float]) -> dict[int, Step]:
    """Give as many caches as possible a step each, in order, and of these choices the nearest in size."""
    best: tuple[int, float, dict[int, Step]] = (0, 0.0, {})
    for n in range(1, min(len(steps), len(named)) + 1):
        for levels in combinations(sorted(named), n):
            for chosen in combinations(steps, n):
                pairs = dict(zip(levels, chosen, strict=True))
                apart = [abs(np.log(step.x / named[level])) for level, step in pairs.items()]
                if max(apart) <= np.log(SAME_CACHE):
                    best = max(best, (n, -float(sum(apart)), pairs), key=lambda choice: choice[:2])
    return best[2]


def _levels(samples: pd.DataFrame) -> list[Model]:
    """Fit the latency of each level between two steps, and the size of each cache."""
    curve, named = latencies(samples), named_caches(samples)
    caches = find_caches(curve, named)
    last = max(named or caches, default=0)
    sizes, speeds, reached = list[Model](), list[Model](), 0.0
    for level, step in caches.items():
        if level == 1 or level - 1 in caches:
            speeds += _latency(curve, f"L{level}", (reached, step.begin))
        sweeps = len(curve[SET[:2]].drop_duplicates())
        sizes.append(_size(level, step, named.get(level), n=sweeps))
        reached = step.end
    if last and last in caches:
        speeds += _latency(curve, MEMORY, (reached, np.inf))
    return speeds + sizes


def _latency(curve: pd.DataFrame, level: str, between: tuple[float, float]) -> list[Model]:
    """Fit the latency of the working sets in KiB ``between`` two steps; nothing where there are none."""
    inside = curve[curve["working_set_kib"].between(*between)]
    if inside.empty:
        return []
    sizes = inside["working_set_kib"]
    model = constant.fit(
        inside["ns"].tolist(),
        probe="streams",
        quantity="access_latency_ns",
        name="latency",
        unit="ns",
        labels={"level": level},
        note=f"working sets of {sizes.min():.0f} .. {sizes.max():.0f} KiB",
    )
    return [model]


def _size(level: int, step: Step, named_kib: float | None, *, n: int) -> Model:
    """Make the model of a cache's size from the step behind it; ``n`` sweeps."""
    said = "" if named_kib is None else f"sysfs: {named_kib:.0f} KiB"
    return Model(
        probe="streams",
        quantity="cache_size_kib",
        form="constant",
        labels={"level": f"L{level}"},
        method="half of a step of the latency; bounds: a quarter and three quarters",
        coefficients=(judged("size", step.x, "KiB", (step.low, step.high), n=n),),
        note=said,
    )


# -- steps of a curve that never falls, on logarithmic scales ----------------------------------------------
#
# A step is a stretch on which the curve rises steeply, to at least ``LEAST_RISE`` times its value.
# Stretches with less than an octave of level curve between them are one step. The place of a step is
# where half of the rise is done (in logarithms), its bounds are where a quarter and three quarters are
# done. So a step is wide where a cache keeps part of a working set that is too large for it, or where
# others use the cache as well.


STEEP = 1.2  # times its value in an octave: the curve rises
LEAST_RISE = 1.7  # times its value: a step. Pages that a TLB does not hold cost less than that
LEAST_LEVEL = 1.0  # octaves


class Step(NamedTuple):
    """A step at ``x``, with bounds; the curve is level up to ``begin`` and from ``end`` on."""

    x: float
    low: float
    high: float
    begin: float
    end: float


def find_steps(x: Sequence[float], y: Sequence[float]) -> list[Step]:
    """Find the steps of ``y`` (positive) over ``x`` (positive and rising), in their order."""
    if len(x) < 4:
        return []
    octaves = np.log2(np.asarray(x, dtype=float))
    heights = _never_falling(np.log2(np.asarray(y, dtype=float)))
    steep = np.diff(heights) > np.log2(STEEP) * np.diff(octaves)
    return [
        _step(octaves[first : last + 1], heights[first : last + 1])
        for first, last in _stretches(steep, octaves)
        if heights[last] - heights[first] >= np.log2(LEAST_RISE)
    ]


def _never_falling(heights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Smooth single outliers by the median of three, then all falls by isotonic regression."""
    from scipy.optimize import isotonic_regression  # late, because this takes half a second

    inner = np.median([heights[:-2], heights[1:-1], heights[2:]], axis=0)
    smooth: NDArray[np.float64] = isotonic_regression(np.array([inner[0], *inner, inner[-1]])).x
    return smooth


def _stretches(steep: NDArray[np.bool_], octaves: NDArray[np.float64]) -> list[tuple[int, int]]:
    """Join steep intervals to stretches, from the index of the first point to that of the last."""
    stretches: list[tuple[int, int]] = []
    for i in np.flatnonzero(steep):
        if stretches and octaves[i] - octaves[stretches[-1][1]] < LEAST_LEVEL - 1e-6:
            stretches[-1] = (stretches[-1][0], int(i) + 1)
        else:
            stretches.append((int(i), int(i) + 1))
    return stretches


def _step(octaves: NDArray[np.float64], heights: NDArray[np.float64]) -> Step:
    """Make the step of a stretch, by straight lines between its points."""
    parts = (heights - heights[0]) / (heights[-1] - heights[0])
    low, middle, high = (float(2 ** np.interp(part, parts, octaves)) for part in (0.25, 0.5, 0.75))
    return Step(middle, low, high, float(2 ** octaves[0]), float(2 ** octaves[-1]))
