"""Trials of running programs: ratios beside the truth measured later, results compared, nothing disturbed."""

from __future__ import annotations

import json
import math
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.opencl_layer import requests
from agent.opencl_layer.trials import Ratio, ranks_outside, time_of
from profiles.errors import UserError
from tests.support.moving import Stepper
from tests.support.trials import trial_of

TIMES = "0,64,128,32"  # of launches (slow_second.c): spread 64 and 160 ms, stir 32 and 144 ms
ALIKE = "5,0,5,0"  # 5 ms on both devices, most of them asleep
TRIES = 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trials")


@pytest.fixture(scope="module")
def stepper(folder: Path) -> Iterator[Stepper]:
    made = Stepper(folder, LAUNCH_MS=TIMES)
    made.steps(1)
    yield made
    made.end()


def plain_digest(folder: Path, steps: int) -> str:
    """Give the digest after so many steps without the layer."""
    program = Stepper(folder, below=False)
    program.steps(steps)
    program.end()
    return program.digest


@pytest.mark.measures
def test_ratio_beside_the_truth(folder: Path, stepper: Stepper) -> None:
    """A program is tried, its speed is measured, it is moved, and its speed is measured again."""
    said: list[str] = []
    pid = stepper.process.pid
    for _ in range(TRIES):  # others may use this machine's processors
        said.clear()
        with stepper.busy():
            trial = requests.try_on(folder, pid, "pocl-1", said.append, watch_s=0.4)
        here_s, _ = stepper.steps(3)
        assert requests.move(folder, pid, "pocl-1").device == "pocl-1"
        there_s, _ = stepper.steps(3)
        requests.move(folder, pid, "pocl-0")
        assert trial.ratio is not None and trial.program_ratio is not None
        truth, found = here_s / there_s, (trial.ratio.value, trial.program_ratio.value)
        if found == pytest.approx((truth, truth), rel=0.1):
            break
    assert found == pytest.approx((truth, truth), rel=0.1)
    assert trial.ratio.low <= trial.ratio.value <= trial.ratio.high
    assert trial.agrees
    assert said == [
        "watching the program for 0.4 s",
        "trying spread on pocl-1, 1 of 2",
        "trying stir on pocl-1, 2 of 2",
    ]
    assert {one.name: one.compared_bytes for one in trial.kernels} == {
        "spread": 4 << 16,
        "stir": (4 << 16) + 4,
    }
    assert all(one.differing_bytes == 0 and one.here and one.here.n >= 3 for one in trial.kernels)
    assert 0 < trial.longest_stop_s <= trial.stopped_s
    assert stepper.digest == plain_digest(folder, stepper.taken)


@pytest.mark.measures
def test_work_of_the_host_is_measured(folder: Path) -> None:
    """Of each step of 146 ms here kernels take 96, and 304 there."""
    program = Stepper(folder, "thinking", LAUNCH_MS=TIMES)
    program.steps(1)
    with program.busy():
        trial = requests.try_on(folder, program.process.pid, "pocl-1", watch_s=1.5)
    program.end()
    assert trial.busy_share == pytest.approx(96 / 146, rel=0.1)
    assert trial.program_ratio is not None
    assert trial.program_ratio.value == pytest.approx(146 / 354, rel=0.1)


@pytest.mark.measures
def test_a_driver_that_wakes_its_waiters_late_is_no_work_of_the_host(folder: Path) -> None:
    """Of each step of 120 ms here kernels take 96, and 24 pass until the program goes on."""
    program = Stepper(folder, LAUNCH_MS=TIMES, WAKE_MS="24,0")
    program.steps(1)
    with program.busy():
        trial = requests.try_on(folder, program.process.pid, "pocl-1", watch_s=1.5)
    program.end()
    assert trial.busy_share > 0.9


@pytest.mark.measures
def test_a_trial_is_given_up_when_nobody_waits(folder: Path, stepper: Stepper) -> None:
    """The layer leaves the program after the launch under way, so that it can be parked at once."""
    pid, lines = stepper.process.pid, list[socket.socket]()

    def leave(said: str) -> None:
        if said.startswith("trying"):
            lines[0].shutdown(socket.SHUT_RDWR)

    with stepper.busy():
        began_s = time.monotonic()
        requests.try_on(folder, pid, "pocl-1", watch_s=0.4)
        whole_s = time.monotonic() - began_s
    with stepper.busy():
        began_s = time.monotonic()
        with pytest.raises(UserError, match="ended meanwhile"):
            requests.try_on(folder, pid, "pocl-1", leave, watch_s=0.4, opened=lines.append)
        assert requests.park(folder, pid).state == "parked"
        assert time.monotonic() - began_s < whole_s / 2
        requests.resume(folder, pid)
    assert stepper.digest == plain_digest(folder, stepper.taken)


def test_results_that_differ_are_told(folder: Path) -> None:
    program = Stepper(folder, "differing", LAUNCH_MS=ALIKE)
    program.steps(1)
    with program.busy():
        trial = requests.try_on(folder, program.process.pid, "pocl-1", watch_s=0.2)
    program.end()
    found = {one.name: one for one in trial.kernels}
    assert (found["spread"].agrees, found["stir"].agrees, found["differ"].agrees) == (True, True, False)
    assert found["differ"].types == "float"
    assert found["differ"].relative_difference == pytest.approx(1 / 3)
    assert trial.agrees is False


@pytest.mark.slow
def test_a_step_may_fail(folder: Path) -> None:
    """Of every kind: the program's results are those of an undisturbed run."""
    program = Stepper(folder, LAUNCH_MS=ALIKE)
    pid, troubles = program.process.pid, []
    program.steps(1)
    for at in (*range(1, 24, 2), 14, 60, 180):
        with program.busy():
            ask(folder, pid, f"fail {at}")
            answer = ask(folder, pid, "try pocl-1 0.05 0")
            ask(folder, pid, "fail 0")
        found = [answer.get("trouble", ""), *(one["trouble"] for one in answer.get("kernels", ()))]
        troubles += [text for text in found if text]
    assert len({text for text in troubles if text.startswith("injected failure: ")}) > 6
    assert requests.status(folder, pid).movable
    program.end()
    assert program.digest == plain_digest(folder, program.taken)


def test_what_is_refused(folder: Path, stepper: Stepper) -> None:
    pid = stepper.process.pid
    with pytest.raises(UserError, match="on pocl-0 already"):
        requests.try_on(folder, pid, "pocl-0")
    with pytest.raises(UserError, match="may not use a device pocl-7; choose from pocl-0, pocl-1"):
        requests.try_on(folder, pid, "pocl-7")
    with pytest.raises(UserError, match="has launched no kernel meanwhile; watch it for longer; try again"):
        requests.try_on(folder, pid, "pocl-1", watch_s=0.01)
    with stepper.busy():
        trial = requests.try_on(folder, pid, "pocl-1", watch_s=0.2, memory_mib=1)
    troubles = [one.trouble for one in trial.kernels]
    assert "other kernels hold the 1 MiB of device memory that are allowed" in troubles
    assert trial.agrees is not False


def ask(folder: Path, pid: int, request: str) -> dict[str, Any]:
    """Ask the layer itself; the last line is the answer."""
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(str(folder / str(pid)))
        line.sendall(f"{request}\n".encode())
        return dict(json.loads(line.makefile().read().splitlines()[-1]))


@given(st.integers(1, 60))
def test_interval_of_a_median(n: int) -> None:
    """Count heads of all numbers of tosses: the median lies outside if too few launches are on one side."""
    skip = ranks_outside(n)
    outside = 2 * sum(math.comb(n, k) for k in range(skip + 1)) / 2**n
    assert 0 <= skip < (n + 1) / 2
    assert skip == 0 or outside <= 0.05
    wider = 2 * sum(math.comb(n, k) for k in range(skip + 2)) / 2**n
    assert wider > 0.05 or skip == (n - 1) // 2


def program_ratio(*kernels: tuple[int, float, float], **seen: Any) -> Ratio:
    """Tell the ratio of a program of such kernels."""
    found = trial_of(*kernels, **seen).program_ratio
    assert found is not None
    assert found.low <= found.value <= found.high
    return found


def test_ratio_is_weighed_by_launches() -> None:
    trial = trial_of((30, 0.1, 0.05), (1, 2.0, 8.0), busy_s=5.0)
    assert trial.ratio == pytest.approx(Ratio(*[5 / 9.5] * 3))
    assert trial.busy_share == 0.5
    assert trial.program_ratio == pytest.approx(Ratio(*[10 / 14.5] * 3))  # 5 s of the host's remain
    assert json.loads(json.dumps(trial.as_json()))["ratio"]["value"] == pytest.approx(5 / 9.5)


def test_calls_that_overlap_do_not_count() -> None:
    """20 s of launches, 10 of that for calls, were under way for 10 s; there they take 40 s, 5 for calls."""
    calls = {"source_call_s": 1.0, "target_call_s": 0.5}
    assert program_ratio((10, 2.0, 4.0), busy_s=10.0, **calls).value == pytest.approx(10 / 35)


def test_no_more_is_left_out_there_than_here() -> None:
    """Half of the time is left out here, so half of it there, though a call there takes nearly all of it."""
    calls = {"source_call_s": 1.0, "target_call_s": 3.9}
    assert program_ratio((10, 2.0, 4.0), busy_s=10.0, **calls).value == pytest.approx(0.5)


@given(st.floats(0.01, 10), st.floats(1e-6, 10), st.floats(0, 1), st.integers(1, 10**6))
def test_the_same_device_is_as_fast(busy_s: float, launch_s: float, call: float, n: int) -> None:
    """Whatever the program waits for, and however disturbed the times were."""
    calls = dict.fromkeys(("source_call_s", "target_call_s"), call * launch_s)
    assert program_ratio((n, launch_s, launch_s), busy_s=busy_s, **calls).value == pytest.approx(1)


def test_kernels_that_were_slower_in_the_program() -> None:
    """They ran all the time beside others, and took half as long alone: the host did nothing meanwhile."""
    assert program_ratio((10, 0.5, 0.01), busy_s=10.0) == pytest.approx(Ratio(50, 50, 50))


def test_a_driver_that_does_not_tell_what_runs() -> None:
    """Launches took 5 s in the trial, and had not ended for 10 s: the host worked for 5 s, or not at all."""
    ratio = program_ratio((10, 0.5, 0.01), busy_s=10.0, running_s=0.1)
    assert ratio == pytest.approx(Ratio(10 / 5.1, 10 / 5.1, 50))


def test_a_driver_that_calls_launches_ended_too_early() -> None:
    """Ten that ended took 9 s in the trial, so they cannot have been under way for 0.1 s."""
    assert program_ratio((10, 0.9, 1.8), busy_s=0.1, ended=10).value == pytest.approx(10 / 19)


def test_launches_that_were_not_tried() -> None:
    """Of those the time is not known, only the 4 s of those that were tried."""
    trial = trial_of((4, 1.0, 0.5), busy_s=8.0)
    assert replace(trial, not_kept=1).busy_share == pytest.approx(0.4)


def test_interval_holds_the_error_of_looks() -> None:
    """Half of 100 looks saw kernels under way: with 95 % 40 to 60."""
    found = replace(trial_of((1, 5.0, 2.5), busy_s=5.0), looks=100).program_ratio
    assert found == pytest.approx(Ratio(1 / 0.8, 1 / 0.75, 1 / 0.7))


def test_interval_holds_the_call() -> None:
    found = time_of([0.010, 0.011, 0.012, 0.013, 0.020], call_s=0.004)
    assert found == pytest.approx((0.006, 0.012, 0.020, 5, 0.004))
    assert time_of([]) is None
