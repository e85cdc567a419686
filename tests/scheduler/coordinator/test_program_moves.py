"""Moves by their owner, also of several jobs: the second place is nobody else's, whatever happens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.attempts.records import Result, RunState, Usage, Want
from profiles.errors import BadInput
from scheduler.coordinator.coordinator import Coordinator
from scheduler.coordinator.journal.journal import Journal, predictions_of
from scheduler.engines.protocol import DeviceMoves, DeviceTrials, Report
from scheduler.jobs.entry import Entry, Stage
from scheduler.jobs.specs import JobSpec
from scheduler.model.jobs import Cluster, Pool
from tests.scheduler.coordinator.test_program_trials import DeviceEngine, Lab
from tests.support.scheduling.manual_engine import ManualEngine, shown, submit
from tests.support.scheduling.virtual_engine import BEGIN_S

HERE, THERE = "pocl-0", "pocl-1"


class SlowMoves(DeviceEngine):
    """Parks and moves when the test says so.

    Attributes:
        asked: job, number of the request, and what was asked.
    """

    def __init__(self, store: Path, now: float) -> None:
        super().__init__(store, now)
        self.trials = DeviceTrials()
        self.asked: tuple[Entry, int, Want] | None = None

    def ask(self, job: Entry, want: Want) -> None:
        if want in ("park", "move"):
            self.asked = job, job.request, want
        else:
            super().ask(job, want)

    def answer(self, outcome: Any) -> None:
        """Let the request end: by ``outcome``."""
        assert self.asked is not None
        job, number, want = self.asked
        self.asked = None
        usage = Usage(1.0, 1.0, 1.0, 0.0, 0.0)
        if outcome in ("moved", "parked"):
            super().ask(job, "park" if outcome == "parked" else want)
        elif outcome == "ended":
            del self.ends[job.id]
            result = Result("exited", self.now, code=0, usage=usage)
            self.reports.append(Report(job.id, job.attempt, "ended", self.now, result))
        elif outcome in ("lost", "never"):
            del self.ends[job.id]
            self.reports.append(Report(job.id, job.attempt, outcome, self.now))
        else:
            state = RunState(1, 1, self.now, done=number, refused="it cannot", device=HERE)
            self._say(job, "obeyed", replace(state, for_now=outcome == "postponed"))


class Scene:
    """A job that moves, and another that waits for the device to which it moves."""

    def __init__(self, home: Path, policy: str = "fcfs", **fields: Any) -> None:
        self.home, self.policy, self.engine = home, policy, SlowMoves(home, BEGIN_S)
        self.start()
        job = self.lab.submit(device="any", **fields)
        self.lab.run(1.0)
        assert job.placement is not None and job.placement.pool == HERE
        self.lab.coordinator.migrate([job.id], THERE)
        other = self.lab.submit(device=THERE, **fields)
        self.lab.run(1.0)
        assert self.engine.asked == (job, job.request, "move")
        self.numbers = job.id, other.id

    def start(self) -> None:
        self.journal = Journal(self.home)
        self.lab = Lab(self.journal, self.engine, self.policy)

    def again(self) -> None:
        """Start another coordinator."""
        self.journal.close()
        self.start()
        self.lab.run(0.5)

    @property
    def jobs(self) -> list[Entry]:
        return [self.lab.coordinator.job_table.entries[number] for number in self.numbers]

    @property
    def free(self) -> dict[str, int]:
        return dict(self.lab.coordinator.cluster.free)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    found = Scene(tmp_path)
    yield found
    found.journal.close()


@pytest.mark.parametrize("outcome", ["moved", "parked", "refused", "postponed", "ended", "lost", "never"])
@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("meanwhile", ["nothing", "suspend"])
def test_whatever_happens(scene: Scene, meanwhile: str, killed: bool, outcome: str) -> None:
    """No device is lost or given twice, and the program is where the coordinator believes it to be."""
    if meanwhile == "suspend":
        scene.lab.coordinator.suspend([scene.numbers[0]])
    if killed:
        scene.again()
    (job, other), engine, run = scene.jobs, scene.engine, scene.lab.run
    assert other.stage is Stage.WAITING and scene.free == {HERE: 0, THERE: 0}
    engine.answer(outcome)
    run(0.5)
    if engine.asked is not None:  # suspended meanwhile: it is parked after the move, or in place of it
        assert meanwhile == "suspend" and engine.asked[2] == "park"
        engine.answer("parked")
        run(0.5)
    assert job.held_by_user == (meanwhile == "suspend" and outcome != "ended")
    used = {one.placement.pool: one for one in (job, other) if one.stage is Stage.RUNNING and one.placement}
    assert scene.free == {pool: int(pool not in used) for pool in (HERE, THERE)}
    assert all(engine.runs_on(one) == pool for pool, one in used.items())
    if job.held_by_user:
        scene.lab.coordinator.resume([job.id])
    run(100.0)
    assert job.stage is other.stage is Stage.DONE
    assert scene.free == {HERE: 1, THERE: 1}


@pytest.mark.parametrize("killed", [False, True])
def test_cancelled(scene: Scene, killed: bool) -> None:
    if killed:
        scene.again()
    job, other = scene.jobs
    scene.lab.coordinator.cancel([job.id])
    scene.lab.run(0.5)
    assert (job.stage, other.stage) == (Stage.CANCELLED, Stage.RUNNING)
    assert scene.free == {HERE: 1, THERE: 0}


@pytest.mark.parametrize(
    "policy", ["easy", "conservative", "weigh", "mct", "mctbm", "las", "las-mq", "las-drf", "kairos"]
)
def test_no_policy_takes_the_second_place(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, policy: str
) -> None:
    """Each begins anew after a request to move, while the job has both devices."""
    scene = Scene(tmp_path, policy)
    scene.lab.submit(device="any")
    scene.lab.run(1.0)
    assert [one.stage for one in scene.jobs] == [Stage.STOPPING, Stage.WAITING]
    scene.engine.answer("moved")
    scene.lab.run(0.5)
    assert scene.engine.runs_on(scene.jobs[0]) == THERE
    assert not caplog.text  # a decision that cannot be is a line of the log
    scene.journal.close()


@pytest.mark.parametrize("outcome", ["ended", "lost"])
@pytest.mark.parametrize("policy", ["easy", "conservative", "weigh", "mctbm", "las", "las-mq", "kairos"])
def test_every_policy_takes_both_places_back(tmp_path: Path, policy: str, outcome: str) -> None:
    """A job is over while it moves: the one that waits for the second device gets it."""
    scene = Scene(tmp_path, policy, expect_s={HERE: 60.0, THERE: 60.0})
    _, other = scene.jobs
    scene.engine.answer(outcome)
    scene.lab.run(0.5)
    assert scene.engine.runs_on(other) == THERE
    scene.journal.close()


def test_a_move_is_measured_and_costs_no_restart(scene: Scene) -> None:
    scene.engine.answer("moved")
    scene.lab.run(0.5)
    job, _ = scene.jobs
    assert (job.stage, job.migrations, job.attempt) == (Stage.RUNNING, 1, 1)
    state = scene.lab.coordinator.cluster.state(job.id)
    assert state.works_from_s == state.since_s
    found = {one.kind: one for one in predictions_of(scene.home) if one.job == job.id}
    assert found["migration"].measured == pytest.approx(1.5)
    assert found["checkpoint"].void == "it ran on until it had moved"
    assert (found["pause"].predicted, found["pause"].measured) == (0.01, 0.02)


@pytest.mark.parametrize("policy", ["las,spare-s=5", "kairos,spare-s=5"])
def test_parked_programs_that_have_gone_on_give_way_again(tmp_path: Path, policy: str) -> None:
    """Two of equal work take turns on one device: whoever was parked is told to go on, and has, before W."""
    journal = Journal(tmp_path)
    engine = DeviceEngine(tmp_path, BEGIN_S)
    engine.trials = DeviceTrials()
    lab = Lab(journal, engine, policy)
    jobs = [lab.submit(device=HERE), lab.submit(device=HERE)]
    lab.run(90.0)
    assert [job.stage for job in jobs] == [Stage.DONE, Stage.DONE]
    assert min(job.preemptions for job in jobs) >= 3
    journal.close()


# Moves of several jobs by their owner: all of those that were named, or none.


FASTER_THERE = {"gpu": 10.0, "cpu": 1000.0}


class Layer(DeviceMoves):
    """Every program can be moved while it runs."""

    able = True

    def why_not(self, spec: JobSpec, devices: Sequence[int] = ()) -> str:
        return "" if spec.move else "it was submitted with --no-move"

    def readiness(self, job: Entry, state: RunState | None) -> str:
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
