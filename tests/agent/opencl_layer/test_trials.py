"""Trials of running programs: ratios beside the truth measured later, results compared, nothing disturbed."""

from __future__ import annotations

import itertools
import json
import math
import socket
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.opencl_layer import requests
from agent.opencl_layer.trials import Ratio, Trial, ranks_outside, time_of, trial_from
from profiles.errors import UserError
from tests.support.moving import Stepper

TIMES = "0,64,128,32"  # of launches (slow_second.c): spread 64 and 160 ms, stir 32 and 144 ms
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
        here_s, _ = stepper.steps(5)
        assert requests.move(folder, pid, "pocl-1").device == "pocl-1"
        there_s, _ = stepper.steps(5)
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
    program = Stepper(folder, "differing")
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
def test_every_step_may_fail(folder: Path) -> None:
    """Whatever fails in a trial, the program's results are those of an undisturbed run."""
    program = Stepper(folder)
    pid, troubles = program.process.pid, []
    program.steps(1)
    for at in itertools.chain(range(1, 24), range(24, 200, 25)):
        with program.busy():
            ask(folder, pid, f"fail {at}")
            answer = ask(folder, pid, "try pocl-1 0.02 0")
            ask(folder, pid, "fail 0")
        found = [answer.get("trouble", ""), *(one["trouble"] for one in answer.get("kernels", ()))]
        troubles += [text for text in found if text]
        if at > 200:
            break
    assert len({text for text in troubles if text.startswith("injected failure: ")}) > 8
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


def made(*kernels: tuple[int, float, float], watched_s: float = 10.0, **times: list[float]) -> Trial:
    """Make a trial of kernels of (launches, time here, time there), measured exactly, or of ``times``."""
    told = [
        {
            **dict.fromkeys(
                ("source_call_s", "target_call_s", "compared_bytes", "differing_bytes", "bytes"), 0
            ),
            **{"name": "k", "global_size": [1], "local_size": [], "types": "float", "trouble": ""},
            **{"launches": n, "source_s": [here] * 9, "target_s": [there] * 9, "relative_difference": None},
            **times,
        }
        for n, here, there in kernels
    ]
    stops = dict.fromkeys(("stopped_s", "longest_stop_s", "not_kept"), 0)
    answer = {"device": "a", "on": "b", "watched_s": watched_s, "kernels": told, **stops}
    return trial_from(answer, 5.0)


def test_ratio_is_weighed_by_launches() -> None:
    trial = made((30, 0.1, 0.05), (1, 2.0, 8.0))
    assert trial.ratio == pytest.approx(Ratio(*[5 / 9.5] * 3))
    assert trial.busy_share == 0.5
    assert trial.program_ratio == pytest.approx(Ratio(*[10 / 14.5] * 3))  # 5 s of the host's remain
    assert json.loads(json.dumps(trial.as_json()))["ratio"]["value"] == pytest.approx(5 / 9.5)


def test_launches_that_overlap_took_no_longer_than_the_program() -> None:
    """20 s of launches, each with its call, within 10 s of the program; there they take 40 s."""
    trial = made((10, 2.0, 4.0), watched_s=10.0)
    assert trial.busy_share == 1.0
    assert trial.program_ratio is not None and trial.program_ratio.value == pytest.approx(10 / 40)


def test_interval_holds_what_the_host_may_have_worked() -> None:
    """Kernels ran for 5 to 10 s of 10 and take nothing there: the host worked for 5 s, or not at all."""
    kernel = {"source_s": [0.5] * 6 + [1.0] * 3, "target_s": [0.01] * 9}
    ratio = made((10, 0.5, 0.01), watched_s=10.0, **kernel).program_ratio
    assert ratio is not None
    assert ratio == pytest.approx(Ratio(10 / 5.1, 10 / 5.1, 10 / 0.1))


def test_interval_holds_the_call() -> None:
    found = time_of([0.010, 0.011, 0.012, 0.013, 0.020], call_s=0.004)
    assert found == pytest.approx((0.006, statistics.median([0.010, 0.011, 0.012, 0.013, 0.020]), 0.020, 5))
    assert time_of([]) is None
