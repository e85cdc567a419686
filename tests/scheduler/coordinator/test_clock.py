"""Somebody sets the clock while jobs run and wait: durations go on, instants are by the clock as it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from scheduler.coordinator.coordinator import Coordinator
from scheduler.jobs.entry import Entry
from tenbin.server.job_list import used
from tests.support.scheduling.manual_engine import ManualEngine, shown, submit

STEPS = pytest.mark.parametrize("step_s", [-3600.0, -5.0, 3600.0])


def pass_time(coordinator: Coordinator, engine: ManualEngine, seconds: int) -> None:
    for _ in range(seconds):
        engine.wait(1.0)
        coordinator.turn()


def ended(coordinator: Coordinator, job: int) -> Entry:
    entry = coordinator.job_table.entry(job)
    assert entry is not None and entry.stage.final
    return entry


@STEPS
def test_a_job_ran_as_long_as_it_did(tmp_path: Path, step_s: float) -> None:
    engine = ManualEngine()
    with engine.coordinator(tmp_path) as coordinator:
        job = submit(coordinator)
        pass_time(coordinator, engine, 10)
        engine.now += step_s
        assert coordinator.cluster.running[job].attained_s(coordinator.cluster.now) == pytest.approx(10.0)
        pass_time(coordinator, engine, 10)
        state = coordinator.cluster.running[job]
        assert state.attained_s(coordinator.cluster.now) == pytest.approx(20.0)
        assert state.expected_end_s == pytest.approx(engine.now + 80.0), "its limit is 100 s"
        engine.end(job, ran_s=20.0)
        coordinator.turn()
        assert used(coordinator, ended(coordinator, job))["elapsed_s"] == pytest.approx(20.0)
        assert ended(coordinator, job).end_s == engine.now


@STEPS
def test_begins_and_deadlines_are_by_the_clock_as_it_is(tmp_path: Path, step_s: float) -> None:
    engine = ManualEngine(3)
    with engine.coordinator(tmp_path) as coordinator:
        submit(coordinator)
        pass_time(coordinator, engine, 1)
        engine.now += step_s
        begins = submit(coordinator, begin_s=engine.now + 20.0)
        ends = submit(coordinator, deadline_s=engine.now + 20.0)
        pass_time(coordinator, engine, 19)
        assert shown(coordinator, begins, ends) == ["held", "running"] and not engine.asks
        pass_time(coordinator, engine, 1)
        assert shown(coordinator, begins) == ["running"] and engine.asks == [(ends, "end")]


def test_a_deadline_that_a_clock_set_right_has_not_reached_yet(tmp_path: Path) -> None:
    engine = ManualEngine()
    engine.now += 3600.0
    with engine.coordinator(tmp_path) as coordinator:
        job = submit(coordinator, deadline_s=engine.now + 60.0)
        engine.now -= 3600.0
        pass_time(coordinator, engine, 100)
        assert not engine.asks
        engine.wait(3560.0)
        coordinator.turn()
        assert engine.asks == [(job, "end")]


@pytest.mark.parametrize("restart", [False, True])
def test_a_begin_that_a_clock_set_right_has_not_reached_yet(tmp_path: Path, restart: bool) -> None:
    """A job that has not started waits for it again; its memory is free for others until then."""
    engine = ManualEngine()
    engine.cluster = replace(engine.cluster, memory_mb=100.0)
    begin_s = engine.now + 60.0
    with engine.coordinator(tmp_path) as coordinator:
        runs = submit(coordinator)
        engine.now += 3600.0
        early = submit(coordinator, begin_s=begin_s, memory_mb=100.0)
        pass_time(coordinator, engine, 1)
        assert shown(coordinator, runs, early) == ["running", "waiting"]
        engine.now -= 3601.0
        if not restart:
            coordinator.turn()
            assert shown(coordinator, early) == ["held"]
    with engine.coordinator(tmp_path) as coordinator:
        assert shown(coordinator, early) == ["held"]
        other = submit(coordinator, memory_mb=100.0)
        engine.end(runs, ran_s=2.0)
        pass_time(coordinator, engine, 59)
        assert shown(coordinator, early, other) == ["held", "running"]
        engine.end(other, ran_s=50.0)
        pass_time(coordinator, engine, 1)
        assert shown(coordinator, early) == ["running"]


@STEPS
@pytest.mark.parametrize("restart", [False, True])
def test_a_retry_comes_after_its_pause(tmp_path: Path, step_s: float, restart: bool) -> None:
    """Nobody sees a step forward while no coordinator runs; then it is late as after any pause."""
    engine = ManualEngine()
    with engine.coordinator(tmp_path) as coordinator:
        job = submit(coordinator, retries=1, retry_pause_s=30.0)
        pass_time(coordinator, engine, 1)
        engine.end(job, code=1, ran_s=1.0)
        coordinator.turn()
        pass_time(coordinator, engine, 10)
        if not restart:
            engine.now += step_s
            pass_time(coordinator, engine, 19)
            assert engine.begun == [(job, 1)]
            pass_time(coordinator, engine, 1)
            assert engine.begun == [(job, 1), (job, 2)]
    if restart:
        engine.now += step_s
        with engine.coordinator(tmp_path) as coordinator:
            pass_time(coordinator, engine, 30)
            assert engine.begun == [(job, 1), (job, 2)]


def test_the_clock_is_set_back_while_no_coordinator_runs(tmp_path: Path) -> None:
    engine = ManualEngine(2)
    with engine.coordinator(tmp_path) as coordinator:
        first, second = submit(coordinator), submit(coordinator)
        pass_time(coordinator, engine, 10)
    engine.now -= 3600.0
    engine.wait(10.0)
    engine.end(first, ran_s=20.0)
    with engine.coordinator(tmp_path) as coordinator:
        coordinator.turn()
        assert used(coordinator, ended(coordinator, first))["elapsed_s"] == pytest.approx(20.0)
        assert coordinator.job_table.open(second).since_s <= engine.now
        pass_time(coordinator, engine, 5)
        assert coordinator.cluster.running[second].attained_s(engine.now) >= 5.0


@STEPS
def test_a_new_coordinator_goes_by_the_clock_that_was_set(tmp_path: Path, step_s: float) -> None:
    engine = ManualEngine()
    with engine.coordinator(tmp_path) as coordinator:
        job = submit(coordinator)
        pass_time(coordinator, engine, 10)
        engine.now += step_s
        pass_time(coordinator, engine, 1)
    with engine.coordinator(tmp_path) as coordinator:
        pass_time(coordinator, engine, 1)
        assert coordinator.cluster.running[job].attained_s(coordinator.cluster.now) == pytest.approx(12.0)


@STEPS
def test_timers_of_policies_and_holds_come_after_their_time(tmp_path: Path, step_s: float) -> None:
    engine = ManualEngine()
    with engine.coordinator(tmp_path) as coordinator:
        coordinator.hold(30.0)
        job = submit(coordinator)
        timers = [at - engine.now for at, _ in coordinator.machine.state.timers.pending()]
        engine.now += step_s
        coordinator.turn()
        assert [at - engine.now for at, _ in coordinator.machine.state.timers.pending()] == pytest.approx(
            timers
        )
        pass_time(coordinator, engine, 29)
        assert shown(coordinator, job) == ["waiting"]
        pass_time(coordinator, engine, 2)
        assert shown(coordinator, job) == ["running"]


def test_a_clock_that_goes_wrong_by_little_is_followed(tmp_path: Path) -> None:
    """As one that is slowed down to be right: time does not go back, and nothing is moved."""
    engine = ManualEngine()
    with engine.coordinator(tmp_path) as coordinator:
        job, seen = submit(coordinator), []
        began_s = coordinator.cluster.running[job].since_s
        for _ in range(100):
            engine.wait(1.0)
            engine.now -= 0.3
            coordinator.turn()
            seen.append(coordinator.cluster.now)
        assert seen == sorted(seen) and coordinator.cluster.running[job].since_s == began_s
        assert coordinator.cluster.now == pytest.approx(engine.now)


@pytest.mark.parametrize("policy", ["weigh", "weigh,aim=makespan", "weigh,pause=true"])
@pytest.mark.parametrize("most", [1, 2])
def test_who_was_submitted_by_a_clock_that_was_set_back_is_not_preferred_for_it(
    tmp_path: Path, policy: str, most: int
) -> None:
    """Nobody waits long beside such run times, so jobs start as if it had not been set."""
    starts = []
    for step_s in (0.0, -3600.0):
        engine = ManualEngine(2)
        with engine.coordinator(tmp_path / str(step_s), policy) as coordinator:
            submit(coordinator, tasks=2)
            for time_s in (90_000.0, 90_000.0, 30_000.0, 60_000.0):
                submit(coordinator, tasks=1, max_tasks=most, time_s=time_s)
            pass_time(coordinator, engine, 1)
            engine.now += step_s
            while running := list(coordinator.cluster.running):
                pass_time(coordinator, engine, 1)
                engine.end(running[0], ran_s=1.0)
                pass_time(coordinator, engine, 1)
        starts.append(engine.begun)
    assert starts[0] == starts[1] and len(starts[0]) == 5
