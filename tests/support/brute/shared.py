"""The best schedule of a few jobs on two shared nodes, found by trying all that start jobs when one ends.

A job is its program and its run time on whole nodes; it fills one node alone, or half of both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations

from scheduler.model.interference import BESIDE, FAR, NEAR, PACKED, SPREAD, Slowdowns

Job = tuple[str, float]
Running = tuple[tuple[str, str, float], ...]  # program, binding, work that is left


def least_sum_of_ends(jobs: tuple[Job, ...], slowdowns: Slowdowns) -> float:
    """Return the least sum of ends of jobs that are all there at 0."""

    def search(waiting: tuple[Job, ...], running: Running, bound: float) -> float:
        """Return the least sum of what is still to come; infinite, if it is not below the bound."""
        if not waiting and not running:
            return 0.0
        best = bound
        for left, on in starts(waiting, running):
            programs = [program for program, _, _ in on]
            slowed = [
                1.0
                if binding == PACKED
                else slowdowns.factor(program, binding, programs[:i] + programs[i + 1 :])
                for i, (program, binding, _) in enumerate(on)
            ]
            step = min(work * slow for (_, _, work), slow in zip(on, slowed, strict=True))
            after = tuple(
                (program, binding, work - step / slow)
                for (program, binding, work), slow in zip(on, slowed, strict=True)
                if work * slow > step + 1e-9
            )
            cost = step * (len(left) + len(on))
            if cost < best:
                best = min(best, cost + search(left, after, best - cost))
        return best

    return search(jobs, (), math.inf)


def starts(waiting: tuple[Job, ...], running: Running) -> Iterator[tuple[tuple[Job, ...], Running]]:
    """Yield each way to start some of the jobs, or none, as those that wait then and those that run."""
    if running:
        yield waiting, running
    if len(running) == 2 or not waiting:
        return
    for one in range(len(waiting)):
        left, job = waiting[:one] + waiting[one + 1 :], waiting[one]
        ways = [BESIDE.get(running[0][1], PACKED)] if running else [PACKED, SPREAD, NEAR, FAR]
        for way in ways:
            yield left, (*running, (job[0], way, job[1]))
    if not running:
        for pair in combinations(range(len(waiting)), 2):
            left = tuple(job for i, job in enumerate(waiting) if i not in pair)
            (a, a_s), (b, b_s) = (waiting[i] for i in pair)
            for ways in ((PACKED, PACKED), (SPREAD, SPREAD), (NEAR, FAR), (FAR, NEAR)):
                yield left, ((a, ways[0], a_s), (b, ways[1], b_s))
