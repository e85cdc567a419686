"""Figures in one look, drawn as plain SVG with a table and without script."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from markupsafe import Markup, escape

from profiles.models import Prediction
from profiles.quantities import number
from profiles.records import Model
from tenbin.text import limits

if TYPE_CHECKING:
    import pandas as pd

# -- one look for every figure: axes, fits, medians --------------------------------------------------------


Interval = tuple[float, float | None, float | None]  # value, low, high

# Colour-blind safe (Okabe-Ito), in the order in which a figure should use them.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


class Part(dict[str, Any]):
    """A part of a figure in plotly's words: ``part.line.color`` is None where nothing says it."""

    PARTS = frozenset({"colorbar", "error_x", "error_y", "line", "marker", "title", "xaxis", "yaxis"})

    def __getattr__(self, name: str) -> Any:
        return self[name]

    def __missing__(self, name: str) -> Part | None:
        return Part() if name in self.PARTS else None

    def add(self, given: Mapping[str, Any]) -> None:
        """Add what is given, to the parts that are there too."""
        for name, value in given.items():
            if isinstance(value, dict):
                part = Part(self[name] or {})
                part.add(value)
                self[name] = part
            else:
                self[name] = value


class Figure:
    """A figure as plotly's, but for its checks, which take longer than all of the drawing."""

    def __init__(self) -> None:
        self.data: list[Part] = []
        self.layout = Part(xaxis=Part(), yaxis=Part(), shapes=[], annotations=[])

    def update_layout(self, **given: Any) -> None:
        self.layout.add(given)

    def update_xaxes(self, **given: Any) -> None:
        self.layout.xaxis.add(given)

    def update_yaxes(self, **given: Any) -> None:
        self.layout.yaxis.add(given)

    def add_scatter(self, **given: Any) -> None:
        self._add("scatter", given)

    def add_bar(self, **given: Any) -> None:
        self._add("bar", given)

    def add_heatmap(self, **given: Any) -> None:
        if isinstance(given["colorscale"], str):
            from plotly.colors import get_colorscale

            given["colorscale"] = get_colorscale(given["colorscale"])
        self._add("heatmap", given)

    def _add(self, kind: str, given: dict[str, Any]) -> None:
        trace = Part(type=kind)
        trace.add(given | {name: listed(given.get(name)) for name in ["x", "y"]})
        self.data.append(trace)

    def add_hline(self, y: float, line: Mapping[str, Any] | None = None, annotation_text: str = "") -> None:
        """Draw a line through the whole picture, with a note at its end."""
        ends = {"x0": 0, "x1": 1, "xref": "x domain", "y0": y, "y1": y, "yref": "y"}
        self.layout.shapes.append(Part(type="line", line=Part(line or {}), **ends))
        if annotation_text:
            place = {"x": 1, "xref": "x domain", "xanchor": "right", "y": y, "yanchor": "bottom"}
            self.add_annotation(text=annotation_text, showarrow=False, **place)

    def add_vline(self, x: float, line: Mapping[str, Any]) -> None:
        """Draw a line through the whole picture, upright."""
        ends = {"x0": x, "x1": x, "xref": "x", "y0": 0, "y1": 1, "yref": "y domain"}
        self.layout.shapes.append(Part(type="line", line=Part(line), **ends))

    def add_annotation(self, **given: Any) -> None:
        self.layout.annotations.append(Part(given))

    def to_json(self) -> str:
        """Write the figure for plotly, which sees here that all of it is in its words."""
        from plotly.graph_objects import Figure as OfPlotly

        whole = OfPlotly(self.data, self.layout)
        whole.layout.template = TEMPLATE
        return str(whole.to_json())


def figure(title: str, x: str, y: str) -> Figure:
    """Make an empty figure in the report's look; ``x`` and ``y`` name quantity and unit ("memory, MB")."""
    fig = Figure()
    fig.update_layout(
        title={"text": title, "x": 0.0, "xanchor": "left"},
        colorway=COLOURS,
        font={"family": "system-ui, sans-serif", "size": 14},
        margin={"l": 70, "r": 20, "t": 60, "b": 60},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.0, "xanchor": "right", "x": 1.0},
        height=420,
    )
    fig.update_xaxes(title={"text": x})
    fig.update_yaxes(title={"text": y})
    return fig


def over_cores(fig: Figure, cores: pd.Series) -> None:
    """Give a figure axes for values from 0 on over numbers of cores, which double where they are many."""
    counts = sorted(cores.unique())
    fig.update_xaxes(tickvals=counts)
    if counts[-1] > 16:  # 1, 2, 4 ... 128
        fig.update_xaxes(type="log")
    else:
        fig.update_xaxes(range=[0, counts[-1] + 0.5])
    fig.update_yaxes(rangemode="tozero")


def draw_fit(fig: Figure, x: Sequence[float], fit: Sequence[Prediction], look: Mapping[str, Any]) -> None:
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


def draw_dots(fig: Figure, x: Any, y: Any, *, name: str, colour: str) -> None:
    """Draw every single observation, pale, under the legend entry of its median."""
    marker = {"color": colour, "opacity": 0.35, "size": 6}
    fig.add_scatter(x=x, y=y, mode="markers", name=name, legendgroup=name, showlegend=False, marker=marker)


def beside(centre: float, width: float, count: int) -> np.ndarray:
    """Place so many dots from left to right around a centre; a single one there."""
    return np.linspace(centre - width, centre + width, count) if count > 1 else np.full(count, centre)


def draw_medians(
    fig: Figure, x: Sequence[float], medians: Sequence[Interval], colour: str, **trace: Any
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


def draw_fitted(
    fig: Figure, x: Sequence[float], models: Sequence[Model], *, name: str, colour: str, mode: str = "markers"
) -> None:
    """Draw the medians that were fitted, as ``draw_medians``, each at its ``x``."""
    first = [model.coefficients[0] for model in models]
    notes = [", ".join(filter(None, (c.name, model.note))) for c, model in zip(first, models, strict=True)]
    look = {"mode": mode, "name": name, "legendgroup": name, "line": {"color": colour}}
    hover = {"customdata": notes, "hovertemplate": "%{y:.4g}<br>%{customdata}"}
    draw_medians(fig, x, [(c.value, c.low, c.high) for c in first], colour, **look, **hover)


# -- axes --------------------------------------------------------------------------------------------------


WANTED_TICKS = 6
FEW_DECADES = 2.0  # at most so many decades have ticks at 2 and 5 too
LEAST_DECADES = 0.7  # less than that has the ticks of a linear axis
MOST_REACH = 3.0  # of an interval beyond all values, in spans of the values
FREE = 0.04  # of an axis, beyond the first and the last value


@dataclass(frozen=True)
class Axis:
    """An axis; ``low`` and ``high`` are its ends, of a logarithmic axis their logarithms."""

    names: tuple[str, ...]
    log: bool
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]

    def scaled(self, values: Iterable[Any]) -> np.ndarray:
        """Convert values to the axis's scale; NaN where a value has no place on it."""
        return scaled(values, self.names, self.log)

    def at(self, scale: Any) -> np.ndarray:
        """Place what is on the axis's scale: 0 is the axis's beginning, 1 its end."""
        place: np.ndarray = (np.asarray(scale, dtype=float) - self.low) / (self.high - self.low)
        return place

    def label(self, value: Any, *, snap: bool) -> str:
        """Write a value; ``snap``: by the nearest tick, because dots stand beside each other there."""
        place = float(self.scaled([value])[0])
        if self.ticks and snap and math.isfinite(place):
            apart = min((abs(b[0] - a[0]) for a, b in pairwise(self.ticks)), default=1.0)
            nearest, name = min(self.ticks, key=lambda tick: abs(tick[0] - place))
            if abs(nearest - place) <= 0.5 * apart:
                return name.replace("\n", ", ")
        return str(value).replace("<br>", ", ") if isinstance(value, str) else number(float(value))


def scaled(values: Iterable[Any], names: Sequence[str], log: bool) -> np.ndarray:
    """Convert values to numbers, categories to their places, and to logarithms on such an axis."""
    if names:
        places = {name: float(i) for i, name in enumerate(names)}
        return np.array([places.get(str(value), math.nan) for value in values])
    numbers = np.array([math.nan if value is None else float(value) for value in values], dtype=float)
    if log:
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(numbers > 0, np.log10(numbers), math.nan)
    return numbers


def categories(layout: Any, columns: Sequence[Sequence[Any]]) -> tuple[str, ...]:
    """List the names on an axis, in their order; empty for an axis of numbers."""
    seen = tuple(dict.fromkeys(str(value) for value in chain(*columns)))
    if not any(isinstance(value, str) for value in chain(*columns)):
        return ()
    order = tuple(layout.categoryarray) if layout.categoryarray is not None else ()
    return (*order, *(name for name in seen if name not in order))


def within_reach(values: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Cut ends of intervals that are so far from all values that these would become a line."""
    known = values[np.isfinite(values)]
    if not len(known):
        return ends
    low, high = float(known.min()), float(known.max())
    reach = MOST_REACH * max(high - low, abs(high), 1e-300)
    cut: np.ndarray = np.clip(ends, low - reach, high + reach)
    return cut


def axis(layout: Any, names: tuple[str, ...], extents: Sequence[np.ndarray], *, from_zero: bool) -> Axis:
    """Make an axis around ``extents`` (on its scale), with the range and ticks that its layout asks for."""
    log = layout.type == "log"
    low, high = _range(layout, names, extents, from_zero=from_zero and not log)
    if layout.tickvals is not None:
        texts = layout.ticktext if layout.ticktext is not None else map(number, layout.tickvals)
        ticks = list(zip(scaled(layout.tickvals, names, log).tolist(), texts, strict=True))
    elif names:
        ticks = [(float(place), name) for place, name in enumerate(names)]
    else:
        ticks = _log_ticks(low, high) if log else linear_ticks(low, high)
    lines = tuple((place, str(text).replace("<br>", "\n")) for place, text in ticks)
    ends = (high, low) if layout.autorange == "reversed" else (low, high)
    return Axis(names, log, *ends, ticks=lines)


def _range(
    layout: Any, names: tuple[str, ...], extents: Sequence[np.ndarray], *, from_zero: bool
) -> tuple[float, float]:
    if layout.range is not None:
        return float(layout.range[0]), float(layout.range[1])
    if names:
        return -0.5, len(names) - 0.5
    every = np.concatenate([np.zeros(0), *extents])
    every = every[np.isfinite(every)]
    low, high = (float(every.min()), float(every.max())) if len(every) else (0.0, 1.0)
    zero = from_zero or (layout.rangemode == "tozero" and layout.type != "log")
    low, high = (min(low, 0.0), max(high, 0.0)) if zero else (low, high)
    if zero and low == high:  # bars of 0
        return 0.0, 1.0
    free = FREE * (high - low) or 0.5
    return low - free * (not (zero and low == 0)), high + free * (not (zero and high == 0))


def linear_ticks(low: float, high: float) -> list[tuple[float, str]]:
    """Choose about six round numbers between two."""
    rough = (high - low) / WANTED_TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(s * power for s in (1.0, 2.0, 2.5, 5.0, 10.0) if s * power >= rough * (1 - 1e-9))
    places = [i * step for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]
    return [(place, f"{place:.10g}") for place in places]


def _log_ticks(low: float, high: float) -> list[tuple[float, str]]:
    if high - low < LEAST_DECADES:
        plain = [(value, text) for value, text in linear_ticks(10**low, 10**high) if value > 0]
        return [(math.log10(value), text) for value, text in plain]
    digits = (1, 2, 5) if high - low <= FEW_DECADES else (1,)
    ticks = [d * 10.0**power for power in range(math.floor(low), math.ceil(high) + 1) for d in digits]
    return [(math.log10(value), f"{value:.10g}") for value in ticks if low <= math.log10(value) <= high]


# -- marks -------------------------------------------------------------------------------------------------


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
    return [] if values is None else values if isinstance(values, list) else np.asarray(values).tolist()


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
    placed = []
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
        placed.append(bars)
    return placed


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
    channels = np.array([list(bytes.fromhex(tone[1:])) for tone in tones]).T
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


# -- the table ---------------------------------------------------------------------------------------------


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
        f'<div class="scroll" tabindex="0"><table><tr>{heads}{lines}</table></div></details>'
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


# -- the picture -------------------------------------------------------------------------------------------


TEMPLATE = "plotly_white"  # of a figure that plotly draws; to set it takes most of the time of a figure
WIDTH, HEIGHT = 560.0, 260.0
WIDE = 1000.0  # of bars and heat maps, which have long names at their side
MARGINS = 160  # of the height that a figure asks for, not of its area
LETTER, LINE = 11.0, 18.0  # room of a letter of a broad font, and of a line, on small screens
WIDE_LETTER, MOST_LETTERS = 8.6, 48  # of a wide picture, which is not enlarged there; beside the picture
TOP, RIGHT = 12.0, 14.0
STEPS = 32  # of colours in the scale of a heat map


def picture(fig: Figure, *, interactive: bool = False) -> Markup:
    """Draw a figure; ``interactive``: also keep it for plotly, for a page that has ``zoom.js``."""
    layout, traces = fig.layout, fig.data
    plot, placed = _plot(fig)
    wide = plot.width > WIDTH
    title = layout.title.text or ""
    data = Markup("")
    if interactive:
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


def _plot(fig: Figure) -> tuple[Plot, list[list[Bar]]]:
    """Make the axes around all that is drawn; place the bars."""
    layout, traces = fig.layout, fig.data
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
    return [shape for shape in layout.shapes if shape[f"{name}ref"] in (name, None)]


def _svg(fig: Figure, plot: Plot, placed: Sequence[Sequence[Bar]]) -> str:
    """Draw axes and marks; the text beside the axes is outside the area of the marks."""
    letter = LETTER if plot.width == WIDTH else WIDE_LETTER
    longest = max((len(line) for _, text in plot.y.ticks for line in text.split("\n")), default=1)
    left = 10 + letter * min(longest, MOST_LETTERS)
    area = Plot(plot.x, plot.y, plot.width - left - RIGHT, plot.height)
    below = _below(area, letter)
    lines = max((tick.line + len(tick.lines) for tick in below), default=1)
    whole_width, whole_height = plot.width, plot.height + TOP + LINE * lines + 4
    parts = [
        f'<svg viewBox="0 0 {whole_width:.0f} {whole_height:.0f}" role="img" aria-label="{_described(fig)}">',
        f'<g transform="translate({left:.0f} {TOP:.0f})">{_grid(area, below)}',
        f'<svg class="area" width="{area.width:.0f}" height="{area.height:.0f}">',
        *_marks(fig, area, placed),
        "</svg></g></svg>",
    ]
    return "".join(parts)


def _marks(fig: Figure, area: Plot, placed: Sequence[Sequence[Bar]]) -> list[str]:
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
    for shape in fig.layout.shapes:
        upright = shape.xref in ("x", None)
        at = (area.across([shape.x0]) if upright else area.upwards([shape.y0]))[0]
        way = f"M{at:.1f} 0V{area.height:.0f}" if upright else f"M0 {at:.1f}H{area.width:.0f}"
        kind, tone = DASHES.get(shape.line.dash, ""), themed(shape.line.color or "")
        parts.append(f'<path class="line thin {kind} {tone}" d="{way}"/>')
    return [*parts, *(_note(note, area) for note in fig.layout.annotations)]


def _note(note: Any, area: Plot) -> str:
    """Write an annotation; its place on an axis is on the axis's scale, else a share of the picture."""
    x = area.x.at(note.x) if note.xref in ("x", None) else note.x
    y = area.y.at(note.y) if note.yref in ("y", None) else note.y
    at, room = area.width * float(x), LETTER * len(note.text or "")
    anchor = "end" if note.xanchor == "right" or at + room > area.width else "start"
    at = min(max(at - 3, room), area.width) if anchor == "end" else at + 3
    below = min(max(area.height * (1 - float(y)) + 14, LINE), area.height - 5)
    place = f'x="{at:.1f}" y="{below:.1f}"'
    return f'<text class="note" text-anchor="{anchor}" {place}>{escape(note.text or "")}</text>'


class TickText(NamedTuple):
    """The text of a tick below the picture: its middle, its lines, and the first one's place from above."""

    at: float
    lines: list[str]
    line: int


def _below(area: Plot, letter: float) -> list[TickText]:
    """Place the texts of the ticks below, each whole, none upon another: a name may go one row down."""
    ticks = [(place, text.split("\n")) for place, text in _inside(area.x)]
    most = max((len(lines) for _, lines in ticks), default=1)
    plain = all(text.lstrip("-")[:1].isdigit() and " " not in text for _, text in area.x.ticks)
    taken = [-np.inf] * (1 if plain else 2)
    placed = []
    for place, lines in ticks:
        half = letter * max(map(len, lines)) / 2
        at = min(area.width * float(area.x.at(place)), area.width + RIGHT - half)
        row = next((row for row, end in enumerate(taken) if at - half > end), None)
        if row is not None:
            taken[row] = at + half
            placed.append(TickText(at, lines, row * most))
    return placed


def _grid(area: Plot, below: Sequence[TickText]) -> str:
    """Draw ticks with their lines and texts; beside the picture one that would touch another has none."""
    parts = [f'<path class="grid" d="M0 {area.height:.0f}H{area.width:.0f}"/>']
    for place, _ in _inside(area.x):
        at = area.width * float(area.x.at(place))
        parts.append(f'<path class="grid" d="M{at:.1f} 0V{area.height:.0f}"/>')
    parts += [
        f'<text text-anchor="middle" x="{tick.at:.1f}" y="{area.height + LINE * (tick.line + i + 1):.0f}">'
        f"{escape(line)}</text>"
        for tick in below
        for i, line in enumerate(tick.lines)
    ]
    low = np.inf
    for place, label in sorted(_inside(area.y), key=lambda tick: float(area.y.at(tick[0]))):
        at = area.height * (1 - float(area.y.at(place)))
        parts.append(f'<path class="grid" d="M0 {at:.1f}H{area.width:.0f}"/>')
        lines = label.split("\n")
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


def _described(fig: Figure) -> Markup:
    """Say in a sentence what is drawn, for those who cannot see it."""
    layout = fig.layout
    x, y = _titles(layout)
    named = dict.fromkeys(str(trace.name) for trace in fig.data if trace.name)
    series = f" Series: {'; '.join(named)}." if named else ""
    over = f" {y} over {x}." if x and y else ""
    return escape(f"{layout.title.text}.{over}{series} The numbers are in the table below.")


def _legend(traces: Sequence[Any], shown: bool | None) -> str:
    if shown is False:
        return ""
    if any(trace.type == "heatmap" for trace in traces):
        return "".join(_scale(trace) for trace in traces)
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
