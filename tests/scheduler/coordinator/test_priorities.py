"""Priorities of real jobs, and policies that begin anew because of them."""

from __future__ import annotations

import pytest

from tests.support.amounts import sweep
from tests.support.coordinator import Up


@pytest.mark.parametrize("policy", sweep(("fcfs", "conservative", "las,load_limit=0.5"), {"conservative"}))
def test_a_higher_priority_goes_first_also_after_a_crash(up: Up, policy: str) -> None:
    up.start("--cores", "1", "--policy", policy)
    blocker = up.client.submit(["sh", "-c", "while ! [ -e go ]; do sleep 0.02; done"], folder=str(up.home))
    up.until(lambda: blocker.info()["stage"] == "running")
    low, plain, high = (up.client.submit(["sleep", "0.05"], priority=p, time_s=9) for p in (-5, 0, 7))
    top, _ = up.client.submit_all(
        [{"command": ["sleep", "0.05"], "folder": "/", "priority": p} for p in (8, 0)]
    )
    assert "priority 7" in up.run("info", str(high.id)).stdout
    up.kill()
    up.start("--cores", "1", "--policy", policy)
    (up.home / "go").touch()
    ends = [job.wait(30)["start_s"] for job in (blocker, top, high, plain, low)]
    assert ends == sorted(ends) and len(set(ends)) == 5


def test_user_shares(up: Up) -> None:
    """Refused where nothing is shared; under las-drf taken in, shown, and kept over a crash."""
    up.start("--cores", "1")
    for text in ("blast=2", "blast"):
        done = up.run("submit", "--user-share", text, "--", "true")
        assert done.returncode == 2 and "does not share between users; start for instance" in done.stderr
    for text in ("=2", "blast=0", "blast=much", "a=b=2", ""):
        done = up.run("submit", "--user-share", text, "--", "true")
        assert done.returncode == 2 and "--user-share" in done.stderr and "NAME=WEIGHT" in done.stderr
    up.kill()
    up.start("--cores", "2", "--policy", "las-drf,spare_s=600,load_limit=0.9")
    gate = {"command": ["sh", "-c", "while ! [ -e go ]; do sleep 0.02; done"], "folder": str(up.home)}
    up.client.submit_all([gate, gate])
    specs = [
        {"command": ["sleep", "0.05"], "folder": "/", "account": name, "share": share}
        for name, share in (("A", 1.0), ("A", 1.0), ("A", 1.0), ("B", 5.0), ("B", 5.0), ("B", 5.0))
    ]
    jobs = up.client.submit_all(specs)
    assert "counts as B, weight 5" in up.run("info", str(jobs[5].id)).stdout
    up.kill()
    up.start("--cores", "2", "--policy", "las-drf,spare_s=600,load_limit=0.9")
    (up.home / "go").touch()
    found = [job.wait(30) for job in jobs]
    assert [one["stage"] for one in found] == ["done"] * 6
