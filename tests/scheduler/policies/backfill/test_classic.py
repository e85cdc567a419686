"""fcfs, easy and conservative against the same rules written down by brute force, and worked by hand."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.model.events import Action, Event
from scheduler.model.jobs import Cluster, EstimateKind, Job, Pool
from scheduler.policies.backfill.conservative import Conservative
from scheduler.policies.base import View
from scheduler.policies.registry import create
from scheduler.simulator.trace import Arrival
from tests.support.amounts import examples
from tests.support.brute import classic as brute
from tests.support.scheduling.schedule_audit import audit, starts
from tests.support.scheduling.worlds import World, counted, partly_unknown, run


def world(units: int, *jobs: tuple[float, int, float, float]) -> World:
    """Jobs as (submission, units, limit, run time), numbered from 1."""
    arrivals = tuple(
        Arrival(Job(i, submit, wanted, limit), run_s)
        for i, (submit, wanted, limit, run_s) in enumerate(jobs, 1)
    )
    return World(Cluster((Pool("node", units),)), arrivals)


@given(counted(most=6, shortest=1))
def test_schedules_are_the_brute_force(world: World) -> None:
    for policy, rule in (("fcfs", brute.fcfs), ("first-fit", brute.first_fit), ("easy", brute.easy)):
        found = starts(run(create(policy), world)[0])
        assert found == rule(world.cluster.units, world.arrivals), policy


@given(counted(most=9, shortest=1), st.sampled_from(("", *(f",depth={depth}" for depth in range(1, 6)))))
def test_conservative_is_the_brute_force_and_keeps_its_promises(world: World, depth: str) -> None:
    table = brute.Conservative(world.cluster.units, world.arrivals, int(depth[7:] or 1000))
    expected = table.run()
    assert starts(run(create(f"conservative{depth}"), world)[0]) == expected
    assert all(expected[job] <= promised for job, promised in table.promised.items())


@given(counted(most=12, shortest=1, exact=True), st.integers(1, 5))
def test_conservative_starts_no_job_later_than_fcfs(world: World, depth: int) -> None:
    begun = starts(run(create(f"conservative,depth={depth}"), world)[0])
    for job_id, start in brute.fcfs(world.cluster.units, world.arrivals).items():
        assert begun[job_id] <= start


class Watched(Conservative):
    """Notes the reservations that each job had."""

    def decide(self, view: View, event: Event) -> list[Action]:
        actions = list(super().decide(view, event))
        for job_id, at in self.reservations._reserved.items():
            notes.setdefault(job_id, []).append(at.start_s)
        return actions


notes: dict[int, list[float]] = {}


@given(counted(most=8))
def test_conservative_never_moves_a_reservation_back(world: World) -> None:
    notes.clear()
    begun = starts(run(Watched(), world)[0])
    for job_id, times in notes.items():
        assert times == sorted(times, reverse=True) and begun[job_id] <= times[-1]


def test_easy_by_hand() -> None:
    # 4 units. Job 1 holds 3 until 10 (its limit). Job 2 needs 4 and gets 10, nothing is spare.
    # Job 3 (1 unit, limit 8) would end at 10 and passes; job 4 (1 unit, limit 2) finds nothing free.
    # Job 1 ends early at 6: job 3 still runs, so job 2 waits for 10 by its limit, and job 4 passes at 6.
    easy = world(4, (0, 3, 10, 6), (1, 4, 5, 5), (2, 1, 8, 7), (3, 1, 2, 2))
    assert starts(run(create("easy"), easy)[0]) == {1: 0, 2: 9, 3: 2, 4: 6}


def test_spare_units_may_be_used_for_ever() -> None:
    # 4 units, job 1 holds 3 until 10, job 2 needs 2: at 10 two units are spare. Job 3 takes one for 100 s.
    spare = world(4, (0, 3, 10, 10), (1, 2, 5, 5), (2, 1, 100, 100), (3, 1, 100, 100))
    assert starts(run(create("easy"), spare)[0]) == {1: 0, 2: 10, 3: 2, 4: 10}


def test_conservative_does_not_let_a_job_delay_the_second_in_the_queue() -> None:
    # Job 4 could pass under EASY (it leaves job 2 alone), but job 3 would have to wait for it.
    jobs = ((0, 2, 10, 10), (1, 4, 10, 10), (2, 2, 10, 10), (3, 2, 30, 30))
    assert starts(run(create("easy"), world(4, *jobs))[0])[3] == 20
    other = ((0, 3, 10, 10), (1, 3, 10, 10), (2, 4, 10, 10), (3, 1, 30, 30))
    assert starts(run(create("easy"), world(4, *other))[0]) == {1: 0, 2: 10, 3: 33, 4: 3}
    assert starts(run(create("conservative"), world(4, *other))[0]) == {1: 0, 2: 10, 3: 20, 4: 30}


def test_no_job_waits_for_a_reservation_made_before_others_ended_early() -> None:
    # 2 units. Job 1 says 100 s and ends at 1. Ten jobs of 1 s, which end on time, go on at once, two by two.
    jobs = ((0, 2, 100, 1), *((0, 1, 1, 1),) * 10)
    for depth in (1, 2, 3, 1000):
        begun = starts(run(create(f"conservative,depth={depth}"), world(2, *jobs))[0])
        assert begun == {1: 0, **{job: 1 + (job - 2) // 2 for job in range(2, 12)}}


def test_who_may_pass_beyond_the_depth() -> None:
    # 4 units. Job 1 holds 3 until 10, job 2 gets 10 and is the only one with a reservation. Job 3 would run
    # beyond 10, job 4 until 10: job 4 passes. Nobody keeps job 5 from passing either, once job 4 has ended.
    here = world(4, (0, 3, 10, 10), (1, 2, 10, 10), (2, 1, 9, 9), (3, 1, 3, 3), (5, 1, 4, 4))
    assert starts(run(create("conservative,depth=1"), here)[0]) == {1: 0, 2: 10, 3: 10, 4: 3, 5: 6}
    # With two reservations job 3 has one beside that of job 2, at once.
    assert starts(run(create("conservative,depth=2"), here)[0]) == {1: 0, 2: 10, 3: 2, 4: 10, 5: 11}


def test_jobs_that_take_longer_than_predicted_end_all_the_same() -> None:
    late = [
        Arrival(Job(i, float(i), 1 + i % 3, 5.0, estimate_kind=EstimateKind.PREDICTED), 5.0 + 10.0 * (i % 4))
        for i in range(1, 30)
    ]
    for policy in ("fcfs", "easy", "conservative"):
        outcomes, summary = run(create(policy), World(Cluster((Pool("node", 4),)), tuple(late)))
        assert summary.jobs == 29 and all(o.how == "done" for o in outcomes)


def test_unknown_run_times() -> None:
    unknown = [Arrival(Job(i, float(i), 1 + i % 4), 3.0 + i % 5) for i in range(1, 30)]
    here = World(Cluster((Pool("node", 4),)), tuple(unknown))
    fcfs = starts(run(create("fcfs"), here)[0])
    assert starts(run(create("easy"), here)[0]) == fcfs  # nothing can be reserved, so nobody passes
    assert starts(run(create("conservative"), here)[0]) == fcfs


@settings(max_examples=examples(500))
@given(st.integers(1, 3).flatmap(partly_unknown), st.integers(1, 5))
def test_unknown_run_times_lose_no_job_at_any_depth(world: World, depth: int) -> None:
    for policy in ("fcfs", "first-fit", "easy", f"conservative,depth={depth}"):
        outcomes, summary = run(create(policy), world)
        audit(world, outcomes, sum(summary.refused.values()))


def test_more_jobs_behind_an_unknown_run_time_than_the_depth() -> None:
    jobs = (Arrival(Job(i, 1.0, 2, 1.0), 1.0) for i in range(2, 1003))
    here = World(Cluster((Pool("node", 2),)), (Arrival(Job(1, 0.0, 2), 10.0), *jobs))
    for policy in ("conservative", "conservative,depth=1"):
        assert starts(run(create(policy), here)[0]) == {1: 0, **{i: i + 8 for i in range(2, 1003)}}
