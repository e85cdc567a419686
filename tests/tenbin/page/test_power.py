"""Power of a window against closed forms; regions in the rows of jobs."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from tenbin.page.gantt import Held, Meter, allotted, drawn_of, region_names
from tenbin.page.mirror import COLUMNS, row_of
from tests.support.coordinator import Up
from tests.support.page import PageProcess

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
