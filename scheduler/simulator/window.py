"""The counted window of a simulation: jobs submitted before or after are simulated, but in no figure.

A simulation begins with an empty machine and ends with one that drains, and the log's machine did neither.
So jobs of a warm-up and of a cool-down are left out of the figures (Frachtenberg and Feitelson, "Pitfalls in
Parallel Job Scheduling Evaluation", JSSPP 2005).
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from profiles.errors import BadInput
from scheduler.simulator.trace import Arrival


class Window(NamedTuple):
    """The time from ``from_s`` to ``to_s`` (exclusive); jobs submitted in it count."""

    from_s: float
    to_s: float = math.inf

    def counts(self, submit_s: float) -> bool:
        """Tell whether a job submitted then counts."""
        return self.from_s <= submit_s < self.to_s

    def overlap_s(self, start_s: float, end_s: float) -> float:
        """Return how long the interval lies in the window, in seconds."""
        return max(0.0, min(end_s, self.to_s) - max(start_s, self.from_s))


@dataclass(frozen=True)
class Cut:
    """A part at the beginning or the end of a workload.

    Attributes:
        seconds: a time from the first submission, or to the last. jobs: so many. share: of all jobs, 0 to 1.
    """

    seconds: float = 0.0
    jobs: int = 0
    share: float = 0.0

    @property
    def is_time(self) -> bool:
        """True if the cut does not depend on the number of jobs."""
        return not self.jobs and not self.share

    def count(self, jobs: int) -> int:
        """Return how many of so many jobs are cut."""
        return self.jobs + int(self.share * jobs + 0.5)


NO_CUT = Cut()


def submissions(arrivals: Iterable[Arrival]) -> array[float]:
    """List the times of submission, ascending, in seconds (8 bytes a job)."""
    return array("d", sorted(arrival.job.submit_s for arrival in arrivals))


def counted_window(submitted_s: array[float], warm_up: Cut, cool_down: Cut) -> Window:
    """Return the window between warm-up and cool-down.

    After a warm-up of n jobs the window begins with the submission of job n + 1. Jobs submitted at that very
    time count too, and likewise at the cool-down: jobs submitted with its first one do not count.

    Args:
        submitted_s: times of submission of all jobs, ascending.

    Raises:
        BadInput: no job is left to be counted.
    """
    n = len(submitted_s)
    if not n:
        return Window(0.0)
    skipped, left = warm_up.count(n), n - cool_down.count(n)
    if skipped < left:
        first = max(submitted_s[skipped], submitted_s[0] + warm_up.seconds)
        last = math.inf if left == n else submitted_s[left]
        if cool_down.seconds:
            last = min(last, submitted_s[-1] - cool_down.seconds)
        window = Window(first, last)
        if any(map(window.counts, submitted_s)):
            return window
    raise BadInput(f"--warm-up and --cool-down leave none of {n:,} jobs to be counted", "make them shorter")
