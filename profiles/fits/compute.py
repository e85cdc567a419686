"""Speed of the cores: of windows of arithmetic, as medians with their intervals, and of whole loads.

- ``compute_gflops`` {kind, precision, cores}: operations by the time that they took, summed over the cores.
- ``compute_clock_ghz`` {load, cores}: additions of a dependent chain by their time, the mean of the cores.
  ``load``: what the cores did: ``add`` (such chains only), or ``vector`` and ``blas`` in double precision,
  with a chain after each block.
- ``compute_share_ratio`` {kind, precision}: speed of n cores over n times that of one, paired by repetition.
- ``compute_clock_ratio`` {load}: clock while all cores are busy over that of one alone, paired likewise.
- ``run_s`` {load, size}: run time of a built-in load over cores, Downey's model.
"""

from __future__ import annotations

import pandas as pd

from profiles.models import constant, downey
from profiles.quantities import counted
from profiles.records import Model

OVERLAP = 0.8  # least share of a window in which all cores computed
WINDOW = ["round", "repetition", "kind", "precision", "cores", "cpus"]
LOADS = {("chain", "integer"): "add", ("vector", "double"): "vector", ("blas", "double"): "blas"}
FACTS = ["blas", "vector_bits", "fused", "cpufreq_ghz", "base_ghz", "max_ghz"]


def fit(samples: pd.DataFrame) -> list[Model]:
    """Fit speeds and clocks of one core and of all cores, and what is left of them on all cores."""
    complete = windows(samples)
    if complete.empty:
        return []
    most = int(complete["cores"].max())
    ends = complete[complete["cores"].isin([1, most])]
    return [*_speeds(ends), *_clocks(ends), *_shares(ends, most)]


def windows(samples: pd.DataFrame) -> pd.DataFrame:
    """Make a row a window in which all cores met: ``WINDOW``, ``gflops``, ``clock_ghz``, ``FACTS``.

    Missing columns become empty, because a run that was interrupted early has rows of one kind only.
    """
    rows = samples.reindex(columns=[*WINDOW, "core", "overlap", "flops", "busy_s", "adds", "adds_s", *FACTS])
    rows = rows[rows["overlap"].astype(float) >= OVERLAP]
    made = (
        rows.assign(
            gflops=rows["flops"].astype(float) / rows["busy_s"].astype(float) / 1e9,
            clock_ghz=rows["adds"].astype(float) / rows["adds_s"].astype(float) / 1e9,
        )
        .groupby(WINDOW, sort=False)
        .agg(
            n=("core", "size"),
            gflops=("gflops", lambda column: column.sum(min_count=1)),
            clock_ghz=("clock_ghz", "mean"),
            **{fact: (fact, "first") for fact in FACTS},
        )
        .reset_index()
    )
    return made[made["n"] == made["cores"]]


def _speeds(ends: pd.DataFrame) -> list[Model]:
    return [
        constant.fit(
            group["gflops"].tolist(),
            probe="compute",
            quantity="compute_gflops",
            name="speed",
            unit="GFLOP/s",
            labels={"kind": str(kind), "precision": str(precision), "cores": str(cores)},
            note=_made_by(group.iloc[0]),
        )
        for (kind, precision, cores), group in ends[ends["gflops"].notna()].groupby(
            ["kind", "precision", "cores"]
        )
    ]


def _made_by(window: pd.Series) -> str:
    """Say what computed: the BLAS, or the vectors."""
    if window["kind"] == "blas":
        return str(window["blas"])
    unit = "fused multiply-add" if window["fused"] else "multiplication and addition apart"
    return f"vectors of {window['vector_bits']:.0f} bits, {unit}"


def _clocks(ends: pd.DataFrame) -> list[Model]:
    models = []
    for (kind, precision), load in LOADS.items():
        rows = ends[(ends["kind"] == kind) & (ends["precision"] == precision) & ends["clock_ghz"].notna()]
        models += [
            constant.fit(
                group["clock_ghz"].tolist(),
                probe="compute",
                quantity="compute_clock_ghz",
                name="clock",
                unit="GHz",
                labels={"load": load, "cores": str(cores)},
                note=_kernel_clocks(group),
            )
            for cores, group in rows.groupby("cores")
        ]
    return models


def _kernel_clocks(group: pd.DataFrame) -> str:
    """Say what the kernel told of the clock meanwhile."""
    words = {"cpufreq_ghz": "", "base_ghz": "base ", "max_ghz": "at most "}
    middles = {name: group[name].astype(float).median() for name in words}
    clocks = [f"{words[name]}{middle:.2f} GHz" for name, middle in middles.items() if pd.notna(middle)]
    return f"the kernel says: {', '.join(clocks)}" if clocks else "the kernel tells no clock"


def _shares(ends: pd.DataFrame, most: int) -> list[Model]:
    """Fit what each core keeps of its speed and clock while all are busy; nothing on one core."""
    if most == 1:
        return []
    pairs = ["round", "repetition", "kind", "precision"]
    both = ends[ends["cores"] == 1].merge(ends[ends["cores"] == most], on=pairs, suffixes=("_one", "_all"))
    both = both.assign(
        share=both["gflops_all"] / (most * both["gflops_one"]),
        clock=both["clock_ghz_all"] / both["clock_ghz_one"],
    )
    models = []
    for (kind, precision), group in both.groupby(["kind", "precision"]):
        subject = {"kind": str(kind), "precision": str(precision)}
        load = LOADS.get((str(kind), str(precision)))
        quantities = [("share", "compute_share_ratio", subject)]
        quantities += [("clock", "compute_clock_ratio", {"load": load})] if load else []
        models += [
            constant.fit(
                group[column].dropna().tolist(),
                probe="compute",
                quantity=quantity,
                name=column,
                unit="ratio",
                labels=labels,
                note=counted(most, "core"),
            )
            for column, quantity, labels in quantities
            if group[column].notna().any()
        ]
    return sorted(models, key=lambda model: model.quantity, reverse=True)


# -- built-in loads over cores -----------------------------------------------------------------------------


def fit_scaling(samples: pd.DataFrame) -> list[Model]:
    """Fit a model ``run_s`` a load, labelled by load and size; x is the count of cores.

    Runs with a wrong answer do not count. Where a load was measured in two sizes (a machine near the border
    between them), the size with more runs is kept. A load needs runs on one core and on more.
    """
    if not {"load", "size", "cores", "run_s"} <= set(samples.columns):
        return []
    right = samples[samples["verified"].astype(bool)] if "verified" in samples else samples
    models = []
    for load, every in right.groupby("load", sort=True):
        size = every["size"].mode().iloc[0]
        runs = every[every["size"] == size]
        counts = set(runs["cores"])
        if 1 not in counts or len(counts) < 2:
            continue
        models.append(
            downey.fit(
                runs["cores"].tolist(),
                runs["run_s"].tolist(),
                probe="scaling",
                quantity="run_s",
                labels={"load": str(load), "size": str(size)},
            )
        )
    return models
