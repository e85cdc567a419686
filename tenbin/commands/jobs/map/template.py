"""The command of ``tenbin map``, in which ``{}`` and its kin stand for arguments as GNU parallel has them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from profiles.errors import BadInput

REPLACEMENT = re.compile(r"\{(-?[0-9]+|)(\.|//|/\.|/|#|%|=.*?=|)\}", re.DOTALL)
KNOWN = "{}, {.}, {/}, {//}, {/.}, {#}, and with a number: {1}, {2/}"


def check(command: Sequence[str], sources: int) -> None:
    """Refuse a command that is none, or whose replacements cannot be made of so many arguments.

    Raises:
        BadInput: names the word.
    """
    if not command:
        raise BadInput("no command before the arguments", "tenbin map -- CMD {} ::: a b c")
    for word in command:
        for found in REPLACEMENT.finditer(word):
            place, form = found.groups()
            if form.startswith(("%", "=")) or (place and form == "#"):
                raise BadInput(f"{found[0]!r} is a replacement that tenbin does not have", f"use {KNOWN}")
            if place and not 1 <= abs(int(place)) <= sources:
                have = "1 source" if sources == 1 else f"{sources} sources"
                raise BadInput(f"{found[0]!r}: there is {have} of arguments", "count from {1}")


def expand(command: Sequence[str], arguments: Sequence[str], number: int) -> list[str]:
    """Put the arguments of a job into the command; a command without any replacement gets them at its end.

    Args:
        number: of the job, for ``{#}``, from 1 on.
    """
    if not any(REPLACEMENT.search(word) for word in command):
        command = [*command, "{}"]
    return [made for word in command for made in _words(word, arguments, number)]


def _words(word: str, arguments: Sequence[str], number: int) -> list[str]:
    """Replace in one word; of several arguments ``a{}b`` makes several words, from ``a`` to ``b``."""
    words, end = [""], 0
    for found in REPLACEMENT.finditer(word):
        first, *others = _values(found[1], found[2], arguments, number)
        words[-1] += word[end : found.start()] + first
        words += others
        end = found.end()
    words[-1] += word[end:]
    return words


def _values(place: str, form: str, arguments: Sequence[str], number: int) -> Sequence[str]:
    if form == "#":
        return [str(number)]
    chosen = arguments
    if place:
        chosen = [arguments[int(place) - (int(place) > 0)]]
    return [FORMS[form](argument) for argument in chosen]


def _without_extension(text: str) -> str:
    return re.sub(r"\.[^/.]*$", "", text, count=1)


def _base_name(text: str) -> str:
    return re.sub(r".*/", "", text, count=1)


def _folder(text: str) -> str:
    """Return the folder of a path as Perl's ``File::Basename::dirname`` does: of ``a/b/`` it is ``a``."""
    folder, name = _parse(text)
    if not name:
        folder, _ = _parse(_without_slashes(folder))
    return _without_slashes(folder)


def _parse(path: str) -> tuple[str, str]:
    folder, slash, name = path.rpartition("/")
    return (folder + slash) or "./", name


def _without_slashes(path: str) -> str:
    return path[:1] + path[1:].rstrip("/")


FORMS: dict[str, Callable[[str], str]] = {
    "": str,
    ".": _without_extension,
    "/": _base_name,
    "//": _folder,
    "/.": lambda text: _without_extension(_base_name(text)),
}
