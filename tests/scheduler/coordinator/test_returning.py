"""Jobs that are paused on nodes which they cannot leave: they go on there, or wait until there is room."""

from __future__ import annotations

from pathlib import Path

import pytest

from scheduler.engines.protocol import Nodes
from scheduler.jobs.entry import Entry
from scheduler.jobs.sizes import Unit
from scheduler.model.jobs import Cluster, Pool
from tests.support.scheduling.manual_engine import ManualEngine, shown, submit, why

NAMES = ("n0", "n1")


class TwoNodes(Nodes):
    named = True

    def names(self) -> tuple[str, ...]:
        return NAMES

    def where(self, job: Entry) -> list[str]:
        return [NAMES[node] for node, _ in job.place.nodes]


@pytest.mark.parametrize("policy", ["fcfs", "first-fit", "easy", "conservative", "las"])
def test_a_resumed_job_goes_on_where_it_is_paused(tmp_path: Path, policy: str) -> None:
    pool = Pool("node", 2, resources=("cores", "memory_mb"), capacity=(2.0, 1000.0), names=NAMES)
    manual, unit = ManualEngine(cluster=Cluster((pool,), memory_mb=2000.0)), Unit(node=True, cores=2)
    manual.nodes = TwoNodes()
    with manual.coordinator(tmp_path, policy, unit=unit) as coordinator:
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
    with manual.coordinator(tmp_path, policy, unit=unit) as coordinator:
        assert shown(coordinator, first) == ["waiting"]
        manual.end(third)
        coordinator.turn()
        entry = coordinator.job_table.open(first)
        assert shown(coordinator, first) == ["running"] and entry.hosts == ["n0"] and entry.attempt == 1
        assert coordinator.cluster.nodes["node"].free.tolist() == [[0.0, 1000.0], [2.0, 1000.0]]
