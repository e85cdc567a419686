"""Nodes whose GPUs Slurm counts, and hides from who has not asked; the GPU is a device of PoCL's."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scheduler.engines.slurm.nodes.test_devices import NEEDS
from tests.scheduler.engines.slurm.test_engine import START
from tests.support.coordinator import Up
from tests.support.labs.components import require
from tests.support.labs.slurm_lab import SlurmLab, require_slurm, slurmlab
from tests.support.programs import opencl_devices, opencl_layer

OPENS = (
    "import os, tenbin, pyopencl as cl; kind = tenbin.Checkpoint('p').device.type\n"
    "print(os.environ['TENBIN_DEVICE'], kind & cl.device_type.GPU > 0, os.environ.get('SLURM_JOB_GPUS'))"
)


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmLab]:
    """Two nodes with a GPU each, which only a job sees that has asked for it."""
    require_slurm()
    devices = "basic pthread"
    require(len(opencl_devices(POCL_DEVICES=devices)) == 2, "two OpenCL devices (PoCL)")
    with tempfile.TemporaryDirectory(prefix="slurm-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        layer = opencl_layer("hidden_gpu", folder)
        with slurmlab(folder / "lab", nodes=2, gpus=1) as cluster:
            variables = {"POCL_DEVICES": devices, "POCL_CACHE_DIR": str(folder / "cache")}
            for key, value in {**cluster.env, **variables, "OPENCL_LAYERS": layer}.items():
                monkeypatch.setenv(key, value)
            yield cluster


def test_a_job_holds_its_gpu_in_slurm(
    up: Up, lab: SlurmLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job sees its GPU, others do not."""
    monkeypatch.setenv("TENBIN_STORE", str(tmp_path / "store"))
    up.start(*START, "--devices", "--policy", "fcfs")
    told = {row["name"]: row for row in up.client.call("GET", "/nodes")}
    assert {"pocl-0@node1", "pocl-1@node1", "pocl-0@node2", "pocl-1@node2"} <= told.keys()
    assert "pocl-0@node1 (gpu)" in up.run("submit", "--device", "accelerator", "--", "true").stderr
    for kind, expected in (("gpu", "0 True 0\n"), ("cpu", "0 False None\n")):
        job = up.client.submit([sys.executable, "-c", OPENS], device=kind, folder=NEEDS["folder"])
        assert job.result(90) == 0, Path(job.info()["stderr"]).read_text()
        assert up.client.output(job.id).decode() == expected
    waits = up.client.submit(["sleep", "600"], device="any")
    up.until(lambda: "RUNNING gres" in lab.call("squeue", "-h", "-o", "%T %b", f"--name=tenbin-{waits.id}"))
    assert waits.info()["placement"].startswith("pocl-0")
    waits.cancel()
