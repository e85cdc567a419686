"""Two profiles side by side on one page: which machine is better at what, by how much, how surely."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import plotly.graph_objects as go

from agent.node_profile.fingerprint import explain
from probes.registry import PROBES
from profiles.advantage import Advantage, Certainty, Row, judge_difference, main_rows, sentences
from profiles.compare import Difference, Verdict, compare, explain_drift
from profiles.records import Profile
from profiles.trust import trust
from tenbin import text
from tenbin.report.html import write
from tenbin.report.pictures.picture import picture
from tenbin.report.style import COLOURS, figure


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
    both = [one for group in groups for one in group.judged]
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
        sure=sum(one.advantage.certainty is Certainty.SURELY for one in both),
        drift=explain_drift(a, b),
    )


def _groups(differences: Sequence[Difference]) -> list[Group]:
    """Group by probe: sure and large differences first, in each group and among the groups."""
    found = []
    for probe in dict.fromkeys(d.probe for d in differences):
        of_probe = [d for d in differences if d.probe == probe]
        judged = [Judged(d, advantage) for d in of_probe if (advantage := judge_difference(d)) is not None]
        alone = [d for d in of_probe if d.verdict in (Verdict.ONLY_A, Verdict.ONLY_B)]
        title = PROBES[probe].title if probe in PROBES else probe
        found.append(Group(title, sorted(judged, key=_rank), alone))
    return sorted(found, key=lambda group: min(map(_rank, group.judged), default=_LAST))


_ORDER = list(Certainty)
_LAST = (len(_ORDER), False, 0.0)


def _rank(one: Judged) -> tuple[int, bool, float]:
    """Rank by certainty; then what is better on one side before what is neither; then by size."""
    return _ORDER.index(one.advantage.certainty), not one.advantage.of, -one.advantage.size


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


def _forest(rows: Sequence[Row]) -> go.Figure:
    """Draw how many times as good B is as A at each main figure, with the interval; 1 is equal."""
    fig = figure("Main figures: how many times as good B is as A", "left of 1: A is better; right: B", "")
    for side, colour in (("A", COLOURS[1]), ("B", COLOURS[0])):
        told = [row for row in rows if row.advantage.of == side and row.advantage.low and row.advantage.high]
        if not told:
            continue
        ratios = [[row.advantage.ratio, row.advantage.low, row.advantage.high] for row in told]
        times = [[r if side == "B" else 1 / r for r in three if r] for three in ratios]
        fig.add_scatter(
            x=[three[0] for three in times],
            y=[row.a.name for row in told],
            error_x={
                "array": [max(three) - three[0] for three in times],
                "arrayminus": [three[0] - min(three) for three in times],
            },
            text=[f"{row.a.name}: {row.advantage.words}, {row.advantage.certainty}" for row in told],
            mode="markers",
            name=f"better for {side}",
            marker={"color": colour, "symbol": "diamond", "size": 10},
        )
    fig.add_vline(x=1, line={"color": "#888", "dash": "dot", "width": 1})
    fig.update_xaxes(type="log")
    names = [row.a.name for row in rows if row.advantage.of and row.advantage.low]
    fig.update_yaxes(autorange="reversed", categoryorder="array", categoryarray=names)
    return fig
