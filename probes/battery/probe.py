"""The slices of a check, interleaved: a second in which the machine is slow falls on all quantities alike.

A full check has ``FULL_ROUNDS`` rounds, a quick one has one. In a round all slices take turns, in a new
random order each time, until the round's time is up.

Samples, one row a reading:

- ``quantity``, ``labels`` (JSON), ``unit``, ``value``: as in the models of a profile
- ``part``: round of the check, from 0
- ``cpu_ratio``: share of its time in which the slice had its processors, of several cores the least; null: it
  sleeps while it waits
- ``cpu_value``: the value by the time in which the slice had its processors
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from math import inf

from probes.battery.slices import Slice, core_slices, disk_slices, memory_slices, message_slices
from probes.order_process import ProcessLost
from probes.run import Run
from probes.visits import Point, Visits
from profiles.errors import UserError

FULL_ROUNDS = 4
LATE_S = 3.0  # after the end of a round, until which a slice that was not taken yet is begun
FAILURES = (UserError, OSError, ProcessLost)


def measure(run: Run) -> None:
    """Repeat all slices until the budget is used up, and for half of it however long preparing takes."""
    with ExitStack() as stack:
        slices = _prepare(run, stack)
        rounds = 1 if run.settings.quick else FULL_ROUNDS
        all_end_s = time.monotonic() + max(run.left_s(), run.settings.budget_s / 2)
        for part in range(rounds):
            now_s = time.monotonic()
            _round(run, slices, part, now_s + (all_end_s - now_s) / (rounds - part))


def _prepare(run: Run, stack: ExitStack) -> list[Slice]:
    """Prepare every part; one that cannot be had here costs its own slices only."""
    parts: dict[str, Callable[[], list[Slice]]] = {
        "memory": lambda: stack.enter_context(memory_slices(run)),
        "arithmetic": lambda: stack.enter_context(core_slices(run)),
        "messages": lambda: message_slices(run),
    }
    for folder in run.settings.storage[:1]:
        parts[f"storage {folder}"] = lambda: stack.enter_context(disk_slices(run, folder))  # noqa: B023
    found: list[Slice] = []
    for what, make in parts.items():
        run.progress(f"preparing {what}")
        try:
            found += make()
        except FAILURES as error:
            _tell(run, what, error)
    return found


def _tell(run: Run, what: str, error: Exception) -> None:
    remedy = error.remedy if isinstance(error, UserError) else ""
    run.absent(what, error.what if isinstance(error, UserError) else str(error), remedy)


def _round(run: Run, slices: list[Slice], part: int, end_s: float) -> None:
    """Take slices in turns until ``end_s``; each at least once, if it is not too late for that.

    A slice that fails is not taken again, in later rounds neither.
    """
    points = [
        Point(piece, least=0, most=inf if piece.each_round is None else piece.each_round) for piece in slices
    ]
    for visit in Visits(points, run.rng, lambda: end_s - time.monotonic(), late_s=LATE_S):
        run.progress(visit.key.title)
        try:
            _take(run, visit.key, part)
        except FAILURES as error:
            _tell(run, visit.key.title, error)
            slices.remove(visit.key)
            points.remove(visit)


def _take(run: Run, piece: Slice, part: int) -> None:
    """Record the readings of one slice."""
    for reading in piece.take():
        run.sample(
            part=part,
            quantity=reading.quantity,
            labels=json.dumps(dict(reading.labels)),
            value=reading.value,
            unit=reading.unit,
            cpu_ratio=None if reading.cpu_ratio is None else round(reading.cpu_ratio, 4),
            cpu_value=reading.value if reading.cpu_value is None else reading.cpu_value,
        )
