"""Jobs as lists show them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)  # frozen it takes several times as long: tests/benchmarks/jobs/test_long_queue.py
class JobRow:
    """One job, or an array as one; times in seconds since 1970.

    Attributes:
        slurm: number of the job of Slurm that it is.
        cores: how many it has, or asks for before it runs.
        place: the pool or device of its last attempt.
    """

    id: int
    name: str
    array: int | None
    array_index: int | None
    stage: str
    slurm: str | None
    user: str
    held_by_user: bool
    cores: int
    priority: int
    place: str | None
    submit_s: float
    start_s: float | None
    end_s: float | None
    time_limit_s: float | None
    code: int | None
    trouble: str

    @property
    def label(self) -> str:
        """The job as people name it: ``12``, or ``7[3]`` for the member 3 of array 7."""
        member = self.array is not None and self.array_index is not None
        return f"{self.array}[{self.array_index}]" if member else str(self.id)


@dataclass(slots=True)
class ArrayRow(JobRow):
    """An array as one row.

    Attributes:
        members: how many jobs it has. stages: how many of them are in each stage.
    """

    members: int
    stages: Mapping[str, int]


def as_json(row: JobRow) -> dict[str, Any]:
    """Return the fields of a row by name."""
    return {name: getattr(row, name) for name in row.__dataclass_fields__}
