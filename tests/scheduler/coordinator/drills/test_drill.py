"""The drill: jobs of all kinds while coordinator and supervisors are killed at random instants.

The clock of coordinator and supervisors is set meanwhile, and the journal is damaged and recovered.

``TENBIN_DRILL=SEED`` runs all of it, 300 jobs and 50 blows; without, a part. So it does with the drill of
checkpoints (``test_checkpoint_drill``).
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sqlite3
import time
from collections import Counter, defaultdict
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

from profiles.files.safe_files import write_whole
from scheduler.coordinator.journal.journal import Journal
from scheduler.jobs.entry import Entry, Stage
from tenbin.client.client import Client
from tenbin.errors import TenbinError
from tests.support.coordinator import Up, fill, small_disk
from tests.support.programs import start

FULL = os.environ.get("TENBIN_DRILL")
JOBS, BLOWS = (300, 50) if FULL else (60, 8)
SEED = int(FULL or 20261121)
BODY = """
echo "begin $TENBIN_JOB_ID $$ $(date +%s.%N)" >> "$LOG"
[ $((TENBIN_JOB_ID % 3)) -gt 0 ] || env -i setsid tail -f "$LOG" > /dev/null &
sleep {length}
echo "end $TENBIN_JOB_ID $$ $(date +%s.%N)" >> "$LOG"
exit {code}
"""
CLOCK = """
import os, time
real = time.time
def shown():
    with open(os.environ["DRILL_CLOCK"]) as ahead_s:
        return real() + float(ahead_s.read() or 0)
if "DRILL_CLOCK" in os.environ:
    time.time = shown
"""


def set_by(clock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the clock of programs that are started set by a file: seconds that it is ahead."""
    clock.touch()
    (clock.parent / "sitecustomize.py").write_text(CLOCK)
    monkeypatch.setenv("DRILL_CLOCK", str(clock))
    monkeypatch.setenv("PYTHONPATH", str(clock.parent))


def set_clock(clock: Path, chance: random.Random) -> None:
    write_whole(clock, chance.choice((b"-3600", b"-10", b"0", b"10", b"3600")))


def submit_some(client: Client, chance: random.Random, count: int, log: Path, *, ids: dict[int, int]) -> None:
    """Jobs of all kinds; their numbers and the exit codes they must have."""
    environment = {**os.environ, "LOG": str(log)}
    for _ in range(count):
        code = chance.choice((0, 0, 0, 3))
        body = BODY.format(length=round(chance.uniform(0.0, 0.3), 3), code=code)
        spec: dict[str, object] = {
            "command": ["sh", "-c", body],
            "folder": "/",
            "cores": chance.choice((1, 1, 2)),
            "time_s": 60.0,
        }
        good = [job for job, expected in ids.items() if expected == 0]
        if good and chance.random() < 0.2:
            spec["after"] = [chance.choice(good)]
        if chance.random() < 0.1:  # an array, one member at a time
            spec["array_limit"] = 1
            members = client.submit_all([spec], environment, arrays={0: range(3)})
            ids.update((job.id, code) for job in members)
        else:
            ids[client.submit_all([spec], environment)[0].id] = code


def retry_one(client: Client, chance: random.Random, ids: dict[int, int], retried: Counter[int]) -> None:
    """Run a job again that must fail, if it has failed already."""
    job = chance.choice([job for job, code in ids.items() if code] or [0])
    with suppress(TenbinError):
        retried[job] += 1  # also if no answer comes
        if not client.call("POST", "/retry", {"where_possible": [job]})["ids"]:
            retried[job] -= 1


def supervisors(home: Path) -> list[tuple[int, int]]:
    """(job, process) of attempts that have no result yet."""
    found = []
    for state in home.glob("jobs/*/attempt-*/state.json"):
        if not (state.parent / "result.json").exists():
            with suppress(OSError, ValueError):
                found.append((int(state.parts[-3]), int(json.loads(state.read_text())["supervisor_pid"])))
    return found


def strike(
    up: Up,
    chance: random.Random,
    blows: Counter[str],
    struck: Counter[int],
    *,
    disk: bool = False,
    clock: Path | None = None,
) -> None:
    """One blow: a coordinator or a supervisor is killed, the disk is full for a while, a clock is set."""
    if disk and chance.random() < 0.15:
        fill(up.home / "ballast")
        time.sleep(chance.uniform(0.0, 1.0))
        if chance.random() < 0.5:
            up.kill()
        (up.home / "ballast").unlink()
        blows["full disk"] += 1
        if up.process is not None and up.process.poll() is not None:
            blows["coordinator SIGKILL on a full disk"] += 1
            up.start("--cores", "2")
        return
    if clock is not None and chance.random() < 0.1:
        set_clock(clock, chance)
        blows["clock set"] += 1
        return
    if chance.random() < 0.1:
        up.kill()
        recover(up, chance, blows, ("--cores", "2"))
        return
    number = chance.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM))
    found = supervisors(up.home)
    if not found or chance.random() < 0.4:
        up.kill(number)
        blows[f"coordinator {number.name}"] += 1
        up.start("--cores", "2")
        return
    with suppress(ProcessLookupError):
        job, pid = chance.choice(found)
        os.kill(pid, number)
        struck[job] += 1
        blows[f"supervisor {number.name}"] += 1


def recover(up: Up, chance: random.Random, blows: Counter[str], options: tuple[str, ...]) -> None:
    """Damage the header of the journal, and recover it; most recoveries are killed."""
    with (up.home / "journal.sqlite").open("r+b") as journal:
        position = chance.randrange(100)
        journal.seek(position)
        (byte,) = journal.read(1)
        journal.seek(position)
        journal.write(bytes([byte ^ 1 << chance.randrange(8)]))
    while chance.random() < 0.7:
        with (up.home.parent / "coordinator.log").open("a") as log:
            up.process = start("up", "--home", str(up.home), *options, "--recover", out=log)
            time.sleep(chance.uniform(0.0, 1.5))
            up.kill()
        blows["--recover SIGKILL"] += 1
    up.start(*options, "--recover")
    blows["--recover"] += 1
    for old in up.home.glob("journal-2*"):
        shutil.rmtree(old)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_job_is_lost_and_none_runs_twice(up: Up, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a small disk of its own, which can be full, where the test may make one."""
    clock = tmp_path / "clock"
    set_by(clock, monkeypatch)
    with small_disk(up, "24m") as small:
        drill(up, tmp_path, small, clock)


def drill(up: Up, tmp_path: Path, disk: bool, clock: Path) -> None:
    chance = random.Random(SEED)
    log, ids, blows = tmp_path / "jobs.log", dict[int, int](), Counter[str]()
    struck, retried = Counter[int](), Counter[int]()
    log.touch()
    up.start("--cores", "2")
    while sum(blows.values()) < BLOWS or len(ids) < JOBS:
        if len(ids) < JOBS:
            with suppress(TenbinError):
                submit_some(up.client, chance, 10, log, ids=ids)
        retry_one(up.client, chance, ids, retried)
        time.sleep(chance.uniform(0.0, 0.4))
        if sum(blows.values()) < BLOWS:
            strike(up, chance, blows, struck, disk=disk, clock=clock)
    up.until(lambda: up.client.call("GET", "/jobs") == [], limit_s=120)
    up.kill(signal.SIGTERM)
    assert using(log) == []

    spans = read(log)
    overlaps = [job for job, runs in spans.items() if any(b[0] < a[1] for a, b in pairwise(runs))]
    assert not overlaps
    ended = {job: sum(run[2] for run in runs) for job, runs in spans.items()}
    repeated = [job for job, times in ended.items() if times > 1]
    # Whose supervisor is killed between the job's end and the note of it cannot keep it.
    assert all(ended[job] <= 1 + struck[job] + retried[job] for job in repeated)
    known = f"{len(repeated)} ended more than once, {retried.total()} were run again on request"
    print(f"\ndrill {SEED}: {dict(blows)}; {known}")

    journal = Journal(up.home)
    entries = {entry.id: entry for entry in journal.entries()}
    journal.close()
    assert set(ids) <= set(entries)
    check_limits(entries, spans)
    for job, code in ids.items():
        entry = entries[job]
        if any(entries[other].stage is not Stage.DONE for other in entry.spec.after):
            assert entry.stage is Stage.CANCELLED and job not in spans
        elif entry.failures > 4:
            assert entry.stage is Stage.FAILED
        else:
            assert (entry.stage, entry.code) == (Stage.FAILED if code else Stage.DONE, code), entry
            assert any(run[2] for run in spans[job])
    with sqlite3.connect(up.home / "journal.sqlite") as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def using(file: Path) -> list[str]:
    """Commands of processes that name a file."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_text().split("\0")
            found += [" ".join(words)] if str(file) in words else []
    return found


def check_limits(entries: dict[int, Entry], spans: dict[int, list[tuple[float, float, bool]]]) -> None:
    """Check that of each array one member ran at a time."""
    arrays: dict[int, list[tuple[float, float, bool]]] = defaultdict(list)
    for entry in entries.values():
        if entry.array is not None:
            arrays[entry.array] += spans.get(entry.id, [])
    assert arrays
    for array, runs in arrays.items():
        assert all(b[0] >= a[1] for a, b in pairwise(sorted(runs))), array


def read(log: Path) -> dict[int, list[tuple[float, float, bool]]]:
    """For each job its runs: begin, end (or the last sign of it), whether it came to its end."""
    spans: dict[int, list[tuple[float, float, bool]]] = defaultdict(list)
    begun: dict[tuple[int, str], float] = {}
    for line in log.read_text().splitlines():
        what, job, pid, at = line.split()
        key = (int(job), pid)
        if what == "begin":
            begun[key] = float(at)
            spans[key[0]].append((float(at), float(at), False))
        else:
            spans[key[0]].remove((begun[key], begun[key], False))
            spans[key[0]].append((begun[key], float(at), True))
    return {job: sorted(runs) for job, runs in spans.items()}
