"""Lines of a screen as pieces of text, each with its style; text from elsewhere is shown, never obeyed."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from rich.cells import cell_len, chop_cells, set_cell_size

from tenbin.text import printable

LONGEST = 4096  # characters of a text that are looked at

Piece = tuple[str, str]  # text, and its style in rich's words
Line = tuple[Piece, ...]


def fit(text: str, width: int, *, right: bool = False) -> str:
    """Cut or fill a text to a width in cells of the terminal."""
    text = printable(text[:LONGEST])
    missing = width - cell_len(text)
    if missing >= 0:
        return " " * missing + text if right else text + " " * missing
    return set_cell_size(text, max(width - 1, 0)) + "…" * (width > 0)


def wrapped(text: str, width: int) -> list[str]:
    """Break a line at its spaces, else in the middle of a word; what follows is indented as the line is."""
    width = max(width, 1)  # before the first layout there is none
    text = printable(text[:LONGEST]) + "…" * (len(text) > LONGEST)
    indent = " " * min(len(text) - len(text.lstrip()) + 2, width // 2)
    if cell_len(text) <= width:
        return [text]
    if not text.isascii():
        return chop_cells(text, width)
    return textwrap.wrap(text, width, subsequent_indent=indent, drop_whitespace=True)


def changes(old: Line, new: Line) -> Iterator[tuple[int, int | None]]:
    """Yield the cells of a line that have changed: from where, and how many (None: all that follow)."""
    x = 0
    for before, after in zip(old, new, strict=False):
        width = cell_len(after[0])
        if before != after:
            if cell_len(before[0]) != width:
                yield x, None
                return
            yield x, width
        x += width
    if len(old) != len(new):
        yield x, None
