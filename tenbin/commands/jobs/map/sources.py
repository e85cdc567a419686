"""The arguments of ``tenbin map``: words after ``:::``, lines of files after ``::::``, all combinations."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import islice, product
from pathlib import Path

from profiles.errors import BadInput

SEPARATORS = (":::", "::::", ":::+", "::::+")
STANDARD_INPUT = "-"
MOST = 100_000  # members of an array
LARGEST = 64 << 20  # bytes of a file
EXAMPLE = "tenbin map -- CMD {} ::: a b c"

Arguments = tuple[str, ...]


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split words into the command, and the sources of arguments that follow."""
    first = next((place for place, word in enumerate(words) if word in SEPARATORS), len(words))
    return list(words[:first]), list(words[first:])


def combinations(words: Sequence[str]) -> list[Arguments]:
    """Return the arguments of each job: all combinations of the sources, of which the last varies first.

    A source with ``+`` is linked to the source before: the first of one goes with the first of the other, and
    the shorter source ends both. Without any source the lines of standard input are the arguments.

    Raises:
        BadInput: a source is empty or cannot be read, or there are too many combinations.
    """
    groups: list[list[Arguments]] = []
    for separator, values in _sources(words):
        if not separator.endswith("+"):
            groups.append([(value,) for value in values])
        elif not groups:
            raise BadInput(f"{separator} has no source before it to be linked to", f"write {separator[:-1]}")
        else:
            groups[-1] = [(*some, value) for some, value in zip(groups[-1], values, strict=False)]
    found = [sum(parts, ()) for parts in islice(product(*groups), MOST + 1)]
    if len(found) > MOST:
        raise BadInput(f"more than {MOST:,} combinations of arguments", "submit them in parts")
    return found


def _sources(words: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Return each source's separator and values; each file after ``::::`` is a source of its own."""
    if not words:
        if sys.stdin is None or sys.stdin.isatty():
            raise BadInput("no arguments for the command", EXAMPLE)
        return [(":::", _lines(STANDARD_INPUT))]
    found: list[tuple[str, list[str]]] = []
    for word in words:
        if word in SEPARATORS:
            found.append((word, []))
        else:
            found[-1][1].append(word)
    sources: list[tuple[str, list[str]]] = []
    for separator, values in found:
        if not values:
            what = "file" if separator.startswith("::::") else "argument"
            raise BadInput(f"{separator} without {what}s", EXAMPLE)
        if separator.startswith("::::"):
            sources += [(separator, _lines(name)) for name in values]
        else:
            sources.append((separator, values))
    return sources


def _lines(name: str) -> list[str]:
    """Read the lines of a file, or of standard input (``-``), whatever their bytes."""
    said = "standard input" if name == STANDARD_INPUT else name
    try:
        with Path(name).open("rb") if name != STANDARD_INPUT else nullcontext(sys.stdin.buffer) as file:
            content = file.read(LARGEST + 1)
    except OSError as error:
        raise BadInput(f"{said}: {error.strerror}", "name a file with an argument on each line") from error
    if len(content) > LARGEST:
        raise BadInput(f"{said} has more than {LARGEST >> 20} MiB", "submit it in parts")
    if not content:
        raise BadInput(f"{said} has no arguments", "write an argument on each line")
    if b"\0" in content:
        raise BadInput(f"{said} contains a zero byte", "write an argument on each line")
    return [os.fsdecode(line) for line in content.removesuffix(b"\n").split(b"\n")]
