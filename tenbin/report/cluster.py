"""The report of a cluster: heat maps of its nodes and of the pairs of them, and who is odd."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

import plotly.graph_objects as go

from profiles.checks.siblings import Odd, Value, none_odd
from profiles.clusters import BETWEEN, Between, Survey
from profiles.quantities import Better, better
from tenbin.report.html import write
from tenbin.report.pictures.picture import picture
from tenbin.report.style import figure
from tenbin.text import number

# Diverging and colour-blind safe: blue is better, orange is worse, white is as the siblings.
SCALE = [[0.0, "#0072B2"], [0.5, "#FFFFFF"], [1.0, "#D55E00"]]
REACH = 30.0  # per cent off the median at which a colour is full
ROW_PX = 26


def page(
    survey: Survey,
    values: Sequence[Value],
    odd: Sequence[Odd],
    kinds: Mapping[str, str],
    *,
    interactive: bool = False,
) -> str:
    """Write one self-contained HTML page; ``kinds`` has the kind of each node."""
    squares = (pairs_figure(survey, of) for of in BETWEEN)
    drawn = [nodes_figure(values, kinds), *(square for square in squares if square)]
    rows = [(f"node {one.node}", one.reason, one.remedy) for one in survey.refused]
    rows += [(one.what, one.reason, one.remedy) for one in survey.absent]
    emulated = " (EMULATED)" if survey.emulated else ""
    return write(
        "cluster.html",
        interactive=interactive,
        title=f"Cluster {survey.cluster}{emulated}",
        subtitle=f"{len(survey.nodes)} nodes, {survey.id}, tenbin {survey.tenbin_version}",
        odd=[str(one) for one in odd],
        none=none_odd(len(survey.nodes)),
        figures=[picture(fig, interactive=interactive) for fig in drawn],
        rows=rows,
    )


def nodes_figure(values: Sequence[Value], kinds: Mapping[str, str]) -> go.Figure:
    """Draw every node and quantity, coloured by the distance from the median of its kind."""
    nodes = sorted({v.node for v in values})
    columns = list(dict.fromkeys(v.column for v in values))
    known = {(v.node, *v.column): v for v in values}
    siblings: dict[tuple[str, ...], list[float]] = {}
    for v in values:
        if not v.poor:
            siblings.setdefault((kinds.get(v.node, ""), *v.column), []).append(v.value)
    colour: list[list[float | None]] = []
    words: list[list[str]] = []
    for column in columns:
        colour.append([])
        words.append([])
        for node in nodes:
            one = known.get((node, *column))
            like = siblings.get((kinds.get(node, ""), *column))
            colour[-1].append(_worse(one, median(like)) if one and like and not one.poor else None)
            words[-1].append(f"{number(one.value)} {one.unit}" if one else "")
    fig = figure("Nodes against their siblings", "", "")
    fig.add_heatmap(
        z=colour,
        x=nodes,
        y=[f"{quantity} {subject}".strip() for quantity, subject in columns],
        text=words,
        texttemplate="%{text}" if len(nodes) <= 16 else None,
        colorscale=SCALE,
        zmin=-REACH,
        zmax=REACH,
        colorbar={"title": "% worse"},
        hovertemplate="%{x}<br>%{y}<br>%{text}<br>%{z:.1f} % worse than the median<extra></extra>",
    )
    fig.update_yaxes(autorange="reversed", automargin=True)
    fig.update_layout(height=max(320, 140 + ROW_PX * len(columns)))
    return fig


def _worse(v: Value, middle: float) -> float:
    """Return by how many per cent the value is worse than the median; negative: better.

    Of a quantity of which neither is better (power), more counts as worse.
    """
    change = 100 * (v.value / middle - 1) if middle else 0.0
    return -change if better(v.quantity, v.subject.partition(" ")[0]) is Better.HIGHER else change


def pairs_figure(survey: Survey, of: Between) -> go.Figure | None:
    """Draw a square of all pairs of nodes; None where none was measured."""
    pairs = {(a, b): of.scale * c.value for a, b, c in survey.pairs(of.quantity)}
    if not pairs:
        return None
    nodes = sorted(survey.nodes)
    square = [[pairs.get((min(a, b), max(a, b))) for b in nodes] for a in nodes]
    fig = figure(f"{of.what.capitalize()} between pairs of nodes, {of.unit}", "", "")
    fig.add_heatmap(
        z=square,
        x=nodes,
        y=nodes,
        texttemplate="%{z:.3g}" if len(nodes) <= 16 else None,
        colorscale="Cividis" if better(of.quantity) is Better.HIGHER else "Cividis_r",
        colorbar={"title": of.unit},
        hovertemplate="%{x} and %{y}: %{z:.3g} " + of.unit + "<extra></extra>",
    )
    fig.update_yaxes(autorange="reversed", automargin=True)
    fig.update_layout(height=max(420, 160 + ROW_PX * len(nodes)))
    return fig
