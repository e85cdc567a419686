"""Slow-down of memprobe over the course of a job's run (paper D, figure 2: averages hide peaks).

The run is cut into parts by the share that is over, so that runs of different length agree. The worst part
of several is always worse than the mean, if only by luck. So the worst part is found in all repetitions but
one, and measured in that one, for each in turn.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from profiles.jobs import Clock, Phases
from profiles.models import constant

MOST_PARTS, LEAST_PARTS = 40, 5
STANDS_OUT = 1.05  # times the whole run's slow-down, at least, by the interval's lower bound


def fit_phases(runs: pd.DataFrame, windows: pd.DataFrame, clock: Clock, column: str) -> Phases | None:
    """Fit memprobe's windows at full intensity; None where there are too few, or one repetition only.

    Args:
        runs, windows: see ``profiles.fits.job``; memprobe's only.
        column: of ``windows``, with the time by that clock.
    """
    if "at_s" not in windows or not len(windows):
        return None
    beside = windows[(windows["phase"] == "run") & (windows["intensity_percent"] == 100)]
    alone = windows[
        (windows["phase"] == "reference") & windows["measured"] & (windows["intensity_percent"] == 0)
    ]
    took = runs[runs["intensity_percent"] == 100].set_index("repetition")["wall_s"]
    if not len(beside) or not len(alone):
        return None
    parts = min(int(beside.groupby(["repetition", "core"]).size().median()), MOST_PARTS)
    sums = alone.groupby("repetition")[[column, "bytes"]].sum()
    undisturbed = sums[column] / sums["bytes"]
    repetitions = sorted(set(beside["repetition"]) & set(took.index) & set(undisturbed.index))
    if parts < LEAST_PARTS or len(repetitions) < 2:
        return None
    series = [
        _series(beside[beside["repetition"] == r], took[r], parts, column) / undisturbed[r]
        for r in repetitions
    ]
    seen = np.array(series)
    if not np.isfinite(seen).any(axis=1).all():
        return None
    return _phases(seen, clock, float(took.median()) / parts)


def _series(rows: pd.DataFrame, run_s: float, parts: int, column: str) -> NDArray[np.float64]:
    """Compute seconds a byte in each part of a run; not a number where no window lies."""
    middle = (rows["at_s"] + rows["wall_s"] / 2) / run_s
    part = (middle * parts).astype(int).clip(0, parts - 1)
    sums = rows.groupby(part)[[column, "bytes"]].sum().reindex(range(parts))
    return np.asarray(sums[column] / sums["bytes"], dtype=np.float64)


def _phases(seen: NDArray[np.float64], clock: Clock, bin_s: float) -> Phases | None:
    peaks, excess = [], []
    for i in range(len(seen)):
        worst = int(np.nanargmax(_middle(np.delete(seen, i, axis=0))))
        if np.isfinite(seen[i, worst]):
            peaks.append(float(seen[i, worst]))
            excess.append(float(seen[i, worst] / np.nanmean(seen[i])))
    if not peaks:
        return None
    middle = _middle(seen)
    low = constant.median(excess, name="excess", unit="ratio").low
    return Phases(
        clock=clock,
        bin_s=bin_s,
        slowdown=tuple(None if np.isnan(value) else float(value) for value in middle),
        peak=constant.median(peaks, name="peak", unit="ratio"),
        peak_at_percent=100 * (int(np.nanargmax(middle)) + 0.5) / len(middle),
        bursts=low is not None and low > STANDS_OUT,
    )


def _middle(seen: NDArray[np.float64]) -> NDArray[np.float64]:
    """Take the median over the repetitions; not a number where all lack the part."""
    columns = [column[np.isfinite(column)] for column in seen.T]
    return np.array([np.median(column) if len(column) else np.nan for column in columns])
