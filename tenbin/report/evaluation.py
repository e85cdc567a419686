"""A paper's evaluation as a page with pictures, and as Markdown for the documentation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from scheduler.evaluations import Estimate, Evaluation, Finding, Picture, Table
from tenbin.text import number

HEADINGS = ("number", "paper", "tenbin", "95 % interval", "n", "difference", "as the paper")
VERDICTS = {True: "yes", False: "no", None: ""}


def finding_row(finding: Finding) -> tuple[str, ...]:
    """Write one line of the table of findings, in the order of ``HEADINGS``."""
    estimate, unit = finding.tenbin, f" {finding.unit}" if finding.unit else ""
    paper = "-" if finding.paper is None else f"{number(finding.paper)}{unit}"
    difference = "-" if finding.paper is None else f"{estimate.mean - finding.paper:+.3g}"
    return (
        finding.what,
        paper,
        f"{number(estimate.mean)}{unit}",
        interval(estimate),
        str(estimate.n),
        difference,
        VERDICTS[finding.agrees],
    )


def interval(estimate: Estimate) -> str:
    """Write ``12.1 .. 12.6``; nothing for a value without chance or of a single seed."""
    if estimate.low == estimate.high or not math.isfinite(estimate.low):
        return ""
    return f"{number(estimate.low)} .. {number(estimate.high)}"


def to_dict(evaluation: Evaluation) -> dict[str, Any]:
    """Convert to JSON: no infinities, with the verdicts, and each difference to the paper."""
    fields = asdict(evaluation)
    for finding, entry in zip(evaluation.findings, fields["findings"], strict=True):
        entry["tenbin"] = {k: _finite(v) for k, v in finding.tenbin._asdict().items()}
        entry["same"] = finding.same and [_finite(bound) for bound in finding.same]
        entry["difference"] = None if finding.paper is None else finding.tenbin.mean - finding.paper
        entry["agrees"] = finding.agrees
    return fields


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def markdown(evaluation: Evaluation, command: str, date: str) -> str:
    """Write a page of docs/evaluation/."""
    lines = [f"*{evaluation.paper}*", "", f"`{command}`, {date}.", "", "What it rests on:", ""]
    lines += [f"- {sentence}" for sentence in evaluation.assumptions]
    lines += ["", *_grid(HEADINGS, [finding_row(f) for f in evaluation.findings])]
    notes = [f"- {f.what}: {f.note}" for f in evaluation.findings if f.note]
    lines += ["", "Notes:", "", *notes] if notes else []
    for table in evaluation.tables:
        lines += ["", f"**{table.title}**", "", *_grid(table.columns, cells(table))]
    if evaluation.remarks:
        lines += ["", "What was found out:", "", *(f"- {sentence}" for sentence in evaluation.remarks)]
    return "\n".join(lines) + "\n"


def cells(table: Table) -> list[tuple[str, ...]]:
    """Write the rows of a table as text."""
    return [tuple(_cell(value) for value in row) for row in table.rows]


def _cell(value: str | float | None) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else number(value)


def _grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    escaped = [[text.replace("|", "\\|") for text in row] for row in (head, *rows)]
    lines = [f"| {' | '.join(row)} |" for row in escaped]
    return [lines[0], "|" + "---|" * len(head), *lines[1:]]


def page(evaluation: Evaluation) -> str:
    """Write one self-contained HTML page with the pictures."""
    note = " ".join(evaluation.assumptions)
    return pictures_page("Evaluation", (evaluation.paper, note), evaluation.pictures)


def pictures_page(title: str, section: tuple[str, str], pictures: Sequence[Picture]) -> str:
    """Write one self-contained HTML page with some pictures, under the heading and the note of a section."""
    from tenbin.report.pictures import picture, write

    return write("parts.html", title=title, parts=[(*section, [picture(draw(one)) for one in pictures])])


def draw(picture: Picture) -> Any:
    """Draw one figure (plotly's ``Figure``)."""
    from tenbin.report.pictures import figure

    fig = figure(picture.title, picture.x, picture.y)
    for series in picture.series:
        error = {"error_y": {"type": "data", "array": list(series.error)}} if series.error else {}
        x, y = list(series.x), list(series.y)
        if picture.kind in ("bars", "stacked"):
            fig.add_bar(name=series.name, x=x, y=y, **error)
        else:
            mode = "markers" if picture.kind == "points" else "lines+markers"
            fig.add_scatter(name=series.name, x=x, y=y, mode=mode, **error)
    fig.update_layout(barmode="stack" if picture.kind == "stacked" else "group", showlegend=True)
    fig.update_layout(legend={"y": -0.25, "yanchor": "top", "x": 0.0, "xanchor": "left"}, height=480)
    if picture.log_x:
        fig.update_xaxes(type="log")
    if picture.log_y:
        fig.update_yaxes(type="log")
    return fig
