"""The ends of jobs that are told: which, to whom, when, and how often."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from agent.notifier import Notice
from scheduler.coordinator.coordinator import Coordinator
from scheduler.coordinator.journal.journal import Journal
from tests.support.scheduling.manual_engine import ManualEngine, a_job, submit


def kept(coordinator: Coordinator) -> list[Notice]:
    """Keep what is told from now on, in place of telling it."""
    notices: list[Notice] = []

    def tell(those: Iterable[Notice]) -> None:
        notices.extend(those)

    coordinator.notifier.tell = tell  # type: ignore[method-assign]
    return notices


def briefly(notices: Iterable[Notice]) -> list[tuple[Any, ...]]:
    names = ("JOB", "EVENT", "STATE", "EXIT_CODE")
    return [(notice.to, *(notice.about.get(f"TENBIN_{name}") for name in names)) for notice in notices]


def test_its_owner_hears_of_each_end(tmp_path: Path) -> None:
    engine = ManualEngine()
    with engine.coordinator(tmp_path) as coordinator:
        notices = kept(coordinator)
        done = submit(coordinator, notify="mail", name="fit", folder="/tmp")
        failed, waits = submit(coordinator, notify="./note"), submit(coordinator, notify="./note")
        submit(coordinator)
        engine.end(done)
        coordinator.turn()
        engine.end(failed, code=3)
        coordinator.turn()
        engine.end(waits, "cancelled")
        coordinator.turn()
        assert briefly(notices) == [
            ("mail", "1", "ended", "done", "0"),
            ("./note", "2", "failed", "failed", "3"),
            ("./note", "3", "ended", "cancelled", ""),
        ]
        assert notices[0].folder == "/tmp" and notices[0].sentence == "job 1 (fit): done"
        assert notices[1].about["TENBIN_REASON"] == "exit code 3"
        engine.end_all(coordinator)
        coordinator.retry([failed])
        engine.end(failed)
        coordinator.turn()
        assert briefly(notices[3:]) == [("./note", "2", "ended", "done", "0")]


def test_of_a_job_that_is_tried_again_the_last_end_is_told(tmp_path: Path) -> None:
    engine = ManualEngine()
    with engine.coordinator(tmp_path) as coordinator:
        notices = kept(coordinator)
        job = submit(coordinator, notify="mail", retries=1, retry_pause_s=10.0)
        for _ in range(2):
            assert not notices
            engine.end(job, code=1)
            coordinator.turn()
            engine.wait(10.0)
            coordinator.turn()
        assert briefly(notices) == [("mail", "1", "failed", "failed", "1")]


def test_an_array_is_told_as_a_whole_and_each_of_its_jobs_to_the_machine(tmp_path: Path) -> None:
    engine = ManualEngine(2)
    with engine.coordinator(tmp_path, on_event="log") as coordinator:
        notices = kept(coordinator)
        coordinator.submit([a_job(notify="mail")], {}, arrays={0: [3, 5]})
        engine.end(3, "time-limit")
        coordinator.turn()
        assert briefly(notices) == [("log", "1[5]", "failed", "killed", "")]
        engine.end(2)
        coordinator.turn()
        assert briefly(notices[1:]) == [
            ("log", "1[3]", "ended", "done", "0"),
            ("mail", "1", "failed", "killed", None),
        ]


def test_what_cannot_be_noted_is_not_told_yet_and_what_was_told_is_not_told_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = ManualEngine()
    with engine.coordinator(tmp_path) as coordinator:
        notices = kept(coordinator)
        job, later = submit(coordinator, notify="mail"), submit(coordinator, notify="mail")
        with monkeypatch.context() as broken:
            broken.setattr(Journal, "commit", full)
            engine.end(job)
            coordinator.turn()
        assert not notices
        coordinator.turn()
        assert briefly(notices) == [("mail", "1", "ended", "done", "0")]
    engine.end(later, code=1)  # nobody hears of it yet
    with engine.coordinator(tmp_path) as coordinator:
        notices = kept(coordinator)
        coordinator.turn()
        assert briefly(notices) == [("mail", "2", "failed", "failed", "1")]
    with engine.coordinator(tmp_path) as coordinator:
        notices = kept(coordinator)
        coordinator.turn()
        assert not notices


def full(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")
