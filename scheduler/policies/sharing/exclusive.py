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
from scheduler.policies.sharing.sharing import Places, SharedStart, pools_of, refusal, room_from


class Exclusive(Policy):
    """Whole nodes for each job."""

    promises = frozenset({"in-order", "no-delay"})
    suits = frozenset({"sharing"})

    def begin(self, view: View) -> None:
        self.pools = pools_of(view.cluster)

    def refuses(self, job: Job, cluster: Cluster) -> str:
        return refusal(job, cluster)

    def decide(self, view: View, event: Event) -> Sequence[Action]:
        if view.upcoming is not None or not view.waiting or not any(view.free.values()):
            return ()
        actions: list[Action] = []
        every = [Places(view, pool, 1) for pool in self.pools]
        for job in view.waiting.values():
            able = (places for places in every if places.whole(job))
            start = next(filter(None, (places.take(SharedStart((job,), (PACKED,))) for places in able)), None)
            if start is None:
                break
            actions += start
        return actions

    def why(self, job: Job, view: View) -> Reason:
        first = next(iter(view.waiting.values()))
        needs, at = list[str](), list[float]()
        for places in (Places(view, pool, 1) for pool in self.pools):
            if whole := places.whole(first):
                nodes = f"{whole.nodes} whole node{'s' * (whole.nodes != 1)}{places.of}"
                needs.append(f"{nodes} ({len(places.empty)} empty)")
                if (from_s := room_from(whole, None, view, places.pool)) is not None:
                    at.append(from_s)
        if first.id != job.id:
            return Reason(f"waits for whole nodes{in_turn(job, view, needs=' or '.join(needs))}")
        return Reason(f"waits for {' or '.join(needs)}", min(at, default=None))
