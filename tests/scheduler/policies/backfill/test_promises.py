"""Starts that conservative has promised, where it begins anew again and again."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from scheduler.model.events import Action, Event, Timer
from scheduler.model.jobs import Cluster, Job, Pool
from scheduler.policies.backfill.conservative import Conservative
from scheduler.policies.base import Policy, View
from scheduler.simulator.trace import Arrival
from tests.support.amounts import examples
from tests.support.scheduling.worlds import World, run

pytestmark = pytest.mark.computes


class Restarted(Policy):
    """Conservative, with a restart before every third decision; ``first_s``: the first reservations."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.chance = chance
        self.first_s: dict[int, float] = {}

    def begin(self, view: View) -> None:
        self.inner = Conservative()
        self.inner.begin(view)

    def decide(self, view: View, event: Event) -> Sequence[Action]:
        if view.upcoming is None and self.chance.random() < 1 / 3:
            self.begin(view)
            event = Timer(view.now)
        actions = self.inner.decide(view, event)
        for job in view.waiting.values() if view.upcoming is None else ():
            if (start_s := self.inner.reservations.expected_start(job)) is not None:  # else it starts now
                self.first_s.setdefault(job.id, start_s)
        return actions


def ends_early(chance: random.Random) -> World:
    """Return a world of jobs that mostly end before their limits, so that reservations move."""
    units, now, arrivals = chance.randint(2, 6), 0, []
    for number in range(1, 14):
        now += chance.choice((0, 0, 1, 2))
        limit_s = chance.randint(1, 12)
        arrivals.append(
            Arrival(Job(number, now, chance.randint(1, units), limit_s), chance.randint(1, limit_s))
        )
    return World(Cluster((Pool("node", units),)), tuple(arrivals))


def test_promises_survive_restarts() -> None:
    """Lined up in the order of the queue, a job is late in every twentieth of these worlds."""
    for seed in range(examples(400)):
        chance = random.Random(seed)
        policy = Restarted(chance)
        outcomes, _ = run(policy, ends_early(chance))
        late = [o.job.id for o in outcomes if o.start_s > policy.first_s.get(o.job.id, o.start_s)]
        assert not late, seed
