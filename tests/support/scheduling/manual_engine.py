"""An engine whose attempts do what a test says: nothing happens by itself, also to time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from agent.attempts.records import Result, Usage, Want
from scheduler.coordinator.coordinator import Coordinator
from scheduler.coordinator.journal.journal import Journal
from scheduler.engines.protocol import Report
from scheduler.jobs.entry import Entry
from scheduler.jobs.specs import JobSpec
from scheduler.model.jobs import Cluster, Pool
from tests.support.scheduling.virtual_engine import VirtualEngine

How = Literal["exited", "time-limit", "cancelled", "checkpointed", "interrupted"]


class ManualEngine(VirtualEngine):
    """Keeps what it was asked for, and reports what it is given; it outlives coordinators.

    Attributes:
        now: what the clock shows. steady_s: the time that has passed, whatever the clock shows.
        begun: the attempts that were started, as (job, attempt). asks: (job, request), in their order.
        troubles: errors by the number of the job whose start, or recovery, raises them.
        full: the next start finds no room on the disk.
    """

    def __init__(self, cores: int = 1, *, cluster: Cluster | None = None) -> None:
        super().__init__(cluster or Cluster((Pool("core", cores),)))
        self.steady_s = 0.0
        self.begun: list[tuple[int, int]] = []
        self.asks: list[tuple[int, Want]] = []
        self.troubles: dict[int, Exception] = {}
        self.full = False
        self.ended: dict[tuple[int, int], Result] = {}
        self._reports: list[Report] = []

    def start(self, jobs: Sequence[tuple[Entry, dict[str, str]]]) -> None:
        if self.full:
            self.full = False
            raise OSError(28, "No space left on device")
        for job, _ in jobs:
            if (trouble := self.troubles.get(job.id)) is not None:
                raise trouble
        self.begun += [(job.id, job.attempt) for job, _ in jobs]

    def ask(self, job: Entry, want: Want) -> None:
        self.asks.append((job.id, want))

    def recover(self, job: Entry) -> None:
        key = job.id, job.attempt
        if key in self.ended:
            self._reports.append(Report(*key, "ended", self.now, self.ended[key]))
        elif key not in self.begun:
            self._reports.append(Report(*key, "never", self.now))

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
        self.steady_s += seconds

    def end(self, job_id: int, how: How = "exited", code: int = 0, *, ran_s: float = 0.0) -> None:
        """Let a job's last attempt end; a coordinator hears of it at its next turn, or when it starts."""
        attempt = self._last_attempt(job_id)
        result = Result(how, self.now, code=code, usage=Usage(ran_s, ran_s, ran_s, 0.0, 0.0))
        self.ended[job_id, attempt] = result
        self._reports.append(Report(job_id, attempt, "ended", self.now, result))

    def end_all(self, coordinator: Coordinator) -> None:
        """Let one running job after the other succeed, and time pass, until nothing more happens."""
        while coordinator.job_table.entries:
            if running := list(coordinator.cluster.running):
                self.end(running[0])
            elif (due_s := coordinator.next_timer_s()) is not None:
                self.wait(max(0.0, due_s - self.now))
            else:
                return
            coordinator.turn()

    def report_started(self, job_id: int) -> None:
        """Report that the command of a job's last attempt has started."""
        self._reports.append(Report(job_id, self._last_attempt(job_id), "started", self.now))

    def _last_attempt(self, job_id: int) -> int:
        return max(attempt for job, attempt in self.begun if job == job_id)

    def poll(self) -> list[Report]:
        reports, self._reports = self._reports, []
        return reports

    def urgent(self) -> bool:
        return bool(self._reports)

    @contextmanager
    def coordinator(self, home: Path, policy: str = "fcfs", **more: Any) -> Iterator[Coordinator]:
        """Make a coordinator of this engine, with what the journal in ``home`` says.

        Args:
            more: of its arguments, ``unit`` for instance.
        """
        journal = Journal(home)
        self._reports.clear()
        more |= {"clock": lambda: self.now, "steady": lambda: self.steady_s}
        try:
            yield Coordinator(journal, self, policy, **more)
        finally:
            journal.close()


def a_job(**fields: Any) -> JobSpec:
    """Describe a job, ``true`` if nothing else is said."""
    return JobSpec(**{"command": ("true",), "folder": "/", "time_s": 100.0, **fields})


def submit(coordinator: Coordinator, **fields: Any) -> int:
    """Submit one job; return its number."""
    return coordinator.submit([a_job(**fields)], {})[0].id


def submit_array(coordinator: Coordinator, members: int, **fields: Any) -> tuple[int, list[int]]:
    """Submit an array with indices from 1 on; return its number, and those of its jobs."""
    entries = coordinator.submit([a_job(**fields)], {}, arrays={0: range(1, members + 1)})
    assert entries[0].array is not None
    return entries[0].array, [entry.id for entry in entries]


def why(coordinator: Coordinator, job_id: int) -> str:
    """Say why a job does not run."""
    return coordinator.why(job_id).sentence


def shown(coordinator: Coordinator, *job_ids: int) -> list[str]:
    """List the stages of jobs, as everybody is told of them."""
    entries = [coordinator.job_table.entry(job_id) for job_id in job_ids]
    return ["" if entry is None else entry.shown.value for entry in entries]
