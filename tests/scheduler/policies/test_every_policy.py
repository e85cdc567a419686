"""Rules for every policy of the registry; a new policy is tested here without a further line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.model.events import Action, Event, Promise, Repartition, WakeAt
from scheduler.model.speeds import CapTable, TabulatedPower
from scheduler.policies import registry
from scheduler.policies.base import Policy, View
from scheduler.policies.registry import POLICIES, create
from tests.support.amounts import SMALLER, examples
from tests.support.scheduling.schedule_audit import audit, check_conserving, check_in_order, starts
from tests.support.scheduling.worlds import WORLDS, World, run

CASES = [(name, kind) for name, entry in POLICIES.items() for kind in sorted(entry.load().suits)]
QUICK = settings(max_examples=examples(60))


def quick(name: str, seed: int = 0) -> Policy:
    """Create the policy, with smaller parameters where the defaults take long."""
    return create(SMALLER.get(name, name), seed)


@pytest.mark.parametrize("name", POLICIES)
def test_class_is_complete(name: str) -> None:
    kind = POLICIES[name].load()
    assert kind.suits and kind.suits <= WORLDS.keys()
    assert kind.promises <= {"in-order", "no-delay", "conserving"}
    assert (
        kind.__module__.startswith("scheduler.policies.")
        and __import__(kind.__module__, fromlist=["x"]).__doc__
    )
    assert POLICIES[name].summary
    create(name).Parameters()
    assert registry.read_outline(kind.__module__, kind.__name__) == registry.outline_of(kind)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_nothing_over_committed_no_job_lost_no_promise_broken_same_seed_same_schedule(
    name: str, kind: str
) -> None:
    """Whether a policy is asked for reasons or not.

    An instant is decided when all of it has been told. Else the order in which ends of one instant happen to
    be told decides, or a job that is about to go.
    """
    promises = POLICIES[name].load().promises

    @QUICK
    @given(WORLDS[kind]())
    def check(world: World) -> None:
        policy = quick(name, seed=3)
        decide = policy.decide

        def watched(view: View, event: Event) -> Sequence[Action]:
            actions, more = decide(view, event), view.upcoming is not None
            assert not more or all(isinstance(action, WakeAt | Repartition | Promise) for action in actions)
            return actions

        def ask(view: View) -> None:
            if view.upcoming is None:
                for job in view.waiting.values():
                    sentence, expected, *_ = policy.why(job, view)
                    assert len(sentence) > 10 and "\n" not in sentence
                    assert expected is None or expected >= view.now

        policy.decide = watched  # type: ignore[method-assign]
        outcomes, summary = run(policy, world, ask)
        audit(world, outcomes, sum(summary.refused.values()))
        if "in-order" in promises:
            check_in_order(outcomes)
        if "conserving" in promises:
            check_conserving(world, outcomes)
        again, _ = run(quick(name, seed=3), world)
        assert again == outcomes

    check()


@pytest.mark.parametrize("name", [name for name, kind in CASES if kind == "power"])
def test_who_states_the_watts_of_its_cap_fares_as_who_states_none(name: str) -> None:
    @QUICK
    @given(WORLDS["power"]())
    def check(world: World) -> None:
        pool = world.cluster.pools[0]
        plain = TabulatedPower(CapTable(pool.caps_w, pool.caps_w))
        segments = []
        for power in (None, plain):
            arrivals = tuple(a._replace(job=replace(a.job, power=power)) for a in world.arrivals)
            outcomes, _ = run(quick(name), replace(world, arrivals=arrivals))
            segments.append([(o.job.id, o.segments, o.energy_j) for o in outcomes])
        assert segments[0] == segments[1]

    check()


@pytest.mark.parametrize(
    ("name", "kind"), [case for case in CASES if "no-delay" in POLICIES[case[0]].load().promises]
)
def test_later_jobs_change_nothing(name: str, kind: str) -> None:
    @QUICK
    @given(WORLDS[kind](exact=True), st.data())
    def check(world: World, data: st.DataObject) -> None:
        kept = data.draw(st.integers(1, len(world.arrivals)))
        part = World(world.cluster, world.arrivals[:kept], world.settings)
        whole, few = starts(run(quick(name), world)[0]), starts(run(quick(name), part)[0])
        assert few == {job: start for job, start in whole.items() if job in few}

    check()
