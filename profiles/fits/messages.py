"""From timed messages between two ranks to latency and bandwidth."""

from __future__ import annotations

import numpy as np
import pandas as pd

from profiles.fits.network import repetitions, size_name
from profiles.models import constant
from profiles.records import Model

_NEEDED = {
    "scope", "hosts", "cpus", "pair_kind", "pattern", "message_bytes", "batch", "round", "repetition",
    "message_s",
}  # fmt: skip


def fit(samples: pd.DataFrame) -> list[Model]:
    """Fit ``message_latency_s`` (smallest message) and ``message_bandwidth_gbs`` (largest) for each pair.

    Labels: ``scope``, ``size``; on this node ``pair_kind`` and ``cpus``, over hosts ``hosts``.
    """
    if samples.empty or not _NEEDED.issubset(samples.columns):
        return []
    models = []
    for _, group in samples.groupby(["scope", "cpus", "hosts", "pattern"]):
        first = group.iloc[0]
        latency = first["pattern"] == "latency"
        size = int(group["message_bytes"].min() if latency else group["message_bytes"].max())
        medians = [float(np.median(one)) for one in repetitions(group, size, "message_s")]
        labels = {name: str(first[name]) for name in ("scope", "pair_kind", "cpus", "hosts") if first[name]}
        models.append(
            constant.fit(
                medians if latency else [size / 1e9 / seconds for seconds in medians],
                probe="messages",
                quantity="message_latency_s" if latency else "message_bandwidth_gbs",
                name="latency" if latency else "bandwidth",
                unit="s" if latency else "GB/s",
                labels=labels | {"size": size_name(size)},
                emulated=bool(first["emulated"]),
                note="half a round trip" if latency else "64 messages on their way at once",
            )
        )
    return models
