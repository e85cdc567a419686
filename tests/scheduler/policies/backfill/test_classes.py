"""fcfs, first-fit, easy, conservative on several classes: by hand, by brute force, and against one class."""

from __future__ import annotations

import math
import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from scheduler.model.events import Action, Event, NodeDown, NodeUp
from scheduler.model.jobs import Cluster, EstimateKind, Job, Pool, instant
from scheduler.policies.backfill.conservative import Conservative, UnitReservations
from scheduler.policies.backfill.easy import Easy
from scheduler.policies.backfill.first_fit import FirstFit
from scheduler.policies.backfill.multi_pool import MultiPoolEasy, MultiPoolFirstFit
from scheduler.policies.backfill.reservations import Reservations
from scheduler.policies.base import Policy, View
from scheduler.policies.registry import create
from scheduler.simulator.trace import Arrival, SimulationSettings
from tests.support.brute import classes as brute
from tests.support.scheduling.schedule_audit import audit, starts
from tests.support.scheduling.worlds import World, counted, limited_classes, run

POLICIES = ("first-fit", "easy", "conservative")


def two(gpu: int, cpu: int, *jobs: tuple[float, int, float | None, float | None]) -> World:
    """Jobs as (submission, units, seconds on gpu, seconds on cpu; None: never), numbered from 1; exact."""
    arrivals = []
    for number, (submit, wanted, *both) in enumerate(jobs, 1):
        times = {name: time for name, time in zip(("gpu", "cpu"), both, strict=True) if time is not None}
        arrivals.append(Arrival(Job(number, submit, wanted, estimates_s=times), 0.0, times))
    return World(Cluster((Pool("gpu", gpu, 0), Pool("cpu", cpu, 1))), tuple(arrivals))


def schedule(policy: str, world: World) -> brute.Schedule:
    outcomes, summary = run(create(policy), world)
    audit(world, outcomes, sum(summary.refused.values()))
    return {o.job.id: (o.segments[0].placement.pool, int(o.start_s)) for o in outcomes}


def machine(world: World) -> brute.Machine:
    return {pool.name: pool.units for pool in world.cluster.pools}


# -- brute force --------------------------------------------------------------------------------------


@given(limited_classes())
def test_schedules_are_the_brute_force(world: World) -> None:
    for policy, rule in (("fcfs", brute.fcfs), ("first-fit", brute.first_fit), ("easy", brute.easy)):
        assert schedule(policy, world) == rule(machine(world), world.arrivals), policy


@given(limited_classes(most=10), st.sampled_from(("", *(f",depth={depth}" for depth in range(1, 6)))))
def test_conservative_is_the_brute_force_and_no_job_is_to_end_later_than_promised(
    world: World, depth: str
) -> None:
    table = brute.Conservative(machine(world), world.arrivals, int(depth[7:] or 1000))
    assert schedule(f"conservative{depth}", world) == table.run()
    assert all(table.end(job_id) <= promised for job_id, promised in table.promised.items())


# -- one class by the code for several ----------------------------------------------------------------


class EasyForSeveral(Easy):
    def begin(self, view: View) -> None:
        super().begin(view)
        self._queue = MultiPoolEasy(["node"])  # nothing waits or runs yet


class FirstFitForSeveral(FirstFit):
    def begin(self, view: View) -> None:
        super().begin(view)
        self._queue = MultiPoolFirstFit(["node"])


class ReservationsForSeveral(UnitReservations):
    _move_up = Reservations._move_up


class ConservativeForSeveral(Conservative):
    def begin(self, view: View) -> None:
        self.reservations = ReservationsForSeveral(view.cluster.pools, 1000, view)


@given(counted(most=12))
def test_one_class_is_a_case_of_several(world: World) -> None:
    several: list[Policy] = [FirstFitForSeveral(), EasyForSeveral(), ConservativeForSeveral()]
    for name, policy in zip(POLICIES, several, strict=True):
        assert starts(run(create(name), world)[0]) == starts(run(policy, world)[0])


def thirds(seed: int) -> World:
    """Make a long queue for two classes; times are thirds of a second, which are rounded to microseconds."""
    chance, now, arrivals = random.Random(seed), 0.0, []
    pools = (Pool("gpu", 4, 0), Pool("cpu", 4, 1))
    for number in range(1, 41):
        now += chance.choice((0.0, 0.0, 1 / 3))
        limits = {pool.name: chance.randint(1, 9) / 3 for pool in pools}
        runs = {name: limit * chance.choice((0.5, 1.0)) for name, limit in limits.items()}
        arrivals.append(
            Arrival(Job(number, instant(now), chance.randint(1, 4), estimates_s=limits), 0.0, runs)
        )
    return World(Cluster(pools), tuple(arrivals))


def test_no_reservation_is_moved_back_because_its_interval_was_rounded() -> None:
    for seed in range(10):
        ends: dict[int, list[float]] = {}

        class Watched(Conservative):
            def decide(self, view: View, event: Event, ends: dict[int, list[float]] = ends) -> list[Action]:
                actions = list(super().decide(view, event))
                for job_id, at in self.reservations._reserved.items():
                    ends.setdefault(job_id, []).append(at.end_s)
                return actions

        run(Watched(), thirds(seed))
        assert all(times == sorted(times, reverse=True) for times in ends.values()), seed


# -- by hand ------------------------------------------------------------------------------------------


def test_where_a_job_starts() -> None:
    # Both classes are free and the better one, gpu, is the slower: first-fit takes it all the same.
    world = two(1, 1, (0, 1, 20, 10))
    assert [schedule(policy, world)[1][0] for policy in POLICIES] == ["gpu", "cpu", "cpu"]
    # The gpu is held until 4. On it job 2 would end at 6, on the cpu at 10: only conservative waits for it.
    world = two(1, 1, (0, 1, 4, None), (0, 1, 2, 10))
    assert [schedule(policy, world)[2] for policy in POLICIES] == [("cpu", 0), ("cpu", 0), ("gpu", 4)]
    # Equal ends: the earlier start; equal starts: the better class.
    world = two(1, 1, (0, 1, 4, None), (0, 1, 6, 10), (20, 1, 5, 5))
    assert schedule("conservative", world) == {1: ("gpu", 0), 2: ("cpu", 0), 3: ("gpu", 20)}


def test_easy_binds_who_passes_on_the_class_of_the_reservation_only() -> None:
    # Job 3 would end at 12 on the gpus (free at 10), at 28 on the cpus (free at 8): the gpus are reserved.
    # Job 4 would delay it on the gpu, where job 4 would end first, so it takes the cpu. Job 5 ends in time.
    jobs = (0, 1, 10, None), (0, 1, None, 8), (1, 2, 2, 20), (2, 1, 15, 16), (3, 1, 7, None), (4, 1, 3, None)
    assert schedule("easy", two(2, 2, *jobs)) == {
        1: ("gpu", 0),
        2: ("cpu", 0),
        3: ("gpu", 10),
        4: ("cpu", 2),
        5: ("gpu", 3),
        6: ("gpu", 12),
    }


def test_a_job_that_cannot_start_holds_up_its_own_classes_only() -> None:
    # One of two gpus is down until 50. Under conservative job 2 waits for it, and with it job 4, but not
    # the cpus. Under easy all may pass job 2 while too few units are in service.
    jobs = (1, 1, 10, None), (2, 2, 5, None), (3, 1, 5, 9), (4, 1, 5, None), (5, 1, None, 5)
    down = SimulationSettings(disturbances=((0.5, NodeDown("gpu")), (50.0, NodeUp("gpu"))))
    world = replace(two(2, 2, *jobs), settings=down)
    expected = {1: ("gpu", 1), 2: ("gpu", 50), 3: ("cpu", 3), 4: ("gpu", 55), 5: ("cpu", 5)}
    assert schedule("conservative", world) == expected
    assert schedule("easy", world) == {**expected, 4: ("gpu", 11)}


def test_unknown_run_times_hold_up_their_own_classes_only() -> None:
    # Nobody knows when job 1 ends, so nothing can be said for job 2: the gpus wait for it, the cpus do not.
    jobs = [
        Arrival(
            Job(1, 0, 1, estimates_s={"gpu": math.inf}, estimate_kind=EstimateKind.PREDICTED),
            0.0,
            {"gpu": 30.0},
        )
    ]
    more = two(2, 1, (1, 2, 5, None), (2, 1, 5, None), (3, 1, 5, 7)).arrivals
    jobs += [a._replace(job=replace(a.job, id=a.job.id + 1)) for a in more]
    world = World(two(2, 1).cluster, tuple(jobs))
    for policy in ("easy", "conservative"):
        assert schedule(policy, world) == {1: ("gpu", 0), 2: ("gpu", 30), 3: ("gpu", 35), 4: ("cpu", 3)}


def test_why_and_when() -> None:
    world = two(1, 1, (0, 1, 10, None), (0, 1, None, 20), (1, 1, 10, 10), (2, 1, 10, 10))
    for policy in (create("easy"), create("conservative")):
        said: dict[int, float | None] = {}

        def ask(view: View, policy: Policy = policy, said: dict[int, float | None] = said) -> None:
            for job in view.waiting.values():
                if view.upcoming is None and view.now == 2:
                    sentence, said[job.id], *_ = policy.why(job, view)
                    assert "1 unit (0 of 1 gpu, 0 of 1 cpu free)" in sentence

        run(policy, world, ask)
        assert said == {3: 10.0, 4: 20.0}


def test_many_jobs_that_take_longer_than_predicted_all_end() -> None:
    jobs = []
    for i in range(1, 60):
        times = {"gpu": 2.0 + i % 5, "cpu": 3.0 + i % 7}
        job = Job(i, float(i), 1 + i % 3, estimates_s=times, estimate_kind=EstimateKind.PREDICTED)
        jobs.append(Arrival(job, 0.0, {pool: time * (1 + i % 4) for pool, time in times.items()}))
    world = World(two(3, 3).cluster, tuple(jobs))
    for policy in POLICIES:
        assert len(schedule(policy, world)) == len(jobs)
