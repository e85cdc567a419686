"""Pictures of the network: of all-to-alls, and of messages between two ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from profiles.fits.network import repetitions, size_name
from profiles.records import Model
from tenbin.report.pictures import COLOURS, Figure, figure

# -- all-to-alls: time and bandwidth over the size of the messages -----------------------------------------


EXPLANATION = (
    "Every rank sends one message to every other rank at the same time, and the slowest rank's time counts. "
    "On the left, for small messages, the time is flat: that is the latency, paid for each exchange however "
    "small. On the right it grows with the bytes, and the bandwidth that each rank reaches levels off. The "
    "line is the median, the band reaches to the 99th percentile: a wide band means that a parallel "
    "job, which waits for its slowest rank at every exchange, will often wait longer than the median says. "
    "The dotted lines are the latency and bandwidth of the profile, with their 95 % intervals."
)


def figures(samples: pd.DataFrame, models: list[Model]) -> list[Figure]:
    """Draw time and bandwidth over message size, a line for each set of ranks; nothing without samples."""
    if "alltoall_s" not in samples:
        return []
    table = _quantiles(samples)
    emulated = " (emulated)" if samples["emulated"].any() else ""
    return [_time(table, models, emulated), _bandwidth(table, models, emulated)]


def _quantiles(samples: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for _, group in samples.groupby(["scope", "ranks", "hosts"]):
        scope, ranks, hosts = group.iloc[0][["scope", "ranks", "hosts"]]
        where = hosts.replace(",", ", ") if hosts else "this node"
        labels = {"scope": scope, "ranks": ranks, "hosts": hosts, "name": f"{ranks} ranks on {where}"}
        rows += [labels | row for row in _by_size(group, "alltoall_s", messages=ranks - 1)]
    return pd.DataFrame(rows)


def _by_size(group: pd.DataFrame, column: str, messages: int) -> Iterator[dict[str, Any]]:
    """Yield median and 99th percentile for each size; a rank sends so many ``messages`` in the time."""
    for size in sorted(group["message_bytes"].unique().tolist()):
        several = repetitions(group, size, column)
        times = np.concatenate(several)
        middle = float(np.median([np.median(run) for run in several]))  # as in the fit
        tail = max(float(np.quantile(times, 0.99)), middle)
        sent_gb = messages * size / 1e9
        yield {
            "size": size,
            "n": len(times),
            "p50_us": middle * 1e6,
            "p99_us": tail * 1e6,
            "p50_gbs": sent_gb / middle,
            "p99_gbs": sent_gb / tail,
        }


def _time(table: pd.DataFrame, models: list[Model], emulated: str) -> Figure:
    fig = figure(f"Time of one all-to-all{emulated}", "message from each rank to each other", "time, µs")
    _draw(fig, table, "us", "µs")
    _levels(fig, table, models, "network_latency_s", scale=1e6)
    return fig


def _bandwidth(table: pd.DataFrame, models: list[Model], emulated: str) -> Figure:
    title = f"Bandwidth that each rank reaches{emulated}"
    fig = figure(title, "message from each rank to each other", "bandwidth, GB/s")
    _draw(fig, table, "gbs", "GB/s")
    _levels(fig, table, models, "network_bandwidth_gbs", scale=1.0)
    return fig


def _draw(fig: Figure, table: pd.DataFrame, quantity: str, unit: str) -> None:
    """Draw median lines with a band to the 99th percentile, on logarithmic axes."""
    for colour, (name, rows) in zip(COLOURS * 9, table.groupby("name", sort=False), strict=False):
        names = rows["size"].map(size_name)
        band = {"x": rows["size"], "mode": "lines", "line": {"width": 0}, "legendgroup": name}
        tail = {"fill": "tonexty", "fillcolor": _faint(colour), "name": f"{name}: to p99"}
        fig.add_scatter(y=rows[f"p50_{quantity}"], hoverinfo="skip", showlegend=False, **band)
        fig.add_scatter(y=rows[f"p99_{quantity}"], hoverinfo="skip", **tail, **band)
        fig.add_scatter(
            x=rows["size"],
            y=rows[f"p50_{quantity}"],
            mode="lines+markers",
            name=f"{name}: median",
            legendgroup=name,
            line={"color": colour},
            customdata=np.column_stack([names, rows[f"p99_{quantity}"], rows["n"]]),
            hovertemplate=f"%{{customdata[0]}}: %{{y:.4g}} {unit}, p99 %{{customdata[1]:.4g}} {unit}, "
            "%{customdata[2]} iterations<extra></extra>",
        )
    sizes = sorted(table["size"].unique().tolist())
    fig.update_xaxes(type="log", tickvals=sizes, ticktext=[size_name(size) for size in sizes])
    fig.update_yaxes(type="log", exponentformat="none", dtick=1)
    below = {"y": -0.22, "yanchor": "top", "x": 0.0, "xanchor": "left", "tracegroupgap": 0}
    fig.update_layout(legend=below, height=480, margin={"b": 130})


def _levels(fig: Figure, table: pd.DataFrame, models: list[Model], quantity: str, *, scale: float) -> None:
    """Draw the profile's values as dotted lines in the set's colour; the legend has their intervals."""
    ends = [table["size"].min(), table["size"].max()]
    for colour, (name, rows) in zip(COLOURS * 9, table.groupby("name", sort=False), strict=False):
        first = rows.iloc[0]
        labels = {"scope": first["scope"], "ranks": str(first["ranks"])}
        labels |= {"hosts": first["hosts"]} if first["hosts"] else {}
        for model in models:
            if model.quantity != quantity or not labels.items() <= model.labels.items():
                continue
            value = model.coefficients[0]
            text = f"{value.name} {value.value * scale:.3g} {'µs' if scale > 1 else value.unit}"
            if value.low is not None and value.high is not None:
                text += f" [{value.low * scale:.3g}, {value.high * scale:.3g}]"
            fig.add_scatter(
                x=ends,
                y=[value.value * scale] * 2,
                mode="lines",
                line={"dash": "dot", "color": colour, "width": 1.5},
                name=text,
                legendgroup=name,
                hoverinfo="skip",
            )


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.15)"


# -- messages between two ranks: latency and bandwidth over the size of a message --------------------------


MESSAGES_EXPLANATION = (
    "One rank sends to another, and nobody else sends. The time of a message is half a round trip: a program "
    "that waits for an answer waits for twice that. The bandwidth is with 64 messages on their way at once. "
    "Both are as the OSU benchmarks define them (osu_latency, osu_bw). The line is the median, the band "
    "reaches to the 99th percentile."
)


def message_figures(samples: pd.DataFrame, models: list[Model]) -> list[Figure]:
    """Draw latency and bandwidth over the size of a message, a line a pair; nothing without samples."""
    if "message_s" not in samples:
        return []
    emulated = " (emulated)" if samples["emulated"].any() else ""
    table = _pair_quantiles(samples)
    latency = figure(f"Time of one message{emulated}", "size of the message", "time, µs")
    _draw(latency, table[table["pattern"] == "latency"], "us", "µs")
    bandwidth = figure(f"Bandwidth between two ranks{emulated}", "size of a message", "bandwidth, GB/s")
    _draw(bandwidth, table[table["pattern"] == "bandwidth"], "gbs", "GB/s")
    return [latency, bandwidth]


def _pair_quantiles(samples: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for _, group in samples.groupby(["scope", "cpus", "hosts", "pattern"]):
        pattern, kind, cpus, hosts = group.iloc[0][["pattern", "pair_kind", "cpus", "hosts"]]
        name = hosts.replace(",", " to ") if hosts else f"CPU {cpus.replace(',', ' to ')} ({kind})"
        labels = {"pattern": pattern, "name": name}
        rows += [labels | row for row in _by_size(group, "message_s", messages=1)]
    return pd.DataFrame(rows)
