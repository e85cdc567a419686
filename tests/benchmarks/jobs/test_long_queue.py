"""The coordinator's time with a long queue: names of their own, one name, an array; and lists of it."""

from __future__ import annotations

import sqlite3
import statistics
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import fields, make_dataclass
from pathlib import Path
from typing import Any

import pytest

from scheduler.coordinator.journal.journal import Journal
from scheduler.jobs.entry import FINAL, Entry
from scheduler.jobs.job_list import JobRow
from scheduler.jobs.specs import JobSpec
from tests.benchmarks import amount
from tests.benchmarks.jobs.job_systems import Tenbin

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(3600)]
QUEUED, ENDS, ROUNDS, ARRAY = amount((10_000, 2_000, 3, 100_000), (2_000, 300, 1, 20_000), (200, 20, 1, 500))
CHAIN = amount(10_000, 500, 20)


def test_names_of_their_own(tmp_path: Path) -> None:
    """Processor time of each end, no run time said: with names of their own against one name, in turns."""
    took: dict[str, list[float]] = {"own": [], "one": []}
    slowest: dict[str, float] = {"own": 0.0, "one": 0.0}
    print()
    for turn in range(ROUNDS):
        for kind in ("own", "one") if turn % 2 else ("one", "own"):
            tenbin = Tenbin(tmp_path / f"{kind}-{turn}", 2)
            try:
                names = (f"n{n}" if kind == "own" else "n" for n in range(QUEUED))
                specs = [{"command": ["true"], "folder": "/", "name": name} for name in names]
                tenbin.client.submit_all(specs)
                cpu, first, _ = tenbin.cpu_s(), *left(tenbin)
                now = first
                while first - now < ENDS:
                    time.sleep(0.5)
                    now, answer_s = left(tenbin)
                    slowest[kind] = max(slowest[kind], answer_s)
                took[kind].append(1e3 * (tenbin.cpu_s() - cpu) / (first - now))
            finally:
                tenbin.stop()
    own, one = (statistics.median(took[kind]) for kind in ("own", "one"))
    print(
        f"BENCH an end with {QUEUED} queued: names of their own {own:.2f} ms of processor time, one name "
        f"{one:.2f} ms, {own / one:.2f} times; slowest answer {slowest['own']:.2f} s, {slowest['one']:.2f} s"
    )


def test_a_chain(tmp_path: Path) -> None:
    """Run jobs that each wait for the one before, and as many that wait for none, one at a time, in turns."""
    took: dict[str, list[tuple[float, float]]] = {"chain": [], "none": []}
    print()
    for turn in range(ROUNDS):
        for kind in ("chain", "none") if turn % 2 else ("none", "chain"):
            tenbin = Tenbin(tmp_path / f"{kind}-{turn}", 1)
            try:
                waits = {place: [place - 1] for place in range(1, CHAIN)} if kind == "chain" else {}
                cpu, began = tenbin.cpu_s(), time.perf_counter()
                tenbin.client.submit_all([{"command": ["true"], "folder": "/"}] * CHAIN, waits_for=waits)
                while left(tenbin)[0]:
                    time.sleep(0.5)
                took[kind].append((tenbin.cpu_s() - cpu, time.perf_counter() - began))
            finally:
                tenbin.stop()
    cpu_s, wall_s = (
        {kind: statistics.median(one[place] for one in took[kind]) for kind in took} for place in (0, 1)
    )
    print(
        f"BENCH a chain of {CHAIN} jobs, one at a time: {wall_s['chain']:.1f} s, "
        f"{wall_s['chain'] / wall_s['none']:.2f} times jobs that wait for none; coordinator's processor time "
        f"{1e3 * cpu_s['chain'] / CHAIN:.2f} ms a job, {cpu_s['chain'] / cpu_s['none']:.2f} times"
    )


def left(tenbin: Tenbin) -> tuple[int, float]:
    """Jobs that have not ended; seconds of the answer."""
    began = time.perf_counter()
    jobs = tenbin.client.call("GET", "/status")["jobs"]
    return sum(jobs.values()), time.perf_counter() - began


def test_an_array(tmp_path: Path) -> None:
    """From the call until all of it is safe: an array, and as many jobs with names of their own.

    The limit: SQLite inserts the same rows, with the same indexes, in one durable commit.
    """
    print()
    spec = {"command": ["sleep", "600"], "folder": "/"}
    for kind in ("array", "specs of their own"):
        tenbin = Tenbin(tmp_path / kind, 1)
        try:
            own = [{**spec, "name": f"n{n}"} for n in range(ARRAY)]
            cpu, began = tenbin.cpu_s(), time.perf_counter()
            if kind == "array":
                tenbin.client.submit_all([spec], arrays={0: range(ARRAY)})
            else:
                tenbin.client.submit_all(own)
            wall_s, cpu_s = time.perf_counter() - began, tenbin.cpu_s() - cpu
            limit_s = sqlite_s(tmp_path / kind / "home", tmp_path / f"{kind}.sqlite")
            print(
                f"BENCH {ARRAY} jobs, {kind}: {wall_s:.2f} s, coordinator's processor time {cpu_s:.2f} s, "
                f"{wall_s / limit_s:.1f} times SQLite's {limit_s:.2f} s for the same rows"
            )
            if kind == "array":
                began = time.perf_counter()
                tenbin.client.call("GET", "/jobs?limit=50")
                listed_s, began = time.perf_counter() - began, time.perf_counter()
                tenbin.client.call("POST", "/cancel", {"ids": [1]})
                cancelled_s = time.perf_counter() - began
                print(f"BENCH {ARRAY} jobs, {kind}: listed {listed_s:.2f} s, cancelled {cancelled_s:.2f} s")
        finally:
            tenbin.process.kill()
            tenbin.process.wait()


def test_lists(tmp_path: Path) -> None:
    """Answers to ``tenbin jobs`` and ``history``: as many jobs have ended, and as many members wait.

    The limit: the same number of rows read from the journal by SQLite alone.
    """
    print()
    home = tmp_path / "lists" / "home"
    spec = JobSpec(command=("sleep", "600"), folder="/", name="ended")
    entries = [
        Entry(number, spec, "", submit_s=1e9 + number, stage=FINAL[number % 50 // 48], end_s=2e9 + number)
        for number in range(1, ARRAY + 1)
    ]
    journal = Journal(home)
    journal.commit((), added=entries)
    journal.close()
    tenbin = Tenbin(tmp_path / "lists", 1)
    try:
        call = tenbin.client.call
        tenbin.client.submit_all([{"command": ["sleep", "600"], "folder": "/"}], arrays={0: range(ARRAY)})
        limit_s = min(fifty_rows_s(home) for _ in range(5))
        queries = [
            "",
            "all=true&",
            "stages=failed&",
            "name=sl*p&",
            "user=nobody&all=true&",
            "place=core&all=true&",
        ]
        took = {}
        for query in queries:
            for rows in ("members=true", "members=false"):
                took[f"GET /jobs?{query}{rows}"] = seconds(call, "GET", f"/jobs?{query}{rows}&limit=50")
        for more in (
            {},
            {"name": "n?t*"},
            {"stages": ["failed"]},
            {"user": "nobody"},
            {"since_s": 2e9 + 10.0},
        ):
            took[f"POST /history {more}"] = seconds(call, "POST", "/history", {**more, "limit": 50})
        for what, times in took.items():
            print(
                f"BENCH {ARRAY} ended and {ARRAY} waiting, {what}: median {statistics.median(times):.3f} s, "
                f"slowest {max(times):.3f} s of {len(times)}; SQLite alone {limit_s:.4f} s"
            )
    finally:
        tenbin.process.kill()
        tenbin.process.wait()


def test_rows() -> None:
    """Processor time to make the rows of a list, beside rows of the same fields that are frozen."""
    names = [field.name for field in fields(JobRow)]
    frozen = make_dataclass("FrozenRow", names, frozen=True, slots=True)
    values: list[Any] = list(range(len(names)))
    took: dict[str, list[float]] = {"row": [], "frozen": []}
    for _ in range(ROUNDS):
        for kind, make in (("row", JobRow), ("frozen", frozen)):
            began = time.process_time()
            for _ in range(ARRAY):
                make(*values)
            took[kind].append(1e6 * (time.process_time() - began) / ARRAY)
    row, other = (statistics.median(took[kind]) for kind in ("row", "frozen"))
    print(
        f"\nBENCH a row of a list: {row:.2f} us, {other / row:.1f} times as long if frozen ({other:.2f} us)"
    )


def seconds(call: Callable[..., Any], *arguments: object) -> list[float]:
    """Call several times; return the seconds of each."""
    found = []
    for _ in range(5):
        began = time.perf_counter()
        call(*arguments)
        found.append(time.perf_counter() - began)
    return found


def fifty_rows_s(home: Path) -> float:
    """Read the last 50 rows of a journal; seconds of wall time."""
    began = time.perf_counter()
    with closing(sqlite3.connect(f"file:{home / 'journal.sqlite'}?mode=ro", uri=True)) as db:
        db.execute("SELECT * FROM jobs ORDER BY id DESC LIMIT 50").fetchall()
    return time.perf_counter() - began


def sqlite_s(home: Path, copy: Path) -> float:
    """Insert the jobs and events of a journal into a new file with its indexes; seconds of wall time."""
    with closing(sqlite3.connect(f"file:{home / 'journal.sqlite'}?mode=ro", uri=True)) as db:
        made = [sql for (sql,) in db.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")]
        tables = {name: db.execute(f"SELECT * FROM {name}").fetchall() for name in ("jobs", "events")}
    with closing(sqlite3.connect(copy, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        for sql in made:
            db.execute(sql)
        began = time.perf_counter()
        db.execute("BEGIN IMMEDIATE")
        for name, rows in tables.items():
            db.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * len(rows[0]))})", rows)
        db.execute("COMMIT")
        return time.perf_counter() - began
