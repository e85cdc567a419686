"""The card of a profile on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tenbin.terminal import QUALITY_STYLE, table
from tenbin.text import bounded, limits, printable

if TYPE_CHECKING:
    from rich.console import Console

    from profiles.records import Profile


def print_card(console: Console, profile: Profile) -> None:
    """Print the main figures, what is unusual, and what to do next."""
    from profiles.card import card

    found = card(profile)
    if found.figures:
        listed = table("", "", "95 % interval", " ", left=("", " "), collapse_padding=True)
        for figure in found.figures:
            style = QUALITY_STYLE.get(figure.quality, "")
            value = f"{bounded(figure.value, figure.low, figure.high)} {figure.unit}"
            marks = " [magenta]EMULATED[/]" if figure.emulated else ""
            cells = (figure.name, value, limits(figure.low, figure.high), figure.meaning)
            name, value, interval, meaning = (escape(printable(cell)) for cell in cells)
            indented = Padding(f"{name}{marks}", (0, 0, 0, 2))
            listed.add_row(indented, f"[bold]{value}[/]", interval, f"[{style or 'dim'}]{meaning}[/]")
        console.print(listed)
    told = Table.grid(padding=(0, 1))
    for heading, sentences in (("unusual", found.unusual), ("next", found.next_steps)):
        for place, sentence in enumerate(sentences):
            told.add_row(Text("" if place else f"  {heading}"), Text(printable(sentence)))
    console.print(told)
