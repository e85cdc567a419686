"""Jobs that ran when the machine was divided otherwise: what is told of them, and which can still run."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from profiles.errors import BadInput
from scheduler.coordinator.coordinator import Coordinator
from scheduler.jobs.gpus import GpuKind
from scheduler.jobs.sizes import CORE, Unit
from scheduler.model.jobs import Cluster, Pool, Stop
from tenbin.commands.jobs.account import account
from tenbin.server.descriptions import describe
from tests.support.scheduling.manual_engine import ManualEngine, shown, submit, why


class Division(NamedTuple):
    """A policy, and the machine as it schedules it."""

    policy: str
    cluster: Cluster
    unit: Unit = CORE


def in_cores(cores: int) -> Division:
    return Division("fcfs", Cluster((Pool("core", cores),)))


def in_nodes(policy: str, nodes: int, cores: int) -> Division:
    pool = Pool("node", nodes, resources=("cores", "memory_mb"), capacity=(float(cores), 1000.0))
    return Division(policy, Cluster((pool,)), Unit(node=True, cores=cores))


DEVICES = Division("mctbm", Cluster((Pool("pocl-0", 1, kind="cpu"),)))


def run(engine: ManualEngine, coordinator: Coordinator, **needs: Any) -> int:
    """Run a job; return how many tasks it has had."""
    job = submit(coordinator, **needs)
    engine.end(job)
    coordinator.turn()
    assert shown(coordinator, job) == ["done"]
    entry = coordinator.job_table.entry(job)
    assert entry is not None
    return coordinator.job_table.tasks(entry)


@pytest.mark.parametrize(
    ("divisions", "tasks"),
    [
        (
            (in_cores(2), in_nodes("las", 2, 1), in_nodes("match", 1, 2), in_cores(1)),
            [1, *(1, 1), *(1, 2), 1],  # the nodes have one core, and two
        ),
        ((DEVICES, in_cores(1)), [1, 1]),
    ],
    ids=["cores and nodes", "devices"],
)
def test_after_a_change_of_policy_old_jobs_are_told_as_they_were(
    tmp_path: Path, divisions: tuple[Division, ...], tasks: list[int]
) -> None:
    """Their pool, or the size of its nodes, is no more."""
    engine, before, counts = ManualEngine(), list[dict[str, Any]](), list[int]()
    for policy, cluster, unit in divisions:
        engine.cluster = cluster
        with engine.coordinator(tmp_path, policy, unit=unit) as coordinator:
            assert [describe(coordinator, job["id"]) for job in before] == before
            counts.append(run(engine, coordinator))
            if unit.node:
                counts.append(run(engine, coordinator, nodes=1))
            before = [describe(coordinator, number) for number in range(1, len(counts) + 1)]
            assert [job["tasks"] for job in before] == counts
            assert all(": done\n" in account(job) for job in before)
    assert counts == tasks


def test_jobs_of_a_journal_that_did_not_note_their_tasks(tmp_path: Path) -> None:
    """Before version 5 of the journal only their cores said how many they had."""
    policy, cluster, unit = in_nodes("las", 1, 2)
    engine = ManualEngine(cluster=cluster)
    with engine.coordinator(tmp_path, policy, unit=unit) as coordinator:
        counts = [run(engine, coordinator, **needs) for needs in ({}, {"nodes": 1}, {"cores": 2})]
        for entry in coordinator.journal.entries():
            entry.cores = tuple(range(2 if entry.id > 1 else 1))  # as the engine of this machine notes them
            coordinator.journal.commit([entry])
    with sqlite3.connect(tmp_path / "journal.sqlite") as db:
        for column in ("tasks", "hosts", "asked", "sum"):
            db.execute(f"ALTER TABLE jobs DROP COLUMN {column}")
        db.execute("DROP TABLE tally")
        db.execute("PRAGMA application_id = 0")
        db.execute("PRAGMA user_version = 4")
    (tmp_path / "journal.tally").unlink()
    engine.cluster = in_cores(1).cluster
    with engine.coordinator(tmp_path) as coordinator:
        assert [describe(coordinator, number)["tasks"] for number in (1, 2, 3)] == counts == [1, 2, 1]


@pytest.mark.parametrize("before", [in_cores(4), in_nodes("las-mq", 1, 4)], ids=["cores", "tasks"])
def test_jobs_go_on_where_the_machine_has_become_a_node_with_gpus(tmp_path: Path, before: Division) -> None:
    engine = ManualEngine(cluster=before.cluster)
    with engine.coordinator(tmp_path, before.policy, unit=before.unit) as coordinator:
        running, paused = submit(coordinator, tasks=2), submit(coordinator)
        coordinator.suspend([paused])
    kinds = (GpuKind("gpu", "a100", 80e3, 2),)
    resources = ("cores", "memory_mb", "gpu")
    engine.cluster = Cluster((Pool("node", 1, resources=resources, capacity=(4.0, 1000.0, 2.0)),))
    with engine.coordinator(tmp_path, unit=Unit(node=True, cores=4, gpus=kinds)) as coordinator:
        (free,) = coordinator.cluster.nodes["node"].free.tolist()
        assert free == [2.0, 1000.0, 2.0]
        coordinator.resume([paused])
        with_gpus = submit(coordinator, gpus=2)
        assert shown(coordinator, running, paused, with_gpus) == ["running"] * 3
        large = submit(coordinator, cores=3)
        assert "waits for 3 cores (0 of 4 free)" in why(coordinator, large)
        for job in (running, paused, with_gpus, large):
            engine.end(job)
            coordinator.turn()
        assert shown(coordinator, running, paused, with_gpus, large) == ["done"] * 4


def test_jobs_that_the_machine_cannot_run_any_more(tmp_path: Path) -> None:
    """Divided otherwise, the machine is too small for some jobs.

    They are held with the reason, can be cancelled, and run when there is room for them again. Nothing else
    is hindered.
    """
    engine = ManualEngine(2)
    with engine.coordinator(tmp_path) as coordinator:
        large, other = submit(coordinator, tasks=2, checkpoint_signal=23), submit(coordinator, tasks=2)
        coordinator.suspend([large])
        coordinator.suspend([other])
        first = submit(coordinator)
        behind, dropped = (submit(coordinator, tasks=2, after=(first,)) for _ in range(2))
        small = submit(coordinator, after=(first,))
        assert engine.begun == [(job, 1) for job in (large, other, first)]
    engine.cluster = in_cores(1).cluster
    with engine.coordinator(tmp_path) as coordinator:
        with pytest.raises(BadInput, match=f"job {large}: this machine cannot run the job"):
            coordinator.resume([large])
        assert "suspended; go on with" in why(coordinator, large)
        coordinator.cancel([other])
        engine.end(other, "cancelled")
        engine.end(first)
        coordinator.turn()
        assert shown(coordinator, other, first, small) == ["cancelled", "done", "running"]
        engine.end(small)
        coordinator.turn()
        for job in (behind, dropped):
            assert shown(coordinator, job) == ["held"] and "cannot run the job" in why(coordinator, job)
        coordinator.suspend([behind])
        coordinator.set_priority([behind], 7)
        assert shown(coordinator, behind) == ["suspended"]
        coordinator.cancel([dropped])
        assert shown(coordinator, dropped, small) == ["cancelled", "done"]
    engine.cluster = in_cores(2).cluster
    with engine.coordinator(tmp_path) as coordinator:
        coordinator.turn()
        coordinator.resume([behind])
        assert shown(coordinator, behind) == ["running"]
        engine.end(behind)
        coordinator.turn()
        coordinator.resume([large])
        assert shown(coordinator, large) == ["running"]
    with engine.coordinator(tmp_path) as coordinator:
        coordinator.cancel([large])
        engine.end(large, "cancelled")
        coordinator.turn()
        assert not coordinator.job_table.entries and (large, 2) not in engine.begun


def with_gpus(gpus: int, memory_mb: float = 1000.0, *, cores: int = 4) -> Division:
    capacity = (float(cores), memory_mb, float(gpus))
    pool = Pool("node", 1, resources=("cores", "memory_mb", "gpu"), capacity=capacity)
    unit = Unit(node=True, cores=cores, gpus=(GpuKind("gpu", "a100", 80e3, gpus),))
    return Division("fcfs", Cluster((pool,), memory_mb=memory_mb), unit)


@pytest.mark.parametrize(
    ("before", "after", "needs"),
    [
        (with_gpus(4), with_gpus(2), {"gpus": 3}),
        (with_gpus(4), in_cores(4), {"gpus": 3}),  # their driver is gone
        (with_gpus(4), with_gpus(4, 500.0), {"memory_mb": 900.0}),
        (in_cores(2), in_cores(1), {"cores": 2}),
    ],
    ids=["fewer GPUs", "no GPUs", "less memory", "fewer cores"],
)
def test_jobs_whose_attempts_are_over_wait_where_the_machine_is_too_small(
    tmp_path: Path, before: Division, after: Division, needs: dict[str, Any]
) -> None:
    """The machine has crashed, and come up with less. The coordinator starts all the same."""
    engine = ManualEngine(cluster=before.cluster)
    with engine.coordinator(tmp_path, unit=before.unit) as coordinator:
        lost, behind = submit(coordinator, **needs), submit(coordinator, **needs)
        assert shown(coordinator, lost, behind) == ["running", "waiting"]
    engine.begun.clear()  # nothing is known of that attempt
    engine.cluster = after.cluster
    with engine.coordinator(tmp_path, unit=after.unit) as coordinator:
        coordinator.turn()
        for job in (lost, behind):
            assert shown(coordinator, job) == ["held"] and "cannot run the job" in why(coordinator, job)
        small = submit(coordinator)
        assert shown(coordinator, small) == ["running"]
        engine.end(small)
        coordinator.cancel([behind])
        coordinator.turn()
        assert shown(coordinator, small, behind) == ["done", "cancelled"]
    engine.cluster = before.cluster
    with engine.coordinator(tmp_path, unit=before.unit) as coordinator:
        coordinator.turn()
        assert shown(coordinator, lost) == ["running"] and engine.begun[-1] == (lost, 2)
        last = submit(coordinator, **needs)
        engine.end(lost)  # before the coordinator ends, which does not hear of it
    engine.cluster = after.cluster
    with engine.coordinator(tmp_path, unit=after.unit) as coordinator:
        coordinator.turn()
        assert shown(coordinator, lost, last) == ["done", "held"]


def kinds_of(**numbers: Sequence[int]) -> Division:
    """Return a node of four cores with GPUs of these kinds, by the numbers of each."""
    kinds = tuple(
        GpuKind(f"gpu:{name}" if len(numbers) > 1 else "gpu", name, 1e4, len(own), numbers=tuple(own))
        for name, own in sorted(numbers.items())
    )
    resources = ("cores", "memory_mb", *(kind.resource for kind in kinds))
    capacity = (4.0, 1000.0, *(float(kind.number) for kind in kinds))
    pool = Pool("node", 1, resources=resources, capacity=capacity)
    return Division("fcfs", Cluster((pool,)), Unit(node=True, cores=4, gpus=kinds))


def test_a_job_that_runs_has_gpus_of_the_kind_that_they_are(tmp_path: Path) -> None:
    """Others may have been divided since, or joined; or its own are gone, and their kind with them."""
    before, divided = kinds_of(half=[0, 1, 2]), kinds_of(half=[1, 2], eighth=[3, 4])
    other = kinds_of(eighth=[3, 4], quarter=[5])
    engine = ManualEngine(cluster=before.cluster)
    with engine.coordinator(tmp_path, unit=before.unit) as coordinator:
        job = submit(coordinator, gpus=2)
        coordinator.job_table.open(job).devices = (1, 2)
        coordinator.job_table.mark_changed(coordinator.job_table.open(job))
        coordinator.turn()
    engine.cluster = divided.cluster
    with engine.coordinator(tmp_path, unit=divided.unit) as coordinator:
        (free,) = coordinator.cluster.nodes["node"].free.tolist()
        assert free == [3.0, 1000.0, 2.0, 0.0]
    engine.cluster = other.cluster
    with engine.coordinator(tmp_path, unit=other.unit) as coordinator:
        (free,) = coordinator.cluster.nodes["node"].free.tolist()
        assert shown(coordinator, job) == ["running"] and free == [3.0, 1000.0, 2.0, 1.0]
        engine.end(job)
        coordinator.turn()
        assert shown(coordinator, job) == ["done"]


def node(cores: float, memory_mb: float = 1000.0) -> Division:
    pool = Pool("node", 1, resources=("cores", "memory_mb"), capacity=(cores, memory_mb))
    return Division("las-mq", Cluster((pool,), memory_mb=memory_mb), Unit(node=True, cores=int(cores)))


COUNTED = ("fcfs", "first-fit", "easy", "conservative", "weigh", "regions", "soft-regions")
ON_NODES = ("fcfs", "first-fit", "easy", "conservative", "weigh", "las-mq")
FEWER_CORES = {"cores": 3}


@pytest.mark.parametrize(
    ("policy", "before", "after", "needs"),
    [
        *((policy, in_cores(4), in_cores(2), FEWER_CORES) for policy in COUNTED),
        *((policy, with_gpus(4), with_gpus(4, cores=2), FEWER_CORES) for policy in ON_NODES),
        *((policy, with_gpus(4), with_gpus(4, 500.0, cores=2), {"memory_mb": 900.0}) for policy in ON_NODES),
        *((policy, node(4), node(2), FEWER_CORES) for policy in ("las", "las-mq", "kairos")),
    ],
)
def test_a_job_that_runs_keeps_what_is_not_there_any_more(
    tmp_path: Path, policy: str, before: Division, after: Division, *, needs: dict[str, Any]
) -> None:
    """Nobody else gets any of it, and when it has ended the machine is as it is."""
    more = {"memory_mb": 100.0}
    engine = ManualEngine(cluster=before.cluster)
    with engine.coordinator(tmp_path, policy, unit=before.unit) as coordinator:
        large, small = submit(coordinator, **{**more, **needs}), submit(coordinator, **more)
        assert shown(coordinator, large, small) == ["running"] * 2
        again = submit(coordinator, **{**more, **needs})
        waits = submit(coordinator, **more, cores=2)
    engine.cluster = after.cluster
    for _ in range(2):
        with engine.coordinator(tmp_path, policy, unit=after.unit) as coordinator:
            coordinator.turn()
            assert shown(coordinator, large, small, again, waits) == ["running"] * 2 + ["held", "waiting"]
            assert "cannot run the job" in why(coordinator, again)
            with pytest.raises(BadInput, match="has more than is left for it"):
                coordinator.suspend([large])
            with pytest.raises(BadInput):
                submit(coordinator, **{**more, **needs})
    with engine.coordinator(tmp_path, policy, unit=after.unit) as coordinator:
        engine.end(small)
        coordinator.turn()
        assert shown(coordinator, large, waits) == ["running", "waiting"]
        engine.end(large)
        coordinator.turn()
        last = submit(coordinator, **more)
        a_second_later(engine, coordinator)
        assert shown(coordinator, large, waits, last) == ["done", "running", "waiting"]
        engine.end(waits)
        a_second_later(engine, coordinator)
        assert shown(coordinator, last, submit(coordinator, **more)) == ["running"] * 2


def packages(number: int, budget_w: float) -> Division:
    pool = Pool("node", number, peak_w=60.0, caps_w=(30.0, 40.0, 60.0))
    unit = Unit(node=True, cores=2, package=True, emulated="intel-2s")
    return Division("weigh", Cluster((pool,), budget_w), unit)


@pytest.mark.parametrize("policy", ["weigh", "parm", "fifo-mid", "fifo-max"])
@pytest.mark.parametrize(
    ("after", "draws_w"),
    [
        (packages(3, 80.0), 80.0),
        (packages(3, 50.0), 60.0),
        (packages(1, 180.0), 0.0),
        (packages(1, 50.0), 0.0),
    ],
    ids=["smaller budget", "too small a budget", "fewer packages", "less of both"],
)
def test_a_job_under_a_budget_keeps_its_packages_at_the_lowest_cap(
    tmp_path: Path, policy: str, after: Division, draws_w: float
) -> None:
    """Until it has ended nothing else gets watts that are not there; 0: its cap is as it was."""
    engine, before = ManualEngine(cluster=packages(3, 180.0).cluster), packages(3, 180.0)
    with engine.coordinator(tmp_path, policy, unit=before.unit) as coordinator:
        large = submit(coordinator, tasks=4)
        assert shown(coordinator, large) == ["running"]
        drew_w = coordinator.cluster.power_w
    engine.cluster = after.cluster
    for _ in range(2):
        with engine.coordinator(tmp_path, policy, unit=after.unit) as coordinator:
            coordinator.turn()
            small = submit(coordinator)
            assert shown(coordinator, large, small) == ["running", "waiting"]
            assert coordinator.cluster.power_w <= (draws_w or drew_w)
            coordinator.cancel([small])
    with engine.coordinator(tmp_path, policy, unit=after.unit) as coordinator:
        small = submit(coordinator)
        engine.end(large)
        coordinator.turn()
        assert shown(coordinator, large, small) == ["done", "running"]
        assert coordinator.cluster.power_w <= (coordinator.cluster.budget_w or 0.0)
        assert coordinator.cluster.in_service["node"] == after.cluster.pools[0].units


@pytest.mark.parametrize(
    ("before", "after", "left"),
    [
        (in_cores(4), node(4), 1),
        (in_cores(4), node(2), 0),
        (node(4), in_cores(4), 1),
        (node(4), in_cores(2), 0),
        (with_gpus(4), in_cores(4), 1),  # their driver is gone
        (in_nodes("match", 1, 4), in_cores(4), 1),
    ],
    ids=["a node", "a smaller node", "cores", "fewer cores", "no GPUs", "of a shared node"],
)
def test_a_job_that_runs_keeps_its_cores_where_the_machine_is_divided_otherwise(
    tmp_path: Path, before: Division, after: Division, left: int
) -> None:
    engine = ManualEngine(cluster=before.cluster)
    with engine.coordinator(tmp_path, before.policy, unit=before.unit) as coordinator:
        needs = {"gpus": 1} if before.unit.gpus else {}
        entry = coordinator.job_table.open(job := submit(coordinator, cores=3, **needs))
        entry.cores = 0, 1, 2  # as the engine of this machine notes them
        coordinator.journal.commit([entry])
    engine.cluster = after.cluster
    for _ in range(2):
        with engine.coordinator(tmp_path, after.policy, unit=after.unit) as coordinator:
            coordinator.turn()
            assert shown(coordinator, job) == ["running"]
            fits = [submit(coordinator) for _ in range(2)]
            assert shown(coordinator, *fits).count("running") == left
            for other in fits[:left]:
                engine.end(other)
            coordinator.cancel(fits[left:])
            coordinator.turn()
    with engine.coordinator(tmp_path, after.policy, unit=after.unit) as coordinator:
        engine.end(job)
        coordinator.turn()
        last = submit(coordinator, cores=2)
        a_second_later(engine, coordinator)
        assert shown(coordinator, job, last) == ["done", "running"]


def test_a_job_that_leaves_by_a_checkpoint_where_it_cannot_go_on_is_held(tmp_path: Path) -> None:
    large, small = node(4), node(2)
    engine = ManualEngine(cluster=large.cluster)
    with engine.coordinator(tmp_path, "las-mq", unit=large.unit) as coordinator:
        leaves = submit(coordinator, cores=3, checkpoint_signal=23)
        engine.wait(600.0)
        coordinator.turn()
        behind = submit(coordinator, cores=2)
        a_second_later(engine, coordinator)
        assert shown(coordinator, leaves, behind) == ["stopping", "waiting"]
    engine.cluster = small.cluster
    with engine.coordinator(tmp_path, "las-mq", unit=small.unit) as coordinator:
        coordinator.turn()
        engine.end(leaves, "checkpointed")
        a_second_later(engine, coordinator)
        assert shown(coordinator, leaves, behind) == ["held", "running"]
        assert "this machine cannot run the job" in why(coordinator, leaves)
        engine.end(behind)
        a_second_later(engine, coordinator)
        assert shown(coordinator, leaves, submit(coordinator)) == ["held", "running"]
    engine.cluster = large.cluster
    with engine.coordinator(tmp_path, "las-mq", unit=large.unit) as coordinator:
        a_second_later(engine, coordinator)
        assert shown(coordinator, leaves) == ["running"] and engine.begun[-1] == (leaves, 2)


def test_a_paused_job_is_held_until_the_machine_can_run_it_again(tmp_path: Path) -> None:
    """Its processes are there all the time, and go on."""
    large, small = node(4), node(2)
    engine = ManualEngine(cluster=large.cluster)
    with engine.coordinator(tmp_path, "las-mq", unit=large.unit) as coordinator:
        paused = submit(coordinator, cores=3)
        engine.wait(600.0)
        coordinator.turn()
        runs = submit(coordinator, cores=4)
        a_second_later(engine, coordinator)
        assert shown(coordinator, paused, runs) == ["suspended", "running"]
    engine.cluster = small.cluster
    for _ in range(2):
        with engine.coordinator(tmp_path, "las-mq", unit=small.unit) as coordinator:
            assert shown(coordinator, paused, runs) == ["held", "running"]
            assert "this machine cannot run the job" in why(coordinator, paused)
    with engine.coordinator(tmp_path, "las-mq", unit=small.unit) as coordinator:
        engine.end(runs)
        coordinator.turn()
        assert shown(coordinator, paused, runs) == ["held", "done"]
    engine.cluster = large.cluster
    with engine.coordinator(tmp_path, "las-mq", unit=large.unit) as coordinator:
        a_second_later(engine, coordinator)
        assert shown(coordinator, paused) == ["running"]
        assert coordinator.job_table.open(paused).attempt == 1 and engine.asks[-1] == (paused, "run")


@pytest.mark.parametrize("after", [in_cores(2), node(2)], ids=["counted", "node"])
def test_a_job_that_is_lost_on_a_machine_too_small_for_it_is_held(tmp_path: Path, after: Division) -> None:
    before = in_cores(4) if after.unit is CORE else node(4)
    engine = ManualEngine(cluster=before.cluster)
    with engine.coordinator(tmp_path, before.policy, unit=before.unit) as coordinator:
        lost, small = submit(coordinator, cores=3, requeue=True), submit(coordinator)
    engine.cluster = after.cluster
    with engine.coordinator(tmp_path, after.policy, unit=after.unit) as coordinator:
        engine.end(lost, "interrupted")
        coordinator.turn()
        assert shown(coordinator, lost, small) == ["held", "running"]
        assert "this machine cannot run the job" in why(coordinator, lost)
        assert shown(coordinator, submit(coordinator)) == ["running"]


def test_a_job_on_a_larger_class_than_the_first_has_not_outgrown_it(tmp_path: Path) -> None:
    engine = ManualEngine(cluster=Cluster((Pool("a", 1, kind="gpu"), Pool("b", 4, 1, kind="cpu"))))
    with engine.coordinator(tmp_path, "mct") as coordinator:
        job = submit(coordinator, tasks=2, device="cpu", expect_s={"cpu": 10.0})
        assert shown(coordinator, job) == ["running"]
        coordinator.set_priority([job], 7)
        assert coordinator.job_table.open(job).job.stop is Stop.PAUSE


def a_second_later(engine: ManualEngine, coordinator: Coordinator) -> None:
    """Let a second pass, and what is due happen."""
    engine.wait(1.0)
    coordinator.turn()
