"""Simulations that go on from the middle of another one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.coordinator.earlier_starts import OutOfTime, Present, start_of
from scheduler.model.costs import LinearCost, LinearCosts
from scheduler.model.jobs import Cluster, Job, Pool, Stop, counted
from scheduler.model.state import ClusterState
from scheduler.policies.base import View
from scheduler.policies.registry import create
from scheduler.simulator.simulator import TIMER, Simulator
from scheduler.simulator.trace import OutcomeRecorder
from tests.support.amounts import examples
from tests.support.scheduling import worlds
from tests.support.scheduling.worlds import World

WORLDS = {
    "counted": worlds.counted(exact=True, shortest=1),
    "classes": worlds.classes(),
    "power": worlds.power(exact=True),
}
CASES = (
    *((name, "counted") for name in ("easy", "conservative", "fcfs", "first-fit", "regions", "soft-regions")),
    *((name, "classes") for name in ("easy", "conservative", "fcfs", "mct")),
    *((name, "power") for name in ("fifo-min", "fifo-max", "parm")),
)


@pytest.mark.parametrize(("policy", "kind"), CASES)
def test_it_goes_on_as_the_whole_simulation_does(policy: str, kind: str) -> None:
    """From any instant after the last submission, where run times are as believed."""
    compared = 0

    @settings(max_examples=examples(800))  # few jobs wait after the last submission under fifo-min
    @given(WORLDS[kind], st.integers(0, 5))
    def check(world: World, skipped: int) -> None:
        nonlocal compared
        if policy == "parm":  # caps at which a job draws alike are equally good
            alike = (arrival._replace(job=replace(arrival.job, power=None)) for arrival in world.arrivals)
            world = replace(world, arrivals=tuple(alike))
        record, said, left = OutcomeRecorder(), dict[int, float | None](), [skipped]

        def look(view: View) -> None:
            queue = whole._queue
            if said or view.upcoming is not None or queue.arrival is not None or not view.waiting:
                return
            if left[0]:
                left[0] -= 1
                return
            timers = [(entry[0], entry[3]) for entry in queue.heap if entry[1] == TIMER]
            present = Present.of(whole.state, timers)
            said.update((job, start_of(job, present, policy)) for job in list(view.waiting))

        whole = Simulator(
            world.cluster,
            iter(world.arrivals),
            create(policy),
            world.settings,
            sinks=[record],
            observer=look,
        )
        whole.run()
        for outcome in record.outcomes:
            if outcome.job.id in said:
                compared += 1
                assert said[outcome.job.id] == pytest.approx(outcome.start_s, abs=1e-5)

    check()
    assert compared, "in none of them a job waits"


@pytest.mark.parametrize("policy", ["fcfs", "easy", "conservative", "weigh", "mct", "mctbm", "las", "kairos"])
def test_a_job_that_moves_is_expected_where_it_goes(policy: str) -> None:
    """It leaves a after 2 s, and needs b for a restart of 1 s and 10 s of work."""
    costs = LinearCosts(*(dict.fromkeys("ab", LinearCost(0.0, seconds)) for seconds in (2.0, 1.0)))
    state = ClusterState(Cluster((Pool("a", 1), Pool("b", 1))), costs)
    for number, where in ((1, "ab"), (2, "a"), (3, "b")):
        state.submit(Job(number, 0.0, stop=Stop.CHECKPOINT, estimates_s=dict.fromkeys(where, 10.0)))
    moving = state.start(1, counted("a", 1))
    state.reserve(moving, counted("b", 1))
    state.begin_stop(moving)
    present = Present.of(state)
    assert start_of(2, present, policy) == pytest.approx(2.0, abs=1e-4)
    assert start_of(3, present, policy) == pytest.approx(13.0, abs=1e-4)


def test_nothing_is_said_of_what_nobody_knows() -> None:
    """A job of unknown run time never ends; what has stopped stays so; a limit of processor time holds."""
    state = ClusterState(Cluster((Pool("core", 2),)), now=1e9)
    for number, estimate_s in ((1, None), (2, 10.0), (3, 10.0)):
        state.submit(Job(number, 0.0, 2 if number == 3 else 1, estimate_s))
    state.start(1, counted("core", 1))
    present = Present.of(state)
    assert start_of(2, present, "easy") == 1e9
    assert start_of(3, present, "easy") is None
    assert start_of(9, present, "easy", without=3, new=[Job(9, 1e9, 1, 5.0)]) == 1e9 + 10.0
    state.down("core", 1)
    assert start_of(2, Present.of(state), "easy") is None
    with pytest.raises(OutOfTime):
        start_of(3, present, "easy", until_s=0.0)
    assert list(state.waiting) == [2, 3] and state.free == {"core": 0}
