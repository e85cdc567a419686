"""Pictures without a script: every mark at the place that its numbers say, in well-formed XML."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenbin.report.pictures import COLOURS, Figure, figure, linear_ticks, picture
from tests.support.amounts import examples

SVG = "{http://www.w3.org/2000/svg}"
NASTY = "</svg><script>alert(1)</script>&\"'"


def svg(fig: Figure) -> ElementTree.Element:
    """Parse the picture of a figure; return the area between its axes, that is the inner ``svg``."""
    found = re.search(r"<svg.*?</svg></g></svg>", picture(fig), flags=re.DOTALL)
    assert found
    whole = ElementTree.fromstring(found[0].replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1))
    area = whole.find(f".//{SVG}svg")
    assert area is not None
    return area


def points(area: ElementTree.Element, kind: str) -> list[tuple[float, float]]:
    """List where marks of a class begin, as shares of the area, upwards."""
    width, height = float(area.attrib["width"]), float(area.attrib["height"])
    found = []
    for group in area.iter(f"{SVG}g"):
        if group.get("class") == kind:
            for path in group.iter(f"{SVG}path"):
                x, y = re.findall(r"-?[\d.]+", path.attrib["d"])[:2]
                found.append((float(x) / width, 1 - float(y) / height))
    return found


def test_dots_are_where_their_numbers_say() -> None:
    fig = figure("t", "x", "y")
    fig.add_scatter(x=[0, 5, 10], y=[2.0, None, 4.0], mode="markers")
    fig.update_xaxes(range=[0, 10])
    fig.update_yaxes(range=[0, 4])
    assert np.allclose(points(svg(fig), "dots"), [(0.0, 0.5), (1.0, 1.0)], atol=1e-3)


def test_text_is_whole() -> None:
    """Names of ticks and notes lie inside the picture, also in a broad font at the size of small screens."""
    fig = figure("t", "x", "y")
    fig.add_scatter(x=[0, 1_000_000], y=[0.00001, 0.99999], mode="markers")
    fig.update_xaxes(range=[0, 1_000_000])
    fig.add_annotation(x=0.7, y=0.0, xref="paper", yref="paper", text="a note of many letters")
    fig.add_annotation(x=0.1, y=1.0, xref="paper", yref="paper", text="another note", xanchor="right")
    match = re.search(r"<svg.*?</svg></g></svg>", picture(fig), flags=re.DOTALL)
    assert match
    whole = ElementTree.fromstring(match[0])
    width, height = (float(side) for side in whole.attrib["viewBox"].split()[2:])
    shift = float(re.findall(r"[\d.]+", whole[0].attrib["transform"])[0])
    texts = list(whole.iter("text"))
    assert {"1000000", "a note of many letters", "another note"} <= {text.text for text in texts}
    for text in texts:
        long = 17 * 0.64 * len(text.text or "")
        before = {"start": 0.0, "middle": long / 2, "end": long}[text.attrib["text-anchor"]]
        left = shift + float(text.attrib["x"]) - before
        assert left >= 0 and left + long <= width and 0 < float(text.attrib["y"]) < height, text.text


def test_names_that_would_touch_go_one_row_down() -> None:
    fig = figure("t", "x", "y")
    names = [f"a rather long name {i}" for i in range(4)]
    fig.add_bar(x=names, y=[1.0, 2.0, 3.0, 4.0])
    below = re.findall(r'text-anchor="middle" x="([\d.]+)" y="(\d+)">(a rather[^<]*)', picture(fig))
    assert [name for _, _, name in below] == names
    first, second, third, fourth = (int(y) for _, y, _ in below)
    assert first == third < second == fourth
    height = float(re.findall(r'viewBox="0 0 \d+ (\d+)"', picture(fig))[0])
    assert second + 12 < height


def test_logarithmic_axes_and_what_has_no_place_there() -> None:
    fig = figure("t", "x", "y")
    fig.add_scatter(x=[1, 10, 100, 0], y=[1, 10, 100, 50], mode="markers")
    fig.update_xaxes(type="log", range=[0, 2])
    fig.update_yaxes(type="log", range=[0, 2])
    assert np.allclose(points(svg(fig), "dots"), [(0.0, 0.0), (0.5, 0.5), (1.0, 1.0)], atol=1e-3)


def test_stacked_bars_begin_where_the_one_before_ends() -> None:
    fig = figure("t", "x", "")
    fig.add_bar(x=[1.0, 2.0], y=["a", "b"], orientation="h", name="first")
    fig.add_bar(x=[3.0, 1.0], y=["a", "b"], orientation="h", name="second")
    fig.update_layout(barmode="stack")
    fig.update_xaxes(range=[0, 4])
    begins = [x for x, _ in points(svg(fig), "bars")]
    assert begins == pytest.approx([0.0, 0.0, 0.25, 0.5], abs=1e-3)
    rows = [y for _, y in points(svg(fig), "bars")]
    assert rows[0] == rows[2] and rows[1] == rows[3] and rows[0] < 0.5 < rows[1]


def test_bars_of_nothing_are_drawn() -> None:
    fig = figure("t", "x", "y")
    fig.add_bar(x=["a"], y=[0.0])
    assert "<path" in picture(fig)


def test_bars_beside_each_other_do_not_overlap() -> None:
    fig = figure("t", "", "y")
    fig.add_bar(x=["a", "b"], y=[1.0, 2.0], name="first")
    fig.add_bar(x=["a", "b"], y=[3.0, 1.0], name="second")
    fig.update_layout(barmode="group")
    first_a, first_b, second_a, second_b = (x for x, _ in points(svg(fig), "bars"))
    assert first_a < second_a < first_b < second_b


def test_an_axis_holds_intervals_and_lines() -> None:
    fig = figure("t", "x", "y")
    fig.add_scatter(
        x=[1, 2], y=[5, 6], mode="markers", error_y={"array": [10, None], "arrayminus": [1, None]}
    )
    fig.add_hline(y=-3)
    (low, high) = (y for _, y in sorted(points(svg(fig), "dots")))
    assert 0.4 < low < high < 0.65  # of 5 and 6 between -3 and 15


def test_one_wild_interval_does_not_flatten_the_rest() -> None:
    fig = figure("t", "x", "y")
    fig.add_scatter(x=[1, 2], y=[5, 6], mode="markers", error_y={"array": [1e6, 1], "arrayminus": [1, 1]})
    fig.update_yaxes(rangemode="tozero")
    assert min(y for _, y in points(svg(fig), "dots")) > 0.15


def test_text_from_elsewhere_stays_text() -> None:
    dots, heat = figure(NASTY, NASTY, NASTY), figure(NASTY, NASTY, NASTY)
    dots.add_scatter(x=[NASTY, "b"], y=[1, 2], name=NASTY, text=[NASTY, NASTY], mode="markers")
    dots.add_annotation(text=NASTY, x=0, y=0, xref="paper", yref="paper")
    words = {"text": [[NASTY]], "texttemplate": "%{text}", "colorbar": {"title": {"text": NASTY}}}
    heat.add_heatmap(x=[NASTY], y=[NASTY], z=[[1.0]], colorscale="Cividis", **words)
    for fig in (dots, heat):
        assert "<script>alert" not in picture(fig) + picture(fig, interactive=True)
        assert "alert(1)" in "".join(svg(fig).itertext())


def test_numbers_of_a_picture_are_a_table() -> None:
    fig = figure("t", "cores", "GB/s")
    fig.add_scatter(x=[1.1, 0.9, 2], y=[3.0, 5.0, 7.0], name="dots", mode="markers")
    fig.add_scatter(
        x=[1], y=[4.0], name="median", mode="markers", error_y={"array": [1.0], "arrayminus": [0.5]}
    )
    fig.add_scatter(x=np.linspace(1, 2, 100), y=np.linspace(3, 4, 100), name="fit", mode="lines")
    fig.update_xaxes(tickvals=[1, 2])
    rows = [re.findall(r"<td>([^<]*)", row) for row in picture(fig).split("<tr>")[2:]]
    assert rows[0] == ["dots", "1", "4", "3 .. 5", "2"] and rows[1] == ["dots", "2", "7", "", ""]
    assert rows[2] == ["median", "1", "4", "3.5 .. 5", ""]
    assert len(rows) < 20 and rows[3][:3] == ["fit", "1", "3"] and rows[-1][:3] == ["fit", "2", "4"]


def test_the_colours_follow_the_page() -> None:
    fig = figure("t", "x", "y")
    fig.add_scatter(x=[1], y=[1], mode="markers", marker={"color": COLOURS[3]})
    fig.add_scatter(x=[1], y=[1], mode="lines", line={"color": "#888", "dash": "dot"})
    drawn = picture(fig)
    assert "style=" not in drawn  # which a strict policy of a page would forbid
    assert 'class="c3"' in drawn and 'class="grey"' in drawn and not re.findall(r'="#[0-9a-f]', drawn)


@settings(max_examples=examples(200))
@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9))
def test_ticks_are_few_and_inside(low: float, span: float) -> None:
    high = low + span
    if high - low < 1e-9 * max(abs(low), 1.0):
        return
    places = [place for place, _ in linear_ticks(low, high)]
    assert 2 <= len(places) <= 8
    assert all(low - 1e-6 * span <= place <= high + 1e-6 * span for place in places)
    assert math.isclose(min(np.diff(places)), max(np.diff(places)), rel_tol=1e-3)
