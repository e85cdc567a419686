"""The page beside 100,000 jobs, and with 20 viewers beside a coordinator: against its aims, and plain SQL.

The journal is made directly. Every figure is of this machine now; other work on it makes them worse.
"""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import pytest

from scheduler.coordinator.journal.journal import Journal
from scheduler.jobs.entry import Entry, Stage
from scheduler.jobs.specs import JobSpec
from scheduler.model.jobs import Placement
from tests.benchmarks import amount
from tests.support.coordinator import Up
from tests.support.page import Messages, PageProcess
from tests.support.viewer import Viewer

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(600)]
JOBS, VIEWERS, QUEUED = amount((100_000, 20, 200), (100_000, 20, 200), (2_000, 2, 5))
LOOKED_S = amount(20.0, 20.0, 1.0)


def long_journal(home: Path) -> None:
    """Write a journal of jobs that have nearly all ended; some wait, and some are arrays."""
    chance, now = random.Random(1), time.time()
    journal = Journal(home)
    key, entries, events = journal.keep_environment({}), [], []
    spec = JobSpec(command=("python3", "fit.py"), folder="/", name="fit", time_s=600)
    for place in range(JOBS):
        job = journal.next_id()
        submit = now - (JOBS - place) * 2.0
        waits = place >= JOBS - JOBS // 5
        if place % 3:
            spec = spec.model_copy(update={"name": f"fit-{place}", "priority": 0})
        start, end = submit + 1.0, submit + 1.0 + chance.expovariate(1 / 30)
        stage = Stage.WAITING if waits else chance.choices([Stage.DONE, Stage.FAILED], [9, 1])[0]
        common: dict[str, Any] = {} if waits else {"start_s": start, "end_s": end, "attempt": 1}
        if not waits:
            common["placement"] = Placement(f"node{place % 32}", 1, ())
            events += [(start, job, "start", ""), (start, job, "started", ""), (end, job, stage.value, "")]
        array = None if place % 100 else job
        entries.append(Entry(job, spec, key, submit, stage=stage, array=array, array_index=0, **common))
    journal.commit((), sorted(events), entries)
    journal.close()


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("long") / "home"
    long_journal(home)
    return home


def timed(call: Callable[[], object], times: int = 5) -> float:
    """Return the median of so many calls, in seconds."""
    found = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    return median(found)


def test_answers_of_a_long_queue(long: Path, browser: Any) -> None:
    began = time.perf_counter()
    page = PageProcess(long)
    try:
        print(f"\n{JOBS:,} jobs: the address is printed after {time.perf_counter() - began:.1f} s")
        process = psutil.Process(page.process.pid)
        print(f"memory of the page's process: {process.memory_info().rss / 1e6:.0f} MB")
        began = time.perf_counter()
        viewer = Viewer(browser, page)
        viewer.tab.locator("tr[data-job]").first.wait_for()
        print(f"first view in the browser: {time.perf_counter() - began:.2f} s (aim 1 s)")
        page.address = page.addresses(2)[-1]
        page.enter()
        texts = iter(f"fit-{number}" for number in range(100, 999))
        until = time.time() + 600
        asked = {
            "the same list again": lambda: page.get("/api/jobs?start=5000"),
            "another search": lambda: page.get(f"/api/jobs?text={next(texts)}"),
            "another sort": lambda: page.get(f"/api/jobs?sort=name&text={next(texts)[:-1]}"),
            "gantt of all": lambda: page.get(f"/api/gantt?from_s=0&until_s={until}&width={next(texts)[-3:]}"),
            "gantt of an hour": lambda: page.get(
                f"/api/gantt?from_s={until - 90_000}&until_s={until - 86_400}&width={next(texts)[-3:]}"
            ),
        }
        for name, call in asked.items():
            first = timed(call, 1)
            print(f"{name}: first {first * 1e3:.0f} ms, then {timed(call) * 1e3:.0f} ms (aim 200 ms)")
        tab = viewer.tab
        frames = tab.evaluate(
            """async () => {
              const place = document.querySelector(".scroller"), began = performance.now();
              for (let n = 0; n < 120; n++) {
                place.scrollTop += 900;
                await new Promise(requestAnimationFrame);
              }
              return 120 / ((performance.now() - began) / 1000);
            }"""
        )
        print(f"scrolling: {frames:.0f} frames a second (aim 30)")
        with closing(sqlite3.connect(long / "journal.sqlite")) as db:
            words = "SELECT id FROM jobs WHERE spec LIKE '%fit-77%' ORDER BY submit_s"
            peer = timed(lambda: db.execute(words).fetchall())
        search = timed(lambda: page.get(f"/api/jobs?text={next(texts)}"))
        print(f"a search: {search / peer:.2f} times one by SQL on the same journal ({peer * 1e3:.0f} ms)")
        viewer.close()
    finally:
        page.stop()


def cost(process: psutil.Process, seconds: float) -> float:
    """Return the share of a processor that a process takes."""
    before = process.cpu_times()
    time.sleep(seconds)
    after = process.cpu_times()
    return (after.user + after.system - before.user - before.system) / seconds


def test_twenty_viewers_cost_the_coordinator_little(up: Up) -> None:
    up.start("--cores", "1")
    for _ in range(QUEUED):
        up.client.submit(["sleep", "600"], time_s=900)
    assert up.process is not None
    coordinator = psutil.Process(up.process.pid)
    alone = cost(coordinator, LOOKED_S)
    page = PageProcess(up.home)
    try:
        page.enter()
        over = threading.Event()

        def look(number: int) -> None:
            messages = Messages(page)
            with suppress(EOFError):
                while not over.is_set():
                    page.get(f"/api/jobs?start={number * 5}&count=60")
                    messages.next("reasons")

        viewers = [threading.Thread(target=look, args=(n,), daemon=True) for n in range(VIEWERS)]
        for one in viewers:
            one.start()
        time.sleep(LOOKED_S / 4)
        watched = cost(coordinator, 1.5 * LOOKED_S)
        mine = cost(psutil.Process(page.process.pid), LOOKED_S / 2)
        over.set()
        print(
            f"\ncoordinator: {alone:.2%} of a processor alone, {watched:.2%} with {VIEWERS} viewers: "
            f"{watched - alone:+.2%} (aim 2 %); the page itself {mine:.1%}"
        )
    finally:
        page.stop()
