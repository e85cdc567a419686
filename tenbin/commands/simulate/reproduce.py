"""``tenbin reproduce``: the papers' own evaluations, run again."""

from __future__ import annotations

from datetime import date
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from profiles.errors import BadInput
from tenbin.commands.options import JsonOption, ensure_writable, names_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console
    from rich.table import Table

    from scheduler.evaluations import Evaluation


class ScaleChoice(StrEnum):
    """How much of the paper's evaluation to run."""

    small = "small"
    full = "full"


complete_evaluation = names_in("scheduler.evaluations:EVALUATIONS")


def reproduce(
    name: Annotated[
        str,
        typer.Argument(
            help="migration, multiresource, power, interference, regions, prediction, pairs-on-this-machine.",
            autocompletion=complete_evaluation,
            metavar="EVALUATION",
        ),
    ],
    scale: Annotated[
        ScaleChoice,
        typer.Option(
            help="small: about a minute; full: the paper's size, at least five seeds, minutes "
            "(pairs-on-this-machine measures: up to two hours)."
        ),
    ] = ScaleChoice.small,
    figure: Annotated[
        Path | None,
        typer.Option(
            help="Also draw the paper's figures into this HTML file.",
            dir_okay=False,
            show_default=False,
        ),
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown instead of tables.")] = False,
    json: JsonOption = False,
) -> None:
    """Run a paper's evaluation again: its numbers, tenbin's beside them, and what they rest on.

    Logs and traces that cannot be part of tenbin are looked for in the folder that TENBIN_DATA names;
    where they are missing a generator stands in for them, and the result says so.

    [bold]Examples[/bold]

      tenbin reproduce interference

      tenbin reproduce migration --scale full --figure migration.html
    """
    from scheduler.evaluations import EVALUATIONS, evaluate
    from tenbin.terminal import SafeConsole

    if json and markdown:
        raise BadInput("--json and --markdown exclude each other", "give one of them")
    if figure and name in EVALUATIONS:  # else evaluate says so
        ensure_writable("--figure", figure)
    with _Progress(name, SafeConsole(stderr=True)) as progress:
        result = evaluate(name, scale.value, progress)
    try:
        if figure and result.pictures:
            _draw(result, figure)
    finally:  # a full disk costs the pictures only
        _tell(result, name, scale, figure, json, markdown)


def _draw(result: Evaluation, path: Path) -> None:
    from profiles.files import write_whole
    from tenbin.report import evaluation as report

    try:
        write_whole(path, report.page(result))
    except OSError as error:
        raise BadInput(
            f"--figure {path}: {error.strerror}", "choose a file in a folder you may write"
        ) from error


def _tell(
    result: Evaluation, name: str, scale: ScaleChoice, figure: Path | None, json: bool, markdown: bool
) -> None:
    from tenbin.report import evaluation as report

    if json:
        import json as json_

        print(json_.dumps({"evaluation": name, **report.to_dict(result)}, indent=1))
    elif markdown:
        command = f"tenbin reproduce {name} --scale {scale.value}"
        print(report.markdown(result, command, date.today().isoformat()), end="")
    else:
        _print(result, figure)


class _Progress:
    """A bar on a terminal; nothing elsewhere."""

    def __init__(self, name: str, errors: Console) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal)
        self._name = name

    def __enter__(self) -> Callable[[int, int, str], None]:
        self._bar.start()
        self._task = self._bar.add_task(self._name, total=None)
        return self._show

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def _show(self, done: int, of: int, what: str) -> None:
        self._bar.update(self._task, completed=done, total=of, description=f"{self._name}: {what}")


def _print(result: Evaluation, figure: Path | None) -> None:
    from tenbin.report import evaluation as report
    from tenbin.terminal import SafeConsole

    console = SafeConsole()
    console.print(result.paper, markup=False)
    for sentence in result.assumptions:
        console.print(f"- {sentence}", markup=False)
    console.print(_grid("", report.HEADINGS, [report.finding_row(f) for f in result.findings]))
    for finding in result.findings:
        if finding.note:
            console.print(f"{finding.what}: {finding.note}", markup=False)
    for table in result.tables:
        console.print(_grid(table.title, table.columns, report.cells(table)))
    for sentence in result.remarks:
        console.print(f"- {sentence}", markup=False)
    if result.pictures:
        console.print(f"pictures: {figure or 'none; --figure FILE.html draws them'}", markup=False)


def _grid(title: str, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, padding=(0, 1), title=escape(title) or None, title_justify="left")
    for position, column in enumerate(columns):
        table.add_column(escape(column), justify="left" if position == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    return table
