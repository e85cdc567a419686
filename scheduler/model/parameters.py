"""Parameters given as ``k=v,k=v`` become the fields of a dataclass; unknown names get near misses."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache
from typing import Any, TypeVar

from profiles.errors import BadInput

P = TypeVar("P")


def near_misses(name: str, known: Iterable[str]) -> str:
    """Ask whether one of the known names that are like an unknown one was meant; "" if none is."""
    near = get_close_matches(name, sorted(known), n=3)
    return f"did you mean {' or '.join(near)}?" if near else ""


def unknown(what: str, name: str, known: Iterable[str], listed: str = "") -> BadInput:
    """Make the error for an unknown name; it lists near misses and all known names, of many ``listed``."""
    names = sorted(known)
    remedy = f"{near_misses(name, names)} there are: {listed or ', '.join(names) or 'none'}".lstrip()
    return BadInput(f"unknown {what} {name!r}", remedy)


def split(text: str) -> tuple[str, dict[str, str]]:
    """Split ``"name,k=v,k=v"`` into name and pairs.

    Raises:
        BadInput: a part is not ``k=v``, or a key comes twice.
    """
    name, *parts = text.split(",")
    pairs: dict[str, str] = {}
    for part in parts:
        key, sign, value = part.partition("=")
        key = key.strip().replace("-", "_")
        if not sign or not key:
            raise BadInput(f"{text!r}: {part!r} is not of the form name=value", "write name,k=v,k=v")
        if key in pairs:
            raise BadInput(f"{text!r}: {key} is given twice", "give it once")
        pairs[key] = value.strip()
    return name.strip(), pairs


def fill(kind: type[P], given: dict[str, str], what: str) -> P:
    """Make an instance of the dataclass ``kind`` from ``given`` fields; the others keep their defaults.

    Raises:
        BadInput: an unknown name, or a value that is not of the field's type.
    """
    hints = _hints(kind)  # type: ignore[arg-type]
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for name, text in given.items():
        if name not in names:
            raise unknown(f"parameter of {what}", name, names)
        values[name] = _value(hints[name], text, f"{what}: {name}")
    try:
        return kind(**values)
    except ValueError as error:
        raise BadInput(f"{what}: {error}", "choose another value") from error
    except TypeError as error:
        raise BadInput(f"{what}: {error}", f"it has the parameters {', '.join(names)}") from error


@cache  # of every policy that is made anew
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _value(hint: Any, text: str, where: str) -> Any:
    """Read ``text`` as the field's type, or None where that is allowed."""
    from pydantic import TypeAdapter, ValidationError  # here, because policies are named without it

    none = text.lower() in ("none", "") and type(None) in typing.get_args(hint)
    try:
        return TypeAdapter(hint).validate_python(None if none else text)
    except ValidationError as error:
        remedy, _, _ = error.errors()[0]["msg"].replace("Input", "it").partition(", unable")
        raise BadInput(f"{where}={text!r}", remedy) from error
