"""Limits of run time that are changed, of jobs that wait and of jobs that run."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from profiles.errors import BadInput
from scheduler.coordinator.coordinator import Coordinator, Update
from tenbin.commands.jobs.account import account
from tenbin.server.descriptions import describe
from tests.support.coordinator import Up
from tests.support.scheduling.manual_engine import ManualEngine, shown, submit, submit_array


def limit_s(coordinator: Coordinator, job: int) -> float | None:
    entry = coordinator.job_table.entry(job)
    assert entry is not None
    return entry.way.time_s


def test_a_limit_is_changed_and_lasts(tmp_path: Path) -> None:
    """The policy plans by it, the supervisor of a job that runs hears of it, a restart keeps it."""
    engine = ManualEngine(2)
    with engine.coordinator(tmp_path, "easy") as coordinator:
        first = submit(coordinator, cores=2)
        short, last = submit(coordinator), submit(coordinator, cores=2)
        begin_s = engine.now
        assert coordinator.why(short).expected_start_s == begin_s + 100
        coordinator.update([first], Update(more_s=7200.0))
        assert engine.asks == [(first, "limit")] and limit_s(coordinator, first) == 7300
        assert coordinator.why(short).expected_start_s == begin_s + 7300
        coordinator.update([last], Update(math.inf, priority=3))
        coordinator.update([last], Update(50.0))
        coordinator.update([short], Update(100.0))
        assert coordinator.job_table.entries[last].priority == 3
    with engine.coordinator(tmp_path, "easy") as coordinator:
        coordinator.turn()
        assert [limit_s(coordinator, job) for job in (first, short, last)] == [7300, 100, 50]
        stories = [
            [detail for _, kind, detail in coordinator.job_table.history(job) if kind == "time limit"]
            for job in (first, short, last)
        ]
        assert stories == [["7300 s, 100 s before"], [], ["none, 100 s before", "50 s, none before"]]
        assert "limit now: 2:02 h\n" in account(describe(coordinator, first))
        assert "limit now" not in account(describe(coordinator, short))
        engine.end(first, "time-limit")
        coordinator.turn()
        entry = coordinator.job_table.entry(first)
        assert entry is not None and entry.trouble == "it reached its time limit of 7300 s"


def test_who_is_paused_hears_of_it_when_it_goes_on(tmp_path: Path) -> None:
    engine = ManualEngine()
    with engine.coordinator(tmp_path) as coordinator:
        job = submit(coordinator)
        coordinator.suspend([job])
        coordinator.update([job], Update(500.0))
        coordinator.resume([job])
        coordinator.update([job], Update(600.0))
        assert engine.asks == [(job, want) for want in ("pause", "run", "run")], "with its cores once more"
        assert limit_s(coordinator, job) == 600


def test_a_limit_that_cannot_be(tmp_path: Path) -> None:
    """Nothing is changed of a request of which a part is refused; of arrays all that has not ended."""
    engine = ManualEngine(2)
    with engine.coordinator(tmp_path) as coordinator:
        job, free = submit(coordinator), submit(coordinator, time_s=None)
        array, members = submit_array(coordinator, 2)
        for change, ids, says in (
            (Update(more_s=60.0), [job, free], f"job {free} has no limit of its run time"),
            (Update(more_s=-100.0), [job], f"job {job} has a limit of 100 s, not more than 100 s"),
            (Update(5.0), [99], "there is no job 99"),
        ):
            with pytest.raises(BadInput, match=says):
                coordinator.update(ids, change)
        coordinator.cancel([free])
        with pytest.raises(BadInput, match=f"job {free} has been told to end"):
            coordinator.update([free], Update(60.0))
        engine.extends = False
        coordinator.update([job], Update(80.0))
        with pytest.raises(BadInput, match="has started, and its batch job ends at the limit"):
            coordinator.update([job], Update(90.0))
        assert not coordinator.update([array], Update(more_s=1.0))
        assert [limit_s(coordinator, member) for member in (job, *members)] == [80, 101, 101]
        assert shown(coordinator, *members) == ["waiting"] * 2


def test_limits_on_the_command_line(up: Up) -> None:
    """Of a job whose limit was soon: it has ended by itself, long after it."""
    up.start("--cores", "1")
    gate = up.home / "gate"
    wait = ["sh", "-c", f"until [ -e {gate} ]; do sleep 0.05; done"]
    job = up.client.submit(wait, time_s=3600)
    other = up.client.submit(["sleep", "600"], time_s=600)
    up.until(job.running)
    answer = json.loads(up.run("update", "1-2", "--time", "+2h", "--json").stdout)
    assert answer["ids"] == [1, 2] and not answer["left_out"]
    assert [row["time_limit_s"] for row in up.client.call("GET", "/jobs")] == [10_800, 7800]
    assert up.run("update", "2", "--time", "-30m", "--priority", "4").returncode == 0
    assert (other.info()["time_limit_s"], other.info()["priority"]) == (6000, 4)
    assert up.run("update", "2", "--time", "none").returncode == 0
    assert other.info()["time_limit_s"] is None
    for words, says in (
        (("1",), "nothing is to change; give --time"),
        (("1", "--time", "soon"), "--time 'soon' is no duration"),
        (("1", "--time", "-3h"), "job 1 has a limit of 10800 s, not more than 10800 s"),
        (("2", "--time", "+1h"), "job 2 has no limit of its run time; give it one: --time 4h"),
    ):
        done = up.run("update", *words)
        assert done.returncode == 2 and says in done.stderr and "Traceback" not in done.stderr
    other.update(time_s=0.2)
    job.update(time_s=0.2)
    assert job.wait(60)["stage"] == "killed" and job.info()["trouble"].endswith("time limit of 0.2 s")
    assert other.wait(60)["stage"] == "killed"
