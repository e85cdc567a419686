"""Priorities of real jobs, and policies that begin anew because of them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.model.jobs import Cluster, Job, Placement, Pool
from scheduler.model.state import ClusterState
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


@given(st.lists(st.tuples(st.integers(-2, 2), st.integers(-2, 2) | st.none()), min_size=1, max_size=12))
def test_a_changed_priority_is_as_if_submitted_so(jobs: list[tuple[int, int | None]]) -> None:
    """Whatever priorities jobs had, and however often they change: by priority, then by number."""
    state = ClusterState(Cluster((Pool("core", 1),)))
    for number, (priority, _) in enumerate(jobs, 1):
        state.submit(Job(number, 0.0, priority=priority))
    state.arrange()
    now = {number: priority for number, (priority, _) in enumerate(jobs, 1)}
    for several in (True, False):
        new = {n: p if several else -p for n, (_, p) in enumerate(jobs, 1) if p is not None}
        for some in [list(new)] if several else [[number] for number in new]:
            state.prioritize(Job(number, 0.0, priority=new[number]) for number in some)
        now |= new
        assert list(state.waiting) == sorted(now, key=lambda number: (-now[number], number))
        assert all(state.state(number).job.priority == now[number] for number in now)


def test_a_lost_job_is_first_of_its_new_priority() -> None:
    state = ClusterState(Cluster((Pool("core", 1),)))
    for number in (1, 2, 3):
        state.submit(Job(number, 0.0, priority=5 if number == 1 else 0))
    state.fail(state.start(3, Placement("core")), 0.0, 0.0)
    state.arrange()
    assert list(state.waiting) == [1, 3, 2]
    state.prioritize([Job(3, 0.0, priority=5)])
    assert list(state.waiting) == [3, 1, 2]
    state.prioritize([Job(1, 0.0)])
    assert list(state.waiting) == [3, 1, 2]


@pytest.mark.parametrize("policy", sweep(("easy", "conservative", "mct", "las,load_limit=0.5"), {"easy"}))
def test_priorities_are_changed_and_last(up: Up, policy: str) -> None:
    """Also of jobs that wait for memory; a crash changes nothing; held jobs start by them later."""
    up.start("--cores", "1", "--memory", "1G", "--policy", policy)
    wait = {"command": ["sh", "-c", "while ! [ -e go ]; do sleep 0.02; done"], "folder": str(up.home)}
    quick = {"command": ["sleep", "0.05"], "folder": "/", "time_s": 9, "memory_mb": 600}
    first, *jobs = up.client.submit_all([{**wait, "memory_mb": 500}, *[quick] * 4])
    held = up.client.submit(["sleep", "0.05"], time_s=9, after_any=[first.id])
    done = up.run("priority", f"{jobs[1].id}-{jobs[2].id}", "--to", "3", "--json")
    told = json.loads(done.stdout)
    assert told["ids"] == [jobs[1].id, jobs[2].id] and told["before"] == {"0": told["ids"]}
    up.client.call("POST", "/priority", {"ids": [jobs[3].id], "priority": 9})
    jobs[2].set_priority(-4)
    held.set_priority(6)
    first.set_priority(-9)  # it runs, and goes on
    assert "priority 9\n" in up.run("info", str(jobs[3].id)).stdout
    story = [event["detail"] for event in jobs[2].info()["history"] if event["what"] == "priority"]
    assert story == ["3, 0 before", "-4, 3 before"]
    rows = up.run("jobs", "--columns", "id,priority", "--csv").stdout.split()[1:]
    assert rows == ["1,-9", "2,0", "3,3", "4,-4", "5,9", "6,6"]
    assert [row["id"] for row in up.client.call("GET", "/queue")["rows"]][:2] == [1, 5]
    up.kill()
    up.start("--cores", "1", "--memory", "1G", "--policy", policy)
    (up.home / "go").touch()
    ends = [job.wait(30)["start_s"] for job in (first, jobs[3], held, jobs[1], jobs[0], jobs[2])]
    assert ends == sorted(ends) and len(set(ends)) == 6
    assert "has ended (done)" in up.run("priority", "1", "--to", "3").stderr


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
