"""Priorities of jobs, and policies that begin anew because of them."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.errors import BadInput
from scheduler.coordinator.coordinator import Coordinator
from scheduler.jobs.sizes import Unit
from scheduler.model.jobs import Cluster, Job, Placement, Pool
from scheduler.model.state import ClusterState
from tenbin.commands.jobs.account import account
from tenbin.option_values import account_and_share
from tenbin.server.descriptions import describe
from tenbin.server.job_list import JobList, Window, list_jobs, window
from tests.support.coordinator import Up
from tests.support.programs import tenbin
from tests.support.scheduling.manual_engine import ManualEngine, a_job, shown, submit

NODE = Pool("node", 1, resources=("cores", "memory_mb"), capacity=(1.0, 1000.0))


def engine_for(policy: str) -> ManualEngine:
    """Make a machine of one core, which under las is a node."""
    pool = NODE if policy.startswith("las") else Pool("core", 1)
    return ManualEngine(cluster=Cluster((pool,), memory_mb=1000.0))


def coordinator_of(engine: ManualEngine, home: Path, policy: str) -> AbstractContextManager[Coordinator]:
    return engine.coordinator(home, policy, unit=Unit(node=policy.startswith("las")))


@pytest.mark.parametrize("policy", ["fcfs", "conservative", "las,load_limit=0.5"])
def test_a_higher_priority_goes_first_also_after_a_crash(tmp_path: Path, policy: str) -> None:
    engine = engine_for(policy)
    with coordinator_of(engine, tmp_path, policy) as coordinator:
        blocker = submit(coordinator)
        low, plain, high = (submit(coordinator, priority=priority) for priority in (-5, 0, 7))
        specs = [a_job(priority=priority) for priority in (8, 0)]
        top, last = (entry.id for entry in coordinator.submit(specs, {}))
    with coordinator_of(engine, tmp_path, policy) as coordinator:
        engine.end_all(coordinator)
        assert engine.begun == [(job, 1) for job in (blocker, top, high, plain, last, low)]


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


@pytest.mark.parametrize("policy", ["easy", "weigh", "conservative", "mct", "las,load_limit=0.5"])
def test_priorities_are_changed_and_last(tmp_path: Path, policy: str) -> None:
    """Also of jobs that wait for memory; a crash changes nothing; held jobs start by them later."""
    engine = engine_for(policy)
    with coordinator_of(engine, tmp_path, policy) as coordinator:
        first = submit(coordinator, memory_mb=500.0)
        jobs = [submit(coordinator, memory_mb=600.0) for _ in range(4)]
        held = submit(coordinator, after_any=(first,))
        changes = (jobs[1:3], 3), (jobs[3:], 9), (jobs[2:3], -4), ([held], 6), ([first], -9)
        before = [coordinator.set_priority(*change)[0] for change in changes]
        assert before == [{0: jobs[1:3]}, {0: jobs[3:]}, {3: jobs[2:3]}, {0: [held]}, {0: [first]}]
        assert shown(coordinator, first) == ["running"], "it goes on"
        rows = list_jobs(coordinator, JobList())
        assert [(row.id, row.priority) for row in rows] == [(1, -9), (2, 0), (3, 3), (4, -4), (5, 9), (6, 6)]
        assert [row["id"] for row in window(coordinator, Window())["rows"]][:2] == [first, jobs[3]]
        story = [detail for _, kind, detail in coordinator.job_table.history(jobs[2]) if kind == "priority"]
        assert story == ["3, 0 before", "-4, 3 before"]
    with coordinator_of(engine, tmp_path, policy) as coordinator:
        engine.end_all(coordinator)
        order = first, jobs[3], held, jobs[1], jobs[0], jobs[2]
        assert engine.begun == [(job, 1) for job in order]


def test_priorities_on_the_command_line(up: Up) -> None:
    up.start("--cores", "1")
    first, *jobs = up.client.submit_all([{"command": ["sleep", "60"], "folder": "/", "priority": 7}] * 3)
    assert "priority 7\n" in up.run("info", str(first.id)).stdout
    answer = json.loads(up.run("priority", "2-3", "--to", "3", "--json").stdout)
    assert answer["ids"] == [2, 3] and answer["before"] == {"7": [2, 3]}
    jobs[0].set_priority(-4)
    rows = up.run("jobs", "--columns", "id,priority", "--csv").stdout.split()[1:]
    assert rows == ["1,7", "3,3", "2,-4"]
    first.cancel()
    first.wait(30)
    assert "has ended (cancelled)" in up.run("priority", "1", "--to", "3").stderr


def test_user_shares(tmp_path: Path) -> None:
    """Refused where nothing is shared; under las-drf taken in, shown, and kept over a crash."""
    policy, share = "las-drf,spare_s=600,load_limit=0.9", {"account": "B", "share": 5.0}
    engine = ManualEngine(cluster=Cluster((replace(NODE, units=2),)))
    with (
        ManualEngine().coordinator(tmp_path / "plain") as coordinator,
        pytest.raises(BadInput, match="does not share between users; start for instance"),
    ):
        submit(coordinator, **share)
    with coordinator_of(engine, tmp_path, policy) as coordinator:
        gates = [submit(coordinator) for _ in range(2)]
        specs = [a_job(account="A", share=1.0)] * 3 + [a_job(**share)] * 3
        jobs = [entry.id for entry in coordinator.submit(specs, {})]
        assert shown(coordinator, *gates, *jobs) == ["running"] * 2 + ["waiting"] * 6
    with coordinator_of(engine, tmp_path, policy) as coordinator:
        assert "counts as B, weight 5" in account(describe(coordinator, jobs[5]))
        engine.end_all(coordinator)
        assert shown(coordinator, *jobs) == ["done"] * 6
    assert account_and_share("blast") == ("blast", None)
    assert account_and_share("blast=2") == ("blast", 2.0)
    for text in ("=2", "blast=0", "blast=much", "a=b=2", ""):
        done = tenbin("submit", "--user-share", text, "--", "true")
        assert done.returncode == 2 and "--user-share" in done.stderr and "NAME=WEIGHT" in done.stderr
