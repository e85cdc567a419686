"""Memory is copied while the program runs: what it writes meanwhile goes along, and is told beforehand."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from agent.opencl_layer import requests
from agent.opencl_layer.requests import FIXED_S, MoveEstimate
from profiles.errors import UserError
from tests.support.moving import Worker, variables
from tests.support.opencl_programs.worker import OPERATIONS

BYTES = 4 * 4 * 4096 + 4 * 32 * 32  # of the worker: four buffers, one image


def other_device(folder: Path, pid: int) -> str:
    now = requests.status(folder, pid)
    return next(one["key"] for one in now.devices if one["key"] != now.device)


def test_what_is_written_during_the_copies(tmp_path: Path) -> None:
    """Long random programs are moved from outside, at any instant, again and again."""
    operations = [one for one in OPERATIONS if one not in {"gate", "open", "svm"}]  # events postpone moves
    random_ = random.Random(7)
    plain = Worker(variables(tmp_path, below=False))
    moved = Worker(variables(tmp_path, below=True))
    moved.digest([])
    pid = moved.process.pid
    written_again = False
    while not written_again:  # no move of the first program may meet a write
        program = [
            [random_.choice(operations), *(random_.randrange(256) for _ in range(3))] for _ in range(20_000)
        ]
        found: list[str] = []
        caller = threading.Thread(target=lambda p=program, f=found: f.append(moved.digest(p)))  # type: ignore[misc]
        caller.start()
        while caller.is_alive():
            estimate = requests.move(folder=tmp_path, pid=pid, device=other_device(tmp_path, pid)).estimate
            assert estimate is not None
            written_again |= 0 < estimate.dirty_bytes < estimate.bytes  # a part
        caller.join()
        assert found == [plain.digest(program)]
    for worker in (plain, moved):
        worker.end()


def test_estimate(tmp_path: Path) -> None:
    """An estimate moves nothing; only what the program writes to is dirty."""
    worker = Worker(variables(tmp_path, below=True))
    worker.digest(["begin"])
    pid = worker.process.pid
    device = other_device(tmp_path, pid)
    found = requests.estimate(tmp_path, pid, device)
    assert (found.bytes, found.dirty_bytes) == (BYTES, 0)
    assert found.bytes_per_s is not None and found.bytes_per_s > 0
    assert (now := requests.status(tmp_path, pid)).moves == 0
    assert now.estimate == found
    worker.digest(["go on", ["map", 2, 5, 0]])
    mapped = requests.estimate(tmp_path, pid, device)
    assert mapped.dirty_bytes == 4 * 4096  # memory that is mapped for writing
    with pytest.raises(UserError, match="may not use a device nvidia-9"):
        requests.estimate(tmp_path, pid, "nvidia-9")
    worker.digest(["end"])
    worker.end()


def test_way_back(tmp_path: Path) -> None:
    """Context and program of a processor are kept when the program leaves it, so that none is made later."""
    worker = Worker(variables(tmp_path, below=True))
    worker.digest(["begin"])
    pid = worker.process.pid
    there, back = (requests.move(tmp_path, pid, other_device(tmp_path, pid)).last_steps for _ in range(2))
    assert there - back == 2
    worker.digest(["end"])
    worker.end()


def test_prediction() -> None:
    one = MoveEstimate(8e9, 2e9, dirty_s=1, prepare_s=0.5, copy_s=2, drain_s=0.25, bytes_per_s=1e9)
    assert one.pause_s == pytest.approx(FIXED_S + 0.25 + 2)
    assert one.total_s == pytest.approx(0.5 + 2 + one.pause_s)
    nothing = MoveEstimate(0, 0, dirty_s=0, prepare_s=0.5, copy_s=0, drain_s=0, bytes_per_s=None)
    assert nothing.pause_s == FIXED_S
