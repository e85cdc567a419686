"""``tenbin reproduce``: the papers' own evaluations, run again, and tenbin's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from profiles.errors import BadInput
from tenbin.commands.options import JsonOption, ensure_page, names_in, write_output
from tenbin.terminal import SafeConsole, table
from tenbin.text import print_json

if TYPE_CHECKING:
    from scheduler.evaluations import Evaluation


class ScaleChoice(StrEnum):
    """The size of an evaluation."""

    small = "small"
    full = "full"


complete_evaluation = names_in("scheduler.evaluations:EVALUATIONS")


def reproduce(
    name: Annotated[str, typer.Argument(autocompletion=complete_evaluation, metavar="EVALUATION")],
    *,
    scale: ScaleChoice = ScaleChoice.small,
    figure: Annotated[Path | None, typer.Option(dir_okay=False)] = None,
    markdown: bool = False,
    json: JsonOption = False,
) -> None:
    """Run a paper's evaluation again: its numbers, tenbin's beside them, and what they rest on.

    Logs and traces that cannot be part of tenbin are looked for in the folder that TENBIN_DATA names;
    where they are missing a generator stands in for them, and the result says so; prediction needs them.

    [bold]Examples[/bold]

      tenbin reproduce interference

      tenbin reproduce migration --scale full --figure migration.html

    Args:
        name: migration, multiresource, power, interference, regions, prediction, gpu-sizes,
            gpu-pairs, pairs-on-this-machine, weigh, weigh-optimum.
        scale: small: about a minute; full: the paper's size, at least five seeds, minutes
            (pairs-on-this-machine measures: up to two hours).
        figure: Also draw the paper's figures into this HTML file.
        markdown: Print Markdown instead of tables.
    """
    from scheduler.evaluations import EVALUATIONS, evaluate
    from tenbin.report import evaluation as report

    if json and markdown:
        raise BadInput("--json and --markdown exclude each other", "give one of them")
    if figure and name in EVALUATIONS:  # else evaluate says so
        ensure_page("--figure", figure)
    with _progress(name, SafeConsole(stderr=True)) as progress:
        result = evaluate(name, scale.value, progress)
    try:
        if figure and result.pictures:
            write_output("--figure", figure, report.page(result))
    finally:  # a full disk costs the pictures only
        if json:
            print_json({"evaluation": name, **report.to_dict(result)})
        elif markdown:
            command = f"tenbin reproduce {name} --scale {scale.value}"
            print(report.markdown(result, command, date.today().isoformat()), end="")
        else:
            _print(result, figure)


@contextmanager
def _progress(name: str, errors: Console) -> Iterator[Callable[[int, int, str], None]]:
    """Show a bar on a terminal; elsewhere nothing."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task(name, total=None)

        def show(done: int, of: int, what: str) -> None:
            bar.update(task, completed=done, total=of, description=f"{name}: {what}")

        yield show


def _print(result: Evaluation, figure: Path | None) -> None:
    from tenbin.report import evaluation as report

    console = SafeConsole()
    console.plain(result.paper)
    for sentence in result.assumptions:
        console.plain(f"- {sentence}")
    console.print(_grid("", report.HEADINGS, [report.finding_row(f) for f in result.findings]))
    for finding in result.findings:
        if finding.note:
            console.plain(f"{finding.name}: {finding.note}")
    for data in result.tables:
        console.print(_grid(data.title, data.columns, report.cells(data)))
    for sentence in result.remarks:
        console.plain(f"- {sentence}")
    if result.pictures:
        console.plain(f"pictures: {figure or 'none; --figure FILE.html draws them'}")


def _grid(title: str, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> Table:
    made = table(title=escape(title) or None, title_justify="left")
    for position, column in enumerate(columns):
        made.add_column(escape(column), justify="left" if position == 0 else "right", overflow="fold")
    for row in rows:
        made.add_row(*map(escape, row))
    return made
