"""The numbers of a picture as a table, for those who cannot see it or want the figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

import numpy as np
from markupsafe import escape

from tenbin.report.pictures.marks import Plot, errors, listed, mode_of
from tenbin.text import limits, number

MOST_OF_LINE = 12  # points of a curve
MOST_ROWS = 200
Row = tuple[str, ...]


def table(traces: Sequence[Any], plot: Plot, titles: tuple[str, str]) -> str:
    """Write the numbers, folded away: a row for each series and place, of several dots the median."""
    head: Row
    if traces and traces[0].type == "heatmap":
        (head, rows) = _fields(traces[0])
    else:
        at, of = titles[::-1] if plot.y.names else titles
        head = ("series", at or "at", of or "value", "interval or range", "n")
        rows = [row for trace in traces for row in _rows(trace, plot)]
    cut = f" (the first {MOST_ROWS} of {len(rows)})" if len(rows) > MOST_ROWS else ""
    lines = "".join(f"<tr>{''.join(f'<td>{escape(cell)}' for cell in row)}" for row in rows[:MOST_ROWS])
    heads = "".join(f"<th>{escape(cell)}" for cell in head)
    return (
        f"<details><summary>numbers{cut}</summary>"
        f'<div class="scroll"><table><tr>{heads}{lines}</table></div></details>'
    )


def _rows(trace: Any, plot: Plot) -> Iterator[Row]:
    name = str(trace.name or trace.legendgroup or "")
    fill = trace.fill if trace.type == "scatter" else None
    drawn = trace.type == "scatter" and (mode_of(trace) == "lines" or fill)
    if drawn and trace.line.width == 0 and not fill:
        return  # the lower end of a band
    places: dict[str, list[int]] = {}
    x, y = listed(trace.x), listed(trace.y)
    flat = bool(plot.y.names) or (trace.type == "bar" and trace.orientation == "h")
    along, lengths = (y, x) if flat else (x, y)
    of = plot.y if flat else plot.x
    for i, value in enumerate(along):
        places.setdefault(of.label(value, snap=not drawn), []).append(i)
    intervals = errors(trace.error_x if flat else trace.error_y, lengths)
    shown = list(places.items())
    if drawn and len(shown) > MOST_OF_LINE:
        shown = [shown[i] for i in np.linspace(0, len(shown) - 1, MOST_OF_LINE).round().astype(int)]
    for place, several in shown:
        values = [float(lengths[i]) for i in several if lengths[i] is not None]
        if not values:
            continue
        interval = intervals[several[0]] if len(several) == 1 else (min(values), max(values))
        text = limits(*interval) if interval else ""
        band = fill == "toself"
        yield (
            f"{name}, band" if band else name,
            place,
            "" if band else number(median(values)),
            text,
            "" if band or len(values) == 1 else str(len(values)),
        )


def _fields(trace: Any) -> tuple[Row, list[Row]]:
    """Write a heat map as rows and columns."""
    head = ("", *(str(name) for name in trace.x))
    rows = []
    for j, name in enumerate(trace.y):
        values = trace.text[j] if trace.text is not None else [_cell(value) for value in trace.z[j]]
        rows.append((str(name), *(str(value) for value in values)))
    return head, rows


def _cell(value: Any) -> str:
    return "" if value is None or not np.isfinite(value) else number(float(value))
