"""OpenCL calls with the layer beside those without, pauses, parking, and trials beside the truth."""

from __future__ import annotations

import mmap
import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.opencl_layer import build, requests
from probes.opencl import find
from profiles.records import MB
from tests.benchmarks import FULL, SMALL, amount, few
from tests.support.labs.components import require
from tests.support.moving import Stepper, below_on, layer, two_devices, variables

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(600)]
ROUNDS, MOVES, PARKS = amount((7, 15, 5), (7, 15, 5), (1, 2, 1))
WRITTEN = 2  # buffers
TRIALS, STEPS, WATCH_S = amount((5, 100, 1.0), (5, 100, 1.0), (1, 5, 0.2))
CALLS = (
    ("clSetKernelArg, a value", "set_value_s"),
    ("clSetKernelArg, a buffer", "set_buffer_s"),
    ("clEnqueueNDRangeKernel", "enqueue_s"),
    ("clFinish, nothing to do", "finish_s"),
    ("read of 4 KiB", "read_4k_s"),
)
COPIES = (("read of 64 MiB", "read_64m_s"), ("write of 64 MiB", "write_64m_s"))


def compiled(source: str, folder: Path) -> str:
    """Compile a C program of this folder."""
    require(shutil.which("cc"), "a C compiler")
    made = folder / Path(source).stem
    done = subprocess.run(
        ["cc", "-O2", "-o", made, Path(__file__).with_name(source), "-l:libOpenCL.so.1"], check=False
    )
    require(done.returncode == 0, "an OpenCL loader (Debian: ocl-icd-libopencl1)")
    return str(made)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Give the program that times its calls."""
    return compiled("opencl_calls.c", tmp_path_factory.mktemp("program"))


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Give the program that writes to some of its buffers."""
    return compiled("opencl_writer.c", tmp_path_factory.mktemp("writer"))


def start(program: str, folder: Path, below: bool) -> tuple[subprocess.Popen[str], dict[str, float]]:
    """Start the program and read its times; it then waits until its input ends."""
    layer()  # skips where it cannot be built
    environment = variables(folder, below=below)
    if below:
        environment["OPENCL_LAYERS"] = str(build.build())  # as users have it
    started = subprocess.Popen(
        [program], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert started.stdout is not None
    lines = [started.stdout.readline().split() for _ in (*CALLS, *COPIES)]
    return started, {name: float(value) for name, value in lines}


def test_calls(program: str, tmp_path: Path) -> None:
    took: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    for turn in range(ROUNDS):
        for below in (turn % 2 == 0, turn % 2 == 1):
            started, times = start(program, tmp_path, below)
            started.communicate()
            took[below].append(times)
    print()
    for what, name in CALLS:
        plain, moved = (1e9 * statistics.median(one[name] for one in took[below]) for below in (False, True))
        print(f"BENCH {what}: {plain:.0f} ns, with the layer {moved:.0f} ns, {moved / plain:.2f} times")
    for what, name in COPIES:
        plain, moved = (statistics.median(one[name] for one in took[below]) for below in (False, True))
        print(f"BENCH {what}: {1e3 * plain:.1f} ms, speed with the layer {plain / moved:.2f} of it")


def sizes() -> list[tuple[int, int]]:
    """List sizes (MiB) of a program's memory, and in how many buffers it is."""
    if SMALL:
        return [(16, 8)]
    found = two_devices()[0]
    large = (FULL or gpu()) and min(one["global_memory_mb"] for one in found) * MB >= 3 * 2048 << 20
    return [(64, 8), (512, 8), *([(2048, 20)] if large else [])]


def gpu() -> bool:
    """Tell if programs start on a GPU."""
    return bool(two_devices()[0][0]["kind"] == "gpu")


def test_pauses_with_copies_before(writer: str, tmp_path: Path) -> None:
    """Move a program that writes to two of its buffers; the prediction is the peer."""
    for mib, buffers in sizes():
        started = start_writer(writer, tmp_path, mib, buffers)
        keys = [one["key"] for one in two_devices()[0]]
        moves = [requests.move(tmp_path, started.pid, keys[(turn + 1) % 2]) for turn in range(MOVES)]
        started.communicate()
        for key in keys:
            told_pauses(mib, buffers, [one for one in moves if one.device == key])


def told_pauses(mib: int, buffers: int, moves: Sequence[requests.LayerStatus]) -> None:
    # A program that has just been moved compiles its kernel, and may write nothing during the next move.
    found = [
        (one.last_pause_s, one.estimate.pause_s)
        for one in moves
        if one.last_pause_s
        and one.estimate
        and one.estimate.dirty_bytes * buffers == WRITTEN * one.estimate.bytes
    ]
    print(
        f"\nBENCH move of {mib} MiB to {moves[0].device}, {WRITTEN / buffers:.0%} written meanwhile", end=""
    )
    print(f" ({len(found)} moves)", end="")
    if found:
        pauses, wrong = [one for one, _ in found], [abs(told / pause - 1) for pause, told in found]
        print(
            f": pause {1e3 * min(pauses):.1f} ms at least, {1e3 * statistics.median(pauses):.1f} median;",
            end="",
        )
        print(f" predicted with a median error of {100 * statistics.median(wrong):.0f} %")


def test_parks(writer: str, tmp_path: Path) -> None:
    """Park and resume beside plain copies of the device (memory), and direct I/O (a file)."""
    for mib, buffers in sizes():
        started = start_writer(writer, tmp_path, mib, buffers)
        for place, folder in (("memory", None), ("a file", tmp_path)):
            peers, parks, stops, resumes, held = [], [], [], [], [held_mib(started.pid)]
            for _ in range(PARKS):
                peers.append(direct_io_s(tmp_path, mib) if folder else copies_s(mib))
                parked = requests.park(tmp_path, started.pid, folder)
                parks.append(parked.last_total_s or 0)
                stops.append(parked.last_park_s or 0)
                held.append(held_mib(started.pid))
                resumes.append(requests.resume(tmp_path, started.pid).last_total_s or 0)
            out_s, in_s = map(min, zip(*peers, strict=True))
            print(f"\nBENCH park of {mib} MiB in {place}: {1e3 * min(parks):.0f} ms, stopped for", end="")
            print(f" {1e3 * min(stops):.0f} ms ({out_s / min(stops):.2f} of the speed of the peer,", end="")
            print(f" {1e3 * out_s:.0f} ms); resume {1e3 * min(resumes):.0f} ms", end="")
            print(f" ({in_s / min(resumes):.2f} of {1e3 * in_s:.0f} ms)")
            if held[0]:
                print(f"BENCH on the card, by its driver: {held[0]} MiB running, {held[-1]} MiB parked")
        started.communicate()


def start_writer(program: str, folder: Path, mib: int, buffers: int) -> subprocess.Popen[str]:
    """Start the program with so many buffers, of which it writes to two."""
    layer()  # skips where it cannot be built
    keys = [one["key"] for one in two_devices()[0]]
    started = subprocess.Popen(
        [program, str(mib), str(buffers), str(WRITTEN)],
        env=below_on(folder, build.build(), keys),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert started.stdout is not None and started.stdout.readline() == "ready\n"
    return started


def held_mib(pid: int) -> int | None:
    """Ask NVIDIA's driver for the memory that a process holds on its cards; None: it does not tell."""
    try:
        import pynvml

        pynvml.nvmlInit()
        cards = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        found = [one for card in cards for one in pynvml.nvmlDeviceGetComputeRunningProcesses(card)]
        return int(sum(one.usedGpuMemory for one in found if one.pid == pid)) >> 20
    except Exception:  # no such library, no driver, or figures that this container may not see
        return None


def copies_s(mib: int) -> tuple[float, float]:
    """Time copies to new memory and from there, as a program makes that parks itself."""
    there = np.ones(mib << 20, np.uint8)
    if gpu():
        return gpu_copies_s(there)
    began = time.perf_counter()
    saved = there.copy()
    between = time.perf_counter()
    there = saved.copy()
    return between - began, time.perf_counter() - between


def gpu_copies_s(contents: np.ndarray[Any, Any]) -> tuple[float, float]:
    """Time copies from the GPU to new memory and back."""
    import pyopencl as cl

    (device,) = find([two_devices()[0][0]["key"]])
    context = cl.Context([device.handle])
    queue = cl.CommandQueue(context)
    there = cl.Buffer(context, cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR, hostbuf=contents)
    queue.finish()
    began = time.perf_counter()
    saved = np.empty_like(contents)
    cl.enqueue_copy(queue, saved, there)
    between = time.perf_counter()
    cl.enqueue_copy(queue, there, saved)
    queue.finish()
    return between - began, time.perf_counter() - between


def direct_io_s(folder: Path, mib: int) -> tuple[float, float]:
    """Time direct I/O of touched memory to and from a file that has its blocks, four pieces at once."""
    piece, path = 4 << 20, folder / "direct"
    memory = mmap.mmap(-1, mib << 20)
    memory.write(os.urandom(piece) * (len(memory) // piece))
    parts = [(at, memoryview(memory)[at : at + piece]) for at in range(0, len(memory), piece)]
    times = []
    with ThreadPoolExecutor(4) as threads:
        for flags in (os.O_WRONLY | os.O_CREAT, os.O_RDONLY):
            file = os.open(path, flags | os.O_DIRECT, 0o600)
            if flags & os.O_CREAT:
                os.posix_fallocate(file, 0, len(memory))
            transfer = os.pwritev if flags & os.O_CREAT else os.preadv
            began = time.perf_counter()
            list(threads.map(lambda part: transfer(file, [part[1]], part[0]), parts))  # noqa: B023
            times.append(time.perf_counter() - began)
            os.close(file)
    path.unlink()
    return times[0], times[1]


@pytest.mark.parametrize("factor", few(["2", "1", "5"]))
def test_trials(tmp_path: Path, factor: str) -> None:
    """Try a running program on a device that a layer below makes slower, then move it there and measure."""
    program = Stepper(tmp_path, SLOW_BY=factor)
    pid = program.process.pid
    program.steps(20)
    errors, stopped_s = [], []
    for _ in range(TRIALS):
        with program.busy():
            trial = requests.try_on(tmp_path, pid, "pocl-1", watch_s=WATCH_S)
        here_s, _ = program.steps(STEPS)
        requests.move(tmp_path, pid, "pocl-1")
        program.steps(20)
        there_s, _ = program.steps(STEPS)
        requests.move(tmp_path, pid, "pocl-0")
        program.steps(20)
        assert trial.program_ratio is not None
        told, truth = trial.program_ratio, here_s / there_s
        errors.append(told.value / truth)
        stopped_s.append(trial.longest_stop_s)
        interval = f"{told.value:.3f} ({told.low:.3f} .. {told.high:.3f})"
        print(
            f"\nBENCH trial, {factor} times slower: {interval}, truth {truth:.3f}: "
            f"{told.value / truth:.2f} of it; stood still for {1e3 * trial.stopped_s:.0f} ms"
        )
    program.end()
    print(
        f"BENCH trial, {factor} times slower: median {statistics.median(errors):.3f} of the truth, "
        f"longest stop {1e3 * statistics.median(stopped_s):.0f} ms"
    )


def test_first_launches(tmp_path: Path) -> None:
    """Move a program with and without warming up, each with an empty cache of compiled kernels."""
    for warm in few([True, False]):
        cache = tmp_path / f"cache-{warm}"
        cache.mkdir()
        program = Stepper(tmp_path, POCL_DEVICES="basic pthread", POCL_CACHE_DIR=str(cache))
        pid = program.process.pid
        program.steps(20)
        if warm:
            with program.busy():
                requests.estimate(tmp_path, pid, "pocl-1")
        requests.move(tmp_path, pid, "pocl-1")  # idle: only the estimate has warmed up
        first_s, later_s = program.steps(1)[0], program.steps(STEPS)[0]
        program.end()
        print(f"\nBENCH two kernels after a move, {'warmed up' if warm else 'cold'}: first launches", end="")
        print(f" {1e3 * first_s:.1f} ms, later ones {1e3 * later_s:.1f} ms")
