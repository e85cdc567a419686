"""Pictures of the power probe: speed over the cap, and what was really drawn under it."""

from __future__ import annotations

import numpy as np
import pandas as pd

from profiles.fits.power import COLUMNS, sweep
from profiles.models import knee
from profiles.records import Model
from tenbin.report.pictures import COLOURS, Figure, draw_fit, figure

EXPLANATION = (
    "Each dot is one short run of a load on all cores under a power cap; its speed is relative to runs "
    "without that cap just before and just after. Up to the knee more power buys speed, along the line; to "
    "the right of it the load cannot use more, and a lower cap costs nothing. The band is the 95 % interval "
    "of one more run; the bar on the knee is the interval of the knee itself. The second picture is the "
    "check: a cap that is obeyed lies on or below the dashed diagonal. Crosses lie above it: the cap read "
    "back as written, but the processor did not hold to it, and these runs are left out of the fit."
)
CAP_AXIS = "cap, sum of all packages, W"


def figures(samples: pd.DataFrame, models: list[Model]) -> list[Figure]:
    """Draw speed over cap with the fits, and measured power over cap, as far as ``samples`` go."""
    if "kind" not in samples:
        return []
    rows = samples.reindex(columns=list(dict.fromkeys([*samples.columns, *COLUMNS])))
    if not (rows["kind"] == "cap").any():
        return []
    suffix = " (emulated)" if rows["emulated"].any() else ""
    drawn = []
    if len(sweep(rows)):
        drawn.append(_speed_figure(rows, models, suffix))
    drawn.append(_power_figure(rows, suffix))
    return drawn


def _speed_figure(rows: pd.DataFrame, models: list[Model], suffix: str) -> Figure:
    fig = figure(f"Speed under a power cap{suffix}", CAP_AXIS, "speed, relative to uncapped")
    for i, (load, group) in enumerate(sweep(rows).groupby("load")):
        colour = COLOURS[i % len(COLOURS)]
        fig.add_scatter(
            x=group["cap_w"],
            y=group["speed_ratio"],
            mode="markers",
            name=str(load),
            legendgroup=str(load),
            marker={"color": colour, "opacity": 0.35},
        )
        medians = group[group["kind"] == "cap"].groupby("cap_w")["speed_ratio"].median()
        fig.add_scatter(
            x=medians.index,
            y=medians,
            mode="markers",
            name=f"{load}, medians",
            legendgroup=str(load),
            showlegend=False,
            marker={"color": colour, "symbol": "diamond", "size": 10},
        )
        for model in models:
            if model.quantity == "power_speed_ratio" and model.labels.get("load") == load:
                _draw_fit(fig, model, colour)
    fig.update_yaxes(rangemode="tozero")
    return fig


def _draw_fit(fig: Figure, model: Model, colour: str) -> None:
    load = model.labels["load"]
    x = np.linspace(model.x_min or 0.0, model.x_max or 0.0, 200).tolist()
    draw_fit(fig, x, [knee.predict(model, cap) for cap in x], {"colour": colour, "name": load})
    k = model["knee_w"]
    if k.low is not None and k.high is not None:
        fig.add_scatter(
            x=[k.value],
            y=[model["speed_flat"].value],
            error_x={"type": "data", "array": [k.high - k.value], "arrayminus": [k.value - k.low]},
            mode="markers",
            name=f"knee {k.value:.1f} W ({k.low:.1f}-{k.high:.1f})",
            legendgroup=load,
            marker={"color": colour, "symbol": "x", "size": 10},
        )


def _power_figure(rows: pd.DataFrame, suffix: str) -> Figure:
    fig = figure(f"Power drawn under a cap{suffix}", CAP_AXIS, "power of the packages, W")
    under = rows[rows["kind"] == "cap"]
    for i, (load, group) in enumerate(under.groupby("load")):
        colour = COLOURS[i % len(COLOURS)]
        for obeyed, symbol, text in ((True, "circle", "obeyed"), (False, "x", "not obeyed")):
            part = group[group["held"] == obeyed]
            if len(part):
                fig.add_scatter(
                    x=part["cap_w"],
                    y=part["package_w"],
                    mode="markers",
                    name=f"{load}, {text}",
                    marker={"color": colour, "symbol": symbol, "opacity": 0.6},
                )
    ends = [float(under["cap_w"].min()), float(under["cap_w"].max())]
    fig.add_scatter(x=ends, y=ends, mode="lines", name="cap", line={"dash": "dash", "color": "#888888"})
    fig.update_yaxes(rangemode="tozero")
    return fig
