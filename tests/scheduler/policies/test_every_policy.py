"""Rules for every policy of the registry; a new policy is tested here without a further line."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.model.events import Action, Event, Repartition, WakeAt
from scheduler.policies.base import Policy, View
from scheduler.policies.registry import POLICIES, create
from scheduler.simulator.trace import Outcome
from tests.support.amounts import examples
from tests.support.scheduling.schedule_audit import audit, check_conserving, check_in_order, starts
from tests.support.scheduling.worlds import WORLDS, World, run

CASES = [(name, kind) for name, entry in POLICIES.items() for kind in sorted(entry.load().suits)]
SMALLER = {"parm-ga": "parm-ga,population=20,parents=4,generations=4"}  # as it stands, a search takes 0.3 s
QUICK = settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
    database=None,
)


def quick(name: str, seed: int = 0) -> Policy:
    """Create the policy, with smaller parameters where the defaults take long."""
    return create(SMALLER.get(name, name), seed)


def promising(promise: str) -> list[tuple[str, str]]:
    """Return the cases of the policies that make the promise."""
    return [(name, kind) for name, kind in CASES if promise in POLICIES[name].load().promises]


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


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_nothing_over_committed_no_job_lost_same_seed_same_schedule(name: str, kind: str) -> None:
    @QUICK
    @given(WORLDS[kind]())
    def check(world: World) -> None:
        outcomes, summary = run(quick(name, seed=3), world)
        audit(world, outcomes, sum(summary.refused.values()))
        again, _ = run(quick(name, seed=3), world)
        assert again == outcomes

    check()


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_every_waiting_job_gets_a_reason(name: str, kind: str) -> None:
    @QUICK
    @given(WORLDS[kind](most=5))
    def check(world: World) -> None:
        policy = quick(name)

        def ask(view: View) -> None:
            if view.upcoming is None:
                for job in view.waiting.values():
                    sentence, expected = policy.why(job, view)
                    assert len(sentence) > 10 and "\n" not in sentence
                    assert expected is None or expected >= view.now

        run(policy, world, ask)

    check()


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_an_instant_is_decided_when_all_of_it_has_been_told(name: str, kind: str) -> None:
    """Else the order in which ends of one instant happen to be told decides, or a job that is about to go."""

    @QUICK
    @given(WORLDS[kind]())
    def check(world: World) -> None:
        policy = quick(name)
        decide = policy.decide

        def watched(view: View, event: Event) -> Sequence[Action]:
            actions, more = decide(view, event), view.upcoming is not None
            assert not more or all(isinstance(action, WakeAt | Repartition) for action in actions)
            return actions

        policy.decide = watched  # type: ignore[method-assign]
        run(policy, world)

    check()


@pytest.mark.parametrize(("name", "kind"), promising("in-order"))
def test_starts_in_order(name: str, kind: str) -> None:
    @QUICK
    @given(WORLDS[kind]())
    def check(world: World) -> None:
        check_in_order(run(quick(name), world)[0])

    check()


@pytest.mark.parametrize(("name", "kind"), promising("no-delay"))
def test_later_jobs_change_nothing(name: str, kind: str) -> None:
    @QUICK
    @given(WORLDS[kind](exact=True), st.data())
    def check(world: World, data: st.DataObject) -> None:
        kept = data.draw(st.integers(1, len(world.arrivals)))
        part = World(world.cluster, world.arrivals[:kept], world.settings)
        whole, few = starts(run(quick(name), world)[0]), starts(run(quick(name), part)[0])
        assert few == {job: start for job, start in whole.items() if job in few}

    check()


@pytest.mark.parametrize(("name", "kind"), promising("conserving"))
def test_no_job_waits_while_it_fits(name: str, kind: str) -> None:
    @QUICK
    @given(WORLDS[kind]())
    def check(world: World) -> None:
        outcomes: list[Outcome] = run(quick(name), world)[0]
        check_conserving(world, outcomes)

    check()
