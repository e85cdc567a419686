"""Jobs of whole nodes where nodes differ: no two of their parts are on one node."""

from __future__ import annotations

from pathlib import Path

import pytest

from scheduler.engines.common.projection import pool_of_nodes
from scheduler.jobs.gpus import GpuKind
from scheduler.jobs.sizes import Unit
from scheduler.model.jobs import Cluster, Pool
from tenbin.server.descriptions import in_use, node_table
from tenbin.server.job_list import Window, window
from tests.support.scheduling.manual_engine import ManualEngine, shown, submit, submit_array, why

GPU = GpuKind("gpu", "a", 1e4, 4)
SIZES = [(8.0, 1000.0, 4.0), (4.0, 1000.0, 2.0)]
UNIT = Unit(node=True, cores=4, gpus=(GPU,))
POLICIES = ("fcfs", "first-fit", "easy", "conservative", "weigh", "las", "las-mq", "las-drf", "kairos")


def engine(pool: Pool) -> ManualEngine:
    return ManualEngine(cluster=Cluster((pool,)))


@pytest.mark.parametrize("gpus", [True, False])
@pytest.mark.parametrize("policy", POLICIES)
def test_each_part_has_a_node_of_its_own(tmp_path: Path, policy: str, gpus: bool) -> None:
    """It waits for one although there is room on a larger node, of which others have the rest."""
    sizes = SIZES if gpus else [size[:2] for size in SIZES]
    manual = engine(pool_of_nodes(sizes, (GPU,) * gpus, ("large", "small")))
    unit = UNIT if gpus else Unit(node=True, cores=4)
    with manual.coordinator(tmp_path, policy, unit=unit) as coordinator:
        manual.wait(5.0)  # the central queue of some has looked at them
        first = submit(coordinator, nodes=2, time_s=100.0, **({"gpus": 4} if gpus else {}))
        other = submit(coordinator, cores=3, time_s=100.0)
        third = submit(coordinator, nodes=1, time_s=100.0)
        assert shown(coordinator, first, other, third) == ["running", "running", "waiting"]
        at = [coordinator.job_table.open(job).place.nodes for job in (first, other)]
        assert at == [((0, 1), (1, 1)), ((0, 1),)]
        if gpus:
            assert [row["free"] for row in node_table(coordinator)] == [
                {"cores": 1.0, "memory_mb": 1000.0, "gpu": 2.0},
                {"cores": 0.0, "memory_mb": 1000.0, "gpu": 0.0},
            ]
            assert [row["name"] for row in in_use(coordinator)] == ["cores", "memory_mb", "gpu"]
        if policy in ("fcfs", "first-fit", "easy"):
            assert "waits for 4 cores (1 of 12 free) and 1 node (0 of 2 free)" in why(coordinator, third)
        manual.end(first)
        coordinator.turn()
        assert shown(coordinator, third) == ["running"]


def test_the_memory_of_a_paused_job_is_not_free(tmp_path: Path) -> None:
    manual = engine(pool_of_nodes([size[:2] for size in SIZES], (), ("large", "small")))
    with manual.coordinator(tmp_path, "easy", unit=Unit(node=True, cores=4)) as coordinator:
        job = submit(coordinator, cores=6, memory_mb=600.0)
        other = submit(coordinator, cores=1, memory_mb=100.0)
        coordinator.suspend([job])
        coordinator.turn()
        assert shown(coordinator, job, other) == ["suspended", "running"]
        free = [(row["free"]["cores"], row["free"]["memory_mb"]) for row in node_table(coordinator)]
        assert sum(cores for cores, _ in free) == 11.0 and sum(mb for _, mb in free) == 2000.0 - 700.0
        assert free[0][1] <= 400.0
        manual.end(job)
        coordinator.turn()
        assert sum(row["free"]["memory_mb"] for row in node_table(coordinator)) == 1900.0


def test_lists_tell_the_gpus_of_a_job_and_of_the_members_of_an_array(tmp_path: Path) -> None:
    manual = engine(pool_of_nodes(SIZES, (GPU,), ("large", "small")))
    with manual.coordinator(tmp_path, "easy", unit=UNIT) as coordinator:
        submit(coordinator)
        submit(coordinator, gpu_kind="a", nodes=2)
        submit_array(coordinator, 3, gpus=2)
        rows = window(coordinator, Window(rows=9, members=False, order="id"))["rows"]
        assert [(row["id"], row["gpus_asked"]) for row in rows] == [(1, None), (2, 2), (3, 2)]


def test_where_no_node_is_twice_as_large_nothing_is_counted() -> None:
    assert pool_of_nodes([(7.0, 1.0), (4.0, 1.0)]).resources == ("cores", "memory_mb")


def test_a_job_that_has_both_its_parts_on_one_node_goes_on_there(tmp_path: Path) -> None:
    """It was started before parts were kept apart; its next attempt has two nodes."""
    names = ("cores", "memory_mb", "gpu")
    manual = engine(Pool("node", 2, resources=names, capacities=tuple(SIZES), names=("large", "small")))
    with manual.coordinator(tmp_path, "easy", unit=UNIT) as coordinator:
        job = submit(coordinator, nodes=2, retries=1)
        entry = coordinator.job_table.open(job)
        assert entry.place.nodes == ((0, 2),)
    manual.cluster = Cluster((pool_of_nodes(SIZES, (GPU,), ("large", "small")),))
    with manual.coordinator(tmp_path, "easy", unit=UNIT) as coordinator:
        entry = coordinator.job_table.open(job)
        assert shown(coordinator, job) == ["running"] and entry.place.nodes == ((0, 2),)
        manual.end(job, code=3)
        coordinator.turn()
        manual.wait(20.0)
        coordinator.turn()
        assert entry.attempt == 2 and entry.place.nodes == ((0, 1), (1, 1))
