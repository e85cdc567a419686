"""``GET /queue``: windows of the sorted list, against the list of ``GET /jobs`` sorted here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tenbin.errors import TenbinError
from tests.support.coordinator import Up

BEGUN, FINAL = ("running", "stopping", "suspended"), ("done", "failed", "cancelled", "killed")
STAGES = (*BEGUN, "waiting", "held", "failed", "killed", "cancelled", "done")


def in_queue(row: dict[str, Any]) -> tuple[float, ...]:
    """Return the place in the queue: jobs that run, that wait, that have ended (the last first)."""
    if row["stage"] in FINAL:
        return 2, -(row["end_s"] or 0.0), -row["id"]
    return int(row["stage"] not in BEGUN), row["id"]


ORDERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "queue": in_queue,
    "id": lambda row: row["id"],
    "name": lambda row: row["name"],
    "user": lambda row: row["user"],
    "stage": lambda row: STAGES.index(row["stage"]),
    "cores": lambda row: row["cores"],
    "place": lambda row: row["place"] or "",
    "since": lambda row: row["end_s"] or row["start_s"] or row["submit_s"],
}


def test_windows_are_parts_of_the_sorted_list(up: Up) -> None:
    up.start("--cores", "1")
    script = {"command": ["sh", "-c", "exit $TENBIN_ARRAY_INDEX"], "folder": "/"}
    first = up.client.call("POST", "/jobs", {"specs": [script], "arrays": {0: [0, 1]}})["arrays"]
    up.client.ended([*first, up.client.submit(["true"], name="b").id], 60, all=True)
    running = up.client.submit(["sleep", "600"], name="c")
    up.until(lambda: running.info()["stage"] == "running")
    sleep = {"command": ["sleep", "600"], "folder": "/"}
    up.client.submit_all([{**sleep, "name": name} for name in "dabc"])
    up.client.submit_all([sleep, sleep], arrays={0: range(3), 1: range(2)})
    up.client.submit(["true"], after=[running.id], name="held")
    suspended = up.client.submit(["true"], name="a")
    suspended.suspend()
    for query in (
        "",
        "all=true",
        "name=a",
        "name=sh&all=true",
        "stages=failed",
        "stages=waiting",
        "array=1&all=true",
    ):
        for members in ("members=true", "members=false"):
            listed = up.client.call("GET", f"/jobs?{query}&{members}")
            for order, key in ORDERS.items():
                for reverse in (False, True):
                    expected = sorted(listed, key=in_queue, reverse=reverse and order == "queue")
                    if order != "queue":
                        expected.sort(key=key, reverse=reverse)
                    asked = f"/queue?{query}&{members}&order={order}&reverse={str(reverse).lower()}"
                    whole = up.client.call("GET", asked)
                    assert whole["rows"] == expected and whole["total"] == len(expected), asked
                    part = up.client.call("GET", f"{asked}&start=1&rows=2")
                    assert part["rows"] == expected[1:3] and part["total"] == len(expected), asked
    status = up.client.call("GET", "/status")
    assert all(whole[name] == status[name] for name in ("pid", "policy", "jobs", "memory", "power"))
    assert whole["in_use"] == [{"name": "core", "used": 1.0, "total": 1.0}]
    last = up.client.call("GET", "/queue?all=true&members=false&limit=1")
    assert [row["id"] for row in last["rows"] if row["stage"] in FINAL] == [4, 1]  # one job, and one array
    for bad in ("order=odd", "rows=1001", "rows=-1", "start=-1", "odd=1"):
        with pytest.raises(TenbinError):
            up.client.call("GET", f"/queue?{bad}")


def test_use_of_nodes_with_resources(up: Up) -> None:
    up.start("--cores", "2", "--nodes", "2", "--policy", "las")
    running = up.client.submit(["sleep", "600"], memory_mb=100)
    up.until(lambda: running.info()["stage"] == "running")
    used = {one["name"]: one for one in up.client.call("GET", "/queue?rows=0")["in_use"]}
    assert used["cores"]["used"] == 1.0 and used["cores"]["total"] == 2.0
    assert used["memory_mb"]["used"] == 100.0
    nodes = up.client.call("GET", "/nodes")
    assert used["memory_mb"]["total"] == sum(node["capacity"]["memory_mb"] for node in nodes)
