"""Jobs with alternatives: the policy chooses, the attempt keeps to its choice, the next one is free again."""

from __future__ import annotations

from pathlib import Path

import pytest

from profiles.errors import BadInput
from scheduler.coordinator import idle_gpus
from scheduler.engines.protocol import GpuRow, GpuTable
from scheduler.jobs.gpus import GpuKind
from scheduler.jobs.sizes import Unit
from scheduler.model.jobs import Cluster, Pool, Stop
from tenbin.server.descriptions import memory
from tests.support.scheduling.manual_engine import ManualEngine, shown, submit, why

POOL = Pool("node", 1, resources=("cores", "memory_mb", "gpu"), capacity=(16.0, 1000.0, 1.0))
UNIT = Unit(node=True, cores=16, gpus=(GpuKind("gpu", "a", 1e4, 1),))
ON_GPU = {"gpus": 1, "cores": 2, "time_s": 100.0}
OR_CORES = {**ON_GPU, "alternatives": ({"cores": 12, "time_s": 300.0},)}
POLICIES = ("fcfs", "first-fit", "easy", "conservative", "weigh")


def engine() -> ManualEngine:
    return ManualEngine(cluster=Cluster((POOL,), memory_mb=1000.0))


@pytest.mark.parametrize("policy", ["fcfs", "first-fit", "easy"])
def test_a_job_takes_what_is_free(tmp_path: Path, policy: str) -> None:
    manual = engine()
    with manual.coordinator(tmp_path, policy, unit=UNIT) as coordinator:
        first, other, third = (submit(coordinator, **fields) for fields in (OR_CORES, OR_CORES, OR_CORES))
        assert shown(coordinator, first, other, third) == ["running", "running", "waiting"]
        ways = [coordinator.job_table.open(job).way for job in (first, other)]
        assert [(way.cores, way.gpus, way.time_s) for way in ways] == [(2, 1, 100.0), (12, None, 300.0)]
        assert "waits for 1 GPU (0 of 1 free), or for 12 cores (2 of 16 free)" in why(coordinator, third)
        assert coordinator.job_table.open(other).expected_end_s == manual.now + 300.0


def test_conservative_waits_for_the_alternative_that_ends_first(tmp_path: Path) -> None:
    """The GPU is free in 100 s, and is done with the job before the cores would be."""
    with engine().coordinator(tmp_path, "conservative", unit=UNIT) as coordinator:
        first, other, slow = (
            submit(coordinator, **fields) for fields in (ON_GPU, OR_CORES, {**OR_CORES, "time_s": 250.0})
        )
        assert shown(coordinator, first, other, slow) == ["running", "waiting", "running"]
        assert coordinator.job_table.open(slow).place.alternative == 1


@pytest.mark.parametrize("policy", POLICIES)
def test_an_attempt_keeps_its_alternative_and_the_next_one_chooses_anew(tmp_path: Path, policy: str) -> None:
    manual = engine()
    with manual.coordinator(tmp_path, policy, unit=UNIT) as coordinator:
        blocker = submit(coordinator, **{**ON_GPU, "time_s": 1000.0})
        job = submit(coordinator, **OR_CORES, retries=1)
        entry = coordinator.job_table.open(job)
        assert entry.place.alternative == 1 and entry.job.stop is Stop.PAUSE  # it has no GPU
    with manual.coordinator(tmp_path, policy, unit=UNIT) as coordinator:
        assert coordinator.job_table.open(job).way.cores == 12
        coordinator.suspend([job])
        manual.end(blocker)
        coordinator.turn()
        coordinator.resume([job])
        entry = coordinator.job_table.open(job)
        assert shown(coordinator, job) == ["running"] and entry.place.alternative == 1
        assert coordinator.cluster.nodes["node"].free.tolist() == [[4.0, 1000.0, 1.0]]
        manual.end(job, code=3)
        coordinator.turn()
        manual.wait(20.0)
        coordinator.turn()
        assert entry.attempt == 2 and entry.place.alternative == 0 and entry.way.gpus == 1


@pytest.mark.parametrize("policy", POLICIES)
def test_the_memory_set_aside_is_that_of_the_alternative_that_runs(tmp_path: Path, policy: str) -> None:
    """Also after a restart, and where the next attempt has another one."""
    manual = engine()
    with manual.coordinator(tmp_path, policy, unit=UNIT) as coordinator:
        blocker = submit(coordinator, cores=2, memory_mb=500.0)
        ways = {**ON_GPU, "memory_mb": 200.0, "alternatives": ({"cores": 12, "memory_mb": 600.0},)}
        job = submit(coordinator, **ways, retries=1)
        assert shown(coordinator, blocker, job) == ["running"] * 2  # where the other would not fit
        assert memory(coordinator)["set_aside_mb"] == 700.0
        third = submit(coordinator, memory_mb=300.0)
        assert shown(coordinator, third) == ["running"]
    with manual.coordinator(tmp_path, policy, unit=UNIT) as coordinator:
        assert memory(coordinator)["set_aside_mb"] == 1000.0
        for number in (blocker, third):
            manual.end(number)
        manual.end(job, code=3)
        coordinator.turn()
        on_gpu = submit(coordinator, **{**ON_GPU, "time_s": 5000.0})
        manual.wait(20.0)
        coordinator.turn()
        entry = coordinator.job_table.open(job)
        assert shown(coordinator, on_gpu, job) == ["running"] * 2 and entry.place.alternative == 1
        assert memory(coordinator)["set_aside_mb"] == 600.0


@pytest.mark.parametrize("policy", ["easy", "weigh"])
def test_a_job_waits_for_the_memory_of_the_alternative_that_was_chosen(tmp_path: Path, policy: str) -> None:
    """There is memory for the other one, but the policy, which sees none, would choose as before for ever."""
    manual = ManualEngine(cluster=Cluster((Pool("core", 16),), memory_mb=1000.0))
    with manual.coordinator(tmp_path, policy) as coordinator:
        blocker = submit(coordinator, memory_mb=500.0)
        faster = {"cores": 8, "memory_mb": 700.0, "time_s": 10.0}
        job = submit(coordinator, cores=2, memory_mb=100.0, time_s=1000.0, alternatives=(faster,))
        assert shown(coordinator, blocker, job) == ["running", "waiting"]
        assert "waits for 700 MB of memory" in why(coordinator, job)
        manual.end(blocker)
        coordinator.turn()
        assert shown(coordinator, job) == ["running"]
        assert memory(coordinator)["set_aside_mb"] == 700.0


def test_a_lost_job_that_goes_on_by_another_alternative_has_the_memory_of_that(tmp_path: Path) -> None:
    manual = engine()
    with manual.coordinator(tmp_path, "fcfs", unit=UNIT) as coordinator:
        ways = {**ON_GPU, "memory_mb": 200.0, "alternatives": ({"cores": 12, "memory_mb": 600.0},)}
        blocker = submit(coordinator, cores=13)
        job = submit(coordinator, **ways)
        waits = submit(coordinator, cores=2, gpus=1, priority=1, time_s=5000.0)
        manual.end(blocker)
        manual.end(job, "interrupted")
        coordinator.turn()
        entry = coordinator.job_table.open(job)
        assert shown(coordinator, waits, job) == ["running"] * 2 and entry.place.alternative == 1
        assert memory(coordinator)["set_aside_mb"] == 600.0


@pytest.mark.parametrize("policy", ["las", "las-mq", "las-drf", "kairos"])
def test_on_nodes_without_gpus_a_job_begins_in_what_is_free_first(tmp_path: Path, policy: str) -> None:
    """It keeps to it when it is paused, and after a restart."""
    pool = Pool("node", 1, resources=("cores", "memory_mb"), capacity=(4.0, 1000.0))
    manual, unit = ManualEngine(cluster=Cluster((pool,), memory_mb=1000.0)), Unit(node=True, cores=4)
    with manual.coordinator(tmp_path, policy, unit=unit) as coordinator:
        blockers = [submit(coordinator, cores=cores) for cores in (1, 3)]
        job = submit(coordinator, cores=4, alternatives=({"cores": 3}, {"gpus": 1}, {"cores": 2}))
        assert shown(coordinator, job) == ["waiting"]
        assert "for 4 cores or 3 cores or 2 cores" in why(coordinator, job)
        manual.end(blockers[1])
        coordinator.turn()
        entry = coordinator.job_table.open(job)
        assert shown(coordinator, job) == ["running"] and entry.place.alternative == 1
    with manual.coordinator(tmp_path, policy, unit=unit) as coordinator:
        coordinator.suspend([job])
        coordinator.resume([job])
        assert shown(coordinator, job) == ["running"]
        assert coordinator.job_table.open(job).way.cores == 3
        assert coordinator.cluster.nodes["node"].free.tolist() == [[0.0, 1000.0]]


class HeldGpu(GpuTable):
    """One GPU, which somebody holds outside of the queue."""

    able = True

    def rows(self) -> list[GpuRow]:
        return [GpuRow(0, "", "a", 1e4, ("process 7",))]

    def withheld(self) -> dict[str, float]:
        return {POOL.resources[2]: 1.0}

    def news(self) -> list[tuple[str, str]]:
        return [("stranger", "GPU 0 is held outside of the queue by process 7")]


def test_who_waits_for_a_gpu_in_an_alternative_alone_is_told_who_holds_it(tmp_path: Path) -> None:
    manual = engine()
    manual.gpus = HeldGpu()
    with manual.coordinator(tmp_path, "fcfs", unit=UNIT) as coordinator:
        submit(coordinator, cores=16)
        gpu_or_cores = {"cores": 12, "alternatives": ({"cores": 2, "gpus": 1},), "notify": "true"}
        able, unable = submit(coordinator, **gpu_or_cores), submit(coordinator, cores=12, notify="false")
        coordinator.turn()
        assert "GPU 0 is held outside of the queue by process 7" in why(coordinator, able)
        assert "GPU 0" not in why(coordinator, unable)
        idle_gpus.look(coordinator.machine.state)
        assert [notice.to for notice in coordinator.machine.state.notices] == ["true"]


@pytest.mark.parametrize("policy", [*POLICIES, "weigh", "regions", "soft-regions"])
def test_where_cores_alone_are_scheduled_one_that_can_run_there_counts(tmp_path: Path, policy: str) -> None:
    """Regions are of sizes: there the first that is possible counts."""
    manual = ManualEngine(cores=16)
    with manual.coordinator(tmp_path, policy) as coordinator:
        job = submit(coordinator, **OR_CORES)
        entry = coordinator.job_table.open(job)
        assert entry.place.units == 12 and entry.place.alternative == 1 and entry.way.gpus is None
        with pytest.raises(BadInput, match="no GPUs are scheduled"):
            submit(coordinator, **ON_GPU, alternatives=({"gpus": 2},))
        with pytest.raises(BadInput, match="by its --or 1: the job needs 17 cores"):
            submit(coordinator, alternatives=({"cores": 17},))
    with manual.coordinator(tmp_path, policy) as coordinator:
        assert coordinator.job_table.open(job).way.time_s == 300.0


@pytest.mark.parametrize("policy", [*POLICIES, "weigh"])
def test_on_cores_a_job_takes_the_alternative_that_is_free(tmp_path: Path, policy: str) -> None:
    """It keeps to it after a restart, and its next attempt chooses anew."""
    manual = ManualEngine(cores=16)
    with manual.coordinator(tmp_path, policy) as coordinator:
        blocker = submit(coordinator, cores=13, time_s=5000.0)
        ways = {"cores": 8, "time_s": 100.0, "alternatives": ({"cores": 4}, {"cores": 3, "time_s": 200.0})}
        job, behind = submit(coordinator, **ways, retries=1), submit(coordinator, **ways)
        entry = coordinator.job_table.open(job)
        assert entry.place.alternative == 2 and entry.way.cores == 3
        assert "waits for 8 cores or 4 cores or 3 cores (0 of 16 free)" in why(coordinator, behind)
        assert entry.expected_end_s == manual.now + 200.0
        coordinator.cancel([behind])
    with manual.coordinator(tmp_path, policy) as coordinator:
        entry = coordinator.job_table.open(job)
        assert coordinator.cluster.free["core"] == 0 and entry.way.cores == 3
        coordinator.suspend([job])
        assert coordinator.cluster.free["core"] == 3
        coordinator.resume([job])
        assert shown(coordinator, job) == ["running"] and entry.place.units == 3
        manual.end(blocker)
        manual.end(job, code=3)
        coordinator.turn()
        manual.wait(20.0)
        coordinator.turn()
        assert entry.attempt == 2 and entry.way.cores in (4, 8) and entry.way.time_s == 100.0


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"alternatives": ({"cores": 2, "memory_mb": 2000.0},)}, "asks for 2 GB of memory"),
        ({"alternatives": ({"cores": 2}, {"cores": 99})}, "can never run here by its --or 2: .*99"),
        (
            {"alternatives": ({"tasks": 9, "cores": 2, "gpus": 2},)},
            "here by its --or 1: .*9 x 2",
        ),
        ({"mpi": True, "alternatives": ({"cores": 2},)}, "alternatives: not with mpi"),
        ({"alternatives": ({"nodes": 2},)}, "alternatives"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, fields: dict[str, object], words: str) -> None:
    with (
        engine().coordinator(tmp_path, "easy", unit=UNIT) as coordinator,
        pytest.raises((BadInput, ValueError), match=words),
    ):
        submit(coordinator, **fields)
