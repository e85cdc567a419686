"""Pictures of messages between two ranks: latency and bandwidth over the size of a message."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from profiles.fits.network import repetitions
from profiles.records import Model
from tenbin.report.probes.network import draw
from tenbin.report.style import figure

EXPLANATION = (
    "One rank sends to another, and nobody else sends. The time of a message is half a round trip: a program "
    "that waits for an answer waits for twice that. The bandwidth is with 64 messages on their way at once. "
    "Both are as the OSU benchmarks define them (osu_latency, osu_bw). The line is the median, the band "
    "reaches to the 99th percentile."
)


def figures(samples: pd.DataFrame, models: list[Model]) -> list[go.Figure]:
    """Draw latency and bandwidth over the size of a message, a line a pair; nothing without samples."""
    if samples.empty or "message_s" not in samples:
        return []
    emulated = " (emulated)" if samples["emulated"].any() else ""
    table = _quantiles(samples)
    latency = figure(f"Time of one message{emulated}", "size of the message", "time, µs")
    draw(latency, table[table["pattern"] == "latency"], "us", "µs")
    bandwidth = figure(f"Bandwidth between two ranks{emulated}", "size of a message", "bandwidth, GB/s")
    draw(bandwidth, table[table["pattern"] == "bandwidth"], "gbs", "GB/s")
    return [latency, bandwidth]


def _quantiles(samples: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for _, group in samples.groupby(["scope", "cpus", "hosts", "pattern"]):
        pattern, kind, cpus, hosts = group.iloc[0][["pattern", "pair_kind", "cpus", "hosts"]]
        name = hosts.replace(",", " to ") if hosts else f"CPU {cpus.replace(',', ' to ')} ({kind})"
        for size in sorted(group["message_bytes"].unique().tolist()):
            several = repetitions(group, size, "message_s")
            times = np.concatenate(several)
            middle = float(np.median([np.median(run) for run in several]))
            tail = max(float(np.quantile(times, 0.99)), middle)
            rows.append(
                {
                    "pattern": pattern,
                    "name": name,
                    "size": size,
                    "n": len(times),
                    "p50_us": middle * 1e6,
                    "p99_us": tail * 1e6,
                    "p50_gbs": size / 1e9 / middle,
                    "p99_gbs": size / 1e9 / tail,
                }
            )
    return pd.DataFrame(rows)
