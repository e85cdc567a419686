"""Turns on nodes: who gives way, how often, that nobody starves; known run times are decided on as before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.model.costs import LinearCost, LinearCosts
from scheduler.model.jobs import CHECKPOINT, NEVER, PAUSE, Cluster, EstimateKind, Job, Pool, Stop
from scheduler.model.state import ClusterState
from scheduler.policies.base import View
from scheduler.policies.registry import create
from scheduler.simulator.trace import Arrival, Outcome, SimulationSettings
from tests.scheduler.policies.backfill.test_on_nodes import machines
from tests.support.brute import nodes
from tests.support.scheduling.schedule_audit import audit, starts
from tests.support.scheduling.worlds import World, run
from tests.support.scheduling.worlds import nodes as open_worlds

COSTS = LinearCosts({"node": LinearCost(0, 10.0)}, {"node": LinearCost(0, 20.0)})


def arrival(number: int, at_s: float, cores: float, run_s: float, **more: Any) -> Arrival:
    fields = {"stop": PAUSE, "estimate_kind": EstimateKind.EXACT, **more}
    return Arrival(Job(number, at_s, demand=(float(cores),), **fields), run_s)


def lived(arrivals: list[Arrival], machine: int = 1, costs: LinearCosts | None = None) -> dict[int, Outcome]:
    pool = Pool("node", machine, resources=("cores",), capacity=(4.0,))
    settings = SimulationSettings(costs or LinearCosts())
    world = World(Cluster((pool,)), tuple(arrivals), settings)
    outcomes, summary = run(create("weigh,pause=true"), world)
    audit(world, outcomes, sum(summary.refused.values()))
    return {outcome.job.id: outcome for outcome in outcomes}


@given(machines(3, exact=False), st.sampled_from((PAUSE, CHECKPOINT)))
def test_jobs_of_known_run_times_start_as_the_rules_say_whether_they_can_be_stopped_or_not(
    world: World, stop: Stop
) -> None:
    fit = tuple(a for a in world.arrivals if not ClusterState(world.cluster).misfit(a.job))
    expected = nodes.Simulation("weigh", world.cluster.pools, fit).run()
    able = tuple(a._replace(job=replace(a.job, stop=stop)) for a in fit)
    outcomes, _ = run(create("weigh,pause=true"), World(world.cluster, able))
    assert starts(outcomes) == {job_id: held.start for job_id, held in expected.items()}
    assert not any(outcome.preemptions for outcome in outcomes)


def test_a_new_job_takes_the_place_of_who_has_run_longest_and_no_more_than_it_needs() -> None:
    """Two run since 0 and 300, each in half of the node; the third wants one half, at 400 and for 5 s."""
    out = lived([arrival(1, 0, 2, 1000), arrival(2, 300, 2, 1000), arrival(3, 400, 2, 5)])
    assert (out[3].start_s, out[3].end_s) == (400, 405)
    assert [out[number].preemptions for number in (1, 2, 3)] == [1, 0, 0]
    assert [(at.start_s, at.end_s) for at in out[1].segments] == [(0, 400), (405, 1005)]


def test_of_two_nodes_the_job_goes_where_what_gives_way_is_worth_least() -> None:
    out = lived([arrival(1, 0, 4, 900), arrival(2, 300, 4, 900), arrival(3, 400, 4, 5)], machine=2)
    assert [out[number].preemptions for number in (1, 2, 3)] == [1, 0, 0]


def test_nobody_gives_way_to_who_is_not_worth_a_fifth_more() -> None:
    """Job 2 comes when job 1 has run for 11 s, which is a tenth more than what any job is taken to need."""
    for at_s, stops in (11, 0), (13, 1):
        assert lived([arrival(1, 0, 4, 20), arrival(2, at_s, 4, 5)])[1].preemptions == stops


@pytest.mark.parametrize("more", [{"stop": NEVER}, {"estimate_s": 1000.0}])
def test_who_cannot_be_stopped_or_has_a_known_run_time_never_gives_way(more: dict[str, Any]) -> None:
    out = lived([arrival(1, 0, 4, 1000, **more), arrival(2, 500, 4, 5)])
    assert out[1].end_s == out[2].start_s == 1000


def test_the_first_of_the_queue_takes_its_place_although_its_run_time_is_known() -> None:
    out = lived([arrival(1, 0, 4, 5000), arrival(2, 1000, 4, 100, stop=NEVER, estimate_s=100.0)])
    assert out[2].start_s < 1200 and out[1].preemptions == 1


def test_a_node_is_kept_until_the_stops_for_a_job_are_over() -> None:
    """Stops take 10 s: job 3, for which one of them would do, comes meanwhile and is stopped for nobody."""
    first = [arrival(1, 0, 2, 2000, stop=CHECKPOINT), arrival(2, 0, 2, 2000, stop=CHECKPOINT)]
    out = lived(
        [*first, arrival(3, 1000, 4, 50), arrival(4, 1005, 2, 50, stop=NEVER, estimate_s=50.0)], costs=COSTS
    )
    assert out[3].start_s == 1010
    assert out[1].preemptions == out[2].preemptions == 1
    assert out[4].start_s >= out[3].end_s


def test_a_job_that_was_checkpointed_goes_on_elsewhere() -> None:
    """Job 2 ends at 600 on the other node, before job 3 does."""
    first = [arrival(1, 0, 4, 2000, stop=CHECKPOINT), arrival(2, 0, 4, 600, stop=NEVER)]
    out = lived([*first, arrival(3, 400, 4, 500, stop=NEVER)], machine=2, costs=COSTS)
    assert out[3].start_s == 410 and out[1].migrations == 1
    assert out[1].end_s == 600 + 20 + 1600


@given(open_worlds(most=14))
def test_a_job_is_stopped_once_more_at_most_than_it_has_run_for_minutes(world: World) -> None:
    outcomes, _ = run(create("weigh,pause=true"), world)
    assert all(outcome.preemptions <= 1 + outcome.run_s / 60 for outcome in outcomes)


@pytest.mark.parametrize("stop", [PAUSE, CHECKPOINT])
@pytest.mark.parametrize("estimate_s", [None, 30.0])
def test_a_paused_job_has_its_turn_beside_any_stream_of_small_jobs(
    stop: Stop, estimate_s: float | None
) -> None:
    """Small jobs, which do not give way, come for hours, each before another has ended."""
    small = [arrival(3 + n, 500 + 15 * n, 2, 30, stop=NEVER, estimate_s=estimate_s) for n in range(600)]
    out = lived([arrival(1, 0, 4, 2000, stop=stop), *small])
    assert out[1].preemptions > 0 and out[1].end_s < 6000
    assert max(outcome.start_s - outcome.job.submit_s for outcome in out.values()) < 4000


def test_the_reason_names_who_gives_way() -> None:
    pool = Pool("node", 1, resources=("cores",), capacity=(4.0,))
    arrivals = (arrival(1, 0, 4, 2000, stop=CHECKPOINT), arrival(2, 1000, 4, 50))
    policy, said = create("weigh,pause=true"), dict[float, str]()

    def ask(view: View) -> None:
        for job in view.waiting.values() if view.upcoming is None else ():
            said[view.now] = policy.why(job, view).sentence

    run(policy, World(Cluster((pool,)), arrivals, SimulationSettings(COSTS)), ask)
    assert "until job 1 gives way" in said[1000]
