"""Pages of comparisons: two profiles side by side, the nodes of a cluster, a node over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from statistics import median
from typing import NamedTuple

from agent.node_profile.identity import explain
from probes.registry import PROBES
from profiles.card import trust
from profiles.checks.drift import CHECKS, Drift
from profiles.clusters import BETWEEN, Between, Odd, Survey, Value, none_odd
from profiles.compare import (
    Advantage,
    Certainty,
    Difference,
    Row,
    Verdict,
    compare,
    explain_drift,
    judge_difference,
    main_rows,
    sentences,
)
from profiles.quantities import Better, better, number
from profiles.records import Profile
from tenbin import text
from tenbin.report.html import write
from tenbin.report.pictures import COLOURS, Figure, figure, picture


class Judged(NamedTuple):
    """A coefficient that both profiles have, with the judgement."""

    difference: Difference
    advantage: Advantage


class Group(NamedTuple):
    """The coefficients of one probe: those in both, what matters first, then what only one profile has."""

    title: str
    judged: Sequence[Judged]
    alone: Sequence[Difference]


def page(a: Profile, b: Profile) -> str:
    """Write one self-contained HTML page."""
    rows, differences = main_rows(a, b), compare(a, b)
    groups = _groups(differences)
    both = [judged for group in groups for judged in group.judged]
    return write(
        "comparison.html",
        profiles={"A": a, "B": b},
        headlines={"A": text.headline(a), "B": text.headline(b)},
        trusts={side: trust(profile) for side, profile in (("A", a), ("B", b))},
        sentences=sentences(a, b),
        rows=rows,
        forest=picture(_forest(rows)) if rows else "",
        machines=_machines(a, b),
        changes=explain(a.inventory, b.inventory),
        groups=groups,
        both=len(both),
        sure=sum(judged.advantage.certainty is Certainty.SURELY for judged in both),
        drift=explain_drift(a, b),
    )


def _groups(differences: Sequence[Difference]) -> list[Group]:
    """Group by probe: sure and large differences first, in each group and among the groups."""
    groups = []
    for probe in dict.fromkeys(d.probe for d in differences):
        of_probe = [d for d in differences if d.probe == probe]
        judged = [Judged(d, advantage) for d in of_probe if (advantage := judge_difference(d)) is not None]
        alone = [d for d in of_probe if d.verdict in (Verdict.ONLY_A, Verdict.ONLY_B)]
        title = PROBES[probe].title if probe in PROBES else probe
        groups.append(Group(title, sorted(judged, key=_rank), alone))
    return sorted(groups, key=lambda group: min(map(_rank, group.judged), default=_LAST))


_ORDER = list(Certainty)
_LAST = (len(_ORDER), False, 0.0)


def _rank(judged: Judged) -> tuple[int, bool, float]:
    """Rank by certainty; then what is better on one side before what is neither; then by size."""
    return _ORDER.index(judged.advantage.certainty), not judged.advantage.of, -judged.advantage.size


def _machines(a: Profile, b: Profile) -> list[tuple[str, str, str]]:
    """List (topic, A, B) of both inventories; several lines of a topic in one."""
    listed: list[dict[str, str]] = []
    for profile in (a, b):
        topics: dict[str, str] = {}
        for topic, line in text.machine_lines(profile.inventory):
            topics[topic] = f"{topics[topic]}; {line}" if topic in topics else line
        listed.append(topics)
    return [
        (topic, listed[0].get(topic, "-"), listed[1].get(topic, "-")) for topic in {**listed[0], **listed[1]}
    ]


def _forest(rows: Sequence[Row]) -> Figure:
    """Draw how many times as good B is as A at each main figure, with the interval; 1 is equal."""
    fig = figure("Main figures: how many times as good B is as A", "left of 1: A is better; right: B", "")
    for side, colour in (("A", COLOURS[1]), ("B", COLOURS[0])):
        bounded = [
            row for row in rows if row.advantage.of == side and row.advantage.low and row.advantage.high
        ]
        if not bounded:
            continue
        ratios = [[row.advantage.ratio, row.advantage.low, row.advantage.high] for row in bounded]
        times = [[r if side == "B" else 1 / r for r in three if r] for three in ratios]
        fig.add_scatter(
            x=[three[0] for three in times],
            y=[row.a.name for row in bounded],
            error_x={
                "array": [max(three) - three[0] for three in times],
                "arrayminus": [three[0] - min(three) for three in times],
            },
            text=[f"{row.a.name}: {row.advantage.words}, {row.advantage.certainty}" for row in bounded],
            mode="markers",
            name=f"better for {side}",
            marker={"color": colour, "symbol": "diamond", "size": 10},
        )
    fig.add_vline(x=1, line={"color": "#888", "dash": "dot", "width": 1})
    fig.update_xaxes(type="log")
    names = [row.a.name for row in rows if row.advantage.of and row.advantage.low]
    fig.update_yaxes(autorange="reversed", categoryorder="array", categoryarray=names)
    return fig


# -- nodes of a cluster ------------------------------------------------------------------------------------


# Diverging and colour-blind safe: blue is better, orange is worse, white is as the siblings.
SCALE = [[0.0, "#0072B2"], [0.5, "#FFFFFF"], [1.0, "#D55E00"]]
REACH = 30.0  # per cent off the median at which a colour is full
ROW_PX = 26


def cluster_page(
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
    rows = [(f"node {refusal.node}", refusal.reason, refusal.remedy) for refusal in survey.refused]
    rows += [(absence.what, absence.reason, absence.remedy) for absence in survey.absent]
    emulated = " (EMULATED)" if survey.emulated else ""
    nodes = "1 node" if len(survey.nodes) == 1 else f"{len(survey.nodes)} nodes"
    return write(
        "cluster.html",
        interactive=interactive,
        title=f"Cluster {survey.cluster}{emulated}",
        subtitle=f"{nodes}, {survey.id}, tenbin {survey.tenbin_version}",
        several=len(survey.nodes) > 1,
        odd=list(map(str, odd)),
        none=none_odd(len(survey.nodes)),
        figures=[picture(fig, interactive=interactive) for fig in drawn],
        rows=rows,
    )


def nodes_figure(values: Sequence[Value], kinds: Mapping[str, str]) -> Figure:
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
            value = known.get((node, *column))
            like = siblings.get((kinds.get(node, ""), *column))
            colour[-1].append(_worse(value, median(like)) if value and like and not value.poor else None)
            words[-1].append(f"{number(value.value)} {value.unit}" if value else "")
    fig = figure("Nodes against their siblings" if len(nodes) > 1 else "The node", "", "")
    fig.add_heatmap(
        z=colour,
        x=nodes,
        y=[f"{quantity} {subject}".strip() for quantity, subject in columns],
        text=words,
        texttemplate="%{text}" if len(nodes) <= 16 else None,
        colorscale=SCALE,
        zmin=-REACH,
        zmax=REACH,
        colorbar={"title": {"text": "% worse"}},
        hovertemplate="%{x}<br>%{y}<br>%{text}<br>%{z:.1f} % worse than the median<extra></extra>",
    )
    fig.update_yaxes(autorange="reversed", automargin=True)
    fig.update_layout(height=max(320, 140 + ROW_PX * len(columns)), showlegend=len(nodes) > 1)
    return fig


def _worse(v: Value, middle: float) -> float:
    """Return by how many per cent the value is worse than the median; negative: better.

    Of a quantity of which neither is better (power), more counts as worse.
    """
    change = 100 * (v.value / middle - 1) if middle else 0.0
    return -change if better(v.quantity, v.coefficient) is Better.HIGHER else change


def pairs_figure(survey: Survey, of: Between) -> Figure | None:
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
        colorbar={"title": {"text": of.unit}},
        hovertemplate="%{x} and %{y}: %{z:.3g} " + of.unit + "<extra></extra>",
    )
    fig.update_yaxes(autorange="reversed", automargin=True)
    fig.update_layout(height=max(420, 160 + ROW_PX * len(nodes)))
    return fig


# -- a node over time --------------------------------------------------------------------------------------


SOFT = "#B8C2CC"
DAY_S = 86400.0


def drift_page(node: str, series: Sequence[Drift], siblings: Mapping[str, Sequence[Drift]]) -> str:
    """Write one self-contained HTML page: a figure for each quantity, those that changed first."""
    drawn = sorted(series, key=lambda row: (row.finding is None, len(row.levels) == 1, row.source != CHECKS))
    changed = sum(len(row.levels) > 1 for row in series)
    note = (
        f"{len(series)} quantities, {changed} changed; siblings: {', '.join(siblings) or 'none'}. "
        "Points are checks or profiles, lines the levels between two change points."
    )
    pictures = [picture(draw(row, siblings)) for row in drawn if len(row.values) > 1]
    return write("parts.html", title=f"{node} over time", parts=[(f"{node} over time", note, pictures)])


def draw(row: Drift, siblings: Mapping[str, Sequence[Drift]]) -> Figure:
    """Draw a quantity with its levels; those of the siblings in grey behind it."""
    last = row.times[-1]

    def days(times: Sequence[datetime]) -> list[float]:
        return [(time - last).total_seconds() / DAY_S for time in times]

    fig = figure(f"{row.title} ({row.source})", f"days; 0 is {last:%Y-%m-%d %H:%M} UTC", row.unit)
    for name, several in siblings.items() if row.source == CHECKS else ():
        for other in several:
            if other.title == row.title:
                look = {"mode": "lines", "line": {"color": SOFT, "width": 1}, "showlegend": False}
                fig.add_scatter(x=days(other.times), y=other.values, name=name, **look)
    dots = {"mode": "markers", "marker": {"color": COLOURS[0], "size": 6}}
    fig.add_scatter(x=days(row.times), y=row.values, name="measured", **dots)
    for place, level in enumerate(row.levels):
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
