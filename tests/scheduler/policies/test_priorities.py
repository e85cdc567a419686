"""Jobs of a higher priority go before those that wait, as if they had been submitted earlier."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.model.jobs import EstimateKind, Job
from scheduler.policies.registry import POLICIES
from scheduler.simulator.trace import Arrival
from tests.scheduler.policies.test_every_policy import CASES, QUICK, quick
from tests.support.scheduling.schedule_audit import audit
from tests.support.scheduling.worlds import WORLDS, World, run

BUSY_S = 1000.0
PRIORITIES = st.sampled_from((-1, 0, 0, 2, 1_000))
IN_ORDER = [case for case in CASES if "in-order" in POLICIES[case[0]].load().promises]
# What they decide also follows from who came when: regions are cut by it, users have sent much, parm, weigh
# and sia weigh how long a job has waited, gavel what it has had by then.
WITH_A_HISTORY = {"regions", "soft-regions", "las-drf", "parm", "parm-ga", "weigh", "gavel", "sia"}


@pytest.mark.parametrize(("name", "kind"), [case for case in CASES if case[0] not in WITH_A_HISTORY])
def test_as_if_they_had_come_in_that_order(name: str, kind: str) -> None:
    """While the machine is busy jobs come in any order, or by their priorities: then the same happens."""

    @QUICK
    @given(WORLDS[kind](most=6), st.data())
    def check(world: World, data: st.DataObject) -> None:
        mixed = [with_priority(a, data.draw(PRIORITIES)) for a in world.arrivals]
        in_order = sorted(range(len(mixed)), key=lambda i: -mixed[i].job.priority)
        got = behind_others(name, world, mixed)
        expected = behind_others(name, world, [with_priority(mixed[i], 0) for i in in_order])
        assert [got[i] for i in in_order] == expected

    check()


@pytest.mark.parametrize(("name", "kind"), IN_ORDER)
def test_policies_in_order_are_in_the_order_of_priorities(name: str, kind: str) -> None:
    """A job that starts while another waits has its priority or a higher one."""

    @QUICK
    @given(WORLDS[kind](), st.data())
    def check(world: World, data: st.DataObject) -> None:
        arrivals = tuple(with_priority(a, data.draw(PRIORITIES)) for a in world.arrivals)
        world = replace(world, arrivals=arrivals)
        outcomes, summary = run(quick(name), world)
        audit(world, outcomes, sum(summary.refused.values()))
        for one in outcomes:
            for other in outcomes:
                waits = other.job.submit_s < one.start_s < other.start_s
                assert not waits or one.job.priority >= other.job.priority

    check()


def with_priority(arrival: Arrival, priority: int) -> Arrival:
    return arrival._replace(job=replace(arrival.job, priority=priority))


def behind_others(name: str, world: World, mixed: list[Arrival]) -> list[tuple[float, float, str]]:
    """Start, end and last place of each of the jobs, which come one by one while others hold everything."""
    arrivals = blockers(world)
    arrivals += [a._replace(job=replace(a.job, id=100 + at, submit_s=1.0 + at)) for at, a in enumerate(mixed)]
    world = replace(world, arrivals=tuple(arrivals))
    outcomes, summary = run(quick(name), world)
    audit(world, outcomes, sum(summary.refused.values()))
    by_id = {outcome.job.id: outcome for outcome in outcomes}
    found = [by_id.get(100 + at) for at in range(len(mixed))]  # None: refused
    return [(o.start_s, o.end_s, str(o.segments[-1].placement)) if o else (0.0, 0.0, "") for o in found]


def blockers(world: World) -> list[Arrival]:
    """Make a job for each unit or node, which cannot be stopped."""
    arrivals = []
    several = len(world.cluster.pools) > 1
    for pool in world.cluster.pools:
        for _ in range(pool.units):
            job = Job(
                len(arrivals) + 1,
                0.0,
                estimate_s=None if several else BUSY_S,
                estimate_kind=EstimateKind.EXACT,
                estimates_s={pool.name: BUSY_S} if several else {},
                demand=pool.capacity,
                user="blocker",
                priority=1_000_000,
            )
            arrivals.append(Arrival(job, BUSY_S, {pool.name: BUSY_S} if several else {}))
    return arrivals
