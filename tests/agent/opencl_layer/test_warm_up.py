"""Kernels are launched on the target of a move before the program is there; PoCL's cache tells it."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.opencl_layer import requests
from tests.support.moving import Stepper

TRIES = 8  # of a busy machine: a watch may end before a launch
TWO_KERNELS = 2
TIMES = "5,0,5,0"  # of launches (slow_second.c): 5 ms on both devices, most of them asleep
WATCH_S = 0.25  # that each move and estimate of a program takes at least


def start(folder: Path, *options: str) -> Stepper:
    """Start a stepper on two devices that share no compiled kernels, with an empty cache."""
    cache = folder / "pocl-cache"
    cache.mkdir()
    return Stepper(folder, *options, POCL_DEVICES="basic pthread", POCL_CACHE_DIR=str(cache), LAUNCH_MS=TIMES)


def compiled(folder: Path) -> set[str]:
    """Return the kernels that PoCL has compiled, by device, size and name."""
    return {str(path.relative_to(folder)) for path in (folder / "pocl-cache").rglob("*.so")}


def plain_digest(folder: Path, steps: int) -> str:
    program = Stepper(folder, below=False, POCL_DEVICES="basic pthread")
    digest = program.steps(steps)[1]
    program.end()
    return digest


@pytest.mark.slow
def test_an_estimate_warms_up(tmp_path: Path) -> None:
    """Nothing is compiled after the estimate, neither by the move nor by launches on the new device.

    The program makes a kernel for each launch.
    """
    stepper = start(tmp_path, "anew")
    stepper.steps(2)
    pid, before = stepper.process.pid, compiled(tmp_path)
    assert len(before) == TWO_KERNELS
    for _ in range(TRIES):
        with stepper.busy():
            assert requests.estimate(tmp_path, pid, "pocl-1").total_s >= WATCH_S
        if requests.status(tmp_path, pid).last_warmed == TWO_KERNELS:
            break
    warmed = compiled(tmp_path)
    assert len(warmed - before) == TWO_KERNELS
    assert (status := requests.status(tmp_path, pid)).device == "pocl-0" and status.moves == 0
    requests.move(tmp_path, pid, "pocl-1")  # idle: nothing to warm up with
    assert requests.status(tmp_path, pid).last_warmed == 0
    stepper.steps(3)
    assert compiled(tmp_path) == warmed
    assert stepper.digest == plain_digest(tmp_path, stepper.taken)
    stepper.end()


@pytest.mark.slow
def test_moves_and_resumes_warm_up(tmp_path: Path) -> None:
    stepper = start(tmp_path)
    stepper.steps(2)
    pid, found = stepper.process.pid, []
    for turn in range(2 * TRIES):
        there = f"pocl-{(turn + 1) % 2}"
        with stepper.busy():
            if turn % 4 < 2:
                requests.move(tmp_path, pid, there)
            else:
                requests.park(tmp_path, pid)
                requests.resume(tmp_path, pid, there)
        found.append(requests.status(tmp_path, pid).last_warmed)
        if {TWO_KERNELS} == {max(found[at::4], default=0) for at in range(4)}:
            break
    assert [max(found[at::4], default=0) for at in range(4)] == [TWO_KERNELS] * 4
    assert stepper.digest == plain_digest(tmp_path, stepper.taken)
    stepper.end()


def test_a_program_that_may_print_is_left_alone(tmp_path: Path) -> None:
    """Launch nothing twice whose output would be there twice."""
    program = start(tmp_path, "printing")
    program.steps(2)
    before = compiled(tmp_path)
    with program.busy():
        requests.estimate(tmp_path, program.process.pid, "pocl-1")
    assert requests.status(tmp_path, program.process.pid).last_warmed == 0
    assert compiled(tmp_path) == before
    program.end()
