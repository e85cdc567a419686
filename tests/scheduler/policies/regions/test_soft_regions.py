"""The guarantee of soft regions: no job starts later than its latest start, or than under plain fcfs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.model.jobs import Cluster, EstimateKind, Job, Pool
from scheduler.policies.base import View
from scheduler.policies.regions.soft_regions import SoftRegions, SoftRegionsParameters
from scheduler.policies.registry import create
from scheduler.simulator.trace import Arrival
from scheduler.workloads import load
from tests.scheduler.policies.regions.test_regions import machines
from tests.support.brute import classic as brute
from tests.support.scheduling.schedule_audit import audit, starts
from tests.support.scheduling.worlds import World, counted, run


@given(st.one_of(machines(exact=True), counted(exact=True)), st.integers(3, 20), st.integers(1, 5))
def test_with_exact_limits_no_job_starts_later_than_under_fcfs(
    world: World, interval: int, regions: int
) -> None:
    policy = SoftRegions(SoftRegionsParameters(interval_s=interval, fixed=regions))
    outcomes, _ = run(policy, world)
    audit(world, outcomes)
    plain = starts(run(create("fcfs"), world)[0])
    assert all(start <= plain[job] for job, start in starts(outcomes).items())


class Watch:
    """Notes every latest start that a job was ever given."""

    def __init__(self, policy: SoftRegions) -> None:
        self.policy = policy
        self.latest: dict[int, list[float]] = {}

    def __call__(self, view: View) -> None:
        if view.upcoming is None:
            for job_id, start_s in self.policy.latest_starts(view).items():
                self.latest.setdefault(job_id, []).append(start_s)


def by_limits(world: World) -> dict[int, int]:
    """Fcfs on the undivided machine if all jobs took as long as their limits."""
    slow = tuple(Arrival(a.job, int(a.job.estimate_s or 0)) for a in world.arrivals)
    return brute.fcfs(world.cluster.units, slow)


@given(machines(), st.integers(3, 20), st.integers(1, 5), st.sampled_from((1, 3, 1000)))
def test_latest_starts_never_move_back(world: World, interval: int, regions: int, depth: int) -> None:
    policy = SoftRegions(SoftRegionsParameters(interval_s=interval, fixed=regions, depth=depth))
    watch = Watch(policy)
    outcomes, _ = run(policy, world, watch)
    begun, limits = starts(outcomes), by_limits(world)
    for job, times in watch.latest.items():
        assert times == sorted(times, reverse=True)
        assert begun[job] <= times[-1] and times[0] <= limits[job]
    assert all(begun[job] <= limits[job] for job in begun)


@given(machines(), st.integers(3, 20))
def test_a_restart_with_given_shares_changes_nothing(world: World, bound: int) -> None:
    total = world.cluster.units
    text = f"soft-regions,bounds={bound}/{total + 21},sizes=5/{total - 5}"
    policy = create(text)

    def begin_again(view: View) -> None:
        if view.upcoming is None:
            policy.begin(view)

    assert run(policy, world, begin_again)[0] == run(create(text), world)[0]


def small_world(units: int, *jobs: tuple[float, int, float]) -> World:
    """Jobs as (submission, units, run time), numbered from 1; limits are exact."""
    arrivals = tuple(Arrival(Job(i, at, n, run_s), run_s) for i, (at, n, run_s) in enumerate(jobs, 1))
    return World(Cluster((Pool("node", units),)), arrivals)


def test_owners_go_before_borrowers_and_nobody_is_delayed() -> None:
    # 10 units, shares 4 (jobs up to 2 units) and 6. Job 1 holds 7 until 10, job 2 needs 8: its latest start
    # is 10. Jobs 3 to 5 (2 units each, from second 2 on) would pass: job 3 is long and would be in its way
    # (8 of 10 are needed at 10, 2 are spare), so it takes the two spare units; jobs 4 and 5 find one free.
    jobs = ((0.0, 7, 10.0), (1.0, 8, 5.0), (2.0, 2, 100.0), (2.0, 2, 3.0), (2.0, 1, 8.0))
    policy = "soft-regions,bounds=2/10,sizes=4/6"
    assert starts(run(create(policy), small_world(10, *jobs))[0]) == {1: 0, 2: 10, 3: 2, 4: 15, 5: 2}
    # 12 units, job 1 holds 8. The owner of the first region (job 4) starts before job 3, which came earlier
    # but whose region already holds more than its share.
    jobs = ((0.0, 8, 10.0), (1.0, 12, 5.0), (2.0, 3, 8.0), (2.0, 2, 8.0))
    policy = "soft-regions,bounds=2/12,sizes=5/7"
    assert starts(run(create(policy), small_world(12, *jobs))[0]) == {1: 0, 2: 10, 3: 15, 4: 2}


def test_idle_units_are_lent() -> None:
    # All jobs are small: strict regions leave the large jobs' units idle, soft ones lend them.
    jobs = tuple((0.0, 1, 10.0) for _ in range(20))
    shares = "bounds=2/20,sizes=5/15"
    strict = starts(run(create(f"regions,{shares}"), small_world(20, *jobs))[0])
    soft = starts(run(create(f"soft-regions,{shares}"), small_world(20, *jobs))[0])
    assert max(strict.values()) == 30 and max(soft.values()) == 0


def test_a_reason_names_the_latest_start() -> None:
    world = small_world(10, (0.0, 7, 10.0), (1.0, 8, 5.0), (2.0, 9, 5.0))
    policy = create("soft-regions,bounds=2/10,sizes=4/6")
    reasons = []

    def ask(view: View) -> None:
        if view.upcoming is None and view.now == 2.0:
            reasons.extend(policy.why(job, view) for job in view.waiting.values())

    run(policy, world, ask)
    assert [reason.expected_start_s for reason in reasons] == [10.0, 15.0]
    assert "behind 1 job; jobs of 3 to 10 nodes hold 7 of their 6; it starts by" in reasons[1].sentence


def test_unknown_and_late_jobs_and_failing_units_leave_nobody_waiting_for_ever() -> None:
    unknown = tuple(Arrival(Job(i, float(i), 1 + i % 4), 3.0 + i % 5) for i in range(1, 30))
    late = tuple(
        Arrival(Job(i, float(i), 1 + i % 3, 5.0, estimate_kind=EstimateKind.PREDICTED), 5.0 + 10.0 * (i % 4))
        for i in range(1, 30)
    )
    for arrivals in (unknown, late):
        outcomes, _ = run(create("soft-regions"), World(Cluster((Pool("node", 4),)), arrivals))
        assert len(outcomes) == 29 and all(o.how == "done" for o in outcomes)


@pytest.mark.parametrize("burst", ["", ",burst=0.2"])
def test_on_a_week_of_k_no_job_waits_longer_than_without_regions(burst: str) -> None:
    cluster = Cluster((Pool("node", 9216),))
    arrivals = tuple(load(f"generator:k-mix,estimate=exact,days=3{burst}", cluster, 1).arrivals)  # type: ignore[arg-type]
    world = World(cluster, arrivals)

    def waits(text: str) -> dict[int, float]:
        outcomes = run(create(text), world)[0]
        return {o.job.id: o.start_s - o.job.submit_s for o in outcomes}

    soft, plain = waits("soft-regions,interval_s=43200,largest=1000"), waits("fcfs")
    assert all(soft[job] <= plain[job] + 1e-5 for job in plain)
    assert sum(soft.values()) < 0.8 * sum(plain.values())
