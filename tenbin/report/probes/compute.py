"""Pictures of arithmetic: speed and clock over cores, and the roofline with the built-in loads on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from probes.loads import work
from profiles.fits.compute import LOADS, windows
from profiles.records import Model
from profiles.stats import median_interval
from tenbin.report.style import COLOURS, draw_dots, draw_medians, figure

EXPLANATION = (
    "Each core computes in a process of its own, all in the same window of time. Matrix products are "
    "those of numpy's BLAS, 512 rows and columns, on one thread a core. The vector loop multiplies and "
    "adds in registers and touches no memory: the most that compiled code reaches. Every dot is one "
    "window, all its cores together; diamond and bar are the median and its 95 % interval; the dotted "
    "lines are the speed of one core times the number of cores. The clock is that of a chain of dependent "
    "additions, of which a core does one a cycle: by itself, and in short pieces between products and "
    "vector loops, so under their load. Interrupts and other guests of a hypervisor make it read too low, "
    "never too high. The windows are short: a long run that power or heat limits is slower. The roofline "
    "puts the speeds beside the bandwidth of STREAM's triad (memprobe's, where streams were not measured): "
    "left of the corner a program that does so many operations for a byte is bound by memory, right of it "
    "by arithmetic. The built-in loads stand at the operations for each byte that their passes over memory "
    "must move. A load whose arrays fit into the caches may stand above the slope. EP stays in the caches "
    "and stands at the right edge."
)
NAMES = {"blas": "matrix products", "vector": "vector loop"}
BUSY = {"add": "additions only", "vector": "vector loop, double", "blas": "matrix products, double"}
INTENSITIES = np.geomspace(1 / 16, 1024, 200)  # operations for each byte


def figures(samples: pd.DataFrame, models: list[Model]) -> list[go.Figure]:
    """Draw speed and clock over cores, as far as ``samples`` go."""
    if samples.empty:
        return []
    suffix = " (emulated)" if samples["emulated"].any() else ""
    rows = windows(samples)
    drawn = []
    if (fast := rows[rows["gflops"].notna()]).size:
        drawn.append(_speed_figure(fast, suffix))
    if (clocked := rows[rows["clock_ghz"].notna()]).size:
        drawn.append(_clock_figure(clocked, suffix))
    return drawn


def figures_across(models: Sequence[Model]) -> list[go.Figure]:
    """Draw the roofline of one core and of all with the built-in loads, from the ``models`` of all probes."""
    roofs = [*_roofs(models)]
    if not roofs:
        return []
    suffix = " (emulated)" if any(model.emulated for model in models) else ""
    fig = figure(f"Roofline{suffix}", "operations for each byte of memory", "GFLOP/s")
    for i, (name, precision, peak, bandwidth) in enumerate(roofs):
        colour = COLOURS[precision == "single"]
        line = {"color": colour, "dash": "dot" if name.startswith("1 ") else "solid"}
        roof = np.minimum(peak, INTENSITIES * bandwidth)
        label = f"{name}, {precision}: corner at {peak / bandwidth:.3g}"
        fig.add_scatter(x=INTENSITIES, y=roof, mode="lines", name=label, line=line, legendgroup=str(i))
        corner = {"color": colour, "size": 9, "symbol": "diamond"}
        fig.add_scatter(
            x=[peak / bandwidth],
            y=[peak],
            mode="markers",
            marker=corner,
            showlegend=False,
            legendgroup=str(i),
        )
    for name, intensity, gflops in _loads(models):
        fig.add_scatter(
            x=[intensity], y=[gflops], mode="markers", name=name, marker={"size": 7, "symbol": "x"}
        )
    fig.update_xaxes(type="log", dtick=1)
    fig.update_yaxes(type="log", dtick=1)
    _legend_beside(fig)
    return [fig]


def _loads(models: Sequence[Model]) -> Iterator[tuple[str, float, float]]:
    """Name each built-in load on one core, with its operations a byte and its GFLOP/s."""
    for model in models:
        if model.probe == "scaling" and model.quantity == "run_s":
            load, size = model.labels["load"], model.labels["size"]
            operations, traffic_bytes = work(load, size)
            intensity = operations / traffic_bytes if traffic_bytes else float(INTENSITIES[-1])
            yield f"{load.upper()} {size}, 1 core", intensity, operations / model["T1"].value / 1e9


def _roofs(models: Sequence[Model]) -> list[tuple[str, str, float, float]]:
    """List (cores in words, precision, peak in GFLOP/s, bandwidth in GB/s) for one core and for all."""
    peaks: dict[tuple[int, str], float] = {}
    bandwidths: dict[int, float] = {}
    for model in models:
        value = model.coefficients[0].value
        if model.quantity == "compute_gflops":
            key = int(model.labels["cores"]), model.labels["precision"]
            peaks[key] = max(value, peaks.get(key, 0.0))
        elif model.quantity == "memory_bandwidth_gbs" and model.labels["numa"] == "local":
            bandwidths.setdefault(int(model.labels["cores"]), value)
        elif model.quantity == "stream_bandwidth_gbs" and _is_local_triad(model):
            bandwidths[int(model.labels["cores"])] = value
    return [
        (f"{cores} core{'s' * (cores > 1)}", precision, peak, bandwidths[cores])
        for (cores, precision), peak in sorted(peaks.items())
        if cores in bandwidths
    ]


def _is_local_triad(model: Model) -> bool:
    return model.labels["kernel"] == "triad" and model.labels["numa"] == "local"


def _speed_figure(rows: pd.DataFrame, suffix: str) -> go.Figure:
    fig = figure(f"Floating point speed over cores{suffix}", "cores computing together", "GFLOP/s")
    for i, ((kind, precision), group) in enumerate(rows.groupby(["kind", "precision"])):
        name = f"{NAMES[str(kind)]}, {precision}"
        alone = group.loc[group["cores"] == 1, "gflops"].median()
        if pd.notna(alone):
            _ideal(fig, float(alone), int(group["cores"].max()), name=name, colour=COLOURS[i])
        _over_cores(fig, group, "gflops", name=name, colour=COLOURS[i])
    _axes(fig, rows)
    return fig


def _clock_figure(rows: pd.DataFrame, suffix: str) -> go.Figure:
    fig = figure(f"Clock over busy cores{suffix}", "cores computing together", "clock, GHz")
    for i, ((kind, precision), load) in enumerate(LOADS.items()):
        group = rows[(rows["kind"] == kind) & (rows["precision"] == precision)]
        if len(group):
            _over_cores(fig, group, "clock_ghz", name=BUSY[load], colour=COLOURS[i])
            clocks = group.groupby("cores")["cpufreq_ghz"].median().dropna()
            if len(clocks):
                mark = {"color": COLOURS[i], "symbol": "x", "size": 8}
                name = f"{BUSY[load]}: the kernel says"
                fig.add_scatter(x=clocks.index, y=clocks, mode="markers", name=name, marker=mark)
    _axes(fig, rows)
    return fig


def _over_cores(fig: go.Figure, group: pd.DataFrame, column: str, *, name: str, colour: str) -> None:
    """Draw every window as a pale dot, and the medians with their intervals as a line."""
    draw_dots(fig, group["cores"], group[column], name=name, colour=colour)
    counts = sorted(group["cores"].unique())
    medians = [median_interval(group.loc[group["cores"] == count, column]) for count in counts]
    look = {"mode": "lines+markers", "line": {"color": colour}, "name": name, "legendgroup": name}
    draw_medians(fig, [float(count) for count in counts], medians, colour, **look)


def _ideal(fig: go.Figure, alone: float, most: int, *, name: str, colour: str) -> None:
    line = {"color": colour, "dash": "dot", "width": 1}
    fig.add_scatter(
        x=[1, most], y=[alone, alone * most], mode="lines", line=line, legendgroup=name, showlegend=False
    )


def _axes(fig: go.Figure, rows: pd.DataFrame) -> None:
    counts = sorted(rows["cores"].unique())
    fig.update_xaxes(tickvals=counts)
    if counts[-1] > 16:  # 1, 2, 4 ... 128
        fig.update_xaxes(type="log")
    else:
        fig.update_xaxes(range=[0, counts[-1] + 0.5])
    fig.update_yaxes(rangemode="tozero")
    _legend_beside(fig)


def _legend_beside(fig: go.Figure) -> None:
    fig.update_layout(
        legend={"orientation": "v", "x": 1.02, "xanchor": "left", "y": 1, "yanchor": "top"},
        margin={"r": 260},
    )
