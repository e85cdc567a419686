"""First come, first served.

Algorithm, once for every instant at which something changed: jobs start in the order of their submission,
each as soon as its units are free, on the best class with enough (the order of ``Cluster.pools``); of
alternatives, in the shortest that fits. A job that does not fit holds up all jobs behind it.
Guarantee: no job starts before one that was submitted earlier.
Cost: O(1) an instant and a start.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.model.events import Action, Event, Start
from scheduler.model.jobs import Job, counted
from scheduler.policies.backfill import conservative, on_nodes
from scheduler.policies.backfill.availability import awaited
from scheduler.policies.backfill.multi_pool import ways_on
from scheduler.policies.backfill.on_nodes import Way
from scheduler.policies.base import Policy, Reason, View, amounts, in_turn, waits_for


class Fcfs(Policy):
    """First come, first served, on counted pools."""

    promises = frozenset({"in-order", "no-delay"})
    suits = frozenset({"counted", "classes", "nodes"})

    def begin(self, view: View) -> None:
        self._nodes = on_nodes.queue(view, on_nodes.NodeQueue, "fcfs")
        self.revises = self._nodes is None  # run times do not matter, but the queue keeps the jobs

    def decide(self, view: View, event: Event) -> Sequence[Action]:
        if self._nodes is not None:
            return self._nodes.decide(view, event)
        if view.upcoming is not None or not view.waiting:
            return ()
        actions: list[Action] = []
        left = dict(view.free)  # the view shows no action before it has been carried out
        for job in view.waiting.values():
            choice = self._choice(job, view, left)
            if choice is None:
                break
            pool, way = choice
            left[pool] -= way.units
            actions.append(Start(job.id, counted(pool, way.units, way.alternative)))
        return actions

    def why(self, job: Job, view: View) -> Reason:
        first = next(iter(view.waiting.values()))
        if self._nodes is not None:
            at, ends = conservative.awaited_in_order(job, view)
            if needs := on_nodes.needs(job, view, self._nodes.classes(job)):
                return Reason(needs + in_turn(job, view, ends), at)
            return Reason(f"there is room, but job {first.name} is first in the queue", at)
        at, ends = awaited(job, view) if len(view.cluster.pools) == 1 else (self._expected(job, view), [])
        turn = in_turn(job, view, ends, amounts(first.ways, view.cluster))
        return Reason(waits_for(job, view, job.ways) + turn, at)

    @staticmethod
    def _choice(job: Job, view: View, left: dict[str, int]) -> Way | None:
        """Choose the best class on which the job fits, and of its alternatives the shortest."""
        if job.alternatives:
            return next((at for at in ways_on(job, left) if at[1].units <= left[at[0]]), None)
        for pool in view.cluster.pools:
            if job.units <= left[pool.name] and job.runs_on(pool.name):
                return pool.name, job
        return None

    @staticmethod
    def _expected(job: Job, view: View) -> float | None:
        """Predict the start on one of several classes, of the first job only."""
        if next(iter(view.waiting)) != job.id:
            return None
        left = dict(view.free)
        for state in sorted(view.running.values(), key=lambda state: state.expected_end_s):
            if state.expected_end_s == float("inf"):
                break
            placement = state.place
            left[placement.pool] += placement.units
            if any(way.units <= left[pool] for pool, way in ways_on(job, (placement.pool,))):
                return max(state.expected_end_s, view.now)
        return None
