"""A coordinator in virtual time: jobs take exactly their limit, and nothing is started in truth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agent.attempts.records import Result, Usage, Want
from scheduler.coordinator.coordinator import Coordinator
from scheduler.coordinator.journal.journal import Journal
from scheduler.engines.protocol import Engine, Report
from scheduler.jobs.entry import Entry
from scheduler.jobs.specs import JobSpec
from scheduler.model.jobs import Cluster, Placement

BEGIN_S = 1_700_000_000.0


class VirtualEngine(Engine):
    """Reports the end of each job when its limit is over.

    Attributes:
        now: the time. starts: of each job, as they were asked for.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.now = BEGIN_S
        self.starts: dict[int, float] = {}
        self.ends: dict[int, tuple[Entry, float]] = {}

    def place(self, job: Entry, placement: Placement) -> None: ...

    def occupy(self, job: Entry) -> None: ...

    def free(self, job: Entry) -> None: ...

    def recover(self, job: Entry) -> None: ...

    def start(self, jobs: Sequence[tuple[Entry, dict[str, str]]]) -> None:
        for job, _ in jobs:
            self.starts[job.id] = self.now
            assert job.way.time_s is not None
            self.ends[job.id] = job, self.now + job.way.time_s

    def ask(self, job: Entry, want: Want) -> None:
        if want == "end":
            self.ends[job.id] = job, self.now

    def poll(self) -> list[Report]:
        reports = []
        for job, end_s in list(self.ends.values()):
            if end_s <= self.now + 1e-6:
                del self.ends[job.id]
                run_s = self.now - self.starts[job.id]
                result = Result("exited", self.now, code=0, usage=Usage(run_s, run_s, run_s, 0.0, 0.0))
                reports.append(Report(job.id, job.attempt, "ended", self.now, result))
        return reports

    def urgent(self) -> bool:
        return any(end_s <= self.now + 1e-6 for _, end_s in self.ends.values())

    def fileno(self) -> int:
        raise NotImplementedError

    def close(self) -> None: ...


class Virtual:
    """One coordinator, its engine, and its time."""

    def __init__(self, coordinator: Coordinator, engine: VirtualEngine) -> None:
        self.coordinator, self.engine = coordinator, engine

    def submit(self, *specs: dict[str, Any]) -> list[int]:
        """Submit jobs, each with ``true`` as its command."""
        made = [JobSpec(**{"command": ("true",), "folder": "/", **spec}) for spec in specs]
        return [entry.id for entry in self.coordinator.submit(made, {})]

    def until(self, time_s: float) -> None:
        """Let everything happen up to a time after the begin."""
        engine = self.engine
        while due := [end_s for _, end_s in engine.ends.values() if end_s <= BEGIN_S + time_s]:
            engine.now = min(due)
            self.coordinator.turn()
        engine.now = BEGIN_S + time_s
        self.coordinator.turn()

    def start_s(self, job: int) -> float:
        """Go on until a job starts; return when."""
        while job not in self.engine.starts:
            self.engine.now = min(end_s for _, end_s in self.engine.ends.values())
            self.coordinator.turn()
        return self.engine.starts[job]


@contextmanager
def virtual(folder: Path, cluster: Cluster, policy: str) -> Iterator[Virtual]:
    """Make a coordinator in a new folder below ``folder``."""
    journal = Journal(folder / f"home-{sum(1 for _ in folder.iterdir())}")
    engine = VirtualEngine(cluster)
    try:
        yield Virtual(Coordinator(journal, engine, policy, clock=lambda: engine.now), engine)
    finally:
        journal.close()
