"""Readers of the files of an attempt, which the job itself may have damaged, because its user owns them.

A directory or pipe in a file's place, half of a file, and wrong words or types raise ``Broken`` with a
sentence. OSError is raised only for a disk that does not answer now.
"""

from __future__ import annotations

import errno
import json
import math
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Literal, NamedTuple, NoReturn, TypeVar, cast, get_args, get_origin, get_type_hints

from profiles.errors import UserError
from profiles.files.safe_files import read_plain

MOST_BYTES = 1 << 18
LATEST_S = 2.5e11  # the latest time, or longest duration: about the year 9900, which calendars still know
MOST = 1e18  # the largest of any other number
MOST_INT = 2**31
# Errors that a later attempt to read would meet again.
LASTING = {
    *(errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.EINVAL),
    *(errno.EFBIG, errno.ENAMETOOLONG),
}
T = TypeVar("T")


class Broken(UserError):
    """A file that does not hold what it should."""


def content(path: Path, most: int = MOST_BYTES, last: bool = False) -> bytes | None:
    """Read a plain file, None if there is none; with ``last`` the end of a longer file.

    Raises:
        Broken: the file is no plain file, is too long, or may not be read.
        OSError: the disk does not answer now.
    """
    try:
        return read_plain(path, most, last)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in LASTING:
            raise Broken(f"{path.name} cannot be read: {error.strerror}") from None
        raise


def table(path: Path) -> dict[str, Any] | None:
    """Read the JSON object in a file, None if there is no file. Raises as ``content``."""
    raw = content(path)
    if raw is None:
        return None
    try:
        value = _DECODER.decode(raw.decode())
    except (ValueError, RecursionError):
        raise Broken(f"{path.name} cannot be read: no JSON") from None
    if not isinstance(value, dict):
        raise Broken(f"{path.name} cannot be read: no JSON object")
    return value


def read(kind: type[T], path: Path) -> T | None:
    """Read the record in a file, None if there is no file. Raises as ``content``."""
    values = table(path)
    return None if values is None else record(kind, values, f"{path.name} cannot be read: ")


def text(path: Path, most: int = MOST_BYTES, last: bool = False) -> str | None:
    """Read as ``content``, in characters that every terminal can show."""
    raw = content(path, most, last)
    return None if raw is None else shown(raw.decode(errors="replace"))


def shown(text: str) -> str:
    """Replace by "?" what is neither printable nor white space."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


def record(kind: type[T], given: Mapping[str, Any], where: str = "") -> T:
    """Make a record of checked values; fields that the record does not have are left out.

    Args:
        where: the beginning of a complaint, before the name of the field.

    Raises:
        Broken: a field is missing, or its value is of another type.
    """
    values = {}
    for name, hint, needed in _members(cast(Any, kind)):
        if name in given:
            values[name] = _value(hint, given[name], where + name)
        elif needed:
            raise Broken(f"{where}{name} is missing")
    return kind(**values)


def rename(path: Path, name: Path) -> None:
    """Rename a file, also onto a folder."""
    try:
        path.replace(name)
    except IsADirectoryError:
        clear(name)
        path.replace(name)


def clear(path: Path) -> None:
    """Move away what lies there, to another name."""
    with suppress(FileNotFoundError):
        path.rename(path.with_name(f".{path.name}.{time.time_ns()}"))


def _value(kind: Any, value: Any, what: str) -> Any:
    """Check the value of a field."""
    origin, inner, is_record = _form(kind)
    if origin is UnionType:
        return None if value is None else _value(inner[0], value, what)
    if origin is tuple and isinstance(value, list):
        return tuple(_value(inner[0], item, what) for item in value)
    if is_record and isinstance(value, dict):
        return record(cast(Any, kind), value, f"{what}.")
    if origin is Literal and isinstance(value, str):
        fits = value in inner
    elif kind in (int, float) and isinstance(value, int if kind is int else int | float):
        most = MOST_INT if kind is int else LATEST_S if what.endswith("_s") else MOST
        fits = not isinstance(value, bool) and 0 <= value < most
    else:
        fits = kind in (bool, str) and isinstance(value, kind)
    if not fits:
        raise Broken(f"{what} is {json.dumps(value)[:40]}")
    return shown(value) if kind is str else value


@cache
def _members(kind: Any) -> list[tuple[str, Any, bool]]:
    """Return name and type of each field of a record, and whether it has no default."""
    hints = get_type_hints(kind)
    return [
        (member.name, hints[member.name], member.default is MISSING and member.default_factory is MISSING)
        for member in fields(kind)
    ]


@cache
def _form(kind: Any) -> tuple[Any, tuple[Any, ...], bool]:
    """Return what a type is made of, and whether it is a record."""
    return get_origin(kind), get_args(kind), is_dataclass(kind)


def _no_number(name: str) -> NoReturn:
    raise ValueError(name)


_DECODER = json.JSONDecoder(parse_constant=_no_number)


# -- phases of programs ------------------------------------------------------------------------------------
#
# The phases that a program with ``tenbin.Checkpoint`` notes in its job's folder.
#
# ``checkpoint.phases.jsonl`` has a line for each, an object with these fields:
#
#     phase   context, compile: opening the device, building kernels; restore: reading the checkpoint back;
#             ready: from now on it computes; pace: mean time between its safe points;
#             drain, save: emptying the queue, writing the checkpoint
#     time_s  duration
#     bytes   size of what is saved or restored (ready: of what a later checkpoint will hold)
#     program, device  their names
#     at_s    end, in seconds since 1970


PHASES = "checkpoint.phases.jsonl"
MOST_PHASES = 65_536  # of the end of the file: a program could write anything


class Phase(NamedTuple):
    """One line of the file."""

    phase: str
    time_s: float
    bytes: float
    at_s: float
    program: str


def read_phases(folder: Path) -> list[Phase]:
    """Read the last phases, in their order; damaged lines are left out."""
    phases = []
    end = b""
    with suppress(OSError):
        end = read_plain(folder / PHASES, MOST_PHASES, last=True)
    for line in end.split(b"\n"):
        with suppress(ValueError, KeyError, TypeError, OverflowError, RecursionError):
            row = json.loads(line)
            took, size, at = (float(row[name]) for name in ("time_s", "bytes", "at_s"))
            if all(math.isfinite(number) and number >= 0 for number in (took, size, at)):
                words = (shown(str(row.get(name, ""))) for name in ("phase", "program"))
                phases.append(Phase(next(words), took, size, at, next(words)))
    return phases
