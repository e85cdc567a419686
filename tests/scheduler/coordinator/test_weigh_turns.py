"""Jobs of unknown run times under weigh on nodes: paused for a new one, and gone on with afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from scheduler.jobs.sizes import Unit
from scheduler.model.jobs import Cluster, Pool
from tests.support.scheduling.manual_engine import ManualEngine, shown, submit

UNIT = Unit(node=True, cores=4)


def machine(nodes: int) -> ManualEngine:
    pool = Pool("node", nodes, resources=("cores", "memory_mb"), capacity=(4.0, 1000.0))
    return ManualEngine(cluster=Cluster((pool,)))


def test_an_old_job_is_paused_for_a_new_one_and_goes_on(tmp_path: Path) -> None:
    manual = machine(1)
    with manual.coordinator(tmp_path, "weigh,pause=true", unit=UNIT) as coordinator:
        old = submit(coordinator, cores=4, time_s=None)
    with manual.coordinator(tmp_path, "weigh,pause=true", unit=UNIT) as coordinator:
        manual.wait(600.0)
        coordinator.turn()
        new = submit(coordinator, cores=2, time_s=None)
        manual.wait(1.0)
        coordinator.turn()
        assert shown(coordinator, old, new) == ["suspended", "running"]
    with manual.coordinator(tmp_path, "weigh,pause=true", unit=UNIT) as coordinator:
        assert shown(coordinator, old, new) == ["suspended", "running"]
        manual.end(new)
        coordinator.turn()
        assert shown(coordinator, old, new) == ["running", "done"]
        assert coordinator.job_table.open(old).attempt == 1


@pytest.mark.parametrize("tasks", [1, 2])
@pytest.mark.parametrize("time_s", [None, 100.0])
@pytest.mark.parametrize("policy", ["weigh", "easy", "fcfs", "conservative", "first-fit", "match"])
def test_jobs_that_las_has_paused_go_on(
    tmp_path: Path, policy: str, tasks: int, time_s: float | None
) -> None:
    manual = machine(2)
    with manual.coordinator(tmp_path, "las-mq", unit=UNIT) as coordinator:
        old = [submit(coordinator, cores=4, tasks=tasks, time_s=time_s) for _ in range(3 - tasks)]
        manual.wait(50.0)
        coordinator.turn()
        new = submit(coordinator, cores=4, tasks=2, time_s=10.0)
        manual.wait(1.0)
        coordinator.turn()
        assert shown(coordinator, *old, new) == ["suspended"] * len(old) + ["running"]
    with manual.coordinator(tmp_path, policy, unit=UNIT) as coordinator:
        manual.end(new)
        coordinator.turn()
        assert shown(coordinator, *old, new) == ["running"] * len(old) + ["done"]
