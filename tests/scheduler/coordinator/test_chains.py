"""Long chains: each job waits for the one before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.coordinator import Up

LENGTH = 10_000


def chain(up: Up, folder: Path, first: str, others: str) -> list[int]:
    """Submit a chain, all at once, and return the numbers of its jobs."""
    bodies = [first, *[others] * (LENGTH - 1)]
    specs: list[dict[str, Any]] = [{"command": ["sh", "-c", body], "folder": str(folder)} for body in bodies]
    waits = {place: [place - 1] for place in range(1, LENGTH)}
    found: list[int] = up.client.call("POST", "/jobs", {"specs": specs, "waits_for": waits})["ids"]
    return found


def test_a_failure_ends_a_chain(up: Up, tmp_path: Path) -> None:
    up.start("--cores", "1")
    first, *others = chain(up, tmp_path, "exit 3", "true")
    up.until(lambda: up.client.call("GET", "/jobs/count") == {"count": 0}, 120)
    ended = {job["id"]: job["stage"] for job in up.client.call("GET", "/jobs?all=true")}
    assert ended == {first: "failed"} | dict.fromkeys(others, "cancelled")


def test_a_chain_is_held_over_a_restart(up: Up, tmp_path: Path) -> None:
    """Behind its first job; then it runs in order up to one that is cancelled, and so are those behind."""
    up.start("--cores", "1")
    signs = "echo $TENBIN_JOB_ID >>order; [ $TENBIN_JOB_ID -lt 20 ] || exec sleep 600"
    first, *others = chain(up, tmp_path, "until [ -e go ]; do sleep 0.02; done", signs)
    up.until(lambda: up.client.job(first).info()["stage"] == "running")
    up.kill()
    up.start("--cores", "1")
    stages = [job["stage"] for job in up.client.call("GET", "/jobs")]
    assert stages == ["running"] + ["held"] * (LENGTH - 1)
    (tmp_path / "go").touch()
    expected = [str(job) for job in others if job <= 20]
    order = tmp_path / "order"
    up.until(lambda: order.exists() and len(order.read_text().split()) == len(expected), 60)
    assert order.read_text().split() == expected
    up.client.job(20).cancel()
    up.until(lambda: up.client.call("GET", "/jobs/count") == {"count": 0}, 120)
    assert (tmp_path / "order").read_text().split()[-1] == "20"
    assert up.client.job(others[-1]).info()["stage"] == "cancelled"
