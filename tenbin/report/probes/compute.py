"""Pictures of arithmetic: speed, clock and whole loads over cores, and the roofline with the loads on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from probes.loads import work
from profiles.fits.compute import LOADS, windows
from profiles.models import downey
from profiles.records import Model, Quality
from profiles.stats import median_interval
from tenbin.report.pictures import COLOURS, Figure, draw_dots, draw_medians, figure, over_cores

# -- arithmetic: speed and clock over cores, and the roofline of all probes --------------------------------


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
    "a program with its operations for each byte left of the corner is bound by memory, right of it by "
    "arithmetic. The built-in loads stand at the operations for each byte that their passes over memory "
    "must move. A load whose arrays fit into the caches may stand above the slope. EP stays in the caches "
    "and stands at the right edge."
)
NAMES = {"blas": "matrix products", "vector": "vector loop"}
BUSY = {"add": "additions only", "vector": "vector loop, double", "blas": "matrix products, double"}
INTENSITIES = np.geomspace(1 / 16, 1024, 200)  # operations for each byte


def figures(samples: pd.DataFrame, models: list[Model]) -> list[Figure]:
    """Draw speed and clock over cores, as far as ``samples`` go."""
    suffix = " (emulated)" if samples["emulated"].any() else ""
    rows = windows(samples)
    drawn = []
    if (fast := rows[rows["gflops"].notna()]).size:
        drawn.append(_speed_figure(fast, suffix))
    if (clocked := rows[rows["clock_ghz"].notna()]).size:
        drawn.append(_clock_figure(clocked, suffix))
    return drawn


def figures_across(models: Sequence[Model]) -> list[Figure]:
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


def _speed_figure(rows: pd.DataFrame, suffix: str) -> Figure:
    fig = figure(f"Floating point speed over cores{suffix}", "cores computing together", "GFLOP/s")
    for i, ((kind, precision), group) in enumerate(rows.groupby(["kind", "precision"])):
        name = f"{NAMES[str(kind)]}, {precision}"
        alone = group.loc[group["cores"] == 1, "gflops"].median()
        if pd.notna(alone):
            _ideal(fig, float(alone), int(group["cores"].max()), name=name, colour=COLOURS[i])
        _over_cores(fig, group, "gflops", name=name, colour=COLOURS[i])
    _axes(fig, rows)
    return fig


def _clock_figure(rows: pd.DataFrame, suffix: str) -> Figure:
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


def _over_cores(fig: Figure, group: pd.DataFrame, column: str, *, name: str, colour: str) -> None:
    """Draw every window as a pale dot, and the medians with their intervals as a line."""
    draw_dots(fig, group["cores"], group[column], name=name, colour=colour)
    counts = sorted(group["cores"].unique())
    medians = [median_interval(group.loc[group["cores"] == count, column]) for count in counts]
    look = {"mode": "lines+markers", "line": {"color": colour}, "name": name, "legendgroup": name}
    draw_medians(fig, [float(count) for count in counts], medians, colour, **look)


def _ideal(fig: Figure, alone: float, most: int, *, name: str, colour: str) -> None:
    line = {"color": colour, "dash": "dot", "width": 1}
    fig.add_scatter(
        x=[1, most], y=[alone, alone * most], mode="lines", line=line, legendgroup=name, showlegend=False
    )


def _axes(fig: Figure, rows: pd.DataFrame) -> None:
    over_cores(fig, rows["cores"])
    _legend_beside(fig)


def _legend_beside(fig: Figure, width: int = 260) -> None:
    fig.update_layout(
        legend={"orientation": "v", "x": 1.02, "xanchor": "left", "y": 1, "yanchor": "top"},
        margin={"r": width},
    )


# -- parallel scaling: speed-up of every built-in load over cores, with Downey's curve ---------------------


SCALING_EXPLANATION = (
    "Five small parallel programs after the NAS benchmarks (EP arithmetic only, CG sparse matrix, FT Fourier "
    "transforms, MG multigrid, LU a pipelined sweep) solve the same problem on more and more cores. Every "
    "dot is one run, as speed-up over the median on one core; diamond and bar are the median and its 95 % "
    "interval; dots of different loads stand side by side. The dotted line is ideal speed-up. The curve is "
    "Downey's model: A is the mean parallelism, the speed-up that no number of cores exceeds, and σ how "
    "unevenly it is used. A can be told only from counts up to twice A and beyond; short of that the "
    "legend says that A is at least so much. A curve ends where the runs end; it is dashed where they do not "
    "support it."
)


def scaling_figures(samples: pd.DataFrame, models: list[Model]) -> list[Figure]:
    """Draw speed-up over cores, one curve a fitted load; nothing without runs on several counts."""
    fitted = [model for model in models if model.form == "downey"]
    if not fitted:
        return []
    suffix = " (emulated)" if samples["emulated"].any() else ""
    fig = figure(f"Speed-up of parallel loads{suffix}", "cores", "speed-up over one core")
    top = max(model.x_max or 1.0 for model in fitted)
    wide = top > 16  # 1, 2, 4 ... 128
    ideal = {"color": "#888", "dash": "dot", "width": 1}
    fig.add_scatter(x=[1, top], y=[1, top], mode="lines", name="ideal", line=ideal)
    for i, model in enumerate(fitted):
        shift = (i - (len(fitted) - 1) / 2) * 0.025
        _draw_load(fig, samples, model, COLOURS[i % len(COLOURS)], shift=shift, wide=wide)
    counts = sorted(samples["cores"].unique())
    if wide:
        fig.update_xaxes(type="log")
        fig.update_yaxes(type="log", tickvals=counts)
    else:
        fig.update_xaxes(range=[0.8, top * 1.05 + 0.1])
        fig.update_yaxes(rangemode="tozero")
    fig.update_xaxes(tickvals=counts)
    _legend_beside(fig, width=300)
    return [fig]


def _draw_load(
    fig: Figure, samples: pd.DataFrame, model: Model, colour: str, *, shift: float, wide: bool
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
