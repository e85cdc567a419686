"""Jobs parked on a node of a cluster, which go on only there: two nodes with a device each, virtual time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from profiles.errors import BadInput
from scheduler.coordinator.journal.journal import Journal
from scheduler.engines.protocol import DeviceTrials, Report
from scheduler.jobs.entry import Entry, Stage
from tests.scheduler.coordinator.test_program_trials import DeviceEngine, Lab


class ClusterEngine(DeviceEngine):
    """Has a node for each device."""

    named = True

    def __init__(self, store: Path) -> None:
        super().__init__(store)
        self.trials, self.nodes = DeviceTrials(), self

    def absent(self) -> Mapping[int, str]:
        return {}

    def names(self) -> Sequence[str]:
        return "n0", "n1"

    def out_of_service(self, pool: str) -> int:
        return 0

    def where(self, job: Entry) -> list[str]:
        return [f"n{number}" for number in job.devices]

    def have_room(self, job: Entry) -> bool:
        return True

    def hindrance(self, job: Entry) -> str:
        return ""

    def lose(self, job: Entry) -> None:
        """Let a job's supervisor be killed."""
        self.reports.append(Report(job.id, job.attempt, "lost", self.now))


@contextmanager
def cluster(home: Path, policy: str) -> Iterator[tuple[Lab, ClusterEngine]]:
    journal = Journal(home)
    engine = ClusterEngine(home)
    try:
        yield Lab(journal, engine, policy), engine
    finally:
        journal.close()


def place(job: Entry) -> str:
    return job.placement.pool if job.placement else ""


def test_it_goes_on_where_it_is_parked(tmp_path: Path) -> None:
    """Its device has another job when its owner resumes it, and the other device is idle: it waits."""
    with cluster(tmp_path, "fcfs") as (here, _):
        job = here.submit(device="any")
        here.run(1.0)
        assert (place(job), job.hosts) == ("pocl-0", ["n0"])
        here.coordinator.suspend([job.id])
        here.run(1.0)
        other = here.submit(device="pocl-0")
        here.run(1.0)
        here.coordinator.resume([job.id])
        here.run(1.0)
        assert (job.stage, other.stage) == (Stage.WAITING, Stage.RUNNING)
        here.run(60.0)
        assert (job.stage, place(job), job.attempt) == (Stage.RUNNING, "pocl-0", 1)
        with pytest.raises(BadInput, match="its program stays on its device of n0"):
            here.coordinator.migrate([job.id], "pocl-1")
        here.run(40.0)
        assert job.stage is Stage.DONE


def test_policies_leave_it_where_it_is(tmp_path: Path) -> None:
    """The better device is free, and a program with checkpoints would go there."""
    with cluster(tmp_path, "mctbm") as (here, _):
        first = here.submit(expect_s={"pocl-0": 40.0, "pocl-1": 10.0}, device="pocl-1")
        here.run(1.0)
        job = here.submit(expect_s={"pocl-0": 40.0, "pocl-1": 30.0})
        here.run(30.0)
        assert first.stage is Stage.DONE and (job.stage, place(job)) == (Stage.RUNNING, "pocl-0")


@pytest.mark.parametrize("held", [True, False])
def test_lost_while_it_is_parked_it_runs_again_anywhere(tmp_path: Path, held: bool) -> None:
    """By its owner, or waiting for its device already: its next attempt takes the idle one."""
    with cluster(tmp_path, "fcfs") as (here, engine):
        job = here.submit(device="any")
        here.run(1.0)
        here.coordinator.suspend([job.id])
        here.run(1.0)
        other = here.submit(device="pocl-0")
        here.run(1.0)
        if not held:
            here.coordinator.resume([job.id])
            here.run(1.0)
            assert job.stage is Stage.WAITING
        engine.folders.attempt(job).path.rename(tmp_path / "lost")
        engine.lose(job)
        here.run(1.0)
        if held:
            here.coordinator.resume([job.id])
            here.run(1.0)
        assert (place(other), place(job), job.attempt) == ("pocl-0", "pocl-1", 2)
