"""The Truth view against ``tenbin calibration``, and intervals against a count by hand."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from statistics import quantiles

import pytest

from profiles.files.store import Store, load
from tenbin.page.mirror import Mirror
from tenbin.page.rows import Expected, Row
from tenbin.page.views.explainer import LEAST, Answer, Starts
from tenbin.page.views.refit import last_refit
from tenbin.page.views.truth import coverage
from tests.support.coordinator import Up
from tests.support.page import PageProcess
from tests.support.paths import ROOT
from tests.support.viewer import Viewer
from tests.tenbin.page.test_browser import axe

ROW = Row(1, "1", "a", "u", None, None, "done", 1, 0, "", (), 0.0, 0.0, 0.0, 1.0, None, None, 0, "", 1, 0.0)


def test_it_tells_what_calibration_tells(up: Up, page: PageProcess, view: Callable[..., Viewer]) -> None:
    for seconds in (0.3, 0.3, 0.5, 0.2, 0.4):
        up.client.submit(["sleep", str(seconds)], name="same").result(30)
    page.enter()
    up.until(lambda: page.get("/api/jobs?stages=done")["total"] == 5)
    told = json.loads(up.run("calibration", "--json").stdout)
    found = page.get("/api/truth")
    assert found["rows"] == told["summary"] and found["rows"][0]["n"] == 4
    errors = [(one["predicted"] - one["measured"]) / one["measured"] for one in told["forecasts"]]
    assert [error for _, error, _ in found["points"]["run-time"]] == pytest.approx(errors)
    infos = [up.client.job(job).info() for job in range(2, 6)]
    inside = [
        next(iter(info["predicted"]["run_s"].values()))["low"]
        <= info["end_s"] - info["start_s"]
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
    chance = random.Random(1)
    rows = []
    for _ in range(500):
        low, run = chance.uniform(1, 10), chance.uniform(1, 30)
        expected = Expected(low + 5, low, low + 10, "a rule")
        rows.append(ROW._replace(end_s=run, expected=expected))
    found = coverage([*rows, ROW, ROW._replace(stage="failed", expected=rows[0].expected)])
    inside = sum(row.expected.low_s <= row.end_s <= row.expected.high_s for row in rows)
    assert found["jobs"] == 500 and found["inside"] == inside
    assert found["below"] + found["inside"] + found["above"] == 500


def test_expected_starts_get_the_interval_of_the_last_ones(tmp_path_factory: pytest.TempPathFactory) -> None:
    mirror = Mirror(tmp_path_factory.mktemp("none"))
    starts, chance, ratios = Starts(), random.Random(2), []
    for job in range(1, 41):
        said_s, real_s = chance.uniform(10, 100), chance.uniform(5, 200)
        starts.say(job, Answer("", 1000.0 + said_s, 1000.0))
        starts.say(job, Answer("", 9000.0, 1001.0))  # the first one counts
        interval = starts.interval(Answer("", 1100.0, 1000.0))
        assert (interval["low_s"] is None) == (len(ratios) < LEAST)
        mirror.rows[job] = ROW._replace(id=job, start_s=1000.0 + real_s)
        starts.look(mirror)
        ratios.append(real_s / said_s)
    low, *_, high = quantiles(ratios, n=10)
    interval = starts.interval(Answer("", 1100.0, 1000.0))
    assert interval["low_s"] == pytest.approx(1000 + 100 * low)
    assert interval["high_s"] == pytest.approx(1000 + 100 * high)
    assert starts.account()["middle"] == pytest.approx(sorted(ratios)[19], rel=0.2)


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
    }
    store.save(old.model_copy(update=more), {})
    found = last_refit(store)
    assert found is not None and found["profile"] == more["id"]
    (change,) = found["changes"]
    assert (change["coefficient"], change["ratio"]) == (first.name, "2.00")
    store.delete(store.of_node(old.node)[-1])
    assert (last_refit(store) or {})["changes"] is None
