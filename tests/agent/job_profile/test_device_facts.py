"""Buffers and work of a run on an OpenCL device: programs with known numbers, on a real driver."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pandas as pd
import pytest

from agent.job_profile.session import DeviceWatch
from agent.job_profile.trial import RunOutcome, Trial
from probes.opencl import devices
from profiles.errors import UserError
from profiles.fits.job import fit
from scheduler.prediction.profiles import runs_of
from tests.support.job_profiles import make_job, samples
from tests.support.labs.components import require
from tests.support.paths import ROOT

MIB = 1 << 20
PLAIN = """
import sys, uuid
import pyopencl as cl
context = cl.Context([cl.get_platforms()[0].get_devices()[0]])
queue = cl.CommandQueue(context)
add = cl.Program(context, "__kernel void add(__global float *a) { a[get_global_id(0)] += 1; } // "
                 + sys.argv[1]).build().add
new = lambda mib: cl.Buffer(context, cl.mem_flags.READ_WRITE, mib << 20)
large, gone = new(8), new(4)
gone.release()
queue.finish()
new(2), new(1)
add.set_arg(0, large)
for _ in range(100):
    cl.enqueue_nd_range_kernel(queue, add, (1 << 18,), None)
queue.finish()
"""
KEEPING = """
import tenbin
check = tenbin.Checkpoint("keeping")
check.build("__kernel void add(__global float *a) { a[get_global_id(0)] += 1; }")
check.buffer("grid", 3 << 20)
import pyopencl as cl
kept = cl.Buffer(check.context, cl.mem_flags.READ_WRITE, 5 << 20)
assert not check.restore()
check.save()
"""


def has_device() -> bool:
    try:
        return bool(devices())
    except UserError:
        return False


def run(watch: DeviceWatch, program: str, *arguments: str) -> RunOutcome:
    command = (sys.executable, "-c", program, *arguments)
    with Trial(command, str(ROOT), [0], limit_s=100.0, variables=watch.variables()) as trial:
        while (ended := trial.ended(1.0)) is None:
            pass
    assert ended.code == 0, ended.last_words
    return ended


def test_counts_of_a_program_that_knows_nothing_of_it(tmp_path: Path) -> None:
    """8 + 4 MiB at most (then 8 + 2 + 1), a hundred kernels, one build; each run has counts of its own."""
    require(has_device(), "an OpenCL device")
    require(shutil.which("cc"), "a C compiler (Debian: gcc)")
    with DeviceWatch() as watch:
        assert watch.trouble == ""
        took = run(watch, PLAIN, str(tmp_path)).wall_s
        seen = watch.seen()
        assert seen["device_memory_mb"] == 12 * MIB / 1e6 and seen["kernels"] == 100
        assert 0 < (seen["compile_s"] or 0) < took and 0 < (seen["drain_s"] or 0) < took
        assert "registered_mb" not in seen
        run(watch, "print('no device')")
        assert watch.seen() == {}


def test_a_program_with_checkpoints_tells_more(tmp_path: Path) -> None:
    """M is the data that the program registers; M_max also holds its other buffers."""
    require(has_device(), "an OpenCL device")
    require(shutil.which("cc"), "a C compiler (Debian: gcc)")
    with DeviceWatch() as watch:
        run(watch, KEEPING)
        seen = watch.seen()
        assert (seen["registered_mb"], seen["device_memory_mb"]) == (3 * MIB / 1e6, 8 * MIB / 1e6)
        assert (seen["compile_s"] or 0) > 0 and seen["drain_s"] is not None


def test_without_a_compiler_it_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with DeviceWatch() as watch:
        assert "no C compiler" in watch.trouble and "apt-get install gcc" in watch.trouble
        assert set(watch.variables()) == {"TENBIN_JOB_FOLDER"} and watch.seen() == {}


def test_a_compiler_without_headers_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho 'x.c:1: fatal error: CL/cl_icd.h: No such file' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with DeviceWatch() as watch:
        assert "CL/cl_icd.h" in watch.trouble


def test_they_become_needs_of_the_profile() -> None:
    """Medians of the runs alone; a program without a device has none of them."""
    runs, windows = samples()
    runs = runs.assign(device_memory_mb=12.0, kernels=100.0, compile_s=0.02, registered_mb=3.0)
    runs["drain_s"] = pd.Series([None] * len(runs), dtype=float)
    job = make_job("cl", runs, windows)
    needs = {need.name: (need.value, need.unit) for need in job.alone}
    assert needs["device_memory_mb"] == (12.0, "MB") and needs["kernels"] == (100.0, "1")
    assert "drain_s" not in needs and "kernels" not in {n.name for n in make_job("plain").alone}
    assert fit(runs, windows).alone == job.alone
    (first, *_) = runs_of(job)
    assert (first.registered_mb, first.compile_s, first.memory_mb) == (3.0, 0.02, 100.0)
