"""Pictures of memprobe: bandwidth over cores, and what one writing core does to another."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from profiles.fits.memory import CLOCKS, bandwidths, slowdowns
from profiles.records import Model
from tenbin.report.style import COLOURS, draw_dots, draw_medians, figure

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


def figures(samples: pd.DataFrame, models: list[Model]) -> list[go.Figure]:
    """Draw bandwidth over cores and slow-down per pair, as far as ``samples`` go."""
    if samples.empty:
        return []
    suffix = " (emulated)" if samples["emulated"].any() else ""
    drawn = []
    windows = bandwidths(samples)
    if len(windows):
        drawn.append(_bandwidth_figure(windows, models, suffix))
    ratios = slowdowns(samples)
    if len(ratios):
        drawn.append(_slowdown_figure(ratios, models, suffix))
    return drawn


def _bandwidth_figure(windows: pd.DataFrame, models: list[Model], suffix: str) -> go.Figure:
    fig = figure(f"Memory bandwidth over cores{suffix}", "cores writing together", "bandwidth, GB/s")
    for i, (numa, group) in enumerate(windows.groupby("numa", sort=False)):
        colour = COLOURS[i % len(COLOURS)]
        name = "local memory" if numa == "local" else f"node {str(numa).replace('->', ' to node ')}"
        draw_dots(fig, group["cores"], group["gbs"], name=name, colour=colour)
        fitted = [m for m in models if m.quantity == "memory_bandwidth_gbs" and m.labels["numa"] == numa]
        fitted.sort(key=lambda model: int(model.labels["cores"]))
        cores = [float(model.labels["cores"]) for model in fitted]
        _medians(fig, cores, fitted, name=name, colour=colour, mode="lines+markers")
    fig.update_yaxes(rangemode="tozero")
    counts = sorted(windows["cores"].unique())
    fig.update_xaxes(tickvals=counts)
    if counts[-1] > 16:  # 1, 2, 4 ... 128
        fig.update_xaxes(type="log")
    else:
        fig.update_xaxes(range=[0, counts[-1] + 0.5])
    return fig


def _slowdown_figure(ratios: pd.DataFrame, models: list[Model], suffix: str) -> go.Figure:
    """Draw two clouds a pair, wall time left and thread time right, each with its dots in order of time."""
    fig = figure(f"Slow-down of one writing core by another{suffix}", "", "time beside / time alone")
    pairs = list(ratios.groupby("pair_kind", sort=False))
    for clock, colour, centre in zip(CLOCKS, COLOURS, (-0.2, 0.2), strict=False):
        name = f"{clock} time"
        x, medians = [], []
        for i, (kind, group) in enumerate(pairs):
            at = i + centre + np.linspace(-0.12, 0.12, len(group))
            draw_dots(fig, at, group[clock], name=name, colour=colour)
            for model in models:
                if model.labels.get("pair") == kind and model.labels.get("clock") == clock:
                    x.append(i + centre)
                    medians.append(model)
        _medians(fig, x, medians, name=name, colour=colour, mode="markers")
    fig.add_hline(y=1, line={"color": "#888", "dash": "dot", "width": 1})
    names = [f"{kind}<br>CPUs {group['cpus'].iloc[0].replace(',', ' and ')}" for kind, group in pairs]
    fig.update_xaxes(tickvals=list(range(len(pairs))), ticktext=names, range=[-0.6, len(pairs) - 0.4])
    return fig


def _medians(
    fig: go.Figure, x: list[float], models: list[Model], *, name: str, colour: str, mode: str
) -> None:
    """Draw the fitted medians at ``x``."""
    first = [model.coefficients[0] for model in models]
    look = {"mode": mode, "name": name, "legendgroup": name, "line": {"color": colour}}
    notes = {"customdata": [model.note for model in models], "hovertemplate": "%{y:.2f}<br>%{customdata}"}
    draw_medians(fig, x, [(c.value, c.low, c.high) for c in first], colour, **look, **notes)
