"""The simulator: costs, progress, failures, energy and refusals, against figures worked by hand."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.errors import BadInput
from scheduler.model import events as act
from scheduler.model.costs import LinearCost, LinearCosts
from scheduler.model.events import (
    KINDS,
    Action,
    BudgetChanged,
    Checkpointed,
    Event,
    Failed,
    Finished,
    NodeDown,
    NodeUp,
    Started,
    Submitted,
    Timer,
)
from scheduler.model.jobs import Cluster, EstimateKind, Job, Placement, Pool, Region, Stop
from scheduler.model.speeds import TabulatedSpeed
from scheduler.model.state import RuleBroken
from scheduler.policies.base import Policy, View
from scheduler.policies.registry import create
from scheduler.simulator.metrics import Accumulator
from scheduler.simulator.simulator import Simulator
from scheduler.simulator.trace import Arrival, Outcome, OutcomeRecorder, SimulationSettings
from tests.support.amounts import examples
from tests.support.scheduling.random_policy import Chaos
from tests.support.scheduling.schedule_audit import audit, starts
from tests.support.scheduling.worlds import WORLDS, LinearSpeed, World, run, sized_classes

COUNTED = Cluster((Pool("node", 4),))
TWO = Cluster((Pool("gpu", 2), Pool("cpu", 2)))
COSTS = LinearCosts(
    {"gpu": LinearCost(0.0, 2.0), "cpu": LinearCost(0.001, 1.0)}, {"gpu": LinearCost(0.0, 3.0)}
)


class Script(Policy):
    """Does what a function says; wakes at the given times."""

    ignores = frozenset()

    def __init__(self, say: Callable[[View, Event], Iterable[Action]], *times: float) -> None:
        super().__init__()
        self.say, self.times = say, times
        self.seen: list[Event] = []

    def decide(self, view: View, event: Event) -> Sequence[Action]:
        self.seen.append(event)
        actions = list(self.say(view, event))
        if len(self.seen) == 1:
            actions += [act.WakeAt(at) for at in self.times]
        return actions


def migrating(run_gpu: float = 10.0, run_cpu: float = 40.0, memory_mb: float = 1000.0) -> Arrival:
    times = {"gpu": run_gpu, "cpu": run_cpu}
    job = Job(
        1,
        0.0,
        1,
        memory_mb=memory_mb,
        estimate_kind=EstimateKind.EXACT,
        stop=Stop.CHECKPOINT,
        estimates_s=times,
    )
    return Arrival(job, 0.0, times)


def only(outcomes: list[Outcome]) -> Outcome:
    assert len(outcomes) == 1
    return outcomes[0]


@pytest.mark.parametrize("kind", [*WORLDS.values(), sized_classes])
def test_whatever_a_policy_does_the_books_agree_with_the_audit(
    kind: Callable[[], st.SearchStrategy[World]],
) -> None:
    @settings(max_examples=examples(150))
    @given(kind(), st.integers(0, 5))
    def check(world: World, seed: int) -> None:
        outcomes, summary = run(Chaos(seed=seed), world)
        audit(world, outcomes, sum(summary.refused.values()))

    check()


def test_the_collector_of_cycles_looks_seldom_meanwhile_and_is_left_as_it_was() -> None:
    before, seen = gc.get_threshold(), set[tuple[int, int, int]]()
    simulator = Simulator(
        COUNTED, [Arrival(Job(1, 0.0), 1.0)], create("fcfs"), observer=lambda _: seen.add(gc.get_threshold())
    )
    assert gc.get_threshold() == before
    simulator.run()
    assert seen == {(100_000, *before[1:])} and gc.get_threshold() == before


def test_migration_costs_and_progress() -> None:
    # On cpu from 0; at 12 it is 12/40 done; checkpoint 1 + 0.001 * 1000 = 2 s to 14; restart 3 s to 17;
    # the other 28/40 take 7 s on gpu: ends at 24.
    def say(view: View, event: Event) -> Iterable[Action]:
        if isinstance(event, Submitted):
            yield act.Start(1, Placement("cpu"))
        if isinstance(event, Timer):
            yield act.Migrate(1, Placement("gpu"))

    script = Script(say, 12.0)
    outcome = only(run(script, World(TWO, (migrating(),), SimulationSettings(COSTS)))[0])
    assert outcome.end_s == 24.0 and outcome.overhead_s == 5.0 and outcome.run_s == 19.0
    assert (outcome.preemptions, outcome.migrations) == (1, 1)
    kinds = [(s.kind, s.placement.pool, s.start_s, s.end_s) for s in outcome.segments]
    assert kinds == [
        ("run", "cpu", 0, 12),
        ("reserved", "gpu", 12, 14),
        ("checkpoint", "cpu", 12, 14),
        ("restart", "gpu", 14, 17),
        ("run", "gpu", 17, 24),
    ]
    assert [type(e) for e in script.seen] == [Submitted, Started, Timer, Checkpointed, Started, Finished]
    assert script.seen[3] == Checkpointed(migrating().job, Placement("cpu"), resumed=True)


@pytest.mark.parametrize("at_s", [12.0, 13.0])
def test_nobody_takes_the_place_to_which_a_job_moves(at_s: float) -> None:
    """It moves from 12 s to 14 s; no start and no other move gets its unit, in that decision or later."""
    cluster = Cluster((Pool("gpu", 1), Pool("cpu", 3)))
    second, third = (Arrival(replace(migrating().job, id=n), 0.0, migrating().runs_s) for n in (2, 3))
    free = []

    def say(view: View, event: Event, takes: Action | None) -> Iterable[Action]:
        free.append(dict(view.free))
        if isinstance(event, Submitted) and event.job.id < 3:
            yield act.Start(event.job.id, Placement("cpu"))
        if isinstance(event, Timer):
            if view.now == 12:
                yield act.Migrate(1, Placement("gpu"))
            if view.now == at_s and takes is not None:
                yield takes
        if isinstance(event, Finished) and view.waiting:
            yield act.Start(3, Placement("cpu"))

    world = World(cluster, (migrating(), second, third), SimulationSettings(COSTS))
    outcomes, _ = run(Script(partial(say, takes=None), 12.0, 13.0), world)
    assert {"gpu": 0, "cpu": 1} in free and outcomes[0].job.id == 1 and outcomes[0].end_s == 24.0
    for takes in (act.Start(3, Placement("gpu")), act.Migrate(2, Placement("gpu"))):
        with pytest.raises(RuleBroken, match=f"at {at_s:.6f} s.*1 units of gpu needed, 0 free"):
            run(Script(partial(say, takes=takes), 12.0, 13.0), world)


def test_a_job_moves_only_to_what_is_free() -> None:
    """Not to a unit that another gives back as this very decision is carried out, nor on other units."""
    other = Arrival(replace(migrating().job, id=2), 0.0, migrating().runs_s)
    world = World(Cluster((Pool("gpu", 1), Pool("cpu", 2))), (migrating(), other), SimulationSettings(COSTS))

    def say(_: View, event: Event, place: Placement) -> Iterable[Action]:
        if isinstance(event, Submitted):
            yield act.Start(event.job.id, Placement("cpu" if event.job.id == 1 else "gpu"))
        if isinstance(event, Timer):
            yield act.Suspend(2)
            yield act.Migrate(1, place)

    for place, why in (Placement("gpu"), "0 free"), (Placement("cpu", 2), "needs 1 units, not 2"):
        with pytest.raises(RuleBroken, match=f"job 1: migrate: .*{why}"):
            run(Script(partial(say, place=place), 5.0), world)


NODES = Cluster((Pool("node", 3, resources=("cpu",), capacity=(4.0,)),))


def on(*nodes: tuple[int, int]) -> Placement:
    return Placement("node", sum(units for _, units in nodes), nodes)


@pytest.mark.parametrize("node", [0, 1, 2])
def test_a_lost_node_takes_a_move_or_the_job(node: int) -> None:
    """It moves from node 0 to 1 between 10 s and 12 s; at 11 s a node is lost, until 13 s."""
    job = Job(1, 0.0, 1, estimate_kind=EstimateKind.EXACT, stop=Stop.CHECKPOINT, demand=(3.0,))
    free = []

    def say(view: View, event: Event) -> Iterable[Action]:
        free.append([*view.nodes["node"].free[:, 0]])
        if isinstance(event, Submitted):
            yield act.Start(1, on((0, 1)))
        if isinstance(event, Timer):
            yield act.Migrate(1, on((1, 1)))
        if isinstance(event, NodeUp) and (view.waiting or view.suspended):
            yield act.Start(1, on((0, 1))) if view.waiting else act.Resume(1, on((0, 1)))

    costs = LinearCosts({"node": LinearCost(0.0, 2.0)}, {"node": LinearCost(0.0, 1.0)})
    fails = (11.0, NodeDown("node", 1, node)), (13.0, NodeUp("node", 1, node))
    script = Script(say, 10.0)
    world = World(NODES, (Arrival(job, 20.0),), SimulationSettings(costs, disturbances=fails))
    outcome = only(run(script, world)[0])
    assert free[3] == {0: [0.0, 4.0, 4.0], 1: [1.0, 0.0, 4.0], 2: [1.0, 1.0, 0.0]}[node]
    told = [event for event in script.seen if isinstance(event, Checkpointed)]
    # Without a loss: 10 s of work, 2 s and 1 s of costs, 10 s of work.
    assert outcome.end_s == {0: 33.0, 1: 24.0, 2: 23.0}[node]
    assert [event.resumed for event in told] == {0: [], 1: [False], 2: [True]}[node]
    assert (outcome.failures, outcome.migrations) == {0: (1, 0), 1: (0, 0), 2: (0, 1)}[node]


def test_a_job_may_move_between_nodes_of_which_it_keeps_some() -> None:
    """Of two tasks one stays where it is: there it has room for both, until its checkpoint is written."""
    job = Job(1, 0.0, 2, estimate_kind=EstimateKind.EXACT, stop=Stop.CHECKPOINT, demand=(2.0,))
    there = []

    def say(view: View, event: Event) -> Iterable[Action]:
        there.append([dict(jobs) for jobs in view.nodes["node"].jobs])
        if isinstance(event, Submitted):
            yield act.Start(1, on((0, 1), (1, 1)))
        if isinstance(event, Timer) and view.now == 10:
            yield act.Migrate(1, on((1, 1), (2, 1)))

    costs = LinearCosts({"node": LinearCost(0.0, 2.0)})
    world = World(NODES, (Arrival(job, 20.0),), SimulationSettings(costs))
    assert only(run(Script(say, 10.0, 11.0, 13.0), world)[0]).end_s == 22.0
    assert [{1: 1}, {1: 2}, {1: 1}] in there and [{}, {1: 1}, {1: 1}] in there and there[-1] == [{}, {}, {}]


def test_both_places_of_a_move_count() -> None:
    """From 10 s to 12 s it holds two units of 100 W each; it ends at 22 s."""
    cluster = Cluster((Pool("node", 2, base_w=40.0, peak_w=60.0),), budget_w=200.0)
    job = Job(1, 0.0, 1, estimate_kind=EstimateKind.EXACT, stop=Stop.CHECKPOINT)
    metrics, drawn = Accumulator(cluster), []

    def say(view: View, event: Event) -> Iterable[Action]:
        drawn.append(view.power_w)
        if isinstance(event, Submitted):
            yield act.Start(1, Placement("node"))
        if isinstance(event, Timer) and view.now == 10:
            yield act.Migrate(1, Placement("node"))

    costs = LinearCosts({"node": LinearCost(0.0, 2.0)})
    world = World(cluster, (Arrival(job, 20.0),), SimulationSettings(costs))
    outcome = only(run(Script(say, 10.0, 11.0), world)[0])
    metrics.add(outcome)
    assert outcome.end_s == 22.0 and outcome.energy_j == 2400.0 and outcome.overhead_s == 2.0
    assert metrics.metrics().utilisation_ratio == 24 / 44 and 200.0 in drawn


def test_a_start_is_told_when_the_restart_is_over_and_not_where_it_was_broken_off() -> None:
    # On gpu from 0; stopped from 4 to 6; restarts at 6 until 9, broken off at 7: stopped until 9, when no
    # start is told; restarts at 20 until 23, and has 6 s to go.
    seen = []

    def say(view: View, event: Event) -> Iterable[Action]:
        seen.append((view.now, type(event), view.upcoming))
        if isinstance(event, Submitted):
            yield act.Start(1, Placement("gpu"))
        elif isinstance(event, Timer):
            on = view.suspended or view.now == 20
            yield act.Resume(1, Placement("gpu")) if on else act.Suspend(1)

    outcome = only(run(Script(say, 4, 6, 7, 20), World(TWO, (migrating(),), SimulationSettings(COSTS)))[0])
    assert outcome.end_s == 29
    assert [at for at, kind, _ in seen if kind is Started] == [0, 23]
    assert (9, Checkpointed, None) in seen


def test_a_policy_that_brings_no_job_further_is_stopped() -> None:
    """Two jobs take turns in a restart that takes longer than each turn."""

    def say(view: View, event: Event) -> Iterable[Action]:
        if isinstance(event, Submitted) and not view.running:
            yield act.Start(event.job.id, Placement("gpu"))
        elif isinstance(event, Timer) and view.now == 1:
            yield act.Suspend(1)
            yield act.WakeAt(4)
        elif isinstance(event, Timer) and view.suspended:
            yield act.Resume(1, Placement("gpu"))
            yield act.WakeAt(view.now + 1)
        elif isinstance(event, Timer):
            yield act.Suspend(1)
            yield act.WakeAt(view.now + 3)

    with pytest.raises(RuleBroken, match="none brings a job further, but these jobs have not ended: 1;"):
        run(Script(say, 1.0), World(TWO, (migrating(),), SimulationSettings(COSTS)))


@pytest.mark.parametrize("more", [0, 1])
def test_a_policy_that_only_wakes_itself_is_stopped(more: int) -> None:
    """At one instant at once; later only when nobody is to come who could change something."""
    script = Script(lambda view, event: [act.WakeAt(view.now)])
    later = Arrival(Job(2, 1e6), 1.0)
    with pytest.raises(RuleBroken, match="none brings a job further, but these jobs have not ended: 1;"):
        run(script, World(TWO, (migrating(), later)[: 1 + more]))


def test_planned_costs_may_differ_from_actual_ones() -> None:
    expected = []

    def say(view: View, event: Event) -> Iterable[Action]:
        if isinstance(event, Submitted):
            yield act.Start(1, Placement("cpu"))
        if isinstance(event, Timer):
            yield act.Suspend(1)
        if isinstance(event, Checkpointed):
            assert view.now == 14.0  # really 2 s, although 4 are planned
            assert view.costs.stop_s(event.job, "cpu") == 4.0
            yield act.Resume(1, Placement("gpu"))
        if isinstance(event, Started) and view.now > 12:
            expected.append(view.state(1).expected_end_s)

    world = World(
        TWO,
        (migrating(),),
        SimulationSettings(COSTS, planned_costs=LinearCosts(COSTS.checkpoint, COSTS.restart, factor=2.0)),
    )
    assert only(run(Script(say, 12.0), world)[0]).end_s == 24.0
    assert expected == [27.0]  # 14 + 6 planned restart + 7


@pytest.mark.parametrize("goes_on", ["moves", "is stopped"])
def test_class_and_size_change_together(goes_on: str) -> None:
    # 1 cpu from 0; at 12 it is 12/40 done; checkpoint to 14; restart to 17. A gpu is four times as fast as a
    # cpu, two are 1.6 times as fast as one: the other 28/40 take 28 / 4 / 1.6 s.
    def say(view: View, event: Event) -> Iterable[Action]:
        if isinstance(event, Submitted):
            yield act.Start(1, Placement("cpu"))
        if isinstance(event, Timer):
            yield act.Migrate(1, Placement("gpu", 2)) if goes_on == "moves" else act.Suspend(1)
        if isinstance(event, Checkpointed) and not event.resumed:
            yield act.Resume(1, Placement("gpu", 2))
        if isinstance(event, Started) and view.now == 17:
            assert view.state(1).expected_end_s == pytest.approx(17 + 28 / 4 / 1.6)

    arrival = migrating()
    arrival = arrival._replace(job=replace(arrival.job, max_units=2, speed=TabulatedSpeed(1, (1.0, 1.6))))
    outcome = only(run(Script(say, 12.0), World(TWO, (arrival,), SimulationSettings(COSTS)))[0])
    assert outcome.end_s == pytest.approx(17 + 28 / 4 / 1.6) and outcome.migrations == 1


@pytest.mark.parametrize(
    ("units", "stop", "message"),
    [
        (3, Stop.CHECKPOINT, "the job needs 1 to 2 units, not 3"),
        (2, Stop.PAUSE, "it ran on 1 units, and has no checkpoint"),
    ],
)
def test_a_job_goes_on_only_on_as_many_units_as_it_can_use(units: int, stop: Stop, message: str) -> None:
    def say(view: View, event: Event) -> Iterable[Action]:
        if isinstance(event, Submitted):
            yield act.Start(1, Placement("node"))
        if isinstance(event, Timer):
            yield act.Suspend(1)
        if isinstance(event, Checkpointed):
            yield act.Resume(1, Placement("node", units))

    arrival = Arrival(Job(1, 0.0, 1, 9.0, stop=stop, max_units=2), 9.0)
    with pytest.raises(RuleBroken, match=message):
        run(Script(say, 3.0), World(COUNTED, (arrival,)))


def test_what_a_pause_and_going_on_cost() -> None:
    # Runs from 0; paused at 3, which takes 2 s; at 10 it goes on, which takes 1 s; 7 s are left: to 18.
    def say(view: View, event: Event) -> Iterable[Action]:
        if isinstance(event, Submitted):
            yield act.Start(1, Placement("node", 4))
        if isinstance(event, Timer):
            yield act.Suspend(1) if view.now == 3.0 else act.Resume(1, Placement("node", 4))

    pausable = Arrival(Job(1, 0.0, 4, stop=Stop.PAUSE), 10.0)
    world = World(COUNTED, (pausable,), SimulationSettings(LinearCosts(pause_s=2.0, go_on_s=1.0)))
    outcome = only(run(Script(say, 3.0, 10.0), world)[0])
    assert outcome.end_s == 18.0 and outcome.overhead_s == 3.0


def test_pause_costs_nothing_and_frees_at_once() -> None:
    pausable = Arrival(Job(1, 0.0, 4, stop=Stop.PAUSE), 10.0)
    other = Arrival(Job(2, 3.0, 4), 5.0)

    def say(view: View, event: Event) -> Iterable[Action]:
        if isinstance(event, Submitted):
            if event.job.id == 2:
                yield act.Suspend(1)
            yield act.Start(event.job.id, Placement("node", 4))
        if isinstance(event, Finished) and event.job.id == 2:
            assert view.state(1).attained_s(view.now) == 3.0
            yield act.Resume(1, Placement("node", 4))

    outcomes, _ = run(Script(say), World(COUNTED, (pausable, other)))
    assert [(o.job.id, o.end_s) for o in outcomes] == [(2, 8.0), (1, 15.0)]


def test_estimates_kill_only_where_they_are_limits() -> None:
    arrivals = (
        Arrival(Job(1, 0.0, 1, 5.0), 9.0),
        Arrival(Job(2, 0.0, 1, 5.0, estimate_kind=EstimateKind.PREDICTED), 9.0),
    )
    outcomes, _ = run(create("fcfs"), World(COUNTED, arrivals))
    assert [(o.job.id, o.end_s, o.how) for o in outcomes] == [(1, 5.0, "killed"), (2, 9.0, "done")]
    kept, _ = run(create("fcfs"), World(COUNTED, arrivals, SimulationSettings(kill_at_limit=False)))
    assert [o.end_s for o in kept] == [9.0, 9.0]


def test_malleable_job_and_power_cap_change_the_speed_and_the_energy() -> None:
    # 1 unit at 30 W: speed 1. From 10 s: 2 units, speed 2. From 20 s: cap 50 W, speed 2 * 1.4.
    # Work 60: 10 + 20 + 2.8 x = 60, so it ends at 20 + 30/2.8.
    cluster = Cluster((Pool("node", 4, base_w=10.0, peak_w=50.0, caps_w=(30.0, 50.0)),), 200.0)
    job = Job(
        1,
        0.0,
        1,
        60.0,
        estimate_kind=EstimateKind.EXACT,
        max_units=4,
        malleable=True,
        speed=LinearSpeed(1, 4),
    )

    def say(view: View, event: Event) -> Iterable[Action]:
        if isinstance(event, Submitted):
            yield act.Start(1, Placement("node", 1, cap_w=30.0))
        if isinstance(event, Timer) and view.now == 10:
            assert view.state(1).done_by(view.now) == pytest.approx(1 / 6)
            assert view.state(1).remaining_s(view.now) == pytest.approx(50)
            yield act.Resize(1, Placement("node", 2, cap_w=30.0))
        if isinstance(event, Timer) and view.now == 20:
            assert view.power_w == 80.0
            yield act.SetPowerCap(1, 50.0)
            yield act.WakeAt(21)
        if isinstance(event, Timer) and view.now == 21:
            assert view.power_w == 120.0

    outcome = only(run(Script(say, 10.0, 20.0), World(cluster, (Arrival(job, 60.0),)))[0])
    rest = 30 / 2.8
    assert outcome.end_s == pytest.approx(20 + rest)
    assert outcome.energy_j == pytest.approx(10 * 40 + 10 * 80 + rest * 120, rel=1e-6)


def test_neighbours_slow_each_other_down() -> None:
    # Alone 10 s each. Both on node 0 from 4 s on, at half speed: job 1 has 6 s of work left, ends at 16;
    # job 2 has then done 6 of its 10 and ends at 20.
    cluster = Cluster((Pool("node", 1, resources=("cores",), capacity=(4.0,)),))
    arrivals = tuple(Arrival(Job(i, 4.0 * (i - 1), 2, demand=(1.0,)), 10.0) for i in (1, 2))

    def twice(job: Job, placement: Placement, beside: Sequence[tuple[Job, Placement]]) -> float:
        assert all(other.id != job.id and where.binding == "packed" for other, where in beside)
        return 2.0 if beside else 1.0

    def say(view: View, event: Event) -> Iterable[Action]:
        if isinstance(event, Submitted):
            yield act.Start(event.job.id, Placement("node", 2, ((0, 2),), binding="packed"))

    outcomes, _ = run(Script(say), World(cluster, arrivals, SimulationSettings(interference=twice)))
    assert [o.end_s for o in outcomes] == [16.0, 20.0]
    assert outcomes[0].run_s == 16.0


def test_failed_unit_of_a_counted_pool_sends_its_job_back_to_the_head() -> None:
    arrivals = (
        Arrival(Job(1, 0.0, 4, 10.0, estimate_kind=EstimateKind.EXACT), 10.0),
        Arrival(Job(2, 1.0, 3, 2.0), 2.0),
    )
    disturbances = [(4.0, NodeDown("node", 1)), (9.0, NodeUp("node", 1)), (9.0, NodeUp("node", 1))]
    outcomes, _ = run(create("fcfs"), World(COUNTED, arrivals, SimulationSettings(disturbances=disturbances)))
    first = next(o for o in outcomes if o.job.id == 1)
    assert (first.start_s, first.end_s, first.failures) == (0.0, 19.0, 1)
    assert first.run_s == 14.0 and first.lost_s == 4.0
    assert starts(outcomes)[2] == 19.0
    easy, _ = run(create("easy"), World(COUNTED, arrivals, SimulationSettings(disturbances=disturbances)))
    assert starts(easy)[2] == 4.0  # job 1 cannot run on 3 units: job 2 passes


def test_failed_node_takes_its_jobs_with_it_and_a_checkpoint_saves_them() -> None:
    cluster = Cluster((Pool("node", 2, resources=("cpu",), capacity=(1.0,)),))
    job = Job(1, 0.0, demand=(0.5,), stop=Stop.CHECKPOINT)

    def say(view: View, event: Event) -> Iterable[Action]:
        if isinstance(event, Submitted):
            yield act.Start(1, Placement("node", 1, ((0, 1),)))
        if isinstance(event, Timer) and view.now == 4:
            yield act.Suspend(1)
        if isinstance(event, Checkpointed):
            yield act.Resume(1, Placement("node", 1, ((1, 1),)))
        if isinstance(event, Failed):
            assert view.free["node"] == 1 and not view.nodes["node"].fits((0.5,))[1]
            yield act.Start(1, Placement("node", 1, ((0, 1),)))

    settings = SimulationSettings(disturbances=[(7.0, NodeDown("node", node=1))])
    outcome = only(run(Script(say, 4.0), World(cluster, (Arrival(job, 10.0),), settings))[0])
    assert (outcome.end_s, outcome.run_s, outcome.lost_s, outcome.failures) == (13.0, 13.0, 3.0, 1)


def test_endless_disturbances_end_with_the_last_job() -> None:
    def weather() -> Iterable[tuple[float, NodeDown | NodeUp]]:
        day = 0
        while True:
            yield day * 10.0, NodeDown("node", 2)
            yield day * 10.0 + 5.0, NodeUp("node", 2)
            day += 1

    arrivals = tuple(Arrival(Job(i, float(i), 1, 3.0), 3.0) for i in range(1, 30))
    world = World(COUNTED, arrivals, SimulationSettings(disturbances=weather(), seed=4))
    outcomes, summary = run(create("fcfs"), world)
    assert summary.jobs == 29 and sum(o.failures for o in outcomes) > 0


def test_changed_budget_is_told_and_kept() -> None:
    cluster = Cluster((Pool("node", 4, base_w=10.0, peak_w=90.0, caps_w=(30.0, 90.0)),), 400.0)

    def say(view: View, event: Event) -> Iterable[Action]:
        if isinstance(event, Submitted):
            yield act.Start(event.job.id, Placement("node", 2))
        if isinstance(event, BudgetChanged):
            assert view.budget_w == 150.0 and view.power_w == 200.0
            yield act.SetPowerCap(1, 30.0)
        if isinstance(event, Timer):
            yield act.Start(1, Placement("node"))

    job = Arrival(Job(1, 0.0, 2), 10.0)
    script = Script(say)
    run(script, World(cluster, (job,), SimulationSettings(disturbances=[(5.0, BudgetChanged(150.0))])))
    assert BudgetChanged in {type(event) for event in script.seen}


def test_over_a_lowered_budget_jobs_may_shrink_one_by_one_but_not_grow() -> None:
    cluster = Cluster((Pool("node", 4, base_w=10.0, caps_w=(30.0, 40.0)),), 200.0)
    jobs = tuple(
        Arrival(Job(i, 0.0, 1, 10.0, estimate_kind=EstimateKind.EXACT, max_units=2, malleable=True), 10.0)
        for i in (1, 2)
    )
    drawn = []

    def say(grow: bool) -> Callable[[View, Event], Iterable[Action]]:
        def reply(view: View, event: Event) -> Iterable[Action]:
            if isinstance(event, Submitted):
                yield act.Start(event.job.id, Placement("node", 2, cap_w=40.0))
            if isinstance(event, BudgetChanged):  # 200 W are drawn, 120 W are allowed
                yield act.SetPowerCap(1, 30.0)
                yield act.Resize(2, Placement("node", 1, cap_w=30.0))
                yield act.SetPowerCap(1, 40.0 if grow else 30.0)
            if isinstance(event, Timer):
                drawn.append(view.power_w)

        return reply

    lowered = SimulationSettings(disturbances=[(5.0, BudgetChanged(120.0))])
    run(Script(say(grow=False), 6.0), World(cluster, jobs, lowered))
    assert drawn == [120.0]
    with pytest.raises(RuleBroken, match="the budget of 120 W"):
        run(Script(say(grow=True)), World(cluster, jobs, lowered))


def test_events_of_one_instant_come_in_the_documented_order() -> None:
    # At 10: job 1 ends, job 2's checkpoint is done, a unit comes up, a timer fires, job 3 arrives.
    arrivals = (
        Arrival(Job(1, 0.0, 1), 10.0),
        Arrival(Job(2, 0.0, 1, stop=Stop.CHECKPOINT), 50.0),
        Arrival(Job(3, 10.0, 1), 1.0),
    )
    upcoming: list[type[Event] | None] = []

    def say(view: View, event: Event) -> Iterable[Action]:
        if view.now == 10:
            upcoming.append(view.upcoming)
        if isinstance(event, Submitted):
            yield act.Start(event.job.id, Placement("node"))
        if isinstance(event, Timer) and view.now == 8:
            yield act.Suspend(2)
        if isinstance(event, Checkpointed):
            yield act.Resume(2, Placement("node"))

    costs = LinearCosts({"node": LinearCost(0.0, 2.0)})
    disturbances = [(9.0, NodeDown("node")), (10.0, NodeUp("node"))]
    script = Script(say, 8.0, 10.0)
    run(script, World(COUNTED, arrivals, SimulationSettings(costs, disturbances=disturbances, seed=1)))
    kinds = [type(event) for event in script.seen]
    at = kinds.index(Checkpointed) - 1
    assert kinds[at : at + 6] == [Finished, Checkpointed, Started, NodeUp, Timer, Submitted]
    assert kinds[at : at + 6] == sorted(kinds[at : at + 6], key=KINDS.index)
    # What an action brings about (here the start) is not foreseen.
    assert upcoming[:6] == [Checkpointed, NodeUp, NodeUp, Timer, Submitted, None]


class Users:
    """Two users who each submit the next of three jobs when the last has ended."""

    def __init__(self) -> None:
        self.left = {"a": 3, "b": 3}

    def due(self, now: float, ended: Sequence[Job]) -> Iterable[Arrival]:
        for user in sorted(self.left) if now == 0 and not ended else [job.user for job in ended]:
            if self.left[user]:
                self.left[user] -= 1
                number = 10 * (user == "b") + self.left[user]
                yield Arrival(Job(number, now, 4, 10.0, user), 10.0)


def test_closed_loop() -> None:
    record = OutcomeRecorder()
    summary = Simulator(COUNTED, Users(), create("fcfs"), sinks=[record]).run()
    assert summary.jobs == 6 and summary.end_s == 60.0
    assert [o.job.user for o in record.outcomes] == ["a", "b"] * 3


def test_jobs_that_can_never_run_are_refused_and_counted() -> None:
    arrivals = (Arrival(Job(1, 0.0, 9), 1.0), Arrival(Job(2, 0.0, 4), 1.0), Arrival(Job(3, 5.0, 5), 1.0))
    _, summary = run(create("fcfs"), World(COUNTED, arrivals))
    assert summary.jobs == 1
    assert summary.refused == {"it needs 9 nodes, there are 4": 1, "it needs 5 nodes, there are 4": 1}


def test_unsorted_jobs_are_bad_input() -> None:
    arrivals = (Arrival(Job(1, 5.0), 1.0), Arrival(Job(2, 3.0), 1.0))
    with pytest.raises(BadInput, match=r"job 2 is submitted at 3\.0 s, behind 5\.0 s; sort"):
        run(create("fcfs"), World(COUNTED, arrivals))


RULES: list[tuple[str, Callable[[View], list[Action]]]] = [
    ("there is no such job", lambda view: [act.Start(99, Placement("node"))]),
    ("5 units of node needed, 4 free", lambda view: [act.Start(2, Placement("node", 5))]),
    ("needs 1 units, not 2", lambda view: [act.Start(1, Placement("node", 2))]),
    ("there is no pool nodes", lambda view: [act.Start(1, Placement("nodes"))]),
    ("the job is running, not waiting", lambda view: [act.Start(1, Placement("node"))] * 2),
    ("the job is waiting, not running", lambda view: [act.Suspend(1)]),
    ("cannot be stopped", lambda view: [act.Start(1, Placement("node")), act.Suspend(1)]),
    ("the job is waiting, not suspended", lambda view: [act.Resume(1, Placement("node"))]),
    ("has no region small", lambda view: [act.Start(1, Placement("node", region="small"))]),
    ("9 units in regions", lambda view: [act.Repartition("node", (Region("a", 9, 9),))]),
    (
        "region a has 1, 1 are used",
        lambda view: [
            act.Repartition("node", (Region("a", 1, 9),)),
            act.Start(1, Placement("node", region="a")),
            act.Start(3, Placement("node", region="a")),
        ],
    ),
    (
        "the job is not malleable",
        lambda view: [act.Start(1, Placement("node")), act.Resize(1, Placement("node", 2))],
    ),
]


@pytest.mark.parametrize(("message", "actions"), RULES)
def test_what_cannot_be_is_refused_with_time_job_and_rule(
    message: str, actions: Callable[[View], list[Action]]
) -> None:
    arrivals = (
        Arrival(Job(1, 7.0, 1), 1.0),
        Arrival(Job(2, 7.0, 1, max_units=9), 1.0),
        Arrival(Job(3, 7.0, 1), 1.0),
    )
    script = Script(lambda view, event: actions(view) if view.upcoming is None else ())
    with pytest.raises(RuleBroken, match=message) as error:
        run(script, World(COUNTED, arrivals))
    assert str(error.value).startswith("at 7.000000 s")


def test_power_budget_and_caps_are_rules() -> None:
    cluster = Cluster((Pool("node", 4, base_w=10.0, peak_w=90.0, caps_w=(30.0, 90.0)),), 150.0)
    arrivals = (Arrival(Job(1, 0.0, 2), 1.0),)
    with pytest.raises(RuleBroken, match="200 W more would exceed the budget of 150 W"):
        run(Script(lambda view, event: [act.Start(1, Placement("node", 2))]), World(cluster, arrivals))
    with pytest.raises(RuleBroken, match="can be set to caps of 30 to 90 W"):
        run(
            Script(lambda view, event: [act.Start(1, Placement("node", 2, cap_w=20.0))]),
            World(cluster, arrivals),
        )


def test_node_rules() -> None:
    cluster = Cluster((Pool("node", 2, resources=("cpu", "memory"), capacity=(1.0, 1.0)),))
    arrivals = (Arrival(Job(1, 0.0, 2, demand=(0.6, 0.1)), 1.0),)
    for nodes, message in (
        (((0, 2),), r"node 0 of node has \(1, 1\) free, \(1.2, 0.2\) needed"),
        (((0, 1),), "1 units on named nodes, 2 in all"),
        (((0, 1), (0, 1)), "named twice"),
        (((0, 1), (5, 1)), "which has 2 nodes"),
    ):
        with pytest.raises(RuleBroken, match=message):
            run(
                Script(lambda v, e, n=nodes: [act.Start(1, Placement("node", 2, n))]),
                World(cluster, arrivals),
            )  # type: ignore[misc]


def test_a_policy_that_forgets_a_job_is_told() -> None:
    with pytest.raises(RuleBroken, match="these jobs have not ended: 1"):
        run(Script(lambda view, event: ()), World(COUNTED, (Arrival(Job(1, 0.0), 1.0),)))
    with pytest.raises(RuleBroken, match="these jobs have not ended: 1"):
        run(
            Script(lambda view, event: [act.WakeAt(view.now + 1)]),
            World(COUNTED, (Arrival(Job(1, 0.0), 1.0),)),
        )


def test_memory_is_bounded_by_the_jobs_in_the_system() -> None:
    arrivals = (Arrival(Job(i, float(i), 1, 2.0), 2.0) for i in range(1, 20_001))
    simulator = Simulator(COUNTED, arrivals, create("easy"))
    summary = simulator.run()
    assert summary.jobs == 20_000 and summary.most_in_system <= 4
    assert not simulator.state.waiting and not simulator.state.running
