"""Several things that happen in one turn: what is carried out follows from the state at its end."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from agent.attempts.records import Want
from profiles.errors import BadInput
from scheduler.coordinator.coordinator import Coordinator
from scheduler.coordinator.decisions import apply, request, request_again, stop
from scheduler.jobs.entry import Entry
from scheduler.model.events import Suspend
from scheduler.model.jobs import Cluster, Pool
from tests.support.scheduling.manual_engine import ManualEngine, shown, submit
from tests.support.scheduling.virtual_engine import virtual

DEADLINE_S = 60.0


@pytest.mark.parametrize("policy", ["fcfs", "first-fit", "easy", "fifo-min", "fifo-mid", "fifo-max", "las"])
def test_a_job_whose_deadline_passes_as_another_ends_does_not_run(tmp_path: Path, policy: str) -> None:
    """Policies that decide at each event hear of the end first, and would start it."""
    engine = ManualEngine()
    with engine.coordinator(tmp_path, policy) as coordinator:
        first = submit(coordinator)
        late = submit(coordinator, deadline_s=engine.now + DEADLINE_S)
        last = submit(coordinator)
        engine.wait(DEADLINE_S)
        engine.end(first)
        coordinator.turn()
        assert shown(coordinator, first, late, last) == ["done", "cancelled", "running"]
        assert engine.begun == [(first, 1), (last, 1)]
        assert "start" not in [kind for _, kind, _ in coordinator.job_table.history(late)]


def test_a_job_that_is_suspended_as_another_leaves_does_not_run(tmp_path: Path) -> None:
    engine = ManualEngine()
    with engine.coordinator(tmp_path) as coordinator:
        first, second = submit(coordinator), submit(coordinator)
        coordinator.suspend([first, second])
        assert shown(coordinator, first, second) == ["suspended", "suspended"]
        assert engine.begun == [(first, 1)] and engine.asks == [(first, "pause")]


def test_what_was_not_started_for_want_of_room_and_is_cancelled_never_starts(tmp_path: Path) -> None:
    engine = ManualEngine()
    with engine.coordinator(tmp_path) as coordinator:
        engine.full = True
        job = submit(coordinator)
        assert shown(coordinator, job) == ["running"] and not engine.begun
        coordinator.cancel([job])
        assert shown(coordinator, job) == ["cancelled"] and not engine.begun


def test_a_start_that_a_later_decision_of_the_turn_stops_is_not_carried_out(tmp_path: Path) -> None:
    """The engine knows no such attempt, so a request to it would be lost, and the job run for ever."""
    engine = ManualEngine()
    with engine.coordinator(tmp_path) as coordinator:
        engine.full = True
        job = submit(coordinator)
        coordinator.suspend([job])
        assert shown(coordinator, job) == ["suspended"] and not engine.begun
        coordinator.resume([job])
        assert engine.begun == [(job, 2)]


def test_a_job_that_is_suspended_as_its_deadline_passes_has_its_place_until_it_has_ended(
    tmp_path: Path,
) -> None:
    engine = ManualEngine()
    with engine.coordinator(tmp_path) as coordinator:
        job = submit(coordinator, deadline_s=engine.now + DEADLINE_S)
        waits = submit(coordinator)
        engine.wait(DEADLINE_S)
        coordinator.suspend([job])
        assert shown(coordinator, job, waits) == ["running", "waiting"] and engine.asks == [(job, "end")]
        engine.end(job, "cancelled")
        coordinator.turn()
        assert shown(coordinator, job, waits) == ["killed", "running"]


# -- a checkpoint is written, and something else happens ----------------------------------------------------


def stopping(coordinator: Coordinator, engine: ManualEngine) -> int:
    """Submit a job with a deadline, and have a checkpoint of it asked for; return its number."""
    job = submit(
        coordinator, checkpoint_signal=signal.SIGURG.value, deadline_s=engine.now + DEADLINE_S, requeue=False
    )
    stop(coordinator.machine.state, coordinator.job_table.open(job))
    coordinator.turn()
    assert shown(coordinator, job) == ["stopping"] and engine.asks == [(job, "checkpoint")]
    return job


@pytest.mark.parametrize("restart", [False, True])
def test_a_checkpoint_is_written_as_the_deadline_passes(tmp_path: Path, restart: bool) -> None:
    engine = ManualEngine(2)
    with engine.coordinator(tmp_path, "las-mq") as coordinator:
        job, other = stopping(coordinator, engine), submit(coordinator, cores=2)
        engine.wait(DEADLINE_S)
        engine.end(job, "checkpointed", 85)
        if not restart:
            coordinator.turn()
    if restart:
        with engine.coordinator(tmp_path, "las-mq") as coordinator:
            coordinator.turn()
    with engine.coordinator(tmp_path, "las-mq") as coordinator:
        coordinator.turn()
        entry = coordinator.job_table.entry(job)
        assert entry is not None and (entry.shown, entry.trouble) == ("killed", "it reached its deadline")
        assert engine.begun == [(job, 1), (other, 1)]


def test_a_checkpoint_is_written_as_the_owner_suspends(tmp_path: Path) -> None:
    engine = ManualEngine()
    with engine.coordinator(tmp_path) as coordinator:
        job = stopping(coordinator, engine)
        engine.wait(10.0)
        engine.end(job, "checkpointed", 85)
        coordinator.suspend([job])
        entry = coordinator.job_table.open(job)
        assert (entry.shown, entry.alive) == ("suspended", False)
        coordinator.resume([job])
        assert engine.begun == [(job, 1), (job, 2)]


def test_a_checkpoint_is_written_as_the_owner_cancels(tmp_path: Path) -> None:
    engine = ManualEngine()
    with engine.coordinator(tmp_path) as coordinator:
        job = stopping(coordinator, engine)
        engine.end(job, "checkpointed", 85)
        coordinator.cancel([job])
        assert shown(coordinator, job) == ["cancelled"] and engine.begun == [(job, 1)]


def test_a_supervisor_is_told_to_end_as_the_owner_cancels(tmp_path: Path) -> None:
    engine = ManualEngine()
    with engine.coordinator(tmp_path) as coordinator:
        job = submit(coordinator)
        coordinator.cancel([job])
        engine.end(job, "interrupted")
        coordinator.turn()
        assert shown(coordinator, job) == ["cancelled"] and engine.begun == [(job, 1)]


def test_nothing_is_asked_of_a_job_after_it_was_told_to_end(tmp_path: Path) -> None:
    """The supervisor reads the last request only, so a later one would take the cancel back."""
    engine = ManualEngine()
    with engine.coordinator(tmp_path) as coordinator:
        job = submit(coordinator, checkpoint_signal=signal.SIGURG.value)
        coordinator.cancel([job])
        with pytest.raises(BadInput, match=f"job {job} has been told to end"):
            coordinator.suspend([job])
        apply(coordinator.machine.state, Suspend(job))  # as a policy may
        coordinator.turn()
        assert engine.asks == [(job, "end")]
    with engine.coordinator(tmp_path) as coordinator:
        coordinator.turn()
        assert engine.asks == [(job, "end")] * 2


# Requests to running jobs: of several in one turn the last one counts, by a number of its own.


def test_the_last_request_of_a_turn_is_asked_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the earlier one, asked by the later one's number, would be obeyed in its place."""
    asked: list[tuple[int, int, Want]] = []

    def ask(job: Entry, want: Want) -> None:
        asked.append((job.id, job.request, want))

    with virtual(tmp_path, Cluster((Pool("core", 2),)), "fcfs") as one:
        first, second = one.submit({"time_s": 9.0}, {"time_s": 9.0})
        monkeypatch.setattr(one.engine, "ask", ask)
        m, entries = one.coordinator.machine.state, one.coordinator.job_table.entries
        request(m, entries[first], "park")
        one.coordinator.carry_out(one.coordinator.machine.effects())
        request_again(m, entries[first])
        request(m, entries[second], "pause")
        request(m, entries[first], "run")
        one.coordinator.carry_out(one.coordinator.machine.effects())
        one.coordinator.carry_out(one.coordinator.machine.effects())
    assert asked == [(first, 1, "park"), (second, 1, "pause"), (first, 2, "run")]


# Another job ends, or is seen to have started, in the same turn.

QUEUES = ["fcfs", "easy", "conservative", "weigh", "mctbm", "first-fit"]


@pytest.mark.parametrize("policy", [*QUEUES, "las"])
def test_a_waiting_job_is_cancelled_when_another_ends(tmp_path: Path, policy: str) -> None:
    """The policy begins anew without both, and is not told of an end that it has never heard of."""
    engine = ManualEngine()
    with engine.coordinator(tmp_path, policy) as coordinator:
        first, second, third = submit(coordinator), submit(coordinator), submit(coordinator)
        engine.end(first)
        coordinator.cancel([second])
        assert shown(coordinator, first, second, third) == ["done", "cancelled", "running"]


@pytest.mark.parametrize("policy", QUEUES)  # las may stop the first job for the third
def test_a_job_ends_when_another_is_seen_to_have_started(tmp_path: Path, policy: str) -> None:
    """Policies that do not care for starts must not wait for one before they decide."""
    engine = ManualEngine(2)
    with engine.coordinator(tmp_path, policy) as coordinator:
        first, second, third = submit(coordinator), submit(coordinator), submit(coordinator)
        for job in (first, second):
            engine.report_started(job)
        engine.end(first)
        coordinator.turn()
        assert shown(coordinator, first, second, third) == ["done", "running", "running"]


@pytest.mark.parametrize("policy", QUEUES)
def test_a_start_and_an_end_in_one_turn(tmp_path: Path, policy: str) -> None:
    """A job that has started and ended before anybody looked: the next one starts all the same."""
    engine = ManualEngine()
    with engine.coordinator(tmp_path, policy) as coordinator:
        first, second = submit(coordinator), submit(coordinator)
        engine.report_started(first)
        engine.end(first)
        coordinator.turn()
        assert shown(coordinator, first, second) == ["done", "running"]
