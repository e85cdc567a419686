"""Pictures of checkpoint costs: time over memory, what the time consists of, predictions held to account."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from profiles.fits.checkpoint import completed, predictions
from profiles.models import predict
from profiles.records import Model
from tenbin.report.pictures import COLOURS, Figure, draw_fit, figure

EXPLANATION = (
    "A job that moves pays for a checkpoint (bring the device's memory to the storage) and a restart (a "
    "new process, the compiled program, the memory back). Both grow with the memory in use along a "
    "straight line: each dot is one repetition, the line is the fit, and the band is where 95 % of "
    "further checkpoints are expected. The bars show what the time consists of at the largest size: the "
    "phases measured one by one, and below them the whole as it is really done, shorter where copying and"
    " storage overlap. The last pictures hold the fits to account: whole migrations between devices, "
    "which the fits have never seen, against what they predict (on the diagonal: exactly; dotted: a third"
    " too low or too high), and the time until a queue full of short kernels is empty, which comes before"
    " any checkpoint can start."
)

_CHECKPOINT = (("copy_out", "device to host"), ("write", "write and sync"))
_RESTART = (
    ("context", "context"),
    ("compile", "compile (cache warm)"),
    ("read", "read"),
    ("copy_new", "host to new device memory"),
)


def figures(samples: pd.DataFrame, models: list[Model]) -> list[Figure]:
    """Draw checkpoint, restart, phases, migrations and drain, as far as there are samples."""
    samples = completed(samples)
    samples = samples[samples["seconds"].notna()]
    if samples.empty:
        return []
    suffix = " (emulated)" if samples["emulated"].any() else ""
    memory, draining = "memory, MB", f"Draining a queue of short kernels{suffix}"
    drawn = [
        _lines(samples, models, "checkpoint", title=f"Checkpoint{suffix}", x_title=memory),
        _lines(samples, models, "restart", title=f"Restart, without compiling{suffix}", x_title=memory),
        _phases(samples, suffix),
        _migrations(samples, models, suffix),
        _lines(samples, models, "drain", title=draining, x_title="kernels in the queue"),
    ]
    return [fig for fig in drawn if fig is not None]


def _lines(
    samples: pd.DataFrame, models: list[Model], kind: str, *, title: str, x_title: str
) -> Figure | None:
    """Draw dots, fit and prediction band over the independent variable, one colour a subject."""
    labels = ["device"] if kind == "drain" else ["device", "storage"]
    x = "queued_kernels" if kind == "drain" else "memory_mb"
    rows = samples[samples["kind"] == kind].dropna(subset=[x, *labels])
    if rows.empty:
        return None
    fig = figure(title, x_title, "time, s")
    tops = []
    for i, (subject, group) in enumerate(rows.groupby(labels)):
        colour = COLOURS[i % len(COLOURS)]
        name = ", ".join(map(str, subject))
        fig.add_scatter(
            x=group[x],
            y=group["seconds"],
            name=name,
            mode="markers",
            legendgroup=name,
            marker={"color": colour, "size": 6, "opacity": 0.5},
        )
        tops.append(float(group.groupby(x)["seconds"].quantile(0.9).max()))
        labels_of = dict(zip(labels, map(str, subject), strict=True))
        for model in models:
            if model.quantity == f"{kind}_s" and model.labels == labels_of:
                at = np.linspace(0, model.x_max or 1.0, 40).tolist()
                fit = [predict(model, value) for value in at]
                draw_fit(fig, at, fit, {"colour": colour, "name": name})
                tops.append(max(p.high for p in fit))
    shown = 1.3 * max(tops)
    above = int((rows["seconds"] > shown).sum())
    if above:  # a few far outliers must not flatten everything else
        fig.add_annotation(
            text=f"{above} of {len(rows)} above the picture",
            xref="paper",
            yref="paper",
            x=0,
            y=1,
            showarrow=False,
        )
        fig.update_yaxes(range=[0, shown])
    else:
        fig.update_yaxes(rangemode="tozero")
    return fig


def _phases(samples: pd.DataFrame, suffix: str) -> Figure | None:
    """Stack medians of the phases at the largest size, above the whole as it was really done."""
    whole = samples[samples["kind"] == "restart"].dropna(subset=["device", "storage", "memory_mb"])
    if whole.empty:
        return None
    size = float(whole["memory_mb"].max())
    bars: dict[str, list[tuple[str, float]]] = {}
    order: list[str] = []
    for (device, storage), _ in whole[whole["memory_mb"] == size].groupby(["device", "storage"]):
        subject = f"{device}, {storage}"
        for kind, phases in (("checkpoint", _CHECKPOINT), ("restart", _RESTART)):
            one_by_one, done = f"{kind}, one by one<br>{subject}", f"{kind}, as done<br>{subject}"
            order += [one_by_one, done]
            for phase, title in phases:
                seconds = _phase_s(samples, phase, device=str(device), storage=str(storage), size=size)
                bars.setdefault(title, []).append((one_by_one, seconds))
            total = _median(samples[samples["kind"] == kind], device=device, storage=storage, memory_mb=size)
            if kind == "restart":  # restarts are recorded without the compilation, which is a phase here
                bars["compile (cache warm)"].append(
                    (done, _phase_s(samples, "compile", device=str(device), storage="", size=size))
                )
            bars.setdefault("all, copies and storage overlapped", []).append((done, total))
    fig = figure(f"What it consists of, {size:g} MB{suffix}", "time, s (medians)", "")
    for i, (title, parts) in enumerate(bars.items()):
        fig.add_bar(
            x=[seconds for _, seconds in parts],
            y=[bar for bar, _ in parts],
            orientation="h",
            name=title,
            marker_color=COLOURS[i % len(COLOURS)],
        )
    fig.update_layout(
        barmode="stack",
        height=160 + 60 * len(order),
        margin={"l": 240, "t": 120},
        legend={"y": 1.02, "traceorder": "normal"},
    )
    fig.update_yaxes(categoryorder="array", categoryarray=order[::-1])
    return fig


def _phase_s(samples: pd.DataFrame, phase: str, *, device: str, storage: str, size: float) -> float:
    if phase == "compile":
        return _median(samples[samples["kind"] == "compile"], device=device, cache="warm")
    rows = samples[(samples["kind"] == "phase") & (samples["phase"] == phase)]
    if phase == "context":
        return _median(rows, device=device)
    where = {"storage": storage} if phase in ("write", "read") else {"device": device}
    return _median(rows, **where, memory_mb=size)


def _median(rows: pd.DataFrame, **where: Any) -> float:
    """Return the median time of the rows with these values; 0 where there are none."""
    for column, value in where.items():
        rows = rows[rows[column] == value]
    return float(rows["seconds"].median()) if len(rows) else 0.0


def _migrations(samples: pd.DataFrame, models: list[Model], suffix: str) -> Figure | None:
    """Draw predicted over measured times, with the prediction's interval."""
    rows = predictions(samples, models)
    if rows.empty:
        return None
    fig = figure(f"Migrations: predicted and measured{suffix}", "measured, s", "predicted, s")
    ends = np.array(
        [rows[["seconds", "predicted_s"]].min().min(), rows[["seconds", "predicted_s"]].max().max()]
    )
    for factor, dash in ((1.0, "solid"), (0.67, "dot"), (1.33, "dot")):
        fig.add_scatter(
            x=ends,
            y=factor * ends,
            mode="lines",
            line={"color": "#888", "dash": dash, "width": 1},
            showlegend=False,
            hoverinfo="skip",
        )
    for i, (pair, group) in enumerate(rows.groupby(["device", "to_device", "storage"])):
        device, to_device, storage = pair
        fig.add_scatter(
            x=group["seconds"],
            y=group["predicted_s"],
            name=f"{device} to {to_device}, {storage}",
            mode="markers",
            text=[f"{size:g} MB" for size in group["memory_mb"]],
            marker={"color": COLOURS[i % len(COLOURS)], "size": 7},
            error_y={
                "array": group["high_s"] - group["predicted_s"],
                "arrayminus": group["predicted_s"] - group["low_s"].clip(lower=0.2 * group["predicted_s"]),
                "thickness": 1,
                "width": 0,
            },
        )
    fig.update_xaxes(type="log")
    fig.update_yaxes(type="log")
    return fig
