"""Pictures of the streams: bandwidth of each kernel over cores, and latency over the working set."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from profiles.fits.memory import KERNELS, latencies, named_caches, stream_bandwidths
from profiles.records import Model
from tenbin.report.style import COLOURS, draw_dots, draw_medians, figure

NAMES = {"write_nt": "write past the caches"}

EXPLANATION = (
    "The first picture shows how fast the cores go through arrays that are too large for their caches, in "
    "the terms of McCalpin's STREAM: read sums an array, write fills one, copy is c = a, scale c = s a, add "
    "c = a + b, triad c = a + s b. Only what a program asks for is counted: 8 bytes for each element read or "
    "written. A plain store moves more, because each line of memory is read before it is written back: a "
    "plain write moves twice what is counted, copy and scale 3/2, add and triad 4/3. A write past the caches "
    "moves what is counted. The second picture shows how long an access takes that must wait for the one "
    "before, over the size of the memory that is used. Each large step up is a cache that has become too "
    "small. Dotted lines are the sizes that the system names, full lines the steps that were found. In a "
    "virtual machine others may use the same cache; the step then comes earlier. Every dot is one "
    "repetition. Diamond and bar are the median and its 95 % interval, and the curve is the median."
)


def figures(samples: pd.DataFrame, models: list[Model]) -> list[go.Figure]:
    """Draw bandwidths over cores and latency over the working set, as far as ``samples`` go."""
    if samples.empty:
        return []
    suffix = " (emulated)" if samples["emulated"].any() else ""
    drawn = []
    windows = stream_bandwidths(samples)
    for numa, group in windows.groupby("numa", sort=False):
        drawn.append(_bandwidth_figure(group, [m for m in models if m.labels.get("numa") == numa], suffix))
    curve = latencies(samples)
    if len(curve):
        drawn.append(_latency_figure(curve, named_caches(samples), models, suffix))
    return drawn


def _bandwidth_figure(windows: pd.DataFrame, models: list[Model], suffix: str) -> go.Figure:
    numa = windows["numa"].iloc[0]
    where = "" if numa == "local" else f", NUMA node {str(numa).partition('->')[0]} alone"
    fig = figure(f"Streams through memory{where}{suffix}", "cores streaming together", "bandwidth, GB/s")
    for colour, kernel in zip(COLOURS, KERNELS, strict=True):
        rows, name = windows[windows["kernel"] == kernel], NAMES.get(kernel, kernel)
        look = {"name": name, "legendgroup": name}
        draw_dots(fig, rows["cores"], rows["gbs"], name=name, colour=colour)
        fitted = [m for m in models if m.labels.get("kernel") == kernel]
        fitted.sort(key=lambda model: int(model.labels["cores"]))
        medians = [(c.value, c.low, c.high) for c in (m.coefficients[0] for m in fitted)]
        cores = [float(m.labels["cores"]) for m in fitted]
        draw_medians(fig, cores, medians, colour, mode="lines+markers", line={"color": colour}, **look)
    fig.update_yaxes(rangemode="tozero")
    counts = sorted(windows["cores"].unique())
    fig.update_xaxes(tickvals=counts)
    if counts[-1] > 16:  # 1, 2, 4 ... 128
        fig.update_xaxes(type="log")
    else:
        fig.update_xaxes(range=[0, counts[-1] + 0.5])
    return fig


def _latency_figure(
    curve: pd.DataFrame, named: dict[int, float], models: list[Model], suffix: str
) -> go.Figure:
    """Draw every sweep, the median over them, the sizes that sysfs names, and those that were found."""
    fig = figure(f"Latency of an access{suffix}", "working set, KiB", "time of an access, ns")
    fig.update_xaxes(type="log")
    fig.update_yaxes(type="log")
    marker = {"color": COLOURS[0], "opacity": 0.35, "size": 6}
    sizes = curve["working_set_kib"]
    fig.add_scatter(x=sizes, y=curve["ns"], mode="markers", marker=marker, name="sweeps")
    middle = curve.groupby("working_set_kib")["ns"].median()
    line = {"color": COLOURS[0]}
    fig.add_scatter(x=middle.index, y=middle, mode="lines", line=line, name="median")
    for level, size in named.items():
        style = {"color": "#888", "dash": "dot", "width": 1}
        fig.add_vline(x=size, line=style)
        text = {"text": f"L{level}, sysfs", "showarrow": False, "xanchor": "right", "yanchor": "top"}
        fig.add_annotation(x=np.log10(size), y=1.0, yref="paper", **text)  # of a log axis, unlike the line
    for model in models:
        if model.quantity == "cache_size_kib":
            style = {"color": COLOURS[1], "width": 1}
            fig.add_vline(x=model.coefficients[0].value, line=style)
    return fig
