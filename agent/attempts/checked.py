"""Reading the files of an attempt as what they are: bytes that anybody may have written.

The job runs as the same user and knows its folder. Whatever lies there in a file's place, a directory, a
pipe, half of a file, other words or other types, is ``Broken`` with a sentence; nothing else is raised but
OSError, for a disk that does not answer now.
"""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Literal, NoReturn, TypeVar, cast, get_args, get_origin, get_type_hints

from profiles.errors import UserError
from profiles.files import read_plain

MOST_BYTES = 1 << 18
LATEST_S = 2.5e11  # a time or a duration: about the year 9900, which calendars still know
MOST = 1e18  # of any other number
MOST_INT = 2**31
# What a later look would not change, unless somebody mends it.
LASTING = {
    *(errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.EINVAL),
    *(errno.EFBIG, errno.ENAMETOOLONG),
}
T = TypeVar("T")


class Broken(UserError):
    """A file that cannot be taken for what it should be."""


def content(path: Path, most: int = MOST_BYTES, last: bool = False) -> bytes | None:
    """Read a plain file, None if there is none; ``last``: the end of a longer file.

    Raises:
        Broken: it is no plain file, is too long, or may not be read.
        OSError: its disk does not answer now.
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
    """The JSON object in a file, None if there is no file. Raises as ``content``."""
    found = content(path)
    if found is None:
        return None
    try:
        value = _DECODER.decode(found.decode())
    except (ValueError, RecursionError):
        raise Broken(f"{path.name} cannot be read: no JSON") from None
    if not isinstance(value, dict):
        raise Broken(f"{path.name} cannot be read: no JSON object")
    return value


def read(kind: type[T], path: Path) -> T | None:
    """The record in a file, None if there is no file. Raises as ``content``."""
    found = table(path)
    return None if found is None else record(kind, found, f"{path.name} cannot be read: ")


def text(path: Path, most: int = MOST_BYTES, last: bool = False) -> str | None:
    """As ``content``, in characters that every terminal can show."""
    found = content(path, most, last)
    return None if found is None else shown(found.decode(errors="replace"))


def shown(text: str) -> str:
    """Text with "?" for what is neither printable nor white space."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


def record(kind: type[T], found: Mapping[str, Any], where: str = "") -> T:
    """A record of that kind, with the checked values of its fields; other fields are left out.

    Args:
        where: what a complaint begins with, before the name of the field.

    Raises:
        Broken: a field is missing, or has no such value.
    """
    values, hints = {}, _hints(cast(Any, kind))
    for one in fields(cast(Any, kind)):
        if one.name in found:
            values[one.name] = _value(hints[one.name], found[one.name], where + one.name)
        elif one.default is MISSING and one.default_factory is MISSING:
            raise Broken(f"{where}{one.name} is missing")
    return kind(**values)


def rename(path: Path, name: Path) -> None:
    """Have a file lie under that name, whatever lies there."""
    try:
        path.replace(name)
    except IsADirectoryError:
        clear(name)
        path.replace(name)


def clear(path: Path) -> None:
    """Have nothing lie there: what does is kept under another name."""
    with suppress(FileNotFoundError):
        path.rename(path.with_name(f".{path.name}.{time.time_ns()}"))


def _value(kind: Any, value: Any, what: str) -> Any:
    """The value of a field, if it is of that kind."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is UnionType:
        return None if value is None else _value(inner[0], value, what)
    if origin is tuple and isinstance(value, list):
        return tuple(_value(inner[0], one, what) for one in value)
    if is_dataclass(kind) and isinstance(value, dict):
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
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _no_number(name: str) -> NoReturn:
    raise ValueError(name)


_DECODER = json.JSONDecoder(parse_constant=_no_number)
