"""Jobs that are paused on nodes which they cannot leave: they go on there, or wait until there is room."""

from __future__ import annotations

from pathlib import Path

import pytest

from scheduler.coordinator import decisions
from scheduler.engines.protocol import Nodes
from scheduler.jobs.entry import Entry
from scheduler.jobs.sizes import Unit
from scheduler.model import events as act
from scheduler.model.jobs import Cluster, Pool
from scheduler.model.state import RuleBroken
from tests.support.scheduling.manual_engine import ManualEngine, shown, submit, why

NAMES = ("n0", "n1")
POOL = Pool("node", 2, resources=("cores", "memory_mb"), capacity=(2.0, 1000.0), names=NAMES)
UNIT = Unit(node=True, cores=2)


class TwoNodes(Nodes):
    named = True

    def names(self) -> tuple[str, ...]:
        return NAMES

    def where(self, job: Entry) -> list[str]:
        return [NAMES[node] for node, _ in job.place.nodes]


def two_nodes() -> ManualEngine:
    manual = ManualEngine(cluster=Cluster((POOL,), memory_mb=2000.0))
    manual.nodes = TwoNodes()
    return manual


@pytest.mark.parametrize("policy", ["fcfs", "first-fit", "easy", "conservative", "weigh", "las"])
def test_a_resumed_job_goes_on_where_it_is_paused(tmp_path: Path, policy: str) -> None:
    manual = two_nodes()
    with manual.coordinator(tmp_path, policy, unit=UNIT) as coordinator:
        first, other = (submit(coordinator, cores=2, time_s=900.0) for _ in range(2))
        entry = coordinator.job_table.open(first)
        assert entry.hosts == ["n0"]
        coordinator.suspend([first])
        third = submit(coordinator, cores=2, time_s=900.0)  # takes n0
        manual.end(other)
        coordinator.turn()
        coordinator.resume([first])  # n1 is free
        assert shown(coordinator, first, third) == ["waiting", "running"]
        assert why(coordinator, first) == "waits for its cores of n0, where it is paused"
    with manual.coordinator(tmp_path, policy, unit=UNIT) as coordinator:
        assert shown(coordinator, first) == ["waiting"]
        manual.end(third)
        coordinator.turn()
        entry = coordinator.job_table.open(first)
        assert shown(coordinator, first) == ["running"] and entry.hosts == ["n0"] and entry.attempt == 1
        assert coordinator.cluster.nodes["node"].free.tolist() == [[0.0, 1000.0], [2.0, 1000.0]]


def test_conservative_reserves_where_a_resumed_job_is_paused(tmp_path: Path) -> None:
    """Nobody takes its node for longer; it is said when the job goes on, also after a restart."""
    manual = two_nodes()
    with manual.coordinator(tmp_path, "conservative", unit=UNIT) as coordinator:
        first, _ = (submit(coordinator, cores=2, time_s=seconds) for seconds in (900.0, 200.0))
        coordinator.suspend([first])
        early, late = (submit(coordinator, time_s=seconds) for seconds in (100.0, 300.0))
        coordinator.resume([first])
        long, short = (submit(coordinator, time_s=seconds) for seconds in (500.0, 150.0))
        manual.wait(100.0)
        manual.end(early)
        coordinator.turn()
        assert shown(coordinator, first, late, long, short) == ["waiting", "running", "waiting", "running"]
    with manual.coordinator(tmp_path, "conservative", unit=UNIT) as coordinator:
        reason = coordinator.why(first)
        assert reason.sentence == "waits for its cores of n0, where it is paused"
        assert reason.expected_start_s == coordinator.job_table.open(late).expected_end_s
        manual.end(short)
        manual.end(late)
        coordinator.turn()
        entry = coordinator.job_table.open(first)
        assert shown(coordinator, first, long) == ["running", "waiting"] and entry.attempt == 1


def test_a_job_whose_attempt_is_lost_begins_anew_elsewhere(tmp_path: Path) -> None:
    manual = two_nodes()
    with manual.coordinator(tmp_path, unit=UNIT) as coordinator:
        first, other = (submit(coordinator, cores=2, time_s=900.0, requeue=True) for _ in range(2))
        coordinator.suspend([first])
        third = submit(coordinator, cores=2, time_s=900.0)  # takes n0
        manual.end(other)
        coordinator.turn()
        coordinator.resume([first])
        assert why(coordinator, first) == "waits for its cores of n0, where it is paused"
        manual.end(first, "interrupted")
        coordinator.turn()
        entry = coordinator.job_table.open(first)
        assert shown(coordinator, first, third) == ["running"] * 2
        assert entry.attempt == 2 and entry.hosts == ["n1"]


TOLD = "has been told to end, and is about to"


@pytest.mark.parametrize("how", ["cancelled", "deadline"])
@pytest.mark.parametrize("policy", ["fcfs", "first-fit", "easy", "conservative", "weigh", "las"])
def test_the_reason_of_a_job_that_is_told_to_end_is_none_of_the_policy(
    tmp_path: Path, policy: str, how: str
) -> None:
    """Which does not see it: nothing brings it back into the queue, nor gives it its place, also later."""
    manual = two_nodes()
    with manual.coordinator(tmp_path, policy, unit=UNIT) as coordinator:
        deadline_s = manual.now + 100.0 if how == "deadline" else None
        first = submit(coordinator, cores=2, time_s=900.0, deadline_s=deadline_s)
        other = submit(coordinator, cores=2, time_s=900.0)
        coordinator.suspend([first])
        third = submit(coordinator, cores=2, time_s=900.0)  # takes n0
        manual.end(other)
        coordinator.turn()
        coordinator.resume([first])
        if how == "cancelled":
            coordinator.cancel([first])
        manual.wait(100.0)
        coordinator.turn()
        manual.end(third)
        coordinator.turn()
        assert first not in coordinator.cluster.waiting and first not in coordinator.cluster.running
        assert why(coordinator, first) == TOLD
    with manual.coordinator(tmp_path, policy, unit=UNIT) as coordinator:
        assert first not in coordinator.cluster.waiting and first not in coordinator.cluster.running
        assert why(coordinator, first) == TOLD


def test_a_job_that_its_policy_has_paused_gets_no_place_for_its_end(tmp_path: Path) -> None:
    manual = two_nodes()
    with manual.coordinator(tmp_path, "las", unit=UNIT) as coordinator:
        old = [submit(coordinator, cores=2) for _ in range(2)]
        manual.wait(600.0)
        coordinator.turn()
        new = [submit(coordinator, cores=2) for _ in range(2)]
        assert shown(coordinator, *old, *new) == ["suspended"] * 2 + ["running"] * 2
        coordinator.cancel(old[:1])
        for job in new:
            manual.end(job)
        coordinator.turn()
        assert shown(coordinator, *old) == ["suspended", "running"]
        assert why(coordinator, old[0]) == TOLD


@pytest.mark.parametrize("action", [act.Start, act.Resume])
def test_a_policy_that_begins_what_does_not_wait_is_refused(
    tmp_path: Path, action: type[act.Start | act.Resume]
) -> None:
    manual = two_nodes()
    with manual.coordinator(tmp_path, unit=UNIT) as coordinator:
        job = submit(coordinator, cores=2)
        place = coordinator.job_table.open(job).place
        for number in (job, job + 1):
            with pytest.raises(RuleBroken):
                decisions.apply(coordinator.machine.state, action(number, place))
        assert shown(coordinator, job) == ["running"] and job in coordinator.cluster.running
        coordinator.suspend([job])
        other = submit(coordinator, cores=2)
        with pytest.raises(RuleBroken):
            decisions.apply(coordinator.machine.state, action(job, place))
        manual.end(other)
        coordinator.turn()
        coordinator.resume([job])
        manual.end(job)
        coordinator.turn()
        assert shown(coordinator, job, other) == ["done"] * 2
