"""Requests to attempts on this machine."""

from __future__ import annotations

from contextlib import closing
from errno import ENOSPC
from pathlib import Path

import pytest

from agent.attempts.folder import Attempt
from agent.attempts.records import Request
from scheduler.engines.local.engine import LocalEngine
from scheduler.jobs.entry import Entry, Stage
from scheduler.jobs.specs import JobSpec
from scheduler.model.jobs import Cluster, Placement, Pool


def test_a_request_that_finds_no_room_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the coordinator's to make it again."""

    def no_room(attempt: Attempt, request: Request) -> None:
        raise OSError(ENOSPC, "No space left on device")

    spec, place = JobSpec(command=("true",), folder="/"), Placement("core", 1)
    job = Entry(1, spec, "", 0.0, stage=Stage.RUNNING, attempt=1, alive=True, placement=place, cores=(0,))
    with closing(LocalEngine(tmp_path, tmp_path / "r", Cluster((Pool("core", 1),)), [[0]])) as engine:
        engine._watch(job)
        monkeypatch.setattr(Attempt, "write_request", no_room)
        with pytest.raises(OSError, match="No space left"):
            engine.ask(job, "pause")
