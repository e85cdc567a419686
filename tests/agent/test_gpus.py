"""GPUs and their processes, read by NVML's own module from emulated ones."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from agent.emulation.emulated_gpus import CONTEXT, MIB, emulated_gpus, number_of_gpus, uuid
from agent.gpus import MB, DrmWatch, GpuUse, Holder, read_gpus
from agent.inventory import ask
from probes import nvml
from probes.meters import nvml_meter
from profiles.errors import BadInput, Unavailable
from profiles.files.safe_files import user_name
from tests.support.labs.components import require

# Holds the GPU that its argument names, with so many MiB there; computes until told to end, or waits.
PROGRAM = """
import mmap, os, sys
file = os.open(sys.argv[1], os.O_RDWR)
memory = mmap.mmap(file, int(sys.argv[2]) << 20)
print("holds", flush=True)
while sys.argv[3] == "computes": pass
sys.stdin.read()
"""


@pytest.fixture(params=["gpus-3"])
def folder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    require(shutil.which("cc"), "a C compiler (Debian: gcc)")
    pytest.importorskip("pynvml")
    with emulated_gpus(request.param) as made:
        monkeypatch.setenv(nvml.FOLDER, str(made))
        yield made


def hold(folder: Path, gpu: int, mib: int, does: str) -> subprocess.Popen[str]:
    """Start a process that holds a GPU, and wait until it does."""
    command = [sys.executable, "-c", PROGRAM, str(folder / "dev" / f"nvidia{gpu}"), str(mib), does]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "holds\n"
    return process


def until(what: str, gpu: int) -> GpuUse:
    """Wait until an expression of the GPU's use is true."""
    for _ in range(1200):
        use = read()[gpu]
        if eval(what, {"use": use, "held": {one.pid: one for one in use.holders}}):
            return use
        time.sleep(0.05)
    raise AssertionError((what, use))


def read() -> tuple[GpuUse, ...]:
    """Read in a process of its own: the library stays loaded in the one that has loaded it."""
    program = "from agent.gpus import *; print(repr(read_gpus(energy=True)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return eval(done.stdout, {"GpuUse": GpuUse, "Holder": Holder})  # type: ignore[no-any-return]


def test_processes_that_hold_a_gpu_are_named(folder: Path) -> None:
    idle = hold(folder, 1, 300, "waits")
    busy = hold(folder, 1, 20, "computes")
    try:
        use = until(f"held.get({busy.pid}) and held[{busy.pid}].utilisation > 0.1 and {idle.pid} in held", 1)
        holders = {one.pid: one for one in use.holders}
        assert use.uuid == uuid(1)
        assert holders[idle.pid].utilisation == 0
        assert holders[idle.pid].memory_mb == (CONTEXT + 300 * MIB) / MB
        assert holders[busy.pid].user == user_name(os.getuid())
        assert holders[busy.pid].command == psutil.Process(busy.pid).name()[:15]
        age_s = time.time() - psutil.Process(busy.pid).create_time()
        assert holders[busy.pid].age_s == pytest.approx(age_s, abs=30)
        assert use.used_mb == (2 * CONTEXT + 320 * MIB) / MB
        assert use.power_w is not None and use.power_w > 70
        assert f"process {idle.pid} (python" in str(holders[idle.pid]) and "0 %" in str(holders[idle.pid])
        # A paused process is named too, although NVML has no sample of it.
        busy.send_signal(signal.SIGSTOP)
        assert until(f"held[{busy.pid}].utilisation == 0", 1).utilisation == 0
    finally:
        for process in (idle, busy):
            process.kill()
            process.communicate()
    assert until("not use.holders", 1).used_mb == 0


LOST = """
import pynvml
from agent import gpus
answers = pynvml.{call}
def refuses(handle):
    if pynvml.nvmlDeviceGetUUID(handle) == "{uuid}":
        raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
    return answers(handle)
pynvml.{call} = refuses
print(*(use.uuid for use in gpus.read_gpus()))
"""


@pytest.mark.parametrize("call", ["nvmlDeviceGetPciInfo", "nvmlDeviceGetMemoryInfo"])
def test_a_gpu_that_does_not_answer_leaves_the_others_read(folder: Path, call: str) -> None:
    program = LOST.format(call=call, uuid=uuid(1))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [uuid(0), uuid(2)]


def test_idle_gpus_draw_little_and_their_energy_grows(folder: Path) -> None:
    before = read()
    assert [use.uuid for use in before] == [uuid(index) for index in range(3)]
    for use in before:
        assert (use.holders, use.used_mb, use.utilisation, use.power_w) == ((), 0, 0, 70)
    joules = before[0].energy_j
    assert joules is not None
    until(f"use.energy_j > {joules + 7}", 0)


@pytest.mark.parametrize("folder", ["gpus-2+mig"], indirect=True)
def test_parts_of_a_divided_gpu_are_devices(folder: Path) -> None:
    uses = read()
    assert [use.uuid for use in uses] == [uuid(0), *(uuid(1, part) for part in range(7))]
    assert {use.utilisation for use in uses[1:]} == {None}
    process = hold(folder, 1, 1, "waits")
    try:
        until(f"{process.pid} in held", 1)
        assert not any(use.holders for use in read()[2:])
    finally:
        process.kill()
        process.communicate()


def test_a_process_that_cannot_be_seen_keeps_its_memory(folder: Path, tmp_path: Path) -> None:
    process = hold(folder, 0, 1, "waits")
    try:
        until(f"{process.pid} in held", 0)
        (holder,) = read_gpus(tmp_path)[0].holders
        assert (holder.pid, holder.user, holder.age_s) == (process.pid, "", None)
        assert "cannot see" in str(holder)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("folder", "identities"),
    [("gpus-2+amd", [f"GPU-e{n:015x}" for n in range(2)]), ("gpus-2+intel", ["0", "1"])],
    indirect=["folder"],
)
def test_gpus_of_other_vendors_are_read_from_files_of_the_kernel(folder: Path, identities: list[str]) -> None:
    uses = read()
    assert [use.seen_as for use in uses] == identities
    assert all("Emulated" in use.name and use.memory_mb == 80 * 2**30 / MB for use in uses)
    command = [sys.executable, "-c", PROGRAM, uses[1].file, "300", "computes"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    watch = DrmWatch(folder, Path("/proc"))
    try:
        use = until(f"{process.pid} in held and held[{process.pid}].memory_mb", 1)
        (holder,) = use.holders
        assert (holder.user, holder.memory_mb) == (user_name(os.getuid()), (CONTEXT + 300 * MIB) / MB)
        assert use.used_mb == holder.memory_mb and not read()[0].holders
        for _ in range(1200):
            shares = [holder.utilisation for holder in watch.look()[1].holders]
            if shares and shares[0] > 0.1:
                break
            time.sleep(0.3)
        else:
            raise AssertionError(shares)
    finally:
        process.kill()
        process.communicate()
    assert until("not use.holders", 1).used_mb == 0


@pytest.mark.parametrize("folder", ["gpus-2+mig"], indirect=True)
def test_the_inventory_names_them(folder: Path) -> None:
    whole, divided = ask("gpu").gpus
    assert (whole.uuid, whole.parts, whole.bus) == (uuid(0), (), "0000:01:00.0")
    assert (divided.uuid, divided.parts) == (uuid(1), tuple(uuid(1, part) for part in range(7)))
    assert (whole.power_limit_w, whole.power_limit_min_w, whole.power_limit_max_w) == (400, 200, 400)
    assert whole.driver == "emulated" and "Emulated" in whole.name


def test_the_meter_counts_their_energy(folder: Path) -> None:
    meter = nvml_meter()
    try:
        assert meter.parts == ("gpu-0", "gpu-1", "gpu-2")
    finally:
        meter.close()


@pytest.mark.parametrize("name", ["gpus-0", "gpus-17", "gpus", "gpus-x", "gpus-2+wrap"])
def test_there_are_no_such_gpus(name: str) -> None:
    with pytest.raises(BadInput, match="gpus-1 to gpus-16"):
        number_of_gpus(name)


def test_without_a_library_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(nvml.FOLDER, str(tmp_path))
    with pytest.raises(Unavailable, match="TENBIN_EMULATED_GPUS"):
        read_gpus()
