"""``las`` and ``kairos`` against the same rules written down straight, and worked by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.errors import BadInput
from scheduler.model.clusters import parse_cluster
from scheduler.model.costs import LinearCost, LinearCosts
from scheduler.model.events import NodeDown, NodeUp, Timer
from scheduler.model.jobs import Cluster, Job, Pool, Stop
from scheduler.model.state import ClusterState
from scheduler.policies.base import View
from scheduler.policies.las.node_las import Levels, NodeTask, fewest, greedy, sparing
from scheduler.policies.registry import create
from scheduler.simulator.trace import Arrival, Outcome, SimulationSettings
from scheduler.workloads import load
from tests.support.amounts import examples
from tests.support.brute import las as brute_las
from tests.support.scheduling.schedule_audit import audit
from tests.support.scheduling.worlds import World, nodes, run

Row = tuple[float, float, tuple[float, ...]]  # submission, run time, demand of each task


def world(
    nodes: int,
    *rows: Row,
    capacity: tuple[float, ...] = (1.0, 1.0),
    counts: tuple[int, ...] = (),
    stop: Stop = Stop.PAUSE,
    settings: SimulationSettings | None = None,
) -> World:
    """Jobs of single tasks, or of ``counts`` tasks, numbered from 1."""
    pool = Pool("node", nodes, resources=("cpu", "memory"), capacity=capacity)
    arrivals = tuple(
        Arrival(Job(i, submit, count, demand=demand, stop=stop), run_s)
        for i, ((submit, run_s, demand), count) in enumerate(
            zip(rows, counts or [1] * len(rows), strict=True), 1
        )
    )
    return World(Cluster((pool,)), arrivals, settings or SimulationSettings())


def result(outcomes: list[Outcome]) -> dict[int, tuple[float, float, int]]:
    return {o.job.id: (o.start_s, o.end_s, o.preemptions) for o in outcomes}


def where(outcomes: list[Outcome]) -> dict[int, int]:
    """Node of each task."""
    return {o.job.id: o.segments[0].placement.nodes[0][0] for o in outcomes}


# -- the central scheduler ----------------------------------------------------------------------------


def test_a_task_goes_where_what_is_free_is_most_like_its_demand() -> None:
    # Node 0 has (0.2, 0.8) left, node 1 (0.9, 0.3): likeness of (0.1, 0.3) is 0.26 there, 0.18 here;
    # of (0.2, 0.1) 0.12 there, 0.21 here.
    outcomes, _ = run(
        create("las"),
        world(2, (0, 9, (0.8, 0.2)), (0, 9, (0.1, 0.7)), (1, 1, (0.1, 0.3)), (3, 1, (0.2, 0.1))),
    )
    assert where(outcomes) == {1: 0, 2: 1, 3: 0, 4: 1}


def test_likeness_counts_shares_of_the_capacity() -> None:
    # Node 0: 2 of 8 cpu, 900 of 1000 memory; node 1: 6 of 8, 300 of 1000. A demand of (2, 100) has
    # 0.0625 + 0.09 = 0.1525 on node 0 and 0.1875 + 0.03 = 0.2175 on node 1.
    outcomes, _ = run(
        create("las"),
        world(2, (0, 9, (6, 100)), (0, 9, (2, 700)), (1, 1, (2, 100)), capacity=(8, 1000)),
    )
    assert where(outcomes)[3] == 1


def test_without_room_the_least_loaded_node_is_chosen_and_none_above_the_limit() -> None:
    # Loads: node 0 has |(0.8, 0.8)| = 1.13, node 1 |(0.7, 0.7)| = 0.99. Task 3 goes to node 1 (then 1.98) and
    # displaces task 2; task 4 goes to node 0 (then 2.12); task 5 waits until task 3 ends at 3 s. With a limit
    # of 1.1, task 4 waits as well.
    rows: list[Row] = [(0, 50, (0.8, 0.8)), (0, 40, (0.7, 0.7)), (1, 2, (0.7, 0.7)), (1, 5, (0.7, 0.7))]
    outcomes, _ = run(create("las"), world(2, *rows, (2, 1, (0.5, 0.5))))
    assert where(outcomes) == {1: 0, 2: 1, 3: 1, 4: 0, 5: 1}
    assert result(outcomes)[5][0] == 3
    outcomes, _ = run(create("las,load-limit=1.1"), world(2, *rows, (2, 1, (0.5, 0.5))))
    assert where(outcomes)[4] == 1 and result(outcomes)[4][0] == 3


def test_kairos_goes_where_the_fewest_tasks_are_and_fewer_than_q_wait() -> None:
    outcomes, _ = run(
        create("kairos,queued=1"),
        world(2, (0, 30, (1, 1)), (0, 90, (0.1, 0.1)), (0, 1, (0.1, 0.1)), (1, 1, (1, 1)), (1, 1, (1, 1))),
    )
    # Task 3 finds a task on each node and goes to node 0, where tasks 1 and 3 started at the same instant, so
    # it waits. At 1 s node 0 holds as many as it may, so 4 goes to node 1 and displaces 2 (paused there).
    assert where(outcomes)[3] == 0 and where(outcomes)[4] == 1
    assert result(outcomes)[4] == (1, 2, 0)


# -- who gives way ------------------------------------------------------------------------------------


def tasks(*demands: tuple[float, ...]) -> list[NodeTask]:
    return [NodeTask(Job(i, 0.0, demand=demand)) for i, demand in enumerate(demands)]


def ids(victims: tuple[NodeTask, ...] | None) -> list[int] | None:
    return None if victims is None else [task.id for task in victims]


def test_the_papers_example_spares_the_longest() -> None:
    """Cores and GB: <2, 4> is wanted, r0 holds <1, 1>, r1 <2, 4>, nothing is free."""
    running = tasks((1, 1), (2, 4))
    assert ids(fewest(running, (0, 0), (2, 4))) == [1]
    assert ids(greedy(running, (0, 0), (2, 4))) == [0, 1]


def test_sets_are_tried_in_the_order_of_bit_masks() -> None:
    """Distinct powers of two, so that the demand names the only set; each is found where the mask says."""
    running = tasks((1, 0), (2, 0), (4, 0), (8, 0))
    for mask in range(1, 16):
        expected = [bit for bit in range(4) if mask >> bit & 1]
        others = [bit for bit in range(4) if not mask >> bit & 1]
        pairs = tasks(*((1.0, 0.0) if bit in expected else (0.0, 1.0) for bit in range(4)))
        assert ids(fewest(pairs, (0, 0), (len(expected), 0))) == expected
        assert others is not None
    assert ids(fewest(running, (0, 0), (3, 0))) == [0, 1]  # before {2}, which would do as well
    assert ids(fewest(running, (0, 0), (4, 0))) == [2]
    assert ids(fewest(running, (0, 0), (5, 0))) == [0, 2]
    assert fewest(running, (0, 0), (16, 0)) is None


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=6),
    st.tuples(st.integers(1, 15), st.integers(1, 15)),
)
def test_no_victim_could_be_spared(demands: list[tuple[int, int]], wanted: tuple[int, int]) -> None:
    found = fewest(tasks(*demands), (0, 0), wanted)
    sums = [sum(d[r] for d in demands) for r in range(2)]
    assert (found is None) == any(s < w for s, w in zip(sums, wanted, strict=True))
    for spared in found or ():
        rest = [sum(t.demand[r] for t in found or () if t is not spared) for r in range(2)]
        assert any(s < w for s, w in zip(rest, wanted, strict=True))


def test_a_new_task_displaces_at_once_a_paused_one_only_after_w() -> None:
    # Task 2 displaces task 1 at once. From 20 s on it has attained more than task 1's 10 s, but it is spared
    # until 70; then task 1 is spared until 130, when it has 70 s against 60.
    outcomes, _ = run(create("las"), world(1, (0, 100, (1, 1)), (10, 90, (1, 1))))
    segments = {o.job.id: [(s.start_s, s.end_s) for s in o.segments] for o in outcomes}
    assert segments == {1: [(0, 10), (70, 130), (160, 190)], 2: [(10, 70), (130, 160)]}


def test_equal_service_displaces_nobody() -> None:
    outcomes, _ = run(create("las"), world(1, (0, 5, (1, 1)), (0, 5, (1, 1))))
    assert result(outcomes) == {1: (0, 5, 0), 2: (5, 10, 0)}


def test_a_large_new_task_starves_in_las_and_not_in_las_prompt() -> None:
    """Ten long tasks hold a tenth of the node each; one that needs it whole wants more than N = 4 of them."""
    rows: list[Row] = [(0, 500, (0.1, 0.1))] * 10
    rows.append((10, 5, (1, 1)))
    assert result(run(create("las"), world(1, *rows))[0])[11] == (500, 505, 0)
    outcomes, _ = run(create("las-prompt"), world(1, *rows))
    assert result(outcomes)[11] == (10, 15, 0)
    assert all(result(outcomes)[i] == (0, 505, 1) for i in range(1, 11))


def test_new_tasks_pass_old_ones_in_overload_with_las_prompt() -> None:
    """Two long tasks lift the node above L and take turns; a short one waits until one of them has ended."""
    rows: list[Row] = [(0, 500, (1, 1)), (5, 500, (1, 1)), (10, 5, (1, 1))]
    starved = result(run(create("las"), world(1, *rows))[0])
    assert starved[3][0] == min(starved[1][1], starved[2][1]) > 900
    assert result(run(create("las-prompt"), world(1, *rows))[0])[3][0] == 10


def test_levels_end_the_taking_of_turns() -> None:
    """Two tasks of like age take turns every W; in levels, only when one is a level below the other."""
    rows: list[Row] = [(0, 1000, (1, 1)), (10, 900, (1, 1))]
    taking_turns = sum(o.preemptions for o in run(create("las-prompt"), world(1, *rows))[0])
    by_level = sum(o.preemptions for o in run(create("las-mq"), world(1, *rows))[0])
    assert taking_turns > 20 and by_level <= 8


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12), st.integers(1, 20))
def test_sparing_finds_a_set_if_there_is_one_and_none_of_it_can_be_spared(
    demands: list[tuple[int, int]], wanted: int
) -> None:
    running = tasks(*demands)
    found = sparing(running, (0, 0), (wanted, 1))
    assert (found is None) == (greedy(running, (0, 0), (wanted, 1)) is None)
    for spared in found or ():
        rest = [t.demand for t in found or () if t is not spared]
        assert sum(d[0] for d in rest) < wanted or sum(d[1] for d in rest) < 1


def test_levels_begin_where_they_should() -> None:
    levels = Levels(60.0, 2.0)
    assert [levels.above_s(a) for a in (0, 59, 60, 119, 120, 1000)] == [60, 60, 120, 120, 240, 1920]


# -- jobs of several tasks ----------------------------------------------------------------------------


def test_a_job_of_several_tasks_runs_with_all_or_none() -> None:
    """Job 1 has a task on each node. Job 2 takes one of the nodes at 10 s: job 1 leaves both."""
    outcomes, _ = run(create("las"), world(2, (0, 30, (1, 1)), (10, 5, (1, 1)), counts=(2, 1)))
    segments = {o.job.id: [(s.placement.nodes, s.start_s, s.end_s) for s in o.segments] for o in outcomes}
    both = ((0, 1), (1, 1))
    assert segments == {1: [(both, 0, 10), (both, 15, 35)], 2: [(((0, 1),), 10, 15)]}


def test_its_tasks_are_sent_one_after_the_other() -> None:
    """Free of node 0 and 1: 0.7 and 1; then 0.7 and 0.6; then 0.3 and 0.6: so node 1, 0 and 1."""
    outcomes, _ = run(create("las"), world(2, (0, 9, (0.3, 0.3)), (1, 9, (0.4, 0.4)), counts=(1, 3)))
    assert {o.job.id: o.segments[0].placement.nodes for o in outcomes} == {1: ((0, 1),), 2: ((0, 1), (1, 2))}


def test_room_is_made_on_every_node_or_on_none() -> None:
    """Job 3 needs both nodes; job 2 cannot be stopped: job 1 is not paused for nothing."""
    quiet = world(2, (0, 30, (1, 1)), (0, 20, (1, 1)), (5, 4, (1, 1)), counts=(1, 1, 2))
    arrivals = tuple(
        a._replace(job=replace(a.job, stop=Stop.NEVER if a.job.id == 2 else Stop.PAUSE))
        for a in quiet.arrivals
    )
    outcomes, _ = run(create("las"), World(quiet.cluster, arrivals))
    assert result(outcomes) == {1: (0, 34, 1), 2: (0, 20, 0), 3: (20, 24, 0)}


def test_what_was_stopped_for_a_job_is_kept_for_it() -> None:
    """Job 2 waits 5 s for the checkpoint of job 1 on node 0; job 3 does not take node 1 from it meanwhile."""
    line = {"node": LinearCost(0.0, 5.0)}
    costs = SimulationSettings(LinearCosts(line, line))
    rows = ((0, 100, (1, 1)), (10, 20, (1, 1)), (12, 9, (1, 1)))
    jobs = world(2, *rows, counts=(1, 2, 1), stop=Stop.CHECKPOINT, settings=costs)
    outcomes, _ = run(create("las,load-limit=9"), jobs)
    starts = {o.job.id: o.start_s for o in outcomes}
    assert starts[2] == 15 and starts[3] > 15


@settings(max_examples=examples(60))
@given(nodes(several=True), st.sampled_from(("las", "las-prompt", "las-mq", "las-drf", "kairos")))
def test_nothing_is_over_committed_and_every_job_gets_a_reason(world: World, name: str) -> None:
    policy = create(name)

    def ask(view: View) -> None:
        if view.upcoming is None:
            assert all(len(policy.why(job, view).sentence) > 10 for job in view.waiting.values())

    outcomes, summary = run(policy, world, ask)
    audit(world, outcomes, sum(summary.refused.values()))


@given(st.data())
def test_a_policy_that_begins_in_the_middle_goes_on(data: st.DataObject) -> None:
    """Asked to begin anew at any event, it still ends every job, and never asks for what cannot be."""
    nodes, rows = data.draw(cases(alternatives=data.draw(st.booleans())))
    policy = create(data.draw(st.sampled_from(("las", "las-mq", "kairos"))))
    at = data.draw(st.integers(0, 30))
    seen = []

    def watch(view: View) -> None:
        seen.append(view.now)
        if len(seen) == at and view.upcoming is None:
            policy.begin(view)

    run(policy, as_world(nodes, rows), watch)


# -- the whole ----------------------------------------------------------------------------------------

EIGHTHS = st.integers(1, 8)


@st.composite
def cases(draw: st.DrawFn, alternatives: bool = False) -> tuple[int, list[brute_las.Task]]:
    """Draw a few nodes of (8, 8) and jobs of one or several tasks, in whole numbers."""
    now, rows, nodes, several = 0, [], draw(st.integers(1, 3)), draw(st.booleans())
    for number in range(1, draw(st.integers(2, 14)) + 1):
        now += draw(st.sampled_from((0, 0, 0, 1, 2, 5, 11)))
        demand = (draw(EIGHTHS), draw(EIGHTHS))
        count = draw(st.integers(1, min(6, nodes * (8 // max(demand))))) if several else 1
        rows.append(brute_las.Task(number, now, draw(st.integers(1, 40)), demand, count))
        if alternatives and count == 1:
            more = draw(st.lists(st.tuples(st.tuples(EIGHTHS, EIGHTHS), st.integers(1, 40)), max_size=2))
            rows[-1].ways = ((demand, rows[-1].run), *more)
    return nodes, rows


def as_world(nodes: int, rows: list[brute_las.Task]) -> World:
    jobs = ((t.submit, t.run, tuple(d / 8 for d in t.demand)) for t in rows)
    plain = world(nodes, *jobs, counts=tuple(t.count for t in rows))
    arrivals = []
    for arrival, task in zip(plain.arrivals, rows, strict=True):
        others = tuple(
            replace(arrival.job, demand=tuple(d / 8 for d in demand), alternative=number)
            for number, (demand, _) in enumerate(task.ways[1:], 1)
        )
        job = replace(arrival.job, alternatives=others)
        arrivals.append(arrival._replace(job=job, others_s=tuple(float(run_s) for _, run_s in task.ways[1:])))
    return World(plain.cluster, tuple(arrivals), plain.settings)


@given(
    case=cases(alternatives=True),
    most=st.integers(1, 3),
    spare=st.integers(1, 9),
    probe=st.integers(0, 3),
    limit=st.sampled_from((1.0, 1.5, float("inf"))),
)
def test_alternatives_begin_as_in_the_straight_program(
    case: tuple[int, list[brute_las.Task]], *, most: int, spare: int, probe: int, limit: float
) -> None:
    nodes, rows = case
    text = f"las-prompt,victims={most},spare-s={spare},probe={probe},load-limit={limit}"
    outcomes, _ = run(create(text), as_world(nodes, rows))
    straight = brute_las.las(
        nodes, (8, 8), rows, limit**2, most=most, spare=spare, thorough=True, probe=probe
    )
    assert result(outcomes) == straight.simulate()


@settings(max_examples=examples(60))
@given(
    case=cases(alternatives=True),
    name=st.sampled_from(("las", "las-mq", "las-drf", "kairos")),
    stop=st.sampled_from((Stop.PAUSE, Stop.CHECKPOINT, Stop.NEVER)),
    restarts=st.tuples(st.integers(0, 20), st.integers(0, 20)),
)
def test_with_alternatives_nothing_is_over_committed(
    case: tuple[int, list[brute_las.Task]], *, name: str, stop: Stop, restarts: tuple[int, int]
) -> None:
    """Whatever it costs to stop a job, each runs in one of its ways from its begin on."""
    nodes, rows = case
    plain, policy = as_world(nodes, rows), create(name)
    arrivals = []
    for arrival in plain.arrivals:
        others = tuple(replace(way, stop=stop) for way in arrival.job.alternatives)
        arrivals.append(arrival._replace(job=replace(arrival.job, stop=stop, alternatives=others)))
    pause_s, go_on_s = map(float, restarts)
    costs = SimulationSettings(LinearCosts(pause_s=pause_s, go_on_s=go_on_s))

    def ask(view: View) -> None:
        if view.upcoming is None:
            assert all(len(policy.why(job, view).sentence) > 10 for job in view.waiting.values())

    outcomes, summary = run(policy, World(plain.cluster, tuple(arrivals), costs), ask)
    assert len(outcomes) == len(rows) and not any(summary.refused.values())
    for outcome, task in zip(sorted(outcomes, key=lambda o: o.job.id), rows, strict=True):
        (way,) = {segment.placement.alternative for segment in outcome.segments}
        assert outcome.run_s == pytest.approx(task.ways[way][1] if task.ways else task.run)


@given(cases(), st.sampled_from((0.5, 1.0, 1.5)), st.integers(1, 4), st.integers(1, 9))
def test_las_is_the_straight_program(
    case: tuple[int, list[brute_las.Task]], limit: float, most: int, spare: int
) -> None:
    nodes, rows = case
    text = f"las,load-limit={limit},victims={most},spare-s={spare}"
    outcomes, _ = run(create(text), as_world(nodes, rows))
    assert result(outcomes) == brute_las.las(nodes, (8, 8), rows, limit**2, most=most, spare=spare).simulate()


@given(
    case=cases(),
    most=st.integers(1, 3),
    spare=st.integers(1, 9),
    probe=st.integers(0, 3),
    levels=st.booleans(),
)
def test_las_prompt_and_las_mq_are_the_straight_program(
    case: tuple[int, list[brute_las.Task]], *, most: int, spare: int, probe: int, levels: bool
) -> None:
    nodes, rows = case
    text = f"las-prompt,victims={most},spare-s={spare},probe={probe}"
    bounds = tuple(3 * 2**k for k in range(12)) if levels else ()
    outcomes, _ = run(create(text + ",first-s=3,factor=2" * levels), as_world(nodes, rows))
    straight = brute_las.las(
        nodes, (8, 8), rows, float("inf"), most=most, spare=spare, thorough=True, probe=probe, bounds=bounds
    )
    assert result(outcomes) == straight.simulate()


@given(cases(), st.integers(1, 4), st.integers(1, 9))
def test_kairos_is_the_straight_program(
    case: tuple[int, list[brute_las.Task]], queued: int, spare: int
) -> None:
    nodes, rows = case
    outcomes, _ = run(create(f"kairos,queued={queued},spare-s={spare}"), as_world(nodes, rows))
    assert result(outcomes) == brute_las.kairos(nodes, (8, 8), rows, queued, spare=spare).simulate()


@given(
    cases(),
    st.sampled_from(("las", "las-mq", "kairos")),
    st.integers(1, 9),
    st.tuples(st.integers(0, 20), st.integers(0, 20)),
)
def test_a_restart_is_no_service_whatever_was_believed_of_it(
    case: tuple[int, list[brute_las.Task]], name: str, spare: int, restarts: tuple[int, int]
) -> None:
    (nodes, rows), (restart, believed) = case, restarts
    costs = SimulationSettings(LinearCosts(go_on_s=restart), planned_costs=LinearCosts(go_on_s=believed))
    quiet = as_world(nodes, rows)
    outcomes, _ = run(create(f"{name},spare-s={spare}"), World(quiet.cluster, quiet.arrivals, costs))
    if name == "kairos":
        straight = brute_las.kairos(nodes, (8, 8), rows, 32, spare=spare)
    elif name == "las":
        straight = brute_las.las(nodes, (8, 8), rows, 1.5**2, most=4, spare=spare)
    else:
        bounds = tuple(60 * 2**k for k in range(12))
        straight = brute_las.las(
            nodes, (8, 8), rows, float("inf"), most=4, spare=spare, thorough=True, probe=8, bounds=bounds
        )
    straight.restart = restart
    assert result(outcomes) == straight.simulate()


@pytest.mark.parametrize("policy", ["las", "las-prompt", "kairos"])
def test_jobs_end_whose_restart_takes_longer_than_w_and_than_believed(policy: str) -> None:
    cluster = parse_cluster("16xhigh+16xlow")
    workload = load("generator:migration,jobs=4,factor=0.1,load=0.9", cluster, seed=3)
    world = World(cluster, tuple(workload.arrivals), workload.settings)
    outcomes, _ = run(create(policy), world)
    assert len(outcomes) == 4
    overhead_s = sum(s.end_s - s.start_s for o in outcomes for s in o.segments if s.kind == "restart")
    assert overhead_s / sum(o.preemptions for o in outcomes) > 60


@pytest.mark.parametrize("policy", ["las", "kairos"])
def test_a_task_that_fits_no_node_is_refused(policy: str) -> None:
    outcomes, summary = run(create(policy), world(2, (0, 1, (1.5, 0.1)), (0, 1, (0.5, 0.5))))
    assert len(outcomes) == 1 and sum(summary.refused.values()) == 1


@pytest.mark.parametrize("policy", ["las", "kairos"])
def test_tasks_outlive_a_node(policy: str) -> None:
    down = SimulationSettings(disturbances=((10.0, NodeDown("node", 1, 0)), (60.0, NodeUp("node", 1, 0))))
    rows = [(submit, run_s, (0.6, 0.6)) for submit, run_s in ((0, 30), (0, 30), (5, 30), (6, 9))]
    outcomes, _ = run(create(policy), world(2, *rows, settings=down))
    assert len(outcomes) == 4
    assert all(
        segment.placement.nodes[0][0] == 1
        for outcome in outcomes
        for segment in outcome.segments
        if 10 <= segment.start_s < 60
    )


@pytest.mark.parametrize("policy", ["las", "kairos", "las-mq"])
@pytest.mark.parametrize("cost_s", [0.0, 5.0])
def test_a_checkpoint_is_awaited(policy: str, cost_s: float) -> None:
    """The new task starts when the old one's checkpoint is written; the old one also pays its restart."""
    line = {"node": LinearCost(0.0, cost_s)}
    costs = SimulationSettings(LinearCosts(line, line))
    jobs = world(1, (0, 100, (1, 1)), (10, 20, (1, 1)), stop=Stop.CHECKPOINT, settings=costs)
    outcomes, _ = run(create(policy), jobs)
    assert result(outcomes) == {1: (0, 120 + 2 * cost_s, 1), 2: (10 + cost_s, 30 + cost_s, 0)}


@pytest.mark.parametrize("policy", ["las", "kairos", "las-prompt", "las-drf"])
def test_tasks_that_cannot_be_stopped_run_to_their_ends(policy: str) -> None:
    """New tasks wait for them, on a node or in the queue, and start in their order."""
    rows: list[Row] = [(0, 100, (1, 1)), (5, 10, (0.7, 0.7)), (6, 10, (0.7, 0.7)), (7, 10, (0.2, 0.2))]
    outcomes, _ = run(create(policy), world(1, *rows, stop=Stop.NEVER))
    assert result(outcomes) == {1: (0, 100, 0), 2: (100, 110, 0), 3: (110, 120, 0), 4: (100, 110, 0)}


@pytest.mark.parametrize("policy", ["las", "kairos"])
def test_nodes_may_differ(policy: str) -> None:
    pool = Pool("node", 2, resources=("cpu", "memory"), capacities=((1, 4), (4, 1)))
    demands = ((3, 1), (1, 3), (2, 1), (1, 2))
    arrivals = tuple(Arrival(Job(i, i, demand=d, stop=Stop.PAUSE), 50) for i, d in enumerate(demands))
    outcomes, _ = run(create(policy), World(Cluster((pool,)), arrivals))
    assert where(outcomes) == {0: 1, 1: 0, 2: 1, 3: 0}


def test_books_are_rebuilt_from_the_view() -> None:
    """A policy that begins in the middle knows what runs and what is paused."""
    rows: list[Row] = [(0, 100, (1, 1)), (10, 90, (1, 1)), (20, 9, (1, 1))]
    seen = []

    def watch(view: View) -> None:
        fresh = create("las,load-limit=9")
        fresh.begin(view)
        node = fresh._nodes[0]  # type: ignore[attr-defined]
        seen.append((len(node.running), len(node.paused)))

    run(create("las,load-limit=9"), world(1, *rows), watch)
    assert (1, 2) in seen


@pytest.mark.parametrize(
    "text",
    [
        "las,victims=0",
        "las,victims=13",
        "las,spare-s=0",
        "las,load-limit=0",
        "kairos,queued=0",
        "las,probe=-1",
        "las-mq,factor=1",
    ],
)
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        create(text)


@pytest.mark.parametrize(
    ("down", "said"),
    [
        (False, "above 1.5 (the lightest: 1.98)"),  # that of the large node, whose tasks are at sqrt(2) * 1.4
        (True, "every node that could take the first is down"),
    ],
)
def test_the_queue_is_told_of_nodes_that_could_take_its_first_task(down: bool, said: str) -> None:
    """An empty node is too small for it."""
    pool = Pool("node", 2, resources=("cpu", "memory"), capacities=((0.2, 0.2), (1.0, 1.0)))
    state, policy = ClusterState(Cluster((pool,))), create("las")
    state.set_node("node", 1, not down)
    for number in range(1, 4):
        state.submit(Job(number, 0.0, demand=(0.7, 0.7)))
    policy.begin(state)
    policy.decide(state, Timer(0.0))
    assert said in policy.why(state.waiting[3], state).sentence


def test_who_waits_for_a_checkpoint_is_told_so() -> None:
    costs = SimulationSettings(LinearCosts({"node": LinearCost(0.0, 5.0)}, {}))
    policy, told = create("las"), []

    def ask(view: View) -> None:
        told.extend(policy.why(job, view).sentence for job in view.waiting.values())

    run(policy, world(1, (0, 100, (1, 1)), (10, 20, (1, 1)), stop=Stop.CHECKPOINT, settings=costs), ask)
    assert told and all(sentence.endswith("job 1 is being stopped there") for sentence in told)


def test_reasons_name_node_and_need() -> None:
    sentences = []

    def ask(view: View) -> None:
        sentences.extend(policy.why(job, view).sentence for job in view.waiting.values())

    policy = create("las,load-limit=0.5")
    run(policy, world(1, (0, 5, (1, 1)), (0, 5, (0.5, 0.25)), (0, 1, (1, 1))), ask)
    assert any("central queue, 1 ahead of it: the load of every node" in s for s in sentences)
    policy = create("las")
    run(policy, world(1, (0, 5, (1, 1)), (0, 5, (0.5, 0.25))), ask)
    assert any("waits on node 0 for 0.5 cpu, 0.25 memory; 0 cpu, 0 memory free there" in s for s in sentences)
