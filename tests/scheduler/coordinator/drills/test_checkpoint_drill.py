"""The drill of checkpoints: OpenCL jobs moved while coordinator, supervisors and disk fail at random."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from itertools import cycle
from pathlib import Path

import pytest

from tenbin.checkpoint import read, read_header
from tenbin.client.client import Job
from tenbin.errors import TenbinError
from tests.scheduler.coordinator.drills.test_drill import FULL, SEED, supervisors
from tests.support.coordinator import Up, fill, small_disk
from tests.support.labs.components import require
from tests.support.paths import STENCIL
from tests.support.programs import opencl_devices

CELLS, STEPS = (128, 192), 60_000 if FULL else 20_000
BLOWS = 30 if FULL else 5


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_checkpoint_is_the_old_or_the_new_one_and_results_stay(
    up: Up, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POCL_DEVICES", "pthread basic")
    require(len(opencl_devices()) == 2, "two OpenCL devices (PoCL)")
    with small_disk(up, "12m") as small:
        drill(up, tmp_path, small)


def drill(up: Up, tmp_path: Path, disk: bool) -> None:
    """One job at a time, so that the other device is free for it, until all blows are struck."""
    chance = random.Random(SEED)
    commands = {n: [sys.executable, str(STENCIL), "--cells", str(n), "--steps", str(STEPS)] for n in CELLS}
    undisturbed = {
        n: subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
        for n, command in commands.items()
    }
    up.start("--devices", "--policy", "fcfs")
    blows, moves, job = Counter[str](), 0, None
    for n in cycle(CELLS):
        if sum(blows.values()) >= BLOWS:
            break
        needs = {"checkpoint_signal": int(signal.SIGURG), "folder": str(tmp_path)}
        job, step = up.client.submit(commands[n], **needs), 0
        while not job.done() and sum(blows.values()) < BLOWS:
            time.sleep(chance.uniform(0.0, 1.5))
            blows[strike(up, chance, job, disk)] += 1
            seen = look(up.home / "jobs" / str(job.id), n, step)
            if step and not seen:  # nothing takes it away but the program, at its end
                up.until(job.done)
            step = max(seen, step)
        end = job.wait(200)
        assert end["stage"] == "done", (end["trouble"], Path(end["stderr"]).read_text()[-2000:])
        assert set(Path(end["stdout"]).read_text().splitlines(True)) == {undisturbed[n]}
        moves += end["migrations"]
    print(f"\ndrill {SEED}: {dict(blows)}; {job} was the last; {moves} migrations")
    assert moves


def strike(up: Up, chance: random.Random, job: Job, disk: bool) -> str:
    """Move the job, and as often as not do harm at the same time; what was done."""
    moved = "nothing"
    other = "pocl-1" if job.info()["placement"] == "pocl-0" else "pocl-0"
    with suppress(TenbinError):  # it waits, or moves already, or has ended
        up.client.call("POST", "/migrate", {"ids": [job.id], "to": other})
        moved = "move"
    time.sleep(chance.choice((0.0, 0.02, 0.1)))
    harm = chance.random()
    if harm < 0.2 and (found := supervisors(up.home)):
        with suppress(ProcessLookupError):
            os.kill(chance.choice(found)[1], signal.SIGKILL)
        return f"{moved}, supervisor killed"
    if harm < 0.35:
        up.kill()
        up.start("--devices", "--policy", "fcfs")
        return f"{moved}, coordinator killed"
    if harm < 0.55 and disk:
        fill(up.home / "ballast")
        time.sleep(chance.uniform(0.0, 1.0))
        (up.home / "ballast").unlink()
        return f"{moved}, disk full"
    return moved


def look(folder: Path, cells: int, before: int) -> int:
    """Read the step of a job's checkpoint (0: none): whole to the last byte, no older than before."""
    held = folder / "held"
    if not hold_newest(folder, held):
        return 0
    try:
        state, parts = read_header(held, f"stencil-{cells}")
        read(held, list(parts.values()), [lambda *_: None] * len(parts))  # checks every chunk's sum
    finally:
        held.unlink()
    assert state["step"] >= before
    return int(state["step"])


def hold_newest(folder: Path, held: Path) -> bool:
    """Give what is there of the highest attempt a second name, whatever replaces it; whether there is any."""
    again = folder / "held-again"
    while True:
        newest = attempts(folder)
        for attempt in range(1, newest + 1):  # upwards, as they come and go
            with suppress(FileNotFoundError):
                again.hardlink_to(folder / f"checkpoint.tenbin.g{attempt}")
                held.unlink(missing_ok=True)
                again.rename(held)
        if held.exists() or attempts(folder) == newest:
            return held.exists()


def attempts(folder: Path) -> int:
    """Count the attempts that have begun."""
    with suppress(FileNotFoundError):
        return int((folder / "generation").read_text())
    return 1
