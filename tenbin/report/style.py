"""One look for every figure of the report (axes, fits, medians), and the HTML file around them."""

from __future__ import annotations

import gzip
from base64 import b64encode
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

import plotly.graph_objects as go
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from profiles.models import Prediction
from tenbin import text

Interval = tuple[float, float | None, float | None]  # value, low, high

# Colour-blind safe (Okabe-Ito), in the order in which a figure should use them.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


def figure(title: str, x: str, y: str) -> go.Figure:
    """Make an empty figure in the report's look; ``x`` and ``y`` name quantity and unit ("memory, MB")."""
    fig = go.Figure()
    fig.update_layout(
        title={"text": title, "x": 0.0, "xanchor": "left"},
        colorway=COLOURS,
        font={"family": "system-ui, sans-serif", "size": 14},
        margin={"l": 70, "r": 20, "t": 60, "b": 60},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.0, "xanchor": "right", "x": 1.0},
        height=420,
    )
    fig.update_xaxes(title_text=x)
    fig.update_yaxes(title_text=y)
    return fig


def draw_fit(fig: go.Figure, x: Sequence[float], fit: Sequence[Prediction], look: Mapping[str, Any]) -> None:
    """Draw a line with its band; ``look`` has ``colour`` and ``name``, which is the legend's group too."""
    common = {"showlegend": False, "legendgroup": look["name"]}
    fig.add_scatter(
        x=[*x, *x[::-1]],
        y=[*(p.high for p in fit), *(max(p.low, 0.0) for p in reversed(fit))],
        fill="toself",
        fillcolor=look["colour"],
        opacity=0.15,
        line={"width": 0},
        hoverinfo="skip",
        **common,
    )
    line = {"color": look["colour"]}
    fig.add_scatter(
        x=x, y=[p.value for p in fit], mode="lines", line=line, name=f"{look['name']}, fit", **common
    )


def draw_dots(fig: go.Figure, x: Any, y: Any, *, name: str, colour: str) -> None:
    """Draw every single observation, pale, under the legend entry of its median."""
    marker = {"color": colour, "opacity": 0.35, "size": 6}
    fig.add_scatter(x=x, y=y, mode="markers", name=name, legendgroup=name, showlegend=False, marker=marker)


def draw_medians(
    fig: go.Figure, x: Sequence[float], medians: Sequence[Interval], colour: str, **trace: Any
) -> None:
    """Draw medians as diamonds with their intervals, where these are known."""
    fig.add_scatter(
        x=x,
        y=[value for value, _, _ in medians],
        marker={"color": colour, "size": 10, "symbol": "diamond", "line": {"color": "white", "width": 1}},
        error_y={
            "type": "data",
            "symmetric": False,
            "array": [None if high is None else high - value for value, _, high in medians],
            "arrayminus": [None if low is None else value - low for value, low, _ in medians],
            "color": colour,
        },
        **trace,
    )


# -- the HTML file -----------------------------------------------------------------------------------------


def write(template: str, *, interactive: bool = False, **values: Any) -> str:
    """Write a page; ``interactive``: with what enlarges its pictures on demand, 2 MB."""
    environment = Environment(
        loader=PackageLoader("tenbin.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        number=text.number,
        limits=text.limits,
        bounded=text.bounded,
        value=text.value_with_unit,
        interval=text.interval,
        duration=text.duration,
    )
    return environment.get_template(template).render(
        css=_beside("picture.css") + _beside("look.css"),
        library=_packed_library() if interactive else "",
        zoom=_beside("zoom.js") if interactive else "",
        **values,
    )


def _beside(name: str) -> Markup:
    return Markup(files("tenbin.report.pictures").joinpath(name).read_text(encoding="utf-8"))


def _packed_library() -> str:
    from plotly.offline import get_plotlyjs

    return b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode()
