"""First fit: whoever fits starts.

Algorithm: at every change the waiting jobs are looked at in the order of their submission, and each that fits
in the units still free starts.
Guarantee: no job waits while it fits. None for large jobs: small ones may pass them without end.
Cost: O(log n) an event and a start in the length of the queue.
Source: the list scheduling of Graham, SIAM J. Appl. Math. 17(2), 1969, with jobs that need several units;
here as the other end of the scale to fcfs.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.actions import Action, Start
from scheduler.events import Event, Failed, Submitted
from scheduler.lines import FirstFitLine
from scheduler.model import Job, counted
from scheduler.policies.easy import only_counted_pool
from scheduler.policy import Policy, Reason, View, units


class FirstFit(Policy):
    """First fit on one counted pool."""

    promises = frozenset({"conserving"})
    suits = frozenset({"counted"})

    def begin(self, view: View) -> None:
        self._pool = only_counted_pool(view, "first-fit")
        self._line = FirstFitLine(self._pool)
        for job in view.waiting.values():
            self._line.add(job)

    def decide(self, view: View, event: Event) -> Sequence[Action]:
        if isinstance(event, Submitted):
            self._line.add(event.job)
        elif isinstance(event, Failed):
            self._line.add_first(event.job)
        if view.upcoming is not None:
            return ()
        chosen = self._line.choose(view.now, view.free[self._pool], view.in_service[self._pool])
        return [Start(job.id, counted(self._pool, job.units)) for job in chosen]

    def why(self, job: Job, view: View) -> Reason:
        free = view.free[self._pool]
        return Reason(f"waits for {units(job)}; {free} free, and any smaller job may pass it meanwhile")
