"""OpenCL calls with the layer beside those without, the pause of a move, and trials beside the truth."""

from __future__ import annotations

import shutil
import statistics
import subprocess
from pathlib import Path

import pytest

from agent.opencl_layer import build, requests
from tests.support.components import require
from tests.support.moving import Stepper, layer, variables

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(600)]
ROUNDS, MOVES = 7, 11
TRIALS, STEPS = 5, 100
CALLS = (
    ("clSetKernelArg, a value", "set_value_s"),
    ("clSetKernelArg, a buffer", "set_buffer_s"),
    ("clEnqueueNDRangeKernel", "enqueue_s"),
    ("clFinish, nothing to do", "finish_s"),
    ("read of 4 KiB", "read_4k_s"),
)
COPIES = (("read of 64 MiB", "read_64m_s"), ("write of 64 MiB", "write_64m_s"))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Compile the program that times its calls."""
    require(shutil.which("cc"), "a C compiler")
    made = tmp_path_factory.mktemp("program") / "opencl_calls"
    source = Path(__file__).with_name("opencl_calls.c")
    done = subprocess.run(["cc", "-O2", "-o", made, source, "-l:libOpenCL.so.1"], check=False)
    require(done.returncode == 0, "an OpenCL loader (Debian: ocl-icd-libopencl1)")
    return str(made)


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


def test_pauses(program: str, tmp_path: Path) -> None:
    """Move a program with one buffer of 64 MiB to and fro, and park it; the copies are the peer."""
    started, times = start(program, tmp_path, True)
    pid, copy_s = started.pid, times["read_64m_s"]
    keys = [one["key"] for one in requests.status(tmp_path, pid).devices]
    moves = [requests.move(tmp_path, pid, keys[(turn + 1) % 2]) for turn in range(MOVES)]
    pause_s, total_s = (statistics.median(times) for times in zip(*map(_times, moves), strict=True))
    print(
        f"\nBENCH move of 64 MiB: pause {1e3 * pause_s:.1f} ms, {pause_s / copy_s:.2f} times one copy;",
        end="",
    )
    print(f" {1e3 * total_s:.1f} ms in all")
    for place, folder in (("memory", None), ("a file", tmp_path)):
        parks, resumes = [], []
        for _ in range(5):
            parks.append(requests.park(tmp_path, pid, folder).last_total_s or 0)
            resumes.append(requests.resume(tmp_path, pid).last_total_s or 0)
        park_s, resume_s = statistics.median(parks), statistics.median(resumes)
        print(
            f"BENCH park of 64 MiB in {place}: {1e3 * park_s:.1f} ms, resume {1e3 * resume_s:.1f} ms;", end=""
        )
        print(f" one copy {1e3 * copy_s:.1f} ms")
    started.communicate()


@pytest.mark.parametrize("factor", ["1", "2", "5"])
def test_trials(tmp_path: Path, factor: str) -> None:
    """Try a running program on a device that a layer below makes slower, then move it there and measure."""
    program = Stepper(tmp_path, SLOW_BY=factor)
    pid = program.process.pid
    program.steps(20)
    errors, stopped_s = [], []
    for _ in range(TRIALS):
        with program.busy():
            trial = requests.try_on(tmp_path, pid, "pocl-1", watch_s=1.0)
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


def _times(moved: requests.LayerStatus) -> tuple[float, float]:
    return moved.last_pause_s or 0, moved.last_total_s or 0
