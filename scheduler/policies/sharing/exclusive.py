"""Whole nodes for each job, first come, first served.

Algorithm, once for every instant at which something changed: jobs start in the order of their submission,
packed on whole nodes of their own, each as soon as there are enough. A job that does not fit holds up all
jobs behind it.
Guarantee: no job starts before one that was submitted earlier.
Cost: O(nodes) an instant.
Paper: the baseline of Konishi et al. (2008), their placement 4x2.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.model.events import Action, Event
from scheduler.model.interference import PACKED
from scheduler.model.jobs import Cluster, Job
from scheduler.policies.base import Policy, Reason, View, in_turn
from scheduler.policies.sharing.sharing import Places, SharedStart, pool_of, refusal


class Exclusive(Policy):
    """Whole nodes for each job."""

    promises = frozenset({"in-order", "no-delay"})
    suits = frozenset({"sharing"})

    def begin(self, view: View) -> None:
        self.pool = pool_of(view.cluster)

    def refuses(self, job: Job, cluster: Cluster) -> str:
        return refusal(job, cluster)

    def decide(self, view: View, event: Event) -> Sequence[Action]:
        if view.upcoming is not None or not view.waiting or not view.free[self.pool.name]:
            return ()
        actions: list[Action] = []
        places = Places(view, self.pool, 1)
        for job in view.waiting.values():
            start = places.take(SharedStart((job,), (PACKED,)))
            if not start:
                break
            actions += start
        return actions

    def why(self, job: Job, view: View) -> Reason:
        first = next(iter(view.waiting.values()))
        places = Places(view, self.pool, 1)
        whole = places.whole(first)
        assert whole is not None
        needs = f"{whole.nodes} whole node{'s' * (whole.nodes != 1)} ({len(places.empty)} empty)"
        if first.id != job.id:
            return Reason(f"waits for whole nodes{in_turn(job, view, needs=needs)}")
        free = len(places.empty)
        for state in sorted(view.running.values(), key=lambda state: state.expected_end_s):
            free += len(state.place.nodes)
            if free >= whole.nodes and state.expected_end_s < float("inf"):
                return Reason(f"waits for {needs}", max(state.expected_end_s, view.now))
        return Reason(f"waits for {needs}")
