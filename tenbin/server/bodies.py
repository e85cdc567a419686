"""Bodies of requests about many jobs, and of their answers."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from scheduler.jobs.specs import Name, Priority

LARGEST = (1 << 63) - 1  # what SQLite counts with
# Of the bodies of requests: true and "3" are no numbers. In a query all values are text.
BODY = ConfigDict(extra="forbid", strict=True)
LONGEST_WAIT_S = 300.0
MOST_IDS = 100_000  # of one request; each is looked up before anything else goes on
JobIds = Annotated[list[int], Field(max_length=MOST_IDS)]


class Ids(BaseModel):
    """Jobs by number."""

    model_config = BODY
    ids: JobIds


class Wait(Ids):
    """Jobs, and the longest time to wait for the first of them to end, or all."""

    wait_s: Annotated[float, Field(ge=0, le=LONGEST_WAIT_S)] = 0.0
    all: bool = False


class Change(Ids):
    """Jobs to change, all or none.

    ``where_possible``: more jobs. Those that have ended, or that the request does not apply to, are left out;
    the answer names each with the reason.
    """

    ids: JobIds = []
    where_possible: JobIds = []


class Move(Change):
    """Jobs to move, and the class of device or node."""

    to: Name


class NewPriority(Change):
    """Jobs, and their priority from now on."""

    priority: Priority


class Selectors(BaseModel):
    """Words that select jobs: ``7``, ``7[3]``, ``7[1,5-9]``, ``3-9``, ``last``, ``all``.

    ``members``: give the members of an array in place of its number.
    """

    model_config = BODY
    words: Annotated[list[Annotated[str, Field(max_length=1_000_000)]], Field(max_length=MOST_IDS)]
    members: bool = False


class Changed(BaseModel):
    """The jobs that were changed, and why others of ``where_possible`` were not.

    ``reasons``: the same by the reason, with the names of the jobs: ``{"has ended (done)": ["3", "7[2]"]}``.
    """

    ids: list[int]
    left_out: dict[int, str]
    reasons: dict[str, list[str]]


class Reprioritized(Changed):
    """The jobs that were given another priority; ``before``: their numbers by the priority they had."""

    before: dict[int, list[int]]
