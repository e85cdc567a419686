"""From memprobe's samples to bandwidths and slow-downs, as medians with order-statistic intervals.

- ``memory_bandwidth_gbs`` {cores, numa}: bytes of lines that all cores wrote together in a window, over the
  longest of their times. 1 GB = 1e9 B. The bus carries up to twice that: a line is read, then written back.
- ``memory_slowdown_ratio`` {pair, clock}: time per byte beside the other core over time per byte alone,
  paired by repetition. ``clock`` is ``wall``, or ``thread`` (CPU time, blind to being descheduled).
"""

from __future__ import annotations

import pandas as pd

from profiles.models import constant
from profiles.records import Model

PAIRED_REPETITIONS = 10  # single pairs range from 0.9 to 3.7 on a machine whose median is 1.7
OVERLAP = 0.8  # least share of a window in which all writers wrote
PLACED = 0.95
INTERFERENCE = 1.2
CLEARLY_SLOWER = 1.05
SHARE_CLEARLY_SLOWER = 0.7
CLOCKS = {"wall": "wall_s", "thread": "thread_cpu_s"}
WINDOW = ["round", "repetition", "cpus"]  # with what was measured, the name of one window of time
BANDWIDTH = [*WINDOW, "cores", "numa"]
PAIR = [*WINDOW, "pair_kind"]


def fit(samples: pd.DataFrame) -> list[Model]:
    """Fit every bandwidth and slow-down with enough complete, well-placed windows."""
    if samples.empty:
        return []
    emulated = bool(samples["emulated"].iloc[0])
    return [*_bandwidths(samples, emulated), *_slowdowns(samples, emulated)]


def bandwidths(samples: pd.DataFrame) -> pd.DataFrame:
    """Make a row a window: ``cores``, ``numa``, ``cpus``, ``gbs``; incomplete windows are left out."""
    rows = _usable(samples, "bandwidth", [*BANDWIDTH, "core", "wall_s"])
    windows = (
        rows.groupby(BANDWIDTH, sort=False)
        .agg(n=("core", "size"), bytes=("bytes", "sum"), wall_s=("wall_s", "max"))
        .reset_index()
    )
    windows = windows[windows["n"] == windows["cores"]]
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


def _bandwidths(samples: pd.DataFrame, emulated: bool) -> list[Model]:
    return [
        constant.fit(
            group["gbs"].tolist(),
            probe="memory",
            quantity="memory_bandwidth_gbs",
            name="bandwidth",
            unit="GB/s",
            labels={"cores": str(cores), "numa": str(numa)},
            emulated=emulated,
            note=f"CPUs {group['cpus'].iloc[0]}",
        )
        for (numa, cores), group in bandwidths(samples).groupby(["numa", "cores"])
    ]


def _slowdowns(samples: pd.DataFrame, emulated: bool) -> list[Model]:
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
                emulated=emulated,
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
