"""A paper's evaluation as a page with pictures, and as Markdown for the documentation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import pairwise
from textwrap import fill
from typing import Any, NamedTuple

from profiles.quantities import number
from scheduler.evaluations import Cell, Estimate, Evaluation, Finding, Picture, Table

HEADINGS = ("number", "paper", "tenbin", "95 % interval", "n", "difference", "as the paper")
VERDICTS = {True: "yes", False: "no", None: ""}


def finding_row(finding: Finding) -> tuple[str, ...]:
    """Write one line of the terminal's table of findings, in the order of ``HEADINGS``."""
    paper, difference = "-", "-"
    if finding.paper is not None:
        paper, difference = _with_unit(finding.paper, finding), f"{finding.tenbin.mean - finding.paper:+.3g}"
    estimate = finding.tenbin
    value = _with_unit(estimate.mean, finding)
    verdict = VERDICTS[finding.agrees]
    return (finding.name, paper, value, interval(estimate), str(estimate.n), difference, verdict)


def _with_unit(value: float, finding: Finding) -> str:
    return f"{number(value)} {finding.unit}".rstrip()


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
    notes = list(dict.fromkeys(finding.note for finding in evaluation.findings if finding.note))
    lines = [*_wrapped(f"*{evaluation.paper}*"), "", *_wrapped(f"`{command}`, {date}.")]
    lines += _list("What was found out", evaluation.remarks)
    for head, rows in _findings([_shown(finding, notes) for finding in evaluation.findings]):
        lines += ["", *_grid(head, rows)]
    lines += ["", *(line for i, note in enumerate(notes, 1) for line in _wrapped(note, f"{i}. "))]
    for table in evaluation.tables:
        lines += ["", *_wrapped(f"**{table.title}**"), "", *_grid(table.columns, _once(cells(table)))]
    lines += _list("What it rests on", evaluation.assumptions)
    return "\n".join(lines) + "\n"


def _list(title: str, sentences: Sequence[str]) -> list[str]:
    lines = [line for sentence in sentences for line in _wrapped(sentence, "- ")]
    return ["", f"{title}:", "", *lines] if lines else []


class Shown(NamedTuple):
    """A finding as text; ``verdict`` with the number of its note."""

    what: str
    of: str
    paper: str
    tenbin: str
    verdict: str


def _shown(finding: Finding, notes: Sequence[str]) -> Shown:
    paper = "-" if finding.paper is None else _with_unit(finding.paper, finding)
    bounds = interval(finding.tenbin)
    tenbin = _with_unit(finding.tenbin.mean, finding) + (f" ({bounds})" if bounds else "")
    mark = f" ({notes.index(finding.note) + 1})" if finding.note else ""
    return Shown(finding.what, finding.of, paper, tenbin, (VERDICTS[finding.agrees] + mark).strip())


def _findings(shown: Sequence[Shown]) -> Iterator[tuple[Sequence[str], list[Sequence[str]]]]:
    """Make tables, as (head, rows); a number of several policies or mixes has a column for each of them."""
    rows: dict[str, dict[str, Shown]] = {}
    for finding in shown:
        rows.setdefault(finding.what, {})[finding.of] = finding
    blocks: list[list[dict[str, Shown]]] = []
    for row in rows.values():
        if blocks and any(row.keys() & above.keys() for above in blocks[-1]):
            blocks[-1].append(row)
        else:
            blocks.append([row])
    for block in blocks:
        columns = list(dict.fromkeys(of for row in block for of in row))
        if columns == [""]:
            plain = [row[""] for row in block]
            yield ("number", "paper", "tenbin (95 %)", "as the paper"), [(f.what, *f[2:]) for f in plain]
        else:
            yield ("number", *columns), [_side_by_side(row, columns) for row in block]


def _side_by_side(row: dict[str, Shown], columns: Sequence[str]) -> Sequence[str]:
    """Write the findings of one row; a number that the paper has for all of them stands once."""
    papers = {finding.paper for finding in row.values()} - {"-"}
    once = len(papers) == 1 and all(finding.paper in papers for finding in row.values()) and len(row) > 1
    what = next(iter(row.values())).what + (f" (paper {papers.pop()})" if once else "")

    def cell(finding: Shown) -> str:
        paper = "" if once or finding.paper == "-" else f", paper {finding.paper}"
        return f"{finding.tenbin}{paper}" + (f": {finding.verdict}" if finding.verdict else "")

    return [what, *(cell(row[of]) if of in row else "" for of in columns)]


def _once(rows: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """Leave out the first cells of a row that are those of the row above."""
    lines = [*rows[:1]]
    for above, row in pairwise(rows):
        same = next((i for i, (a, b) in enumerate(zip(above, row, strict=True)) if a != b), 0)
        lines.append([*[""] * same, *row[same:]])
    return lines


def _wrapped(text: str, bullet: str = "") -> list[str]:
    return fill(text, 120, initial_indent=bullet, subsequent_indent=" " * len(bullet), break_long_words=False,
                break_on_hyphens=False).splitlines()  # fmt: skip


def cells(table: Table) -> list[tuple[str, ...]]:
    """Write the rows of a table as text."""
    return [tuple(_cell(value) for value in row) for row in table.rows]


def _cell(value: Cell) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_cell, value))
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
    from tenbin.report.html import write
    from tenbin.report.pictures import picture

    return write(
        "parts.html", title=title, parts=[(*section, [picture(draw(content)) for content in pictures])]
    )


def draw(picture: Picture) -> Any:
    """Draw one figure (``Figure``)."""
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
