"""OpenCL devices that are not given out: somebody holds one outside of the queue, or it computes wrongly."""

from __future__ import annotations

from pathlib import Path

import pytest

from scheduler.engines.protocol import GpuRow, GpuTable
from scheduler.model.jobs import Cluster, Pool
from tenbin.commands.status import node_lines
from tenbin.server.descriptions import node_table
from tests.support.scheduling.manual_engine import ManualEngine, shown, submit, why

DEVICES = Cluster((Pool("gpu-0", 1, kind="gpu"), Pool("cpu-0", 1, 1, kind="cpu")))


class Watched(GpuTable):
    """One device is a GPU, which a process holds as long as ``held``."""

    able, held = True, True

    def rows(self) -> list[GpuRow]:
        return [GpuRow(0, "", "gpu-0", 1e4, ("process 7",) if self.held else ())]

    def withheld(self) -> dict[str, float]:
        return {"gpu-0": float(self.held), "cpu-0": 0.0}


@pytest.mark.parametrize("policy", ["easy", "fcfs", "first-fit", "conservative", "weigh", "mctbm", "las-mq"])
def test_a_device_that_somebody_holds_is_given_out_when_it_is_free(tmp_path: Path, policy: str) -> None:
    manual = ManualEngine(cluster=DEVICES)
    manual.gpus = watched = Watched()
    with manual.coordinator(tmp_path, policy) as coordinator:
        coordinator.turn()
        waits, runs = submit(coordinator, device="gpu"), submit(coordinator, device="cpu")
        assert shown(coordinator, runs) == ["running"] or policy in ("fcfs", "las-mq")  # nobody passes
        assert shown(coordinator, waits) == ["waiting"]
        assert "GPU 0 is held outside of the queue by process 7" in why(coordinator, waits)
        lines = node_lines(node_table(coordinator))
        assert lines[0] == "gpu-0: 0 of 1 free"
        assert lines[1] == "  GPU 0, gpu-0: not given out; outside of the queue: process 7"
        watched.held = False
        coordinator.turn()
        manual.wait(1.0)
        coordinator.turn()
        assert shown(coordinator, waits, runs) == ["running"] * 2
