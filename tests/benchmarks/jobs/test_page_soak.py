"""The page open for long beside 100,000 jobs while more come and go: the browser's heap, the page's memory.

``TENBIN_SOAK_S`` is how long it stays open (an hour: 3600), else two minutes. ``TENBIN_SOAK_LOG`` names a
file that gets each line as it is measured.
"""

from __future__ import annotations

import itertools
import os
import time
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from scheduler.coordinator.journal.journal import Journal
from scheduler.jobs.entry import Entry, Stage
from scheduler.jobs.specs import JobSpec
from scheduler.model.jobs import Placement
from tests.benchmarks import amount
from tests.benchmarks.jobs.test_page import JOBS, long_journal
from tests.support.page import PageProcess
from tests.support.viewer import Viewer

SOAK_S = float(os.environ.get("TENBIN_SOAK_S", amount("120", "120", "4")))
LOG = os.environ.get("TENBIN_SOAK_LOG")
EVERY_S, RUNNING = amount((60.0, 30), (60.0, 30), (2.0, 2))  # between two lines; jobs that run at a time
VIEWS = ("queue", "gantt", "queue", "nodes", "queue", "truth", "queue", "job/7")
pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(SOAK_S + 600)]


class Line(NamedTuple):
    """Memory and elements in use, after the browser has collected its garbage."""

    minutes: float
    heap_mb: float
    elements: int
    listeners: int
    page_mb: float
    events: int


class Life:
    """Jobs that come, run for half a minute, and end: three events and a new job at each step.

    Attributes:
        events: how many there were.
    """

    def __init__(self, home: Path) -> None:
        self._journal = Journal(home)
        self._key = self._journal.keep_environment({})
        self._running: deque[Entry] = deque()
        self.events = 0

    def step(self) -> None:
        """Start one job, and end the oldest."""
        now, job = time.time(), self._journal.next_id()
        spec = JobSpec(command=("python3", "fit.py"), folder="/", name=f"live-{job}", time_s=600)
        place = Placement(f"node{job % 32}", 1, ())
        entry = Entry(job, spec, self._key, now, stage=Stage.RUNNING, attempt=1, start_s=now, since_s=now)
        self._running.append(replace(entry, placement=place))
        events = [(now, job, "submitted", ""), (now, job, "start", "")]
        ended = []
        if len(self._running) > RUNNING:
            ended = [replace(self._running.popleft(), stage=Stage.DONE, end_s=now, code=0)]
            events.append((now, ended[0].id, "done", ""))
        self._journal.commit(ended, events, [self._running[-1]])
        self._journal.tidy()
        self.events += len(events)

    def close(self) -> None:
        self._journal.close()


def test_memory_stays_as_it_is(tmp_path: Path, browser: Any) -> None:
    home = tmp_path / "home"
    long_journal(home)
    life, page = Life(home), PageProcess(home)
    process = psutil.Process(page.process.pid)
    try:
        viewer = Viewer(browser, page)
        talk = viewer.tab.context.new_cdp_session(viewer.tab)
        lines: list[Line] = []
        began, due = time.monotonic(), 0.0
        for turn in itertools.count():
            passed_s = time.monotonic() - began
            if passed_s >= due:
                viewer.go("queue")
                viewer.tab.locator("tr[data-job]").first.wait_for()
                lines.append(measured(passed_s, talk, process, life))
                tell(lines[-1])
                due += EVERY_S
            if passed_s > SOAK_S:
                break
            life.step()
            if turn % 7 == 0:
                viewer.go(VIEWS[turn // 7 % len(VIEWS)])
            viewer.tab.evaluate("document.querySelector('.scroller')?.scrollBy(0, 900)")
            time.sleep(1.0)
        viewer.close()
    finally:
        page.stop()
        life.close()
    half = lines[len(lines) // 2 :]
    print(
        f"\n{JOBS:,} jobs, {lines[-1].events} events in {lines[-1].minutes:.0f} min: "
        f"heap {half[0].heap_mb:.1f} MB half-way, {lines[-1].heap_mb:.1f} MB at the end; "
        f"the page's process {half[0].page_mb:.0f} and {lines[-1].page_mb:.0f} MB"
    )


def measured(passed_s: float, talk: Any, process: psutil.Process, life: Life) -> Line:
    """Measure what is in use now."""
    talk.send("HeapProfiler.collectGarbage")
    heap, counters = talk.send("Runtime.getHeapUsage"), talk.send("Memory.getDOMCounters")
    return Line(
        minutes=passed_s / 60,
        heap_mb=heap["usedSize"] / 1e6,
        elements=counters["nodes"],
        listeners=counters["jsEventListeners"],
        page_mb=process.memory_info().rss / 1e6,
        events=life.events,
    )


def tell(line: Line) -> None:
    """Print a line, and keep it in the file that was named."""
    text = ", ".join(f"{name} {value:.4g}" for name, value in line._asdict().items())
    print(text, flush=True)
    if LOG:
        with Path(LOG).open("a") as log:
            log.write(f"{text}\n")
