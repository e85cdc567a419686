"""Moves of several jobs by their owner: all of those that were named, or none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from agent.attempts.records import RunState
from profiles.errors import BadInput
from scheduler.coordinator.coordinator import Coordinator
from scheduler.engines.protocol import DeviceMoves
from scheduler.jobs.entry import Entry
from scheduler.jobs.specs import JobSpec
from scheduler.model.jobs import Cluster, Pool
from tests.support.scheduling.manual_engine import ManualEngine, shown, submit

FASTER_THERE = {"gpu": 10.0, "cpu": 1000.0}


class Layer(DeviceMoves):
    """Every program can be moved while it runs."""

    able = True

    def why_not(self, spec: JobSpec, devices: Sequence[int] = ()) -> str:
        return "" if spec.move else "it was submitted with --no-move"

    def told(self, job: Entry, state: RunState | None) -> str:
        return ""


def engine_of(gpus: int, cpus: int) -> ManualEngine:
    engine = ManualEngine()
    engine.cluster = Cluster((Pool("gpu", gpus, kind="gpu"), Pool("cpu", cpus, kind="cpu")))
    engine.device_moves = Layer()
    return engine


def begun(coordinator: Coordinator, *, move: bool = True) -> int:
    """Submit a job that starts on a GPU; return its number."""
    job = submit(coordinator, device="any", expect_s=FASTER_THERE, move=move)
    assert coordinator.job_table.open(job).place.pool == "gpu"
    return job


def test_a_move_that_is_refused_for_one_job_moves_no_other(tmp_path: Path) -> None:
    engine = engine_of(2, 2)
    with engine.coordinator(tmp_path) as coordinator:
        jobs = begun(coordinator), begun(coordinator, move=False)
        with pytest.raises(BadInput, match=f"job {jobs[1]} cannot move"):
            coordinator.migrate(jobs, "cpu")
        coordinator.turn()
        assert shown(coordinator, *jobs) == ["running", "running"] and not engine.asks


def test_where_there_is_room_for_some_the_others_are_left_out(tmp_path: Path) -> None:
    engine = engine_of(2, 1)
    with engine.coordinator(tmp_path) as coordinator:
        jobs = begun(coordinator), begun(coordinator)
        left_out = coordinator.migrate(jobs, "cpu")
        assert engine.asks == [(jobs[0], "move")] and shown(coordinator, *jobs) == ["stopping", "running"]
        assert list(left_out) == [jobs[1]] and "cannot move to cpu" in left_out[jobs[1]].sentence
