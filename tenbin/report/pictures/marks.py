"""The marks of a picture as SVG: lines, bands, dots, bars, and the fields of a heat map."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from markupsafe import escape
from plotly.colors import hex_to_rgb

from tenbin.report.pictures.axes import Axis, scaled
from tenbin.report.style import COLOURS
from tenbin.text import number

MOST_TITLED = 200  # marks of a series that say their numbers under the pointer
SMALL_LETTER = 6.0  # width in the fields of a heat map
GREY = "grey"
DASHES = {"dash": "dash", "dot": "dot"}


@dataclass(frozen=True)
class Plot:
    """The area of a picture between its axes, in pixels."""

    x: Axis
    y: Axis
    width: float
    height: float

    def across(self, values: Iterable[Any]) -> np.ndarray:
        return self.width * self.x.at(self.x.scaled(values))

    def upwards(self, values: Iterable[Any]) -> np.ndarray:
        return self.height * (1 - self.y.at(self.y.scaled(values)))


class Bar(NamedTuple):
    """A bar on the scales of its axes: the middle of its place, its width there, and its two ends."""

    place: float
    width: float
    begin: float
    end: float


def colour(trace: Any, place: int) -> str:
    """Find the colour of a series as a class of the page's style, which light and dark pages set."""
    for part in (trace.line if trace.type == "scatter" else None, trace.marker):
        if part is not None and isinstance(part.color, str):
            return themed(part.color)
    if trace.type == "scatter" and trace.fillcolor is not None:
        return themed(trace.fillcolor)
    return f"c{place % len(COLOURS)}"


def themed(text: str) -> str:
    """Convert a colour of the drawing to a class of the page; greys are the page's own."""
    if text.startswith("rgba"):
        red, green, blue = (int(part) for part in text[5:-1].split(",")[:3])
        text = f"#{red:02X}{green:02X}{blue:02X}"
    return f"c{COLOURS.index(text)}" if text in COLOURS else GREY


def scatter(trace: Any, plot: Plot, tone: str, before: Any) -> str:
    """Draw band, line, intervals and dots of a series; ``before``: the series under which a band begins."""
    x, y = plot.across(listed(trace.x)), plot.upwards(listed(trace.y))
    mode = mode_of(trace)
    parts = []
    if trace.fill == "toself":
        parts.append(f'<path class="band" d="{_path(x, y)}Z"/>')
    elif trace.fill == "tonexty" and before is not None:
        bottom_x, bottom_y = plot.across(listed(before.x)), plot.upwards(listed(before.y))
        ring = np.concatenate([x, bottom_x[::-1]]), np.concatenate([y, bottom_y[::-1]])
        parts.append(f'<path class="band" d="{_path(*ring)}Z"/>')
    if "lines" in mode and trace.line.width != 0:
        dash = DASHES.get(trace.line.dash, "")
        thin = " thin" if (trace.line.width or 2) < 2 else ""
        parts.append(f'<path class="line {dash}{thin}" d="{_path(*_steps(x, y, trace.line.shape))}"/>')
    parts += _intervals(trace, plot, x, y)
    if "markers" in mode:
        parts.append(_dots(trace, x, y))
    return f'<g class="{tone}">{"".join(parts)}</g>'


def mode_of(trace: Any) -> str:
    """Say whether a series is lines, markers or both, as plotly would without being told."""
    few = len(listed(trace.x)) < 20
    return trace.mode or ("lines+markers" if few else "lines")


def listed(values: Any) -> list[Any]:
    """List a column of a series."""
    return [] if values is None else list(values)


def _path(x: np.ndarray, y: np.ndarray) -> str:
    """Write a line through points; it is broken where one has no place."""
    parts, verb = [], "M"
    for across, up in zip(x, y, strict=True):
        if np.isfinite(across) and np.isfinite(up):
            parts.append(f"{verb}{across:.1f} {up:.1f}")
            verb = "L"
        else:
            verb = "M"
    return "".join(parts)


def _steps(x: np.ndarray, y: np.ndarray, shape: str | None) -> tuple[np.ndarray, np.ndarray]:
    if shape not in ("hv", "hvh") or len(x) < 2:
        return x, y
    turns = x[1:] if shape == "hv" else (x[:-1] + x[1:]) / 2
    corners_x, corners_y = np.repeat(turns, 2), np.column_stack([y[:-1], y[1:]]).ravel()
    return np.concatenate([x[:1], corners_x, x[-1:]]), np.concatenate([y[:1], corners_y, y[-1:]])


def errors(error: Any, values: Sequence[Any]) -> list[tuple[float, float] | None]:
    """List the interval around each value; None where there is none."""
    if error is None or error.array is None:
        return [None] * len(values)
    above = listed(error.array)
    below = above if error.arrayminus is None else listed(error.arrayminus)
    return [
        None if up is None or down is None or value is None else (value - down, value + up)
        for value, up, down in zip(values, above, below, strict=True)
    ]


def _intervals(trace: Any, plot: Plot, x: np.ndarray, y: np.ndarray) -> list[str]:
    parts = []
    for i, ends in enumerate(errors(trace.error_y, listed(trace.y))):
        if ends and np.isfinite(x[i]):
            low, high = _on(plot.upwards(ends), plot.height)
            parts.append(f"M{x[i]:.1f} {low:.1f}V{high:.1f}")
    for i, ends in enumerate(errors(trace.error_x, listed(trace.x))):
        if ends and np.isfinite(y[i]):
            low, high = _on(plot.across(ends), 0.0)
            parts.append(f"M{low:.1f} {y[i]:.1f}H{high:.1f}")
    return [f'<path class="line" d="{"".join(parts)}"/>'] if parts else []


def _on(ends: np.ndarray, edge: float) -> np.ndarray:
    """Let an end without a place (0 on a logarithmic axis) be at the edge."""
    return np.where(np.isfinite(ends), ends, edge)


def _dots(trace: Any, x: np.ndarray, y: np.ndarray) -> str:
    symbol = {"diamond": "m0-5l5 5-5 5-5-5z", "x": "m-4-4l8 8m0-8l-8 8"}.get(trace.marker.symbol, "h0")
    kind = {"h": "dots", "m": "diamonds"}[symbol[0]] if trace.marker.symbol != "x" else "crosses"
    pale = f' opacity="{trace.marker.opacity}"' if trace.marker.opacity is not None else ""
    places = [
        (i, f"M{a:.1f} {b:.1f}{symbol}")
        for i, (a, b) in enumerate(zip(x, y, strict=True))
        if np.isfinite(a) and np.isfinite(b)
    ]
    if len(places) > MOST_TITLED:
        drawn = f'<path d="{"".join(path for _, path in places)}"/>'
    else:
        drawn = "".join(f'<path d="{path}"><title>{_said(trace, i)}</title></path>' for i, path in places)
    return f'<g class="{kind}"{pale}>{drawn}</g>'


def _said(trace: Any, i: int) -> str:
    """Write what a mark says under the pointer."""
    x, y = listed(trace.x)[i], listed(trace.y)[i]
    words = [x if isinstance(x, str) else number(float(x)), y if isinstance(y, str) else number(float(y))]
    text = ", ".join(words) if trace.text is None or isinstance(trace.text, str) else trace.text[i]
    return str(escape(str(text).replace("<br>", ", ")))


def place_bars(traces: Sequence[Any], names: tuple[str, ...], mode: str | None) -> list[list[Bar]]:
    """Place the bars of all series: on each other (``stack``), side by side (``group``), or as they are."""
    many = len(traces) if mode in (None, "group") else 1
    reached: dict[float, float] = {}
    found = []
    for i, trace in enumerate(traces):
        flat = trace.orientation == "h"
        along, lengths = (trace.y, trace.x) if flat else (trace.x, trace.y)
        places = scaled(listed(along), names, False)
        apart = float(np.min(np.diff(np.unique(places)), initial=np.inf))
        room = 0.8 * (apart if np.isfinite(apart) and not names else 1.0)
        widths = listed(trace.width) if trace.width is not None else [room / many] * len(places)
        shift = ((i + 0.5) / many - 0.5) * room if many > 1 and trace.width is None else 0.0
        bars = []
        bases = listed(trace.base) if trace.base is not None else [0.0] * len(places)
        for place, width, base, length in zip(places, widths, bases, listed(lengths), strict=True):
            begin = reached.get(place, 0.0) if mode == "stack" else float(base)
            end = begin + float(length)
            reached[place] = end
            bars.append(Bar(float(place) + shift, float(width), begin, end))
        found.append(bars)
    return found


def bars(trace: Any, placed: Sequence[Bar], plot: Plot, tone: str) -> str:
    """Draw the bars of a series, with intervals at their ends."""
    flat = trace.orientation == "h"
    along, lengths = (plot.y, plot.x) if flat else (plot.x, plot.y)
    tones = trace.marker.color if not isinstance(trace.marker.color, str | None) else None
    parts = []
    for i, bar in enumerate(placed):
        ends = along.at([bar.place - bar.width / 2, bar.place + bar.width / 2])
        reach = _on(lengths.at(lengths.scaled([bar.begin, bar.end])), 0.0)
        across, up = (reach, ends) if flat else (ends, reach)
        left, right = sorted(plot.width * across)
        bottom, top = sorted(plot.height * (1 - up))
        own = f' class="{themed(tones[i])}"' if tones is not None else ""
        said = f"<title>{_said(trace, i)}</title>"
        parts.append(
            f'<path{own} d="M{left:.1f} {bottom:.1f}H{right:.1f}V{top:.1f}H{left:.1f}z">{said}</path>'
        )
    middle = [bar.place for bar in placed]
    intervals = []
    if trace.error_y.array is not None and not flat:
        x = plot.width * plot.x.at(middle)
        intervals = _intervals(trace, plot, x, plot.upwards(listed(trace.y)))
    tips = f'<g class="inked">{"".join(intervals)}</g>'
    return f'<g class="{tone}"><g class="bars">{"".join(parts)}</g></g>{tips}'


def heatmap(trace: Any, plot: Plot) -> str:
    """Draw the fields of a heat map, each with its words."""
    low, high = heat_range(trace)
    wide, tall = plot.width / len(trace.x), plot.height / len(trace.y)
    parts = []
    for j, row in enumerate(trace.z):
        for i, value in enumerate(row):
            if value is None or not np.isfinite(value):
                continue
            share = min(max((value - low) / ((high - low) or 1.0), 0.0), 1.0)
            fill = heat_tone(trace, share)
            left, top = plot.across([trace.x[i]])[0] - wide / 2, plot.upwards([trace.y[j]])[0] - tall / 2
            words = trace.text[j][i] if trace.text is not None else number(value)
            said = f"{trace.x[i]}, {trace.y[j]}: {words}"
            parts.append(
                f'<rect x="{left:.1f}" y="{top:.1f}" width="{wide:.1f}" height="{tall:.1f}" '
                f'fill="{rgb(fill)}"><title>{escape(said)}</title></rect>'
            )
            if trace.texttemplate is not None and SMALL_LETTER * len(words) < wide:
                ink = "black" if np.dot(fill, (0.299, 0.587, 0.114)) > 128 else "white"
                parts.append(
                    f'<text class="in {ink}" x="{left + wide / 2:.1f}" '
                    f'y="{top + tall / 2 + 4:.1f}">{escape(words)}</text>'
                )
    return "".join(parts)


def heat_tone(trace: Any, share: float) -> list[float]:
    """Mix the colour at a share of the scale: red, green and blue."""
    places, tones = zip(*trace.colorscale, strict=True)
    channels = np.array([hex_to_rgb(tone) for tone in tones]).T
    return [float(np.interp(share, places, channel)) for channel in channels]


def rgb(parts: Iterable[float]) -> str:
    """Write a colour as SVG has it."""
    return f"rgb({','.join(f'{part:.0f}' for part in parts)})"


def heat_range(trace: Any) -> tuple[float, float]:
    """Find the values at the two ends of the scale of colours."""
    if trace.zmin is not None:
        return float(trace.zmin), float(trace.zmax)
    known = [value for row in trace.z for value in row if value is not None]
    return min(known), max(known)
