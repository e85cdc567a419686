"""Records that are frozen for the type checker and cheap at run time.

A ``dataclass(frozen=True)`` sets each field by ``object.__setattr__``, at ten times the cost of a plain
assignment (4 us for a job, which has several records). mypy refuses assignments to these records as well.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(kind: type[T]) -> type[T]:
    """Make a dataclass with slots, equality and a hash of its fields, to which no code assigns."""
    return dataclass(slots=True, unsafe_hash=True)(kind)
