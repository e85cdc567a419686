"""The fields of a job that a program may give: a misspelt one is refused before anything is submitted."""

from __future__ import annotations

import os
from collections.abc import Iterable
from difflib import get_close_matches

from tenbin.errors import TenbinError
from tenbin.fields import TYPES

FIELDS = frozenset(TYPES)


class UnknownField(TenbinError, TypeError):
    """There is no such field of a job; also a ``TypeError``."""


class NoCommand(TenbinError, TypeError):
    """A command is no list of words; also a ``TypeError``."""


def words_of(command: object) -> list[str]:
    """Return the words of a command; paths among them as text.

    Raises:
        NoCommand: it is a text, or has words that are no texts.
    """
    if isinstance(command, str | bytes):
        text = os.fsdecode(command)
        remedy = f"write {text.split()!r}, or for a shell ['sh', '-c', {text!r}]"
        raise NoCommand(f"command {text!r} is one text, and no list of words; {remedy}", 2)
    if not isinstance(command, Iterable):
        raise NoCommand(f"command {command!r} is no list of words; write for instance ['sleep', '10']", 2)
    words = [os.fspath(word) if isinstance(word, os.PathLike) else word for word in command]
    for place, word in enumerate(words):
        if not isinstance(word, str):
            raise NoCommand(f"command[{place}] is {word!r}, and no text; write str({word!r})", 2)
    return words


def check_fields(given: Iterable[str], of: str, known: frozenset[str] = FIELDS) -> None:
    """Refuse names that are no fields of a job.

    Args:
        of: the call that they were given to, for the message.

    Raises:
        UnknownField: one is not among ``known``; the text names near ones.
    """
    for name in given:
        if name not in known:
            near = get_close_matches(name, sorted(known), n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(sorted(known))}"
            raise UnknownField(f"{of} has no argument {name!r}; {hint}", 2)
