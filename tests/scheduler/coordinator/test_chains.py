"""Long chains: each job waits for the one before."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from scheduler.coordinator.coordinator import Coordinator
from tests.support.scheduling.manual_engine import ManualEngine, a_job

LENGTH = 3_000


def submit_chain(coordinator: Coordinator) -> list[int]:
    """Submit a chain, all at once, and return the numbers of its jobs."""
    waits_for = {place: [place - 1] for place in range(1, LENGTH)}
    return [entry.id for entry in coordinator.submit([a_job()] * LENGTH, {}, waits_for)]


def test_a_failure_ends_a_chain(tmp_path: Path) -> None:
    engine = ManualEngine()
    with engine.coordinator(tmp_path) as coordinator:
        first, *others = submit_chain(coordinator)
        engine.end(first, code=3)
        coordinator.turn()
        assert not coordinator.job_table.entries
        ends = {entry.id: entry.shown for entry in coordinator.journal.entries()}
        assert ends == {first: "failed"} | dict.fromkeys(others, "cancelled")


def test_a_chain_is_held_over_a_restart(tmp_path: Path) -> None:
    """Behind its first job; then it runs in order up to one that is cancelled, and so are those behind."""
    engine = ManualEngine()
    with engine.coordinator(tmp_path) as coordinator:
        chain = submit_chain(coordinator)
    with engine.coordinator(tmp_path) as coordinator:
        stages = [entry.shown for entry in coordinator.job_table.entries.values()]
        assert stages == ["running"] + ["held"] * (LENGTH - 1)
        for job in chain[:19]:
            engine.end(job)
            coordinator.turn()
        assert engine.begun == [(job, 1) for job in chain[:20]]
        coordinator.cancel([chain[19]])
        engine.end(chain[19], "cancelled")
        coordinator.turn()
        assert not coordinator.job_table.entries and len(engine.begun) == 20
        ends = Counter(entry.shown for entry in coordinator.journal.entries())
        assert ends == {"done": 19, "cancelled": LENGTH - 19}
