"""Output to a terminal: text from files, jobs and other users is shown, and never obeyed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table

from tenbin.text import printable, printable_lines

QUALITY_STYLE = {"good": "green", "noisy": "yellow", "poor": "red"}
LONGEST = 4096  # characters of a text that are looked at for a narrower place


class SafeConsole(Console):
    """A console that shows control characters in printed text as visible text."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, highlight=False, emoji=False)

    def plain(self, text: str, **options: Any) -> None:
        """Print text in which brackets are no markup; ``options``: of ``print``."""
        self.print(text, markup=False, **options)

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


def fit(text: str, width: int, *, right: bool = False) -> str:
    """Cut or fill a text to a width in cells of the terminal."""
    text = printable(text[: max(width, LONGEST)])
    missing = width - cell_len(text)
    if missing >= 0:
        return " " * missing + text if right else text + " " * missing
    return set_cell_size(text, max(width - 1, 0)) + "…" * (width > 0)


def lay_out(
    console: SafeConsole, headings: Sequence[str], rows: Iterable[Sequence[str]], left: Collection[str]
) -> None:
    """Print a row a line, the widest columns cut; ``table`` takes half a millisecond a row.

    Args:
        headings: of one line or two. left: those of columns that are left-aligned.
    """
    parts = [heading.rpartition("\n") for heading in headings]
    heads = [line for line in zip(*((above, below) for above, _, below in parts), strict=True) if any(line)]
    lines = [*heads, *rows]
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    while sum(widths) + len(widths) > console.width:
        widths[widths.index(max(widths))] -= 1
    shape = [(width, heading not in left) for width, heading in zip(widths, headings, strict=True)]
    fitted = [
        "".join(f" {fit(text, width, right=right)}" for text, (width, right) in zip(line, shape, strict=True))
        for line in lines
    ]
    fitted = [line.rstrip() for line in fitted]
    console.plain("\n".join(fitted[: len(heads)]), style="bold", soft_wrap=True)
    print("".join(f"{line}\n" for line in fitted[len(heads) :]), end="")
