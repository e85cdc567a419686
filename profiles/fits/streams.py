"""From the samples of ``streams`` to bandwidths, latencies of the levels of memory, and sizes of the caches.

- ``stream_bandwidth_gbs`` {kernel, cores, numa}: bytes as STREAM counts them, of all cores in a window, over
  the longest of their times. 1 GB = 1e9 B.
- ``access_latency_ns`` {level}: of an access that waits for the one before; ``level``: L1, L2, ... or memory.
- ``cache_size_kib`` {level}: the working set at which the latency is half way up to the next level.

Steps of the latency are found by ``profiles.models.staircase``. Where sysfs names the caches, a step belongs
to the cache that is nearest in size, and steps that belong to none (a TLB's) are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np
import pandas as pd

from profiles.fits.memory import OVERLAP, PLACED
from profiles.models import constant
from profiles.models.constant import judged
from profiles.models.staircase import Step, find_steps
from profiles.records import Model

WINDOW = ["round", "repetition", "kernel", "cores", "cpus", "numa"]
SET = ["round", "repetition", "working_set_kib"]
SAME_CACHE = 8.0  # a step further than this times from a cache is not that cache's
UNDISTURBED = 0.25  # quantile of the windows of one working set: others can only slow them down
MEMORY = "memory"
KERNELS = ("read", "write", "write_nt", "copy", "scale", "add", "triad")


def fit(samples: pd.DataFrame) -> list[Model]:
    """Fit every bandwidth, and the levels of memory that the latency shows."""
    if samples.empty:
        return []
    emulated = bool(samples["emulated"].iloc[0])
    return [*_bandwidths(samples, emulated), *_levels(samples, emulated)]


def bandwidths(samples: pd.DataFrame) -> pd.DataFrame:
    """Make a row a complete window: ``kernel``, ``cores``, ``numa``, ``cpus``, ``gbs``."""
    columns = ["kind", *WINDOW, "core", "wall_s", "bytes", "overlap", "placed"]
    rows = samples.reindex(columns=columns)
    rows = rows[rows["kind"] == "bandwidth"]
    rows = rows[(rows["overlap"] >= OVERLAP) & (rows["bytes"] > 0) & ~(rows["placed"].astype(float) < PLACED)]
    windows = (
        rows.groupby(WINDOW, sort=False)
        .agg(n=("core", "size"), bytes=("bytes", "sum"), wall_s=("wall_s", "max"))
        .reset_index()
    )
    windows = windows[windows["n"] == windows["cores"]].astype({"cores": int})
    return windows.assign(gbs=windows["bytes"] / windows["wall_s"] / 1e9)


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


def _bandwidths(samples: pd.DataFrame, emulated: bool) -> list[Model]:
    groups = bandwidths(samples).groupby(["numa", "cores", "kernel"])
    models = [
        constant.fit(
            group["gbs"].tolist(),
            probe="streams",
            quantity="stream_bandwidth_gbs",
            name="bandwidth",
            unit="GB/s",
            labels={"kernel": str(kernel), "cores": str(cores), "numa": str(numa)},
            emulated=emulated,
            note=f"CPUs {group['cpus'].iloc[0]}",
        )
        for (numa, cores, kernel), group in groups
    ]
    return sorted(models, key=lambda model: KERNELS.index(model.labels["kernel"]))


def _levels(samples: pd.DataFrame, emulated: bool) -> list[Model]:
    """Fit the latency of each level between two steps, and the size of each cache."""
    curve, named = latencies(samples), named_caches(samples)
    caches = find_caches(curve, named)
    last = max(named or caches, default=0)
    sizes, speeds, reached = list[Model](), list[Model](), 0.0
    for level, step in caches.items():
        if level == 1 or level - 1 in caches:
            speeds += _latency(curve, f"L{level}", (reached, step.begin), emulated)
        sweeps = len(curve[SET[:2]].drop_duplicates())
        sizes.append(_size(level, step, named.get(level), n=sweeps).model_copy(update={"emulated": emulated}))
        reached = step.end
    if last and last in caches:
        speeds += _latency(curve, MEMORY, (reached, np.inf), emulated)
    return speeds + sizes


def _latency(curve: pd.DataFrame, level: str, between: tuple[float, float], emulated: bool) -> list[Model]:
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
        emulated=emulated,
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
