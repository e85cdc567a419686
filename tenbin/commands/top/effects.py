"""Effects of keys and answers, which the application carries out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from tenbin.client.client import Client
    from tenbin.commands.top.lines import Line


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
