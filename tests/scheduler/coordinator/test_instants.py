"""Several things that happen at one instant, in a coordinator that looks only when it is told to."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scheduler.coordinator.coordinator import Coordinator
from scheduler.coordinator.journal.journal import Journal
from scheduler.engines.local.discovery import divide
from scheduler.engines.local.engine import LocalEngine
from scheduler.jobs.entry import Stage
from scheduler.jobs.specs import JobSpec

QUEUES = ["fcfs", "easy", "conservative", "mctbm", "first-fit"]
Make = Callable[[str, int], Coordinator]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Make a coordinator of some cores, in this process; supervisors and jobs are real."""
    made: list[Coordinator] = []

    def build(policy: str, cores: int) -> Coordinator:
        home = tmp_path / "home"
        machine = divide("fcfs" if policy == "mctbm" else policy, cores, None)
        journal = Journal(home)
        made.append(
            Coordinator(journal, LocalEngine(home, home / "r", machine.cluster, machine.cores), policy)
        )
        return made[-1]

    yield build
    for coordinator in made:
        until(lambda c=coordinator: c.turn() or not c.job_table.entries)  # type: ignore[misc]
        coordinator.engine.close()  # type: ignore[attr-defined]
        coordinator.journal.close()


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def spec(*command: str) -> JobSpec:
    return JobSpec(command=command, folder="/", time_s=60)


def attempt(coordinator: Coordinator, job_id: int) -> Path:
    return coordinator.journal.store / "jobs" / str(job_id) / "attempt-1"


def stage(coordinator: Coordinator, job_id: int) -> Stage | None:
    return coordinator.job_table.stage(job_id)


@pytest.mark.parametrize("policy", [*QUEUES, "las"])
def test_a_waiting_job_is_cancelled_when_another_ends(make: Make, policy: str) -> None:
    """The policy begins anew without both, and is not told of an end that it has never heard of."""
    coordinator = make(policy, 1)
    one, two, three = (job.id for job in coordinator.submit([spec("true")] * 3, {"PATH": "/usr/bin:/bin"}))
    until((attempt(coordinator, one) / "result.json").exists)
    coordinator.cancel([two])
    assert stage(coordinator, two) is Stage.CANCELLED
    until(lambda: coordinator.turn() or coordinator.job_table.settled(three))  # type: ignore[func-returns-value]
    assert [stage(coordinator, job) for job in (one, three)] == [Stage.DONE] * 2


@pytest.mark.parametrize("policy", QUEUES)  # las may stop the first job for the third
def test_a_job_ends_when_another_is_seen_to_have_started(make: Make, policy: str) -> None:
    """Policies that do not care for starts must not wait for one before they decide."""
    coordinator = make(policy, 2)
    one, two = (
        job.id for job in coordinator.submit([spec("true"), spec("sleep", "1")], {"PATH": "/usr/bin:/bin"})
    )
    (three,) = (job.id for job in coordinator.submit([spec("sleep", "0.5")], {"PATH": "/usr/bin:/bin"}))
    until((attempt(coordinator, one) / "result.json").exists)
    until((attempt(coordinator, two) / "state.json").exists)
    until(lambda: coordinator.turn() or stage(coordinator, one) is Stage.DONE)  # type: ignore[func-returns-value]
    assert stage(coordinator, three) in (Stage.RUNNING, Stage.DONE)
