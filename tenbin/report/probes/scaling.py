"""Picture of parallel scaling: speed-up of every built-in load over cores, with Downey's curve."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from profiles.models import downey
from profiles.records import Model, Quality
from profiles.stats import median_interval
from tenbin.report.style import COLOURS, draw_medians, figure

EXPLANATION = (
    "Five small parallel programs after the NAS benchmarks (EP arithmetic only, CG sparse matrix, FT Fourier "
    "transforms, MG multigrid, LU a pipelined sweep) solve the same problem on more and more cores. Every "
    "dot is one run, as speed-up over the median on one core; diamond and bar are the median and its 95 % "
    "interval; dots of different loads stand side by side. The dotted line is ideal speed-up. The curve is "
    "Downey's model: A is the mean parallelism, the speed-up that no number of cores exceeds, and σ how "
    "unevenly it is used. A can be told only from counts up to twice A and beyond; short of that the "
    "legend says that A is at least so much. A curve ends where the runs end; it is dashed where they do not "
    "support it."
)


def figures(samples: pd.DataFrame, models: list[Model]) -> list[go.Figure]:
    """Draw speed-up over cores, one curve a fitted load; nothing without runs on several counts."""
    fitted = [model for model in models if model.form == "downey"]
    if samples.empty or not fitted:
        return []
    suffix = " (emulated)" if samples["emulated"].any() else ""
    fig = figure(f"Speed-up of parallel loads{suffix}", "cores", "speed-up over one core")
    top = max(model.x_max or 1.0 for model in fitted)
    wide = top > 16  # 1, 2, 4 ... 128
    ideal = {"color": "#888", "dash": "dot", "width": 1}
    fig.add_scatter(x=[1, top], y=[1, top], mode="lines", name="ideal", line=ideal)
    for i, model in enumerate(fitted):
        shift = (i - (len(fitted) - 1) / 2) * 0.025
        _load(fig, samples, model, COLOURS[i % len(COLOURS)], shift=shift, wide=wide)
    counts = sorted(samples["cores"].unique())
    if wide:
        fig.update_xaxes(type="log")
        fig.update_yaxes(type="log", tickvals=counts)
    else:
        fig.update_xaxes(range=[0.8, top * 1.05 + 0.1])
        fig.update_yaxes(rangemode="tozero")
    fig.update_xaxes(tickvals=counts)
    fig.update_layout(
        legend={"orientation": "v", "x": 1.02, "xanchor": "left", "y": 1, "yanchor": "top"},
        margin={"r": 300},
    )
    return [fig]


def _load(
    fig: go.Figure, samples: pd.DataFrame, model: Model, colour: str, *, shift: float, wide: bool
) -> None:
    """Draw runs, medians and curve of one load; ``shift`` keeps loads apart (share of the distance)."""
    load, size = model.labels["load"], model.labels["size"]
    runs = samples[(samples["load"] == load) & (samples["size"] == size)]
    if "verified" in runs:
        runs = runs[runs["verified"].astype(bool)]
    alone_s = float(runs.loc[runs["cores"] == 1, "run_s"].median())
    marker = {"color": colour, "opacity": 0.3, "size": 5}
    fig.add_scatter(
        x=_beside(runs["cores"].to_numpy(), shift, wide),
        y=alone_s / runs["run_s"],
        mode="markers",
        legendgroup=load,
        showlegend=False,
        marker=marker,
        hoverinfo="skip",
    )
    groups = list(runs.groupby("cores"))
    middle = [median_interval(group["run_s"]) for _, group in groups]
    inverse = [(alone_s / m, high and alone_s / high, low and alone_s / low) for m, low, high in middle]
    draw_medians(
        fig,
        _beside(np.array([float(str(n)) for n, _ in groups]), shift, wide).tolist(),
        inverse,
        colour,
        mode="markers",
        legendgroup=load,
        showlegend=False,
        customdata=[
            f"{load.upper()} {size}, {len(group)} runs, {m:.3g} s"
            for (_, group), (m, _, _) in zip(groups, middle, strict=True)
        ],
        hovertemplate="%{customdata}<br>speed-up %{y:.2f}<extra></extra>",
    )
    x = np.geomspace(1, model.x_max or 1.0, 200)  # as far as it was measured
    poor = model["A"].quality is Quality.POOR
    fig.add_scatter(
        x=x,
        y=downey.speedup(x, model["A"].value, model["sigma"].value),
        mode="lines",
        name=f"{load.upper()} {size}: {downey.verdict(model)}{', dashed' * poor}",
        legendgroup=load,
        line={"color": colour, "dash": "dash" if poor else "solid"},
        hoverinfo="skip",
    )


def _beside(cores: np.ndarray, shift: float, wide: bool) -> np.ndarray:
    return cores * (1 + shift) if wide else cores + shift
