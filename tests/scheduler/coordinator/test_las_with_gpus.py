"""Least attained service on a node with GPUs: cores are given up by a pause, GPUs only by a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from profiles.errors import BadInput
from scheduler.engines.protocol import GpuRow, GpuTable
from scheduler.jobs.gpus import GpuKind
from scheduler.jobs.sizes import Unit
from scheduler.model.jobs import Cluster, Pool
from tests.support.scheduling.manual_engine import ManualEngine, shown, submit, why

POOL = Pool("node", 1, resources=("cores", "memory_mb", "gpu"), capacity=(4.0, 1000.0, 2.0))
UNIT = Unit(node=True, cores=4, gpus=(GpuKind("gpu", "a", 1e4, 2),))

pytestmark = pytest.mark.parametrize(
    "policy", ["las,load_limit=9", "las-prompt", "las-mq", "las-drf,load_limit=9", "kairos"]
)


class HeldGpu(GpuTable):
    """Two GPUs, one of which somebody may hold outside of the queue."""

    able = True
    held = True

    def rows(self) -> list[GpuRow]:
        return [GpuRow(0, "", "a", 1e4, ("process 7",) if self.held else ()), GpuRow(1, "", "a", 1e4)]

    def withheld(self) -> dict[str, float]:
        return {"gpu": float(self.held)}


def test_a_job_with_gpus_keeps_them_and_one_of_cores_is_paused(tmp_path: Path, policy: str) -> None:
    manual = ManualEngine(cluster=Cluster((POOL,)))
    with manual.coordinator(tmp_path, policy, unit=UNIT) as coordinator:
        trains = submit(coordinator, gpus=2)
        cores = submit(coordinator, cores=3)
        manual.wait(600.0)
        coordinator.turn()
        new, waits = submit(coordinator, cores=3), submit(coordinator, gpus=1)
        coordinator.turn()
        assert shown(coordinator, trains, cores, new, waits) == ["running", "suspended", "running", "waiting"]
        assert "waits on node 0 for 1 core, 1 GPU; 0 cores, 0 GPUs free there" in why(coordinator, waits)
    with manual.coordinator(tmp_path, policy, unit=UNIT) as coordinator:
        assert shown(coordinator, trains, cores, new, waits) == ["running", "suspended", "running", "waiting"]
        manual.end(new)
        manual.end(trains)
        coordinator.turn()
        assert shown(coordinator, cores, waits) == ["running"] * 2
        assert coordinator.job_table.open(cores).attempt == 1


def test_a_job_with_a_checkpoint_gives_its_gpus_to_a_new_one(tmp_path: Path, policy: str) -> None:
    manual = ManualEngine(cluster=Cluster((POOL,)))
    with manual.coordinator(tmp_path, policy, unit=UNIT) as coordinator:
        old = submit(coordinator, gpus=2, checkpoint_signal=10)
        manual.wait(600.0)
        coordinator.turn()
        new = submit(coordinator, gpus=1)
        coordinator.turn()
        assert shown(coordinator, old, new) == ["stopping", "waiting"] and (old, "checkpoint") in manual.asks
        manual.end(old, "checkpointed")
        coordinator.turn()
        assert shown(coordinator, old, new) == ["suspended", "running"]
        manual.end(new)
        coordinator.turn()
        assert shown(coordinator, old) == ["running"] and coordinator.job_table.open(old).attempt == 2


def test_a_gpu_that_somebody_holds_is_given_to_nobody(
    tmp_path: Path, policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    manual = ManualEngine(cluster=Cluster((POOL,)))
    gpus = manual.gpus = HeldGpu()
    with manual.coordinator(tmp_path, policy, unit=UNIT) as coordinator:
        coordinator.turn()
        both, cores = submit(coordinator, gpus=2), submit(coordinator, cores=2)
        coordinator.turn()
        assert shown(coordinator, both, cores) == ["waiting", "running"]
        assert "GPU 0 is held outside of the queue by process 7" in why(coordinator, both)
        gpus.held = False
        coordinator.turn()
        assert shown(coordinator, both) == ["running"]
        gpus.held = True  # somebody comes to a GPU that a job has: it is the job's
        coordinator.turn()
        manual.end(both)
        coordinator.turn()
        assert shown(coordinator, submit(coordinator, gpus=1)) == ["running"]
    assert not caplog.records


def test_its_owner_suspends_a_job_with_gpus_by_a_checkpoint_or_not(tmp_path: Path, policy: str) -> None:
    """Whoever gives it its GPUs, tenbin by their numbers or Slurm."""
    manual = ManualEngine(cluster=Cluster((POOL,)))
    with manual.coordinator(tmp_path, policy, unit=UNIT) as coordinator:
        job, other = submit(coordinator, gpus=1, checkpoint_signal=10), submit(coordinator, gpus=1)
        with pytest.raises(BadInput, match="would keep its memory on its GPUs"):
            coordinator.suspend([other])
        coordinator.suspend([job])
        assert manual.asks == [(job, "checkpoint")]
        assert coordinator.cluster.nodes["node"].free[0, 2] == 0  # until it has left
        manual.end(job, "checkpointed", 85)
        coordinator.turn()
        assert shown(coordinator, job, other) == ["suspended", "running"]
        assert coordinator.cluster.nodes["node"].free[0, 2] == 1
        coordinator.resume([job])
        assert shown(coordinator, job) == ["running"] and manual.begun[-1] == (job, 2)
