"""Requests to running jobs: of several in one turn the last one counts, by a number of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.attempts.records import Want
from scheduler.jobs.entry import Entry
from scheduler.model.jobs import Cluster, Pool
from tests.support.scheduling.virtual_engine import virtual


def test_the_last_request_of_a_turn_is_asked_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the earlier one, asked by the later one's number, would be obeyed in its place."""
    asked: list[tuple[int, int, Want]] = []

    def ask(job: Entry, want: Want) -> None:
        asked.append((job.id, job.request, want))

    with virtual(tmp_path, Cluster((Pool("core", 2),)), "fcfs") as one:
        first, second = one.submit({"time_s": 9.0}, {"time_s": 9.0})
        monkeypatch.setattr(one.engine, "ask", ask)
        dispatcher, entries = one.coordinator.dispatcher, one.coordinator.job_table.entries
        dispatcher.request(entries[first], "park")
        dispatcher.carry_out()
        dispatcher.request_again(entries[first])
        dispatcher.request(entries[second], "pause")
        dispatcher.request(entries[first], "run")
        dispatcher.carry_out()
        dispatcher.carry_out()
    assert asked == [(first, 1, "park"), (second, 1, "pause"), (first, 2, "run")]
