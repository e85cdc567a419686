"""Latency, bandwidth and jitter: of timed all-to-alls, and of timed messages between two ranks.

Iterations that follow one another meet the same disturbances, so they are not independent. An observation is
the median of one repetition (a visit of a size, some tens of iterations), and n counts repetitions.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pandas as pd

from profiles.models import constant
from profiles.records import Model

JITTER_SIZES = (8, 4 << 10, 1 << 20)  # bytes: latency-bound, in between, bandwidth-bound
FEWEST_ITERATIONS = 100  # below that, a 99th percentile is just the largest value
FEWEST_REPETITIONS = 6
RESAMPLES = 1000
_NEEDED = {
    "scope", "ranks", "hosts", "message_bytes", "batch", "round", "repetition", "alltoall_s",
}  # fmt: skip

Times = list[npt.NDArray[np.float64]]  # seconds of each iteration, an array a repetition


def fit(samples: pd.DataFrame) -> list[Model]:
    """Fit ``network_latency_s``, ``network_bandwidth_gbs`` and ``network_jitter_ratio`` for sets of ranks.

    Labels: ``scope`` (node: ranks on the cores of this node; hosts: one rank on each host), ``ranks``,
    ``size`` (of the message from each rank to each other) and, over hosts, ``hosts``.
    """
    if not _NEEDED.issubset(samples.columns):
        return []
    models: list[Model] = []
    for _, group in samples.groupby(["scope", "ranks", "hosts"]):
        first = group.iloc[0]
        labels = {"scope": str(first["scope"]), "ranks": str(first["ranks"])}
        labels |= {"hosts": str(first["hosts"])} if first["hosts"] else {}
        models += _of_one_set(group, int(first["ranks"]), labels)
    return models


def _of_one_set(group: pd.DataFrame, ranks: int, labels: dict[str, str]) -> Iterator[Model]:
    sizes = sorted(group["message_bytes"].unique().tolist())
    times = {size: repetitions(group, size) for size in sizes}
    smallest, largest = sizes[0], sizes[-1]
    yield constant.fit(
        [float(np.median(iterations)) for iterations in times[smallest]],
        probe="network",
        quantity="network_latency_s",
        name="latency",
        unit="s",
        labels=labels | {"size": size_name(smallest)},
        note="one all-to-all, slowest rank",
    )
    sent_gb = (ranks - 1) * largest / 1e9
    yield constant.fit(
        [sent_gb / float(np.median(iterations)) for iterations in times[largest]],
        probe="network",
        quantity="network_bandwidth_gbs",
        name="bandwidth",
        unit="GB/s",
        labels=labels | {"size": size_name(largest)},
        note="sent by each rank to the others, while it receives as much",
    )
    for size in JITTER_SIZES:
        several = times.get(size, [])
        if len(several) >= FEWEST_REPETITIONS and sum(map(len, several)) >= FEWEST_ITERATIONS:
            yield _jitter(several, labels | {"size": size_name(size)})


def repetitions(group: pd.DataFrame, size: int, column: str = "alltoall_s") -> Times:
    """Group the iterations of a size by repetition; only those of its most frequent batch are comparable."""
    rows = group[group["message_bytes"] == size]
    rows = rows[rows["batch"] == rows["batch"].mode().iloc[0]]
    return [iterations.to_numpy(float) for _, iterations in rows.groupby(["round", "repetition"])[column]]


def _jitter(several: Times, labels: dict[str, str]) -> Model:
    """Compute p99 / p50 over all iterations, its interval by resampling repetitions (cluster bootstrap)."""
    value = _tail_ratio(several)
    random = np.random.default_rng(0)
    again = np.array(
        [
            _tail_ratio([several[i] for i in random.integers(len(several), size=len(several))])
            for _ in range(RESAMPLES)
        ]
    )
    low, high = (float(q) for q in np.quantile(again, (0.025, 0.975)))
    low, high = min(low, value), max(high, value)  # a percentile interval of a tail can miss its own estimate
    note = f"{sum(map(len, several))} iterations"
    coefficient = constant.judged("jitter", value, "1", (low, high), n=len(several), note=note)
    return Model(
        probe="network",
        quantity="network_jitter_ratio",
        form="constant",
        labels=labels,
        method="p99/p50 of iterations, bootstrap over repetitions",
        coefficients=(coefficient,),
        residual_sd=float(again.std(ddof=1)),
    )


def _tail_ratio(several: Times) -> float:
    middle, tail = np.quantile(np.concatenate(several), (0.5, 0.99))
    return float(tail / middle)


def size_name(size: int) -> str:
    """Write a size as ``8 B``, ``4 KiB``, ``8 MiB``."""
    for unit, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size / factor:g} {unit}"
    return f"{size} B"


# -- messages between two ranks ----------------------------------------------------------------------------


_NEEDED_OF_MESSAGES = {
    "scope", "hosts", "cpus", "pair_kind", "pattern", "message_bytes", "batch", "round", "repetition",
    "message_s",
}  # fmt: skip


def fit_messages(samples: pd.DataFrame) -> list[Model]:
    """Fit ``message_latency_s`` (smallest message) and ``message_bandwidth_gbs`` (largest) for each pair.

    Labels: ``scope``, ``size``; on this node ``pair_kind`` and ``cpus``, over hosts ``hosts``.
    """
    if not _NEEDED_OF_MESSAGES.issubset(samples.columns):
        return []
    models = []
    for _, group in samples.groupby(["scope", "cpus", "hosts", "pattern"]):
        first = group.iloc[0]
        latency = first["pattern"] == "latency"
        size = int(group["message_bytes"].min() if latency else group["message_bytes"].max())
        medians = [float(np.median(iterations)) for iterations in repetitions(group, size, "message_s")]
        labels = {name: str(first[name]) for name in ("scope", "pair_kind", "cpus", "hosts") if first[name]}
        models.append(
            constant.fit(
                medians if latency else [size / 1e9 / seconds for seconds in medians],
                probe="messages",
                quantity="message_latency_s" if latency else "message_bandwidth_gbs",
                name="latency" if latency else "bandwidth",
                unit="s" if latency else "GB/s",
                labels=labels | {"size": size_name(size)},
                note="half a round trip" if latency else "64 messages on their way at once",
            )
        )
    return models
