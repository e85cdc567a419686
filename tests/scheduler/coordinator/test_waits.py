"""What counts as a job's wait for policies, and until when weigh minds sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.scheduling.manual_engine import ManualEngine, shown, submit


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("held", ["after", "begin"])
def test_a_job_that_was_held_has_waited_since_it_could_have_started(
    tmp_path: Path, held: str, restarts: bool
) -> None:
    """For 400 s, and the other for 500 s: of two alike weigh starts that one first."""
    manual = ManualEngine(2)
    with manual.coordinator(tmp_path, "weigh") as coordinator:
        short, _, first, waited_for = (
            submit(coordinator, cores=cores, time_s=time_s)
            for cores, time_s in ((1, 1000.0), (1, 2000.0), (2, 3000.0), (2, 3000.0))
        )
        hold: dict[str, Any] = (
            {"after_any": (waited_for,)} if held == "after" else {"begin_s": manual.now + 600.0}
        )
        later = submit(coordinator, **hold)
        manual.wait(500.0)
        earlier = submit(coordinator)
        manual.wait(100.0)
        coordinator.cancel([waited_for])
        assert shown(coordinator, first, later, earlier) == ["waiting"] * 3
        entry = coordinator.job_table.open(later)
        assert (entry.submit_s, entry.job.submit_s) == (manual.now - 600.0, manual.now)
        if not restarts:
            manual.wait(400.0)
            manual.end(short)
            coordinator.turn()
            assert shown(coordinator, first, later, earlier) == ["waiting", "waiting", "running"]
            return
    with manual.coordinator(tmp_path, "weigh") as coordinator:
        manual.wait(400.0)
        manual.end(short)
        coordinator.turn()
        assert shown(coordinator, first, later, earlier) == ["waiting", "waiting", "running"]


def test_a_job_that_is_retried_has_waited_since_then(tmp_path: Path) -> None:
    manual = ManualEngine(1)
    with manual.coordinator(tmp_path, "weigh") as coordinator:
        job = submit(coordinator)
        manual.wait(100.0)
        manual.end(job, code=3)
        coordinator.turn()
        submit(coordinator)
        coordinator.retry([job])
        assert coordinator.cluster.state(job).job.submit_s == manual.now


def test_a_job_that_its_owner_suspends_has_waited_all_the_time(tmp_path: Path) -> None:
    manual = ManualEngine(1)
    with manual.coordinator(tmp_path, "weigh") as coordinator:
        begin_s, first = manual.now, submit(coordinator)
        waits, follows = submit(coordinator), submit(coordinator, after=(first,))
        manual.wait(100.0)
        manual.end(first)
        coordinator.turn()
        for seconds in (50.0, 60.0):
            manual.wait(seconds)
            coordinator.suspend([follows])
            manual.wait(seconds)
            coordinator.resume([follows])
        assert coordinator.job_table.open(waits).job.submit_s == begin_s
        assert coordinator.job_table.open(follows).job.submit_s == begin_s + 100.0


def test_a_range_of_tasks_counts_as_long_as_a_job_has_one(tmp_path: Path) -> None:
    """Meanwhile jobs run in the first of their alternatives; afterwards in the one that ends first."""
    manual = ManualEngine(4)
    with manual.coordinator(tmp_path, "weigh") as coordinator:
        blocker = submit(coordinator, cores=3, time_s=1000.0)
        ranged = submit(coordinator, tasks=1, max_tasks=2)
        in_two_ways = {"cores": 4, "alternatives": ({"cores": 1},)}
        during = submit(coordinator, **in_two_ways)
        assert shown(coordinator, blocker, ranged, during) == ["running", "running", "waiting"]
        manual.end(ranged)
        coordinator.turn()
        assert shown(coordinator, during) == ["running"]
        assert coordinator.job_table.open(during).place.alternative == 1
