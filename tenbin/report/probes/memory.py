"""Pictures of memory: of memprobe, and of the streams."""

from __future__ import annotations

import numpy as np
import pandas as pd

from profiles.fits.memory import (
    CLOCKS,
    KERNELS,
    bandwidths,
    latencies,
    named_caches,
    slowdowns,
    stream_bandwidths,
)
from profiles.records import Model
from tenbin.report.pictures import COLOURS, Figure, beside, draw_dots, draw_fitted, figure, over_cores

# -- memprobe: bandwidth over cores, and what one writing core does to another -----------------------------


EXPLANATION = (
    "Each core writes one word in every cache line of an area too large for its caches, so that every "
    "write reaches memory. The bytes of the lines written are counted. Memory moves twice as many, because "
    "a plain store reads its line before it is written back: 13 GB/s here are 26 GB/s moved. The first "
    "picture shows how fast that goes as more cores join in, filled up node by node: where the "
    "line stops rising, memory is full and further cores only share it. The second shows how much longer the "
    "same writing takes while another core writes too: 1 means that they do not disturb each other, 2 that "
    "each runs at half its speed. Every dot is one repetition (second picture: in order of time, left to "
    "right); diamond and bar are the median and its 95 % interval. "
    "Wall time is what a user waits, thread time what the processor was busy; where wall is the higher, "
    "something else took the core away as well."
)


def figures(samples: pd.DataFrame, models: list[Model]) -> list[Figure]:
    """Draw bandwidth over cores and slow-down per pair, as far as ``samples`` go."""
    suffix = " (emulated)" if samples["emulated"].any() else ""
    drawn = []
    windows = bandwidths(samples)
    if len(windows):
        drawn.append(_bandwidth_figure(windows, models, suffix))
    ratios = slowdowns(samples)
    if len(ratios):
        drawn.append(_slowdown_figure(ratios, models, suffix))
    return drawn


def _bandwidth_figure(windows: pd.DataFrame, models: list[Model], suffix: str) -> Figure:
    fig = figure(f"Memory bandwidth over cores{suffix}", "cores writing together", "bandwidth, GB/s")
    for i, (numa, group) in enumerate(windows.groupby("numa", sort=False)):
        colour = COLOURS[i % len(COLOURS)]
        name = "local memory" if numa == "local" else f"node {str(numa).replace('->', ' to node ')}"
        draw_dots(fig, group["cores"], group["gbs"], name=name, colour=colour)
        fitted = [m for m in models if m.quantity == "memory_bandwidth_gbs" and m.labels["numa"] == numa]
        fitted.sort(key=lambda model: int(model.labels["cores"]))
        cores = [float(model.labels["cores"]) for model in fitted]
        draw_fitted(fig, cores, fitted, name=name, colour=colour, mode="lines+markers")
    over_cores(fig, windows["cores"])
    return fig


def _slowdown_figure(ratios: pd.DataFrame, models: list[Model], suffix: str) -> Figure:
    """Draw two clouds a pair, wall time left and thread time right, each with its dots in order of time."""
    fig = figure(f"Slow-down of one writing core by another{suffix}", "", "time beside / time alone")
    pairs = list(ratios.groupby("pair_kind", sort=False))
    for clock, colour, centre in zip(CLOCKS, COLOURS, (-0.2, 0.2), strict=False):
        name = f"{clock} time"
        x, medians = [], []
        for i, (kind, group) in enumerate(pairs):
            at = beside(i + centre, 0.12, len(group))
            draw_dots(fig, at, group[clock], name=name, colour=colour)
            for model in models:
                if model.labels.get("pair") == kind and model.labels.get("clock") == clock:
                    x.append(i + centre)
                    medians.append(model)
        draw_fitted(fig, x, medians, name=name, colour=colour)
    fig.add_hline(y=1, line={"color": "#888", "dash": "dot", "width": 1})
    names = [f"{kind}<br>CPUs {group['cpus'].iloc[0].replace(',', ' and ')}" for kind, group in pairs]
    fig.update_xaxes(tickvals=list(range(len(pairs))), ticktext=names, range=[-0.6, len(pairs) - 0.4])
    return fig


# -- streams: bandwidth of each kernel over cores, and latency over the working set ------------------------


NAMES = {"write_nt": "write past the caches"}

STREAMS_EXPLANATION = (
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


def stream_figures(samples: pd.DataFrame, models: list[Model]) -> list[Figure]:
    """Draw bandwidths over cores and latency over the working set, as far as ``samples`` go."""
    suffix = " (emulated)" if samples["emulated"].any() else ""
    drawn = []
    windows = stream_bandwidths(samples)
    for numa, group in windows.groupby("numa", sort=False):
        drawn.append(_streams_figure(group, [m for m in models if m.labels.get("numa") == numa], suffix))
    curve = latencies(samples)
    if len(curve):
        drawn.append(_latency_figure(curve, named_caches(samples), models, suffix))
    return drawn


def _streams_figure(windows: pd.DataFrame, models: list[Model], suffix: str) -> Figure:
    numa = windows["numa"].iloc[0]
    where = "" if numa == "local" else f", NUMA node {str(numa).partition('->')[0]} alone"
    fig = figure(f"Streams through memory{where}{suffix}", "cores streaming together", "bandwidth, GB/s")
    for colour, kernel in zip(COLOURS, KERNELS, strict=True):
        rows, name = windows[windows["kernel"] == kernel], NAMES.get(kernel, kernel)
        draw_dots(fig, rows["cores"], rows["gbs"], name=name, colour=colour)
        fitted = [m for m in models if m.labels.get("kernel") == kernel]
        fitted.sort(key=lambda model: int(model.labels["cores"]))
        cores = [float(m.labels["cores"]) for m in fitted]
        draw_fitted(fig, cores, fitted, name=name, colour=colour, mode="lines+markers")
    over_cores(fig, windows["cores"])
    return fig


def _latency_figure(curve: pd.DataFrame, named: dict[int, float], models: list[Model], suffix: str) -> Figure:
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
