"""Contents of the screen: lines of text with styles, shown and never obeyed; effects of keys."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from rich.cells import cell_len, chop_cells, set_cell_size

from tenbin.text import printable

if TYPE_CHECKING:
    from tenbin.client.client import Client

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


# -- effects of keys and answers, which the application carries out ----------------------------------------


class View(Protocol):
    """One kind of contents of the screen."""

    @property
    def hints(self) -> str:
        """The keys to name in the last line."""

    def question(self) -> Callable[[Client], Any] | None:
        """Return the call for the contents that are wanted now; None: the contents are complete."""

    def take(self, answer: Any) -> None:
        """Take the coordinator's answer."""

    def lines(self, width: int, height: int) -> list[Line]:
        """Return the lines to draw."""

    def press(self, key: str) -> Effect | None:
        """Take a key; return None if the key has no meaning here."""


@dataclass(frozen=True)
class Redraw:
    """Draw again. ``ask``: other contents are wanted, so ask the coordinator at once."""

    ask: bool = False


@dataclass(frozen=True)
class Tell:
    """Show a sentence in the last line."""

    text: str


@dataclass(frozen=True)
class Open:
    """Show a view in front of this one, or ``instead`` of it."""

    view: View
    instead: bool = False


@dataclass(frozen=True)
class Back:
    """Show the view behind this one; before the first there is none."""


@dataclass(frozen=True)
class Quit:
    """End the application."""


@dataclass(frozen=True)
class Call:
    """Ask the coordinator for something; its answer has an effect."""

    ask: Callable[[Client], Any]
    then: Callable[[Any], Effect]


@dataclass(frozen=True)
class Confirm:
    """Ask the user back."""

    text: str
    call: Call


@dataclass(frozen=True)
class Prompt:
    """Let the user write a line; it has an effect, or BadInput is raised."""

    text: str
    value: str
    then: Callable[[str], Effect]


Effect = Redraw | Tell | Open | Back | Quit | Call | Confirm | Prompt
