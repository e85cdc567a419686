"""Requests to running jobs: of several in one turn the last one counts, by a number of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.attempts.records import Want
from scheduler.coordinator.decisions import request, request_again
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
        m, entries = one.coordinator.machine.state, one.coordinator.job_table.entries
        request(m, entries[first], "park")
        one.coordinator.carry_out(one.coordinator.machine.effects())
        request_again(m, entries[first])
        request(m, entries[second], "pause")
        request(m, entries[first], "run")
        one.coordinator.carry_out(one.coordinator.machine.effects())
        one.coordinator.carry_out(one.coordinator.machine.effects())
    assert asked == [(first, 1, "park"), (second, 1, "pause"), (first, 2, "run")]
