"""Use of resources by a job that was paused: a pause is no run time."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.processes.samples import Sample
from scheduler.jobs.entry import Stage
from scheduler.model.clusters import parse_cluster
from tenbin.server.job_list import used
from tests.support.scheduling.virtual_engine import BEGIN_S, virtual


@pytest.mark.parametrize(
    ("stage", "since_s", "last_s", "ran_s"),
    [
        (Stage.RUNNING, 0.0, 30.0, 30.0),
        (Stage.RUNNING, 600.0, 630.0, 80.0),  # it had run for 50 s before a pause
        (Stage.SUSPENDED, 50.0, 49.0, 50.0),
    ],
)
def test_a_pause_is_no_run_time(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    stage: Stage,
    since_s: float,
    last_s: float,
    ran_s: float,
) -> None:
    with virtual(tmp_path, parse_cluster("2"), "fcfs") as it:
        (job,) = it.submit({"time_s": 3600.0, "cores": 2})
        entry = it.coordinator.job_table.entries[job]
        entry.stage, entry.alive, entry.start_s = stage, True, BEGIN_S
        entry.since_s = BEGIN_S + since_s
        entry.served_s = 20.0 + (50.0 if since_s else 0.0)
        entry.kept_s = 20.0  # an earlier attempt, up to its checkpoint
        rows = [
            Sample(BEGIN_S + at_s, cpu_s, 1.0, 0.0, 0.0, 1, 1)
            for at_s, cpu_s in ((1.0, 2.0), (last_s, ran_s))
        ]
        monkeypatch.setattr(it.coordinator.folders, "samples", lambda job, attempt: rows)
        found = used(it.coordinator, entry)
        assert found["running_s"] == pytest.approx(ran_s)
        assert found["cpu_efficiency"] == pytest.approx(0.5)
