"""The picture of a node over time, beside its siblings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go
from jinja2 import Template
from plotly.offline import get_plotlyjs

from profiles.drift import CHECKS, Drift
from tenbin.report.style import COLOURS, figure, html

SOFT = "#B8C2CC"
PAGE = Template(
    """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>tenbin: {{ title | e }}</title>
<style>body{font-family:system-ui,sans-serif;max-width:1100px;margin:1rem auto;padding:0 1rem;color:#1b2733}
.soft{color:#5b6b7a}</style><script>{{ plotly }}</script></head><body><h1>{{ title | e }}</h1>
<p class="soft">{{ subtitle | e }}</p>{% for drawing in figures %}{{ drawing }}{% endfor %}</body></html>"""
)


def page(node: str, series: Sequence[Drift], siblings: Mapping[str, Sequence[Drift]]) -> str:
    """Write one self-contained HTML page: a figure for each quantity, those that changed first."""
    drawn = sorted(series, key=lambda one: (not one.worse, len(one.levels) == 1, one.source != CHECKS))
    changed = sum(len(one.levels) > 1 for one in series)
    text: str = PAGE.render(
        plotly=get_plotlyjs(),
        title=f"{node} over time",
        subtitle=f"{len(series)} quantities, {changed} changed; siblings: {', '.join(siblings) or 'none'}. "
        "Points are checks or profiles, lines the levels between two change points.",
        figures=[html(draw(one, siblings)) for one in drawn if len(one.values) > 1],
    )
    return text


def draw(one: Drift, siblings: Mapping[str, Sequence[Drift]]) -> go.Figure:
    """Draw a quantity with its levels; those of the siblings in grey behind it."""
    fig = figure(f"{one.title} ({one.source})", "", one.unit)
    for name, several in siblings.items() if one.source == CHECKS else ():
        for other in several:
            if other.title == one.title:
                look = {"mode": "lines", "line": {"color": SOFT, "width": 1}, "showlegend": False}
                fig.add_scatter(x=other.times, y=other.values, name=name, **look)
    fig.add_scatter(
        x=one.times, y=one.values, mode="markers", name="measured", marker={"color": COLOURS[0], "size": 6}
    )
    for place, level in enumerate(one.levels):
        fig.add_scatter(
            x=[level.since, level.until],
            y=[level.value] * 2,
            mode="lines",
            name="level",
            legendgroup="level",
            showlegend=not place,
            line={"color": COLOURS[1], "width": 2},
        )
    fig.update_yaxes(rangemode="tozero")
    return fig
