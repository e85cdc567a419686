"""The Gantt view's rectangles against the events that they come from, and the chart in a real browser."""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scheduler.coordinator.journal.journal import Journal
from scheduler.jobs.entry import Entry, Stage
from scheduler.jobs.specs import JobSpec
from scheduler.model.jobs import Placement
from tenbin.page.explainer import Explainer
from tenbin.page.gantt import MOST_RECTANGLES, Gantt, Rectangle, Window
from tenbin.page.mirror import Mirror
from tests.support.coordinator import Up
from tests.support.page import PageProcess
from tests.support.viewer import Viewer
from tests.tenbin.page.test_browser import axe

BEGAN_S = 1_700_000_000.0
Stay = tuple[int, float, float]
Events = list[tuple[float, int, str, str]]


def journal_of(home: Path, jobs: int, seed: int) -> list[Stay]:
    """Write a journal of jobs in two pools, some of them paused or lost; return their stays."""
    chance = random.Random(seed)
    journal = Journal(home)
    key, entries, events, stays = journal.keep_environment({}), list[Entry](), Events(), list[Stay]()
    for place in range(jobs):
        job, at = journal.next_id(), BEGAN_S + place * 3.0
        events.append((at, job, "submitted", ""))
        for how in [*chance.choices(["checkpointed", "lost", "suspended"], k=chance.randint(0, 2)), "done"]:
            start = at + chance.uniform(0.1, 20.0)
            at = start + chance.choice([0.2, 5.0, 60.0])
            events += [(start, job, "start", ""), (start + 0.1, job, "started", ""), (at, job, how, "")]
            stays.append((job, start, at))
        spec = JobSpec(command=("true",), folder="/")
        lane = Placement(f"pool{job % 2}", 1, ())
        entries.append(
            Entry(job, spec, key, at, stage=Stage.DONE, attempt=1, start_s=at, end_s=at, placement=lane)
        )
    journal.commit((), sorted(events), entries)
    journal.close()
    return stays


def chart(home: Path) -> Gantt:
    mirror = Mirror(home)
    mirror.refresh()
    return Gantt(mirror, Explainer(home, mirror))


def test_every_stay_is_a_rectangle_and_none_lies_upon_another(tmp_path: Path) -> None:
    stays = journal_of(tmp_path, 300, seed=1)
    first, last = min(s for _, s, _ in stays), max(e for _, _, e in stays)
    found: list[Rectangle] = chart(tmp_path).find(Window(from_s=first, until_s=last + 1, width=8000), [])[
        "rectangles"
    ]
    alone = {(one.job, one.start_s, one.end_s) for one in found if one.jobs == 1}
    assert alone <= set(stays) and sum(one.jobs for one in found) == len(stays)
    assert all(one.lane == f"pool{one.job % 2}" for one in found if one.job)
    short = [stay for stay in stays if stay not in alone]
    assert all(end - start < (last + 1 - first) / 8000 for _, start, end in short)
    rows: dict[tuple[str, int], list[Rectangle]] = {}
    for one in found:
        rows.setdefault((one.lane, one.row), []).append(one)
    for of_row in rows.values():
        of_row.sort(key=lambda one: one.start_s)
        for before, after in itertools.pairwise(of_row):
            assert before.end_s is not None and before.end_s <= after.start_s


def test_a_window_has_what_overlaps_it(tmp_path: Path) -> None:
    stays = journal_of(tmp_path, 300, seed=2)
    gantt = chart(tmp_path)
    chance = random.Random(3)
    for _ in range(20):
        begin = BEGAN_S + chance.uniform(-50, 950)
        end = begin + chance.choice([1.0, 30.0, 300.0])
        found = gantt.find(Window(from_s=begin, until_s=end), [])
        inside = [stay for stay in stays if stay[1] < end and stay[2] >= begin]
        assert found["total"] == len(inside) == sum(one.jobs for one in found["rectangles"])


def test_however_many_jobs_there_are_so_many_rectangles_at_most(tmp_path: Path) -> None:
    stays = journal_of(tmp_path, 8000, seed=4)
    gantt = chart(tmp_path)
    for width in (50, 1000, 8000):
        window = Window(from_s=BEGAN_S, until_s=BEGAN_S + 24_500, width=width)
        found = gantt.find(window, [])["rectangles"]
        assert len(found) <= MOST_RECTANGLES and sum(one.jobs for one in found) == len(stays)
    assert max(one.row for one in found) > 3


def test_rows_stay_when_more_begins(up: Up) -> None:
    up.start("--cores", "2")
    up.client.submit(["sleep", "600"])
    mirror = Mirror(up.home)
    gantt = Gantt(mirror, Explainer(up.home, mirror))
    window = Window(from_s=0, until_s=1e10)

    def rows() -> dict[int | None, tuple[int, str]]:
        mirror.refresh()
        found: list[Rectangle] = gantt.find(window, [])["rectangles"]
        return {one.job: (one.row, one.how) for one in found}

    up.until(lambda: rows() == {1: (0, "running")})
    up.client.submit(["sleep", "600"])
    up.until(lambda: rows() == {1: (0, "running"), 2: (1, "running")})
    up.run("cancel", "1")
    up.until(lambda: rows().get(1) == (0, "cancelled"))
    third = up.client.submit(["sleep", "600"])
    up.until(lambda: rows().get(third.id) == (0, "running"))
    up.run("suspend", "2")
    up.until(lambda: rows().get(2) == (1, "suspended"))


def test_the_chart_shows_what_was_is_and_will_be(up: Up, view: Callable[..., Viewer]) -> None:
    up.client.submit(["false"], name="broken").exception(30)
    up.client.submit(["sleep", "600"], name="now", cores=2, expect_s={"": 120})
    up.client.submit(["sleep", "600"], name="next", cores=2, expect_s={"": 120})
    viewer = view(color_scheme="dark")
    tab = viewer.tab
    viewer.go("gantt")
    rows = tab.get_by_role("table", name="Jobs of the window").locator("tbody tr")
    for name, what in (("broken", "failed"), ("now", "runs"), ("next", "planned")):
        rows.filter(has_text=name).get_by_text(what).wait_for()
    canvas = tab.locator("canvas")
    canvas.focus()
    before = tab.get_by_role("main").get_by_role("status").inner_text()
    for key in ("+", "+", "ArrowLeft", "ArrowRight", "-"):
        tab.keyboard.press(key)
    tab.wait_for_function(
        "text => document.querySelector('main [role=status]').textContent !== text", arg=before
    )
    tab.keyboard.press("Home")
    tab.get_by_role("button", name="10 min").press("Enter")
    colours = """() => {
      const canvas = document.querySelector("canvas");
      const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
      return new Set(new Uint32Array(data.buffer)).size;
    }"""
    tab.wait_for_timeout(500)
    assert tab.evaluate(colours) > 8
    frames: dict[str, Any] = tab.evaluate(
        """async () => {
          const canvas = document.querySelector("canvas"), began = performance.now();
          for (let n = 0; n < 60; n++) {
            canvas.dispatchEvent(new KeyboardEvent("keydown", { key: n % 2 ? "+" : "ArrowLeft" }));
            await new Promise(requestAnimationFrame);
          }
          return { frames_per_s: 60 / ((performance.now() - began) / 1000) };
        }"""
    )
    print(frames)
    axe(viewer)
    tab.get_by_role("button", name="Now").press("Enter")
    rows.filter(has_text="now").get_by_role("link").first.press("Enter")
    tab.get_by_role("heading", name="Job 2: now").wait_for()


@pytest.mark.slow
def test_power_of_the_window_is_that_of_caps_and_meters(up: Up, browser: Any) -> None:
    up.start("--policy", "parm", "--power-budget", "400", "--emulate", "intel-2s")
    page = PageProcess(up.home)
    try:
        first = up.client.submit(["sleep", "600"], name="first", load="compute")
        up.until(lambda: first.info()["stage"] == "running")
        page.enter()

        def power() -> dict[str, Any]:
            found: dict[str, Any] = page.get(
                f"/api/gantt?from_s={time.time() - 20}&until_s={time.time() + 20}&width=400"
            )
            return found["power"] or {"drawn_w": None}

        up.until(lambda: power()["drawn_w"] is not None and max(power()["drawn_w"][-10:]) > 1.0, 30)
        up.until(lambda: power()["allotted_w"][-1] > 0.0, 30)
        told = json.loads(up.run("status", "--json").stdout)["power"]
        found = power()
        assert found["budget_w"] == told["budget_w"] and found["emulated"]
        assert found["allotted_w"][-1] == pytest.approx(told["allotted_w"], abs=0.5)
        assert max(found["drawn_w"]) <= told["budget_w"] * 1.02
        viewer = Viewer(browser, page)
        viewer.go("gantt")
        viewer.tab.get_by_text("Power: budget 400 W").wait_for()
        viewer.tab.get_by_text("Power as a table").press("Enter")
        viewer.tab.get_by_role("table", name="Mean power of each step").locator("tbody tr").first.wait_for()
        axe(viewer)
        viewer.close()
    finally:
        page.stop()
