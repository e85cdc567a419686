"""Output to a terminal: text from files, jobs and other users is shown, and never obeyed."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table

from tenbin.text import printable_lines

QUALITY_STYLE = {"good": "green", "noisy": "yellow", "poor": "red"}


class SafeConsole(Console):
    """A console that shows control characters in printed text as visible text."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, highlight=False, emoji=False)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render with control characters escaped; rich's own cursor movements stay."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable_lines(segment.text))


def table(*headings: str, left: Collection[str] = ("",), **options: Any) -> Table:
    """Make a table without lines; the columns of the headings in ``left`` left-aligned, the others right."""
    made = Table(box=None, **{"padding": (0, 1), **options})
    for heading in headings:
        made.add_column(heading, justify="left" if heading in left else "right")
    return made
