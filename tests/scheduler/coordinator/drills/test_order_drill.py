"""The drill of order: jobs wait for others and for a time, and are tried again, while the coordinator dies.

``TENBIN_DRILL=SEED`` runs all of it, as with ``test_drill``.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path

import pytest

from scheduler.coordinator.journal.journal import Journal
from scheduler.jobs.entry import Entry, Stage
from tenbin.client.client import Client
from tenbin.errors import TenbinError
from tests.scheduler.coordinator.drills.test_drill import FULL, SEED, read, strike
from tests.support.coordinator import Up

JOBS, BLOWS = (150, 25) if FULL else (30, 4)
# Succeeds when it has come to its end more than so many times.
BODY = """
echo "begin $TENBIN_JOB_ID $$ $(date +%s.%N)" >> "$LOG"
sleep {length}
echo "end $TENBIN_JOB_ID $$ $(date +%s.%N)" >> "$LOG"
[ $(grep -c "^end $TENBIN_JOB_ID " "$LOG") -gt {failures} ] || exit 3
"""


def submit_some(client: Client, chance: random.Random, count: int, log: Path, *, ids: dict[int, int]) -> None:
    """Submit jobs that wait for earlier ones, for a time, or fail so many times."""
    environment = {**os.environ, "LOG": str(log)}
    for _ in range(count):
        failures = chance.choice((0, 0, 0, 1, 2, 99))
        body = BODY.format(length=round(chance.uniform(0.0, 0.2), 3), failures=failures)
        spec: dict[str, object] = {"command": ["sh", "-c", body], "folder": "/"}
        if failures and chance.random() < 0.7:
            spec |= {"retries": 2, "retry_pause_s": 0.3}
        if chance.random() < 0.2:
            spec["begin_s"] = time.time() + chance.uniform(0.0, 2.0)
        for kind in chance.sample(("after", "after_any", "after_not_ok"), chance.choice((0, 0, 1, 2))):
            spec[kind] = [chance.choice(sorted(ids))] if ids else []
        ids[client.submit_all([spec], environment)[0].id] = failures


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_order_is_kept(up: Up, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    log, ids, blows, struck = tmp_path / "jobs.log", dict[int, int](), Counter[str](), Counter[int]()
    log.touch()
    up.start("--cores", "2")
    while sum(blows.values()) < BLOWS or len(ids) < JOBS:
        if len(ids) < JOBS:
            with suppress(TenbinError):
                submit_some(up.client, chance, 10, log, ids=ids)
        time.sleep(chance.uniform(0.0, 0.4))
        if sum(blows.values()) < BLOWS:
            strike(up, chance, blows, struck)
    up.until(lambda: up.client.call("GET", "/jobs") == [], limit_s=120)
    up.kill(signal.SIGTERM)
    with closing(Journal(up.home)) as journal:
        entries = {entry.id: entry for entry in journal.entries()}
    spans = read(log)
    assert set(ids) <= set(entries)
    print(f"\ndrill {SEED}: {dict(blows)}; {sum(entry.retried for entry in entries.values())} tried again")
    for job, failures in ids.items():
        check(entries[job], failures, entries, spans, struck=struck[job])


Runs = dict[int, list[tuple[float, float, bool]]]


def check(entry: Entry, failures: int, entries: dict[int, Entry], spans: Runs, *, struck: int) -> None:
    """Check the end of a job, and its runs, against what it waited for and how often it had to fail."""
    runs, spec = spans.get(entry.id, []), entry.spec
    may_begin = (
        all(entries[other].stage is Stage.DONE for other in spec.after)
        and all(entries[other].stage.final for other in spec.after_any)
        and all(entries[other].stage is not Stage.DONE for other in spec.after_not_ok)
    )
    if not may_begin:
        assert entry.stage is Stage.CANCELLED and not runs, entry
        return
    if entry.failures > 4:
        assert entry.stage is Stage.FAILED
        return
    assert all(first[1] <= second[0] for first, second in pairwise(runs)), "two attempts at once"
    for other in (*spec.after, *spec.after_any, *spec.after_not_ok):
        assert all(run[1] <= runs[0][0] for run in spans.get(other, [])), (entry.id, other)
    assert runs[0][0] >= (spec.begin_s or 0.0)
    ended, most = sum(run[2] for run in runs), 1 + min(failures, spec.retries)
    # Of an attempt whose supervisor is killed between its end and the note of it nobody knows.
    assert most - struck <= ended <= most + struck, entry
    assert entry.retried <= min(failures, spec.retries)
    assert entry.stage is (Stage.DONE if ended > failures else Stage.FAILED), entry
