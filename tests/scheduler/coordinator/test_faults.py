"""Errors of tenbin's own: the job is set aside with them, and everything else goes on."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from profiles.errors import BadInput
from scheduler.coordinator import ends
from scheduler.coordinator import events as ev
from scheduler.coordinator.coordinator import Coordinator
from scheduler.coordinator.ends import FAULT
from scheduler.coordinator.machine_state import MachineState
from scheduler.coordinator.transitions import TABLE, Transition
from scheduler.jobs.entry import Entry, Phase
from scheduler.model.jobs import Cluster, Pool
from scheduler.policies.backfill.fcfs import Fcfs
from scheduler.prediction.tracker import PredictionTracker
from tests.support.scheduling.manual_engine import ManualEngine, shown, submit


class Odd(Exception):
    """An error that nobody expects."""


@pytest.fixture(autouse=True)
def no_faults() -> None:
    """Faults are meant here."""


@pytest.fixture
def no_end_of_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the handler of the end of an attempt choke on job 1."""

    def choke(m: MachineState, event: ev.AttemptOver) -> ev.Event | None:
        if event.entry.id == 1:
            event.entry.alive = False
            raise Odd("of job 1")
        return ends.attempt_over(m, event)

    monkeypatch.setitem(TABLE, ev.AttemptOver, dict.fromkeys(Phase, Transition(choke)))


def check_set_aside(coordinator: Coordinator, job: int) -> None:
    entry = coordinator.job_table.entry(job)
    assert entry is not None and entry.shown == "failed" and not entry.alive
    assert entry.trouble == f"{FAULT}: Odd: of job {job}"


@pytest.mark.usefixtures("no_end_of_first")
@pytest.mark.parametrize("restart", [False, True])
def test_a_handler_chokes(tmp_path: Path, restart: bool, caplog: pytest.LogCaptureFixture) -> None:
    """The other events of the turn, jobs that wait, and the next start."""
    engine = ManualEngine(2)
    with engine.coordinator(tmp_path) as coordinator:
        first, second, third = submit(coordinator), submit(coordinator), submit(coordinator, cores=2)
        follower = submit(coordinator, after=(first,))
        engine.end(first)
        engine.end(second)
        if not restart:
            coordinator.turn()
    for _ in range(2):
        with engine.coordinator(tmp_path) as coordinator:
            coordinator.turn()
            check_set_aside(coordinator, first)
            assert shown(coordinator, second, third, follower) == ["done", "running", "cancelled"]
            assert engine.begun == [(first, 1), (second, 1), (third, 1)]
    (record,) = (record for record in caplog.records if record.exc_info)
    assert record.levelno == logging.ERROR and "job 1, AttemptOver" in record.getMessage()


def test_what_cannot_be_learnt_from_a_job_does_not_make_it_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def choke(*about: object) -> None:
        raise OSError("of the statistics")

    monkeypatch.setattr(PredictionTracker, "ended", choke)
    engine = ManualEngine()
    with engine.coordinator(tmp_path) as coordinator:
        job = submit(coordinator)
        engine.end(job)
        coordinator.turn()
        assert shown(coordinator, job) == ["done"]


def test_a_job_on_which_a_handler_chokes_while_it_runs_ends_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it has ended it has its cores."""
    engine = ManualEngine()
    with engine.coordinator(tmp_path) as coordinator:
        first, second = submit(coordinator), submit(coordinator)
        monkeypatch.setitem(TABLE, ev.SuspendedByOwner, dict.fromkeys(Phase, Transition(_choke)))
        coordinator.suspend([first])
        assert shown(coordinator, first, second) == ["running", "waiting"]
        assert engine.asks == [(first, "end")]
    with engine.coordinator(tmp_path) as coordinator:
        engine.end(first, "cancelled")
        coordinator.turn()
        check_set_aside(coordinator, first)
        assert shown(coordinator, second) == ["running"]


def _choke(m: MachineState, event: ev.SuspendedByOwner) -> None:
    raise Odd(f"of job {event.entry.id}")


def test_those_go_on_that_wait_for_a_job_on_which_a_handler_chokes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = ManualEngine()
    with engine.coordinator(tmp_path) as coordinator:
        first = submit(coordinator)
        after, after_any = submit(coordinator, after=(first,)), submit(coordinator, after_any=(first,))
        holds = coordinator.machine.state.holds
        followers = holds.followers

        def choke(ended: Entry) -> Iterator[Entry]:
            monkeypatch.setattr(holds, "followers", followers)
            raise Odd(f"of job {ended.id}")

        monkeypatch.setattr(holds, "followers", choke)
        engine.end(first, code=1)
        coordinator.turn()
        assert shown(coordinator, first, after, after_any) == ["failed", "cancelled", "running"]


def test_an_engine_chokes_on_one_start(tmp_path: Path) -> None:
    engine = ManualEngine(2)
    with engine.coordinator(tmp_path) as coordinator:
        engine.troubles[2] = Odd("of job 2")
        blocker = submit(coordinator, cores=2)
        bad, good = submit(coordinator), submit(coordinator)
        engine.end(blocker)
        coordinator.turn()
        check_set_aside(coordinator, bad)
        assert shown(coordinator, good) == ["running"] and (good, 1) in engine.begun


def test_a_new_coordinator_chokes_on_one_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = ManualEngine()
    with engine.coordinator(tmp_path) as coordinator:
        first, second, third = submit(coordinator), submit(coordinator), submit(coordinator)
    recover = PredictionTracker.recover

    def choke(tracker: PredictionTracker, entry: Entry) -> None:
        if entry.id == second:
            raise Odd(f"of job {second}")
        recover(tracker, entry)

    monkeypatch.setattr(PredictionTracker, "recover", choke)
    with engine.coordinator(tmp_path) as coordinator:
        coordinator.turn()
        check_set_aside(coordinator, second)
        engine.end(first)
        coordinator.turn()
        assert shown(coordinator, first, third) == ["done", "running"]


def test_a_policy_that_chokes_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, decide = ManualEngine(), Fcfs.decide

    def choke(policy: Fcfs, view: object, event: object) -> Sequence[object]:
        raise Odd("of the policy")

    with engine.coordinator(tmp_path) as coordinator:
        monkeypatch.setattr(Fcfs, "decide", choke)
        first, second = submit(coordinator), submit(coordinator)
        coordinator.cancel([second])
        assert shown(coordinator, first, second) == ["waiting", "cancelled"] and not engine.begun
        monkeypatch.setattr(Fcfs, "decide", decide)
        third = submit(coordinator)
        assert shown(coordinator, first, third) == ["running", "waiting"]


def test_a_policy_that_chokes_is_asked_again_though_nothing_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, decide = ManualEngine(), Fcfs.decide

    def choke(policy: Fcfs, view: object, event: object) -> Sequence[object]:
        raise Odd("of the policy")

    with engine.coordinator(tmp_path) as coordinator:
        monkeypatch.setattr(Fcfs, "decide", choke)
        job = submit(coordinator)
        monkeypatch.setattr(Fcfs, "decide", decide)
        due_s = coordinator.next_timer_s()
        assert due_s is not None
        engine.wait(due_s - engine.now)
        coordinator.turn()
        assert shown(coordinator, job) == ["running"]


def test_a_policy_that_chokes_at_the_start_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, begin = ManualEngine(), Fcfs.begin

    def choke(policy: Fcfs, view: object) -> None:
        raise Odd("of the policy")

    monkeypatch.setattr(Fcfs, "begin", choke)
    with engine.coordinator(tmp_path) as coordinator:
        monkeypatch.setattr(Fcfs, "begin", begin)
        assert shown(coordinator, submit(coordinator)) == ["running"]


def test_a_policy_that_does_not_schedule_such_a_cluster_is_refused(tmp_path: Path) -> None:
    engine = ManualEngine()
    engine.cluster = Cluster((Pool("gpu", 1, kind="gpu"), Pool("cpu", 1, rank=1, kind="cpu")))
    with (
        pytest.raises(BadInput, match="regions schedules one class"),
        engine.coordinator(tmp_path, "regions"),
    ):
        pass
