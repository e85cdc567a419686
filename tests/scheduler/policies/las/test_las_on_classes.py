"""``las`` and ``kairos`` on classes of devices: a class is one node, whose only resource is its units."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.coordinator.earlier_starts import Present, start_of
from scheduler.model.events import NodeDown, NodeUp, Start, Timer, WakeAt
from scheduler.model.jobs import Cluster, Job, Pool, Stop, counted
from scheduler.model.state import ClusterState
from scheduler.policies.base import View
from scheduler.policies.registry import create
from scheduler.simulator.trace import Arrival, SimulationSettings
from tests.scheduler.policies.las.test_las import result
from tests.support.brute import las as brute_las
from tests.support.scheduling.worlds import World, classes, run

NAMES = ("gpu", "cpu", "tpu")
Row = tuple[float, float, int]  # submission, run time, units


def devices(
    *rows: Row, sizes: tuple[int, ...] = (1, 1), stop: Stop = Stop.CHECKPOINT, kind: str = "gpu"
) -> World:
    """Jobs of unknown run time, numbered from 1, that can run on any of the classes of so many devices."""
    pools = tuple(Pool(NAMES[i], size, i, kind=kind) for i, size in enumerate(sizes))
    anywhere = {pool.name: math.inf for pool in pools}
    arrivals = tuple(
        Arrival(Job(i, submit, units, stop=stop, estimates_s=anywhere), run_s)
        for i, (submit, run_s, units) in enumerate(rows, 1)
    )
    return World(Cluster(pools), arrivals)


def test_a_job_stays_on_the_class_to_which_it_was_sent() -> None:
    """Both classes are taken at 5 s: job 3 goes to the one of lower index, where job 1 gives way."""
    outcomes, _ = run(create("las"), devices((0, 60, 1), (1, 60, 1), (5, 10, 1)))
    segments = {o.job.id: [(s.placement.pool, s.start_s, s.end_s) for s in o.segments] for o in outcomes}
    assert segments == {
        1: [("gpu", 0, 5), ("gpu", 15, 70)],
        2: [("cpu", 1, 61)],
        3: [("gpu", 5, 15)],
    }
    assert all(s.placement.nodes == () for o in outcomes for s in o.segments)


@pytest.mark.parametrize("policy", ["las", "las-mq", "las-drf", "kairos"])
def test_of_alternatives_that_is_taken_whose_devices_are_free(policy: str) -> None:
    world = devices((0, 50, 2), (1, 8, 2), sizes=(3,))
    first, second = world.arrivals
    job = replace(second.job, alternatives=(replace(second.job, units=1, alternative=1),))
    arrivals = (first, second._replace(job=job, others_s=(9.0,)))
    outcomes, _ = run(create(policy), replace(world, arrivals=arrivals))
    assert result(outcomes) == {1: (0, 50, 0), 2: (1, 10, 0)}


def test_a_job_of_several_devices_makes_room_for_all_of_them() -> None:
    """Jobs 1 to 3 have a device each of four; the fourth job needs three, and two of them give way."""
    outcomes, _ = run(create("las"), devices((0, 50, 1), (0, 50, 1), (0, 50, 1), (10, 5, 3), sizes=(4,)))
    assert result(outcomes) == {1: (0, 55, 1), 2: (0, 55, 1), 3: (0, 50, 0), 4: (10, 15, 0)}


@pytest.mark.parametrize("policy", ["las", "las-prompt", "las-mq", "las-drf", "kairos"])
def test_what_cannot_be_parked_keeps_its_device(policy: str) -> None:
    """A job that can only be paused would leave its memory there; elsewhere it gives way."""
    rows: tuple[Row, ...] = ((0, 50, 1), (10, 5, 1))
    outcomes, _ = run(create(policy), devices(*rows, sizes=(1,), stop=Stop.PAUSE))
    assert result(outcomes) == {1: (0, 50, 0), 2: (50, 55, 0)}
    outcomes, _ = run(create(policy), devices(*rows, sizes=(1,), stop=Stop.PAUSE, kind=""))
    assert result(outcomes) == {1: (0, 55, 1), 2: (10, 15, 0)}
    outcomes, _ = run(create(policy), devices(*rows, sizes=(1,)))
    assert result(outcomes) == {1: (0, 55, 1), 2: (10, 15, 0)}


@pytest.mark.parametrize("policy", ["las", "las-mq", "las-drf", "kairos"])
def test_devices_leave_and_come_back(policy: str) -> None:
    """While a device is out of service no more jobs run there than there are; all of them end."""
    quiet = devices(*((float(i), 30.0, 1 + i % 2) for i in range(6)), sizes=(2, 1))
    changes = ((10.0, NodeDown("gpu", 1)), (12.0, NodeDown("cpu", 1)), (70.0, NodeUp("gpu", 1)))
    settings = SimulationSettings(disturbances=(*changes, (90.0, NodeUp("cpu", 1))))
    used = []

    def watch(view: View) -> None:
        used.append(sum(state.place.units for state in view.running.values()))
        assert used[-1] <= sum(view.in_service.values())

    outcomes, _ = run(create(policy), World(quiet.cluster, quiet.arrivals, settings), watch)
    assert len(outcomes) == 6 and max(used) == 3


def test_a_waiting_job_learns_when_it_should_start() -> None:
    """Behind a job that keeps its device: not known, and at the end of its run time."""
    told = []

    def watch(view: View) -> None:
        if view.now == 10 and view.upcoming is None and 2 in view.waiting:
            told.append(start_of(2, Present.of(view), "las"))  # type: ignore[arg-type]

    quiet = devices((0, 50, 1), (10, 5, 1), sizes=(1,), stop=Stop.PAUSE)
    run(create("las"), quiet, watch)
    known = tuple(a._replace(job=replace(a.job, estimates_s={"gpu": a.run_s})) for a in quiet.arrivals)
    run(create("las"), World(quiet.cluster, known), watch)
    assert told[0] is None and told[-1] == 50


@pytest.mark.parametrize("policy", ["las", "las-mq", "kairos"])
def test_begun_anew_a_new_job_still_goes_before_a_paused_one(policy: str) -> None:
    """Else the paused one would go on, give way to the new one at the same instant, and so on for ever."""
    world = devices((0, 50, 1), (10, 5, 1), sizes=(1,))
    state, (first, second) = ClusterState(world.cluster), (arrival.job for arrival in world.arrivals)
    state.submit(first)
    running = state.start(1, counted("gpu", 1))
    state.now = 10.0
    state.submit(second)
    state.end_stop(running)
    begun = create(policy)
    begun.begin(state)
    actions = begun.decide(state, Timer(10.0))
    assert [action for action in actions if not isinstance(action, WakeAt)] == [Start(2, counted("gpu", 1))]


# -- the whole ----------------------------------------------------------------------------------------


@st.composite
def cases(draw: st.DrawFn) -> tuple[tuple[int, ...], list[brute_las.Task]]:
    """Draw a few classes of 1, 2 or 4 devices, and jobs for some of them, in whole numbers."""
    sizes = tuple(draw(st.lists(st.sampled_from((1, 2, 4)), min_size=1, max_size=3)))
    now, rows = 0, []
    for number in range(1, draw(st.integers(2, 14)) + 1):
        now += draw(st.sampled_from((0, 0, 0, 1, 2, 5, 11)))
        where = draw(st.sets(st.sampled_from(range(len(sizes))), min_size=1))
        demand = (draw(st.integers(1, max(sizes[n] for n in where))),)
        never = frozenset(range(len(sizes))) - where
        rows.append(brute_las.Task(number, now, draw(st.integers(1, 40)), demand, never=never))
    return sizes, rows


def as_world(sizes: tuple[int, ...], rows: list[brute_las.Task]) -> World:
    pools = tuple(Pool(NAMES[i], size, i) for i, size in enumerate(sizes))
    arrivals = []
    for t in rows:
        where = {NAMES[n]: math.inf for n in range(len(sizes)) if n not in t.never}
        job = Job(t.id, t.submit, t.demand[0], stop=Stop.PAUSE, estimates_s=where)
        arrivals.append(Arrival(job, t.run))
    return World(Cluster(pools), tuple(arrivals))


@given(
    case=cases(),
    limit=st.sampled_from((0.5, 1.0, 1.5, math.inf)),
    most=st.integers(1, 4),
    spare=st.integers(1, 9),
    prompt=st.booleans(),
)
def test_las_is_the_straight_program(
    case: tuple[tuple[int, ...], list[brute_las.Task]],
    *,
    limit: float,
    most: int,
    spare: int,
    prompt: bool,
) -> None:
    sizes, rows = case
    text = f"las,load-limit={limit},victims={most},spare-s={spare}"
    outcomes, _ = run(create(text + ",thorough=true,probe=2" * prompt), as_world(sizes, rows))
    straight = brute_las.las(
        len(sizes),
        (1,),
        rows,
        limit**2,
        most=most,
        spare=spare,
        thorough=prompt,
        probe=2 * prompt,
        sizes=tuple((size,) for size in sizes),
    )
    assert result(outcomes) == straight.simulate()


@given(cases(), st.integers(1, 4), st.integers(1, 9))
def test_kairos_is_the_straight_program(
    case: tuple[tuple[int, ...], list[brute_las.Task]], queued: int, spare: int
) -> None:
    sizes, rows = case
    outcomes, _ = run(create(f"kairos,queued={queued},spare-s={spare}"), as_world(sizes, rows))
    each = tuple((size,) for size in sizes)
    assert (
        result(outcomes)
        == brute_las.kairos(len(sizes), (1,), rows, queued, spare=spare, sizes=each).simulate()
    )


@given(classes(), st.sampled_from(("las", "las-mq", "las-drf", "kairos")), st.integers(0, 30))
def test_a_policy_that_begins_in_the_middle_goes_on(world: World, name: str, at: int) -> None:
    """Asked to begin anew at any event, it still ends every job, and never asks for what cannot be."""
    policy, seen = create(name), []

    def watch(view: View) -> None:
        seen.append(view.now)
        if len(seen) == at and view.upcoming is None:
            policy.begin(view)

    outcomes, _ = run(policy, world, watch)
    assert len(outcomes) == len(world.arrivals)
