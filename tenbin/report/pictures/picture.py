"""A figure of plotly as a part of a page: SVG that every browser draws at once, and a table."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import plotly.graph_objects as go
from markupsafe import Markup, escape

from tenbin.report.pictures.axes import Axis, axis, categories, scaled, within_reach
from tenbin.report.pictures.marks import (
    DASHES,
    Bar,
    Plot,
    bars,
    colour,
    errors,
    heat_range,
    heat_tone,
    heatmap,
    listed,
    mode_of,
    place_bars,
    rgb,
    scatter,
    themed,
)
from tenbin.report.pictures.numbers import table
from tenbin.text import number

TEMPLATE = "plotly_white"  # of a figure that plotly draws; to set it takes most of the time of a figure
WIDTH, HEIGHT = 560.0, 260.0
WIDE = 1000.0  # of bars and heat maps, which have long names at their side
MARGINS = 160  # of the height that a figure asks for, not of its area
LETTER, LINE = 9.0, 18.0  # room of a letter and of a line, in the larger type of small screens
WIDE_LETTER, MOST_LETTERS = 7.2, 48  # of a wide picture, which is not enlarged there; beside the picture
TOP, RIGHT = 10.0, 14.0
STEPS = 32  # of colours in the scale of a heat map


def picture(fig: go.Figure, *, interactive: bool = False) -> Markup:
    """Draw a figure; ``interactive``: also keep it for plotly, for a page that has ``zoom.js``."""
    layout, traces = fig.layout, list(fig.data)
    plot, placed = _plot(fig)
    wide = plot.width > WIDTH
    title = layout.title.text or ""
    data = Markup("")
    if interactive:
        fig.layout.template = TEMPLATE
        data = Markup(fig.to_json().replace("<", "\\u003c"))
    parts = [
        f'<figure class="picture{" wide" * wide}"><figcaption>{escape(title)}</figcaption>',
        f'<div class="axis">{escape(layout.yaxis.title.text or "")}</div>',
        _svg(fig, plot, placed),
        f'<div class="axis across">{escape(layout.xaxis.title.text or "")}</div>',
        _legend(traces, layout.showlegend),
        table(traces, plot, _titles(layout)),
        f'<script type="application/json">{data}</script>' if interactive else "",
        "</figure>",
    ]
    return Markup("".join(parts))


def _titles(layout: Any) -> tuple[str, str]:
    return layout.xaxis.title.text or "", layout.yaxis.title.text or ""


def _plot(fig: go.Figure) -> tuple[Plot, list[list[Bar]]]:
    """Make the axes around all that is drawn; place the bars."""
    layout, traces = fig.layout, list(fig.data)
    columns = [[listed(getattr(trace, name)) for trace in traces] for name in ("x", "y")]
    names = [categories(layout[f"{name}axis"], columns[i]) for i, name in enumerate("xy")]
    barred = [trace for trace in traces if trace.type == "bar"]
    flat = bool(barred) and barred[0].orientation == "h"
    placed = place_bars(barred, names[flat], layout.barmode) if barred else []
    extents: list[list[np.ndarray]] = [[], []]
    for i, name in enumerate("xy"):
        log = layout[f"{name}axis"].type == "log"
        for trace in traces:
            if trace.type == "scatter" or (
                trace.type == "bar" and name == "y" and trace.error_y.array is not None
            ):
                ends = errors(trace[f"error_{name}"], listed(trace[name]))
                values = scaled(listed(trace[name]), names[i], log)
                reached = scaled(chain(*filter(None, ends)), names[i], log)
                extents[i] += [values, within_reach(values, reached)]
        extents[i] += [scaled([line[f"{name}0"]], names[i], log) for line in _lines_across(layout, name)]
        for bar in chain(*placed):
            along = i == int(flat)
            half = bar.width / 2
            ends_of = [bar.place - half, bar.place + half] if along else [bar.begin, bar.end]
            extents[i].append(np.array(ends_of) if along else scaled(ends_of, (), log))
    x = axis(layout.xaxis, names[0], extents[0], from_zero=bool(barred) and flat)
    y = axis(layout.yaxis, names[1], extents[1], from_zero=bool(barred) and not flat)
    heat = any(trace.type == "heatmap" for trace in traces)
    wide = heat or flat or layout.meta == "wide"
    height = layout.height - MARGINS if heat or flat else HEIGHT
    return Plot(x, y, WIDE if wide else WIDTH, height), placed


def _lines_across(layout: Any, name: str) -> list[Any]:
    """List the lines through the whole picture that stand at a value of this axis."""
    return [one for one in layout.shapes if one[f"{name}ref"] in (name, None)]


def _svg(fig: go.Figure, plot: Plot, placed: Sequence[Sequence[Bar]]) -> str:
    """Draw axes and marks; the text beside the axes is outside the area of the marks."""
    letter = LETTER if plot.width == WIDTH else WIDE_LETTER
    longest = max((len(line) for _, text in plot.y.ticks for line in text.split("\n")), default=1)
    left = 10 + letter * min(longest, MOST_LETTERS)
    lines = max((text.count("\n") + 1 for _, text in plot.x.ticks), default=1)
    whole_width, whole_height = plot.width, plot.height + TOP + LINE * lines + 4
    area = Plot(plot.x, plot.y, whole_width - left - RIGHT, plot.height)
    parts = [
        f'<svg viewBox="0 0 {whole_width:.0f} {whole_height:.0f}" role="img" aria-label="{_described(fig)}">',
        f'<g transform="translate({left:.0f} {TOP:.0f})">{_grid(area)}',
        f'<svg class="area" width="{area.width:.0f}" height="{area.height:.0f}">',
        *_marks(fig, area, placed),
        "</svg></g></svg>",
    ]
    return "".join(parts)


def _marks(fig: go.Figure, area: Plot, placed: Sequence[Sequence[Bar]]) -> list[str]:
    parts, before, unused = [], None, iter(placed)
    for place, trace in enumerate(fig.data):
        tone = colour(trace, place) if trace.type != "heatmap" else ""
        if trace.type == "heatmap":
            parts.append(heatmap(trace, area))
        elif trace.type == "bar":
            parts.append(bars(trace, next(unused), area, tone))
        else:
            parts.append(scatter(trace, area, tone, before))
            before = trace
    for one in fig.layout.shapes:
        upright = one.xref in ("x", None)
        at = (area.across([one.x0]) if upright else area.upwards([one.y0]))[0]
        way = f"M{at:.1f} 0V{area.height:.0f}" if upright else f"M0 {at:.1f}H{area.width:.0f}"
        kind, tone = DASHES.get(one.line.dash, ""), themed(one.line.color or "")
        parts.append(f'<path class="line thin {kind} {tone}" d="{way}"/>')
    return [*parts, *(_note(note, area) for note in fig.layout.annotations)]


def _note(note: Any, area: Plot) -> str:
    """Write an annotation; its place on an axis is on the axis's scale, else a share of the picture."""
    x = area.x.at(note.x) if note.xref in ("x", None) else note.x
    y = area.y.at(note.y) if note.yref in ("y", None) else note.y
    anchor = "end" if note.xanchor == "right" or float(x) > 0.9 else "start"
    shift = -3 if anchor == "end" else 3
    place = f'x="{area.width * float(x) + shift:.1f}" y="{area.height * (1 - float(y)) + 14:.1f}"'
    return f'<text class="note" text-anchor="{anchor}" {place}>{escape(note.text or "")}</text>'


def _grid(area: Plot) -> str:
    """Draw ticks with their lines; a tick whose text would touch the one before has no text."""
    parts = [f'<path class="grid" d="M0 {area.height:.0f}H{area.width:.0f}"/>']
    taken = -np.inf
    for place, text in _inside(area.x):
        at = area.width * float(area.x.at(place))
        parts.append(f'<path class="grid" d="M{at:.1f} 0V{area.height:.0f}"/>')
        lines = text.split("\n")
        half = LETTER * max(map(len, lines)) / 2
        if at - half > taken:
            taken = at + half
            first = area.height + LINE
            parts += [
                f'<text text-anchor="middle" x="{at:.1f}" y="{first + LINE * i:.0f}">{escape(line)}</text>'
                for i, line in enumerate(lines)
            ]
    low = np.inf
    for place, text in sorted(_inside(area.y), key=lambda tick: float(area.y.at(tick[0]))):
        at = area.height * (1 - float(area.y.at(place)))
        parts.append(f'<path class="grid" d="M0 {at:.1f}H{area.width:.0f}"/>')
        lines = text.split("\n")
        if at + LINE * len(lines) / 2 < low:
            low = at - LINE * len(lines) / 2
            first = at + 5 - LINE * (len(lines) - 1) / 2
            parts += [
                f'<text text-anchor="end" x="-7" y="{first + LINE * i:.1f}">{escape(_short(line))}</text>'
                for i, line in enumerate(lines)
            ]
    return "".join(parts)


def _short(text: str) -> str:
    """Cut a long name; the table has all of it."""
    return text if len(text) <= MOST_LETTERS else f"{text[: MOST_LETTERS - 1]}…"


def _inside(of: Axis) -> list[tuple[float, str]]:
    return [(place, text) for place, text in of.ticks if -1e-6 <= float(of.at(place)) <= 1 + 1e-6]


def _described(fig: go.Figure) -> Markup:
    """Say in a sentence what is drawn, for those who cannot see it."""
    layout = fig.layout
    x, y = _titles(layout)
    named = dict.fromkeys(str(trace.name) for trace in fig.data if trace.name)
    series = f" Series: {'; '.join(named)}." if named else ""
    over = f" {y} over {x}." if x and y else ""
    return escape(f"{layout.title.text}.{over}{series} The numbers are in the table below.")


def _legend(traces: Sequence[Any], wanted: bool | None) -> str:
    if any(trace.type == "heatmap" for trace in traces):
        return "".join(_scale(trace) for trace in traces)
    if wanted is False:
        return ""
    entries: dict[str, str] = {}
    for place, trace in enumerate(traces):
        if trace.name and trace.showlegend is not False:
            tone = colour(trace, place)
            entries.setdefault(
                trace.name, f'<li class="{tone}"><i class="{_kind(trace)}"></i>{escape(trace.name)}</li>'
            )
    return f'<ul class="legend">{"".join(entries.values())}</ul>' if entries else ""


def _kind(trace: Any) -> str:
    if trace.type == "bar":
        return "bar"
    if trace.fill:
        return "band"
    return f"line {DASHES.get(trace.line.dash, '')}" if "lines" in mode_of(trace) else "dot"


def _scale(trace: Any) -> str:
    """Draw the scale of colours of a heat map."""
    low, high = heat_range(trace)
    fields = "".join(
        f'<rect x="{i}" width="1.1" height="1" fill="{rgb(heat_tone(trace, i / (STEPS - 1)))}"/>'
        for i in range(STEPS)
    )
    words = escape(trace.colorbar.title.text or "")
    scale = f'<svg viewBox="0 0 {STEPS} 1" preserveAspectRatio="none">{fields}</svg>'
    return f'<div class="scale">{number(low)} {scale} {number(high)} {words}</div>'
