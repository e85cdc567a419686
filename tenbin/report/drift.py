"""The picture of a node over time, beside its siblings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

import plotly.graph_objects as go

from profiles.checks.drift import CHECKS, Drift
from tenbin.report.html import write
from tenbin.report.pictures.picture import picture
from tenbin.report.style import COLOURS, figure

SOFT = "#B8C2CC"
DAY_S = 86400.0


def page(node: str, series: Sequence[Drift], siblings: Mapping[str, Sequence[Drift]]) -> str:
    """Write one self-contained HTML page: a figure for each quantity, those that changed first."""
    drawn = sorted(series, key=lambda one: (not one.worse, len(one.levels) == 1, one.source != CHECKS))
    changed = sum(len(one.levels) > 1 for one in series)
    note = (
        f"{len(series)} quantities, {changed} changed; siblings: {', '.join(siblings) or 'none'}. "
        "Points are checks or profiles, lines the levels between two change points."
    )
    pictures = [picture(draw(one, siblings)) for one in drawn if len(one.values) > 1]
    return write("parts.html", title=f"{node} over time", parts=[(f"{node} over time", note, pictures)])


def draw(one: Drift, siblings: Mapping[str, Sequence[Drift]]) -> go.Figure:
    """Draw a quantity with its levels; those of the siblings in grey behind it."""
    last = one.times[-1]

    def days(times: Sequence[datetime]) -> list[float]:
        return [(time - last).total_seconds() / DAY_S for time in times]

    fig = figure(f"{one.title} ({one.source})", f"days; 0 is {last:%Y-%m-%d %H:%M} UTC", one.unit)
    for name, several in siblings.items() if one.source == CHECKS else ():
        for other in several:
            if other.title == one.title:
                look = {"mode": "lines", "line": {"color": SOFT, "width": 1}, "showlegend": False}
                fig.add_scatter(x=days(other.times), y=other.values, name=name, **look)
    dots = {"mode": "markers", "marker": {"color": COLOURS[0], "size": 6}}
    fig.add_scatter(x=days(one.times), y=one.values, name="measured", **dots)
    for place, level in enumerate(one.levels):
        fig.add_scatter(
            x=days([level.since, level.until]),
            y=[level.value] * 2,
            mode="lines",
            name="level",
            legendgroup="level",
            showlegend=not place,
            line={"color": COLOURS[1], "width": 2},
        )
    fig.update_yaxes(rangemode="tozero")
    return fig
