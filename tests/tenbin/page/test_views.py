"""Views of the page against commands and closed forms, and the buttons that need devices."""

from __future__ import annotations

import json
import math
import random
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from profiles.files.store import Store, load
from scheduler.prediction.predictions import TrackedPrediction, error_of
from tenbin.page.gantt import Held, Meter, allotted, drawn_of, region_names
from tenbin.page.mirror import COLUMNS, Expected, row_of
from tenbin.page.truth import coverage, last_refit
from tests.support.coordinator import Up
from tests.support.labs.components import require
from tests.support.moving import TWO
from tests.support.page import PageProcess
from tests.support.paths import ROOT
from tests.support.programs import opencl_devices
from tests.support.viewer import Viewer
from tests.tenbin.page.test_browser import axe

# The Truth view against ``tenbin program calibration``, and intervals against a count by hand.


RESTS = {"rests_on": "same program and arguments"}
VALUES = dict.fromkeys(COLUMNS) | {"id": 1, "spec": '{"command": ["a"]}', "stage": "done", "end_s": 1.0}
ROW = row_of([VALUES[name] for name in COLUMNS])


def test_it_tells_what_calibration_tells(up: Up, page: PageProcess, view: Callable[..., Viewer]) -> None:
    for seconds in (0.3, 0.3, 0.5, 0.2, 0.4):
        up.client.submit(["sleep", str(seconds)], name="same").result(30)
    page.enter()
    up.until(lambda: page.get("/api/jobs?stages=done")["total"] == 5)
    told = json.loads(up.run("program", "calibration", "--json").stdout)
    found = page.get("/api/truth")
    assert found["rows"] == told["summary"] and found["rows"][0]["n"] == 4
    errors = [(one["predicted"] - one["measured"]) / one["measured"] for one in told["forecasts"]]
    assert [error for _, error, _ in found["points"]["run-time"]] == pytest.approx(errors)
    infos = [up.client.job(job).info() for job in range(2, 6)]
    inside = [
        next(iter(info["predicted"]["run_s"].values()))["low"]
        <= info["forecasts"][0]["measured"]
        <= next(iter(info["predicted"]["run_s"].values()))["high"]
        for info in infos
    ]
    assert (found["coverage"]["jobs"], found["coverage"]["inside"]) == (4, sum(inside))
    page.address = page.addresses(2)[1]
    viewer = view()
    viewer.go("truth")
    viewer.tab.get_by_role("table", name="Errors by kind").get_by_text("run-time").wait_for()
    viewer.tab.get_by_role("img", name="Error of run-time").wait_for()
    viewer.tab.get_by_text("of 4 jobs").wait_for()
    axe(viewer)


def test_coverage_counts_what_lies_inside() -> None:
    """By the run times that the errors are of: the coordinator's clock adds 100 s to each here."""
    chance = random.Random(1)
    rows, outcomes = {}, []
    for job in range(1, 501):
        low, run = chance.uniform(1, 10), chance.uniform(1, 30)
        rows[job] = replace(
            ROW, id=job, end_s=run + 100.0, expected=Expected(low + 5, low, low + 10, "a rule")
        )
        outcomes.append(TrackedPrediction(job, job, 1, "run-time", 0.0, low + 5, run, detail=RESTS))
    first = outcomes[0]
    others = [replace(first, measured=None), replace(first, kind="restart"), replace(first, attempt=2)]
    others += [replace(first, detail={}), replace(first, job=501), replace(first, job=502)]
    rows[501] = replace(ROW, expected=Expected(5.0, None, None, "stated"))
    found = coverage([*outcomes, *others], rows)
    inside = sum(
        rows[one.job].expected.low_s <= one.measured <= rows[one.job].expected.high_s for one in outcomes
    )
    assert found["jobs"] == 500 and found["inside"] == inside
    assert found["below"] + found["inside"] + found["above"] == 500


def test_too_long_a_prediction_is_never_told_to_be_exceeded() -> None:
    """Also under a power cap, where the prediction is longer than that of the job as it stands in the row."""
    rows = {1: replace(ROW, end_s=30.0, expected=Expected(10.0, 8.0, 12.0, "a rule"))}
    one = TrackedPrediction(1, 1, 1, "run-time", 0.0, predicted=20.0, measured=17.0, detail=RESTS)
    assert error_of(one) == pytest.approx(3 / 17)
    assert coverage([one], rows) == {"jobs": 1, "below": 0, "inside": 1, "above": 0, "meant": 0.8}
    assert coverage([replace(one, measured=15.0)], rows)["below"] == 1
    assert coverage([replace(one, measured=25.0)], rows)["above"] == 1


def test_the_last_refit_names_what_it_changed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    old = load(ROOT / "docs" / "measurements" / "vm-epyc-2core.json")
    store.save(old, {})
    assert last_refit(store) is None
    number, model = next((n, m) for n, m in enumerate(old.models) if m.quantity == "checkpoint_s")
    first, *rest = model.coefficients
    changed = model.model_copy(
        update={"coefficients": (first.model_copy(update={"value": first.value * 2}), *rest)}
    )
    models = (*old.models[:number], changed, *old.models[number + 1 :])
    more = {
        "id": "20991231T000000Z",
        "models": models,
        "origin": f"{old.id}, refitted from 5 checkpoints of jobs",
        "refit_of": old.id,
    }
    store.save(old.model_copy(update=more), {})
    found = last_refit(store)
    assert found is not None and found["profile"] == more["id"]
    (change,) = found["changes"]
    assert (change["coefficient"], change["ratio"]) == (first.name, "2.00")
    store.delete(store.of_node(old.node)[-1])
    assert (last_refit(store) or {})["changes"] is None


# Power of a window against closed forms; regions in the rows of jobs.


EDGES = np.arange(0.0, 11.0)


def test_allotted_is_the_mean_of_the_caps_in_each_step() -> None:
    held = [Held(1, 1, 2.5, 6.0, 100.0), Held(2, 1, 4.0, math.inf, 50.0), Held(3, 1, 0.0, math.inf, None)]
    assert allotted(EDGES, held) == pytest.approx([0, 0, 50, 100, 150, 150, 50, 50, 50, 50])


def test_drawn_is_energy_over_time_and_nothing_outside_the_readings() -> None:
    meter = Meter(np.array([1.0, 3.0, 7.0]), np.array([10.0, 30.0, 230.0]), emulated=False)
    assert drawn_of(EDGES, meter) == pytest.approx([0, 10, 10, 50, 50, 50, 50, 0, 0, 0])
    assert drawn_of(EDGES, meter).sum() == pytest.approx(220)


def test_a_row_has_the_cap_of_all_units_and_the_region() -> None:
    values = dict.fromkeys(COLUMNS) | {"id": 1, "spec": json.dumps({"command": ["a"]}), "stage": "running"}
    placed = values | {"placement": json.dumps(["node", 2, [], 90.0, "r1", ""])}
    row = row_of([placed[name] for name in COLUMNS])
    assert (row.cap_w, row.region) == (180.0, "r1")
    row = row_of([values[name] for name in COLUMNS])
    assert (row.cap_w, row.region) == (None, "")


def test_jobs_and_lanes_name_their_regions(up: Up) -> None:
    up.start("--cores", "2", "--policy", "regions")
    page = PageProcess(up.home)
    try:
        job = up.client.submit(["sleep", "600"])
        up.until(lambda: job.info()["stage"] == "running")
        page.enter()
        window = "/api/gantt?from_s=0&until_s=9999999999"
        up.until(lambda: page.get(window)["lanes"] and page.get(window)["jobs"])
        found = page.get(window)
        (lane,), (listed,) = found["lanes"], found["jobs"]
        table = json.loads(up.run("status", "--json").stdout)["nodes"]
        assert lane["regions"] == region_names(table[0]) and found["power"] is None
        assert listed["region"] == "" or listed["region"] in lane["regions"]
    finally:
        page.stop()


# The buttons of the queue that need devices, or jobs that have ended.


SAVES_ITSELF = ["bash", "-c", "trap 'exit 85' URG; while :; do sleep 0.05; done"]


@pytest.mark.slow
def test_jobs_move_and_run_again(up: Up, browser: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POCL_DEVICES", TWO)
    require(len(opencl_devices()) == 2, "two OpenCL devices (PoCL)")
    up.start("--devices", "--policy", "fcfs")
    moved = up.client.submit(SAVES_ITSELF, name="moved", checkpoint_signal=int(signal.SIGURG))
    up.client.submit(["false"], name="broken").exception(30)
    page = PageProcess(up.home)
    try:
        viewer = Viewer(browser, page)
        tab = viewer.tab
        viewer.row("moved").get_by_text("▶ running").wait_for()
        place = moved.info()["placement"]
        target = "pocl-1" if place == "pocl-0" else "pocl-0"
        viewer.row("moved").get_by_role("checkbox").click()
        tab.get_by_role("button", name="Move", exact=True).click()
        tab.get_by_role("dialog").get_by_label("To device or node").fill("nowhere")
        tab.keyboard.press("Enter")
        tab.get_by_text("it does not run on nowhere").wait_for()
        assert moved.info()["attempt"] == 1
        tab.get_by_role("button", name="Move", exact=True).click()
        tab.get_by_role("dialog").get_by_label("To device or node").fill(target)
        tab.keyboard.press("Enter")
        up.until(lambda: moved.info()["placement"] == target and moved.info()["attempt"] == 2, 30)
        viewer.row("moved").get_by_text(target).wait_for()
        viewer.row("moved").get_by_role("checkbox").uncheck()
        viewer.row("broken").get_by_role("checkbox").check()
        tab.get_by_role("button", name="Run again", exact=True).click()
        tab.get_by_text("1 job will run again.").wait_for()
        up.until(lambda: up.client.job(2).info()["attempt"] == 2 and up.client.job(2).done(), 30)
        viewer.close()
    finally:
        page.stop()
