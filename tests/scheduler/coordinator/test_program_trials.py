"""Trials of programs on idle devices by a coordinator, and what follows: two devices in virtual time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.attempts.records import Result, RunState, Want
from agent.opencl_layer.trials import Trial
from profiles.errors import BadInput
from scheduler.coordinator.coordinator import Coordinator
from scheduler.coordinator.journal.journal import Journal, predictions_of
from scheduler.coordinator.trials import AFTER_S, AGAIN_S, LIMIT_S
from scheduler.engines.common.job_folders import JobFolders
from scheduler.engines.protocol import DeviceTrials, Report
from scheduler.jobs.entry import Entry, Stage
from scheduler.jobs.specs import JobSpec
from scheduler.model.jobs import Cluster, Placement, Pool
from tests.support.scheduling.virtual_engine import BEGIN_S, VirtualEngine
from tests.support.trials import trial_of

TWO = Cluster((Pool("pocl-0", 1, kind="cpu"), Pool("pocl-1", 1, 1, kind="cpu")))
SPEED = {"pocl-0": 1.0, "pocl-1": 4.0}  # in truth
WORK_S = 40.0


class ScriptedTrials:
    """Trials that end when the test says so.

    Attributes:
        begun: (job, class) of each. given_up: why each was that was. ready: programs use a device by now.
    """

    def __init__(self, reports: list[Report]) -> None:
        self.begun: list[tuple[int, str]] = []
        self.given_up: list[str] = []
        self.able, self.busy, self.ready, self._reports = True, False, True, reports

    def begin(self, job: Entry, state: RunState, pool: str) -> bool:
        if self.ready:
            self.begun.append((job.id, pool))
            self.busy, self._of = True, job
        return self.ready

    def give_up(self, why: str) -> None:
        self.given_up.append(why)

    def end(self, trial: Trial | None, *, for_now: bool = False) -> None:
        job, trouble = self._of, "" if trial else "refused"
        told = Report(job.id, job.attempt, "tried", 0.0, trouble=trouble, trial=trial, for_now=for_now)
        self._reports.append(told)
        self.busy = False


class DeviceEngine(VirtualEngine):
    """Runs jobs whose argument is their work, and parks or moves them at once."""

    able = True

    def __init__(self, store: Path, now: float = BEGIN_S) -> None:
        super().__init__(TWO)
        self.now, self.folders, self.device_moves = now, JobFolders(store), self
        self.reports: list[Report] = []
        self.trials: ScriptedTrials | DeviceTrials = ScriptedTrials(self.reports)
        self._left: dict[int, tuple[float, float, str]] = {}  # work, when and where it went on

    def why_not(self, spec: JobSpec, devices: Sequence[int] = ()) -> str:
        return ""

    def readiness(self, job: Entry, state: RunState | None) -> str:
        return ""

    def place(self, job: Entry, placement: Placement) -> None:
        job.devices = (TWO[placement.pool].rank,)

    def start(self, jobs: Sequence[tuple[Entry, dict[str, str]]]) -> None:
        for job, _ in jobs:
            self.starts[job.id] = self.now
            self.folders.attempt(job).path.mkdir(parents=True)
            assert job.placement is not None
            self._go_on(job, float(job.spec.command[1]), job.placement.pool)
            self._say(job, "started", RunState(1, 1, self.now))

    def ask(self, job: Entry, want: Want) -> None:
        if want == "end":
            del self.ends[job.id]
            self.reports.append(Report(job.id, job.attempt, "ended", self.now, Result("cancelled", self.now)))
            return
        work, since_s, pool = self._left[job.id]
        state = RunState(1, 1, self.now, want == "park", job.request, device=pool)
        if want == "park":
            del self.ends[job.id]
            self._left[job.id] = work - (self.now - since_s) * SPEED[pool], self.now, pool
            state = replace(state, parked_mb=1.0)
        elif want == "move":
            there = job.goals[0].pool
            self._go_on(job, work - (self.now - since_s) * SPEED[pool], there)
            state = replace(state, device=there, pause_s=0.02, expected_pause_s=0.01)
        elif job.id not in self.ends and job.placement is not None:
            self._go_on(job, work, job.placement.pool)
        self._say(job, "obeyed", state)

    def runs_on(self, job: Entry) -> str:
        """Return where its program is."""
        return self._left[job.id][2]

    def _go_on(self, job: Entry, work: float, pool: str) -> None:
        self._left[job.id] = work, self.now, pool
        self.ends[job.id] = job, self.now + work / SPEED[pool]

    def _say(self, job: Entry, what: Any, state: RunState) -> None:
        self.folders.attempt(job).write_state(state)
        self.reports.append(Report(job.id, job.attempt, what, self.now, done=state.done, state=state))

    def poll(self) -> list[Report]:
        found, self.reports[:] = [*self.reports, *super().poll()], []
        return found

    def urgent(self) -> bool:
        return bool(self.reports) or super().urgent()


class Lab:
    """A coordinator of two devices, and its time."""

    def __init__(self, journal: Journal, engine: DeviceEngine, policy: str) -> None:
        self.engine, self.journal = engine, journal
        self.coordinator = Coordinator(journal, engine, policy, clock=lambda: engine.now)

    @property
    def trials(self) -> ScriptedTrials:
        assert isinstance(self.engine.trials, ScriptedTrials)
        return self.engine.trials

    def submit(self, **more: Any) -> Entry:
        spec = JobSpec(command=("sim", f"{WORK_S:g}"), folder="/", **more)
        return self.coordinator.submit([spec], {})[0]

    def run(self, seconds: float) -> None:
        """Let time go on in steps of a half second."""
        for _ in range(round(2 * seconds)):
            self.engine.now += 0.5
            self.coordinator.turn()

    def tried(self) -> Entry:
        """Run a job, known on the first device, until its program has been tried on the second."""
        self.submit(device="pocl-0")
        self.run(WORK_S)
        job = self.submit()
        self.run(AFTER_S)
        assert self.trials.begun == [(job.id, "pocl-1")] and job.placement and job.placement.pool == "pocl-0"
        return job


@contextmanager
def lab(home: Path, policy: str = "mctbm", now: float = BEGIN_S) -> Iterator[Lab]:
    journal = Journal(home)
    try:
        yield Lab(journal, DeviceEngine(home, now), policy)
    finally:
        journal.close()


def trial(ratio: float = 4.0, *, agrees: bool = True) -> Trial:
    """Make a trial of a program that is always on its device, which tells the ratio exactly."""
    told = trial_of((10, 1.0, 1 / ratio), busy_s=10.0)
    (kernel,) = told.kernels
    kernel = replace(kernel, differing_bytes=0 if agrees else 4)
    return replace(told, device="pocl-0", on="pocl-1", at_s=BEGIN_S, kernels=(kernel,))


def test_once_and_on_an_idle_device_after_some_seconds(tmp_path: Path) -> None:
    with lab(tmp_path) as here:
        trials = here.trials
        job = here.submit()
        here.run(AFTER_S - 0.5)
        assert trials.begun == []
        trials.ready = False
        here.run(1.0)  # it has not used a device
        trials.ready = True
        here.run(AGAIN_S - 1.0)
        assert trials.begun == []
        here.run(1.0)
        assert trials.begun == [(job.id, "pocl-1")] and not trials.given_up
        trials.end(None, for_now=True)  # it has launched nothing meanwhile
        here.run(AGAIN_S + 0.5)
        assert trials.begun == [(job.id, "pocl-1")] * 2
        trials.end(None)
        here.run(AGAIN_S + 1.0)
        assert trials.begun == [(job.id, "pocl-1")] * 2  # it failed, and is not tried again
        assert job.predicted is None
        said = [line[1:] for line in here.coordinator.job_table.history(job.id) if "tried" in line[1]]
        assert said == [("not tried", "on pocl-1: refused")]


@pytest.mark.parametrize(
    ("more", "others"),
    [
        ({"expect_s": {"": 9.0}}, 0),
        ({"expect_s": {"cpu": 9.0}}, 0),
        ({"device": "pocl-0"}, 0),
        ({"checkpoint_signal": 23}, 0),
        ({}, 1),
    ],
)
def test_where_it_tells_nothing_or_is_in_the_way(tmp_path: Path, more: dict[str, Any], others: int) -> None:
    """Its owner knows, it may not run there, it moves by itself, or the device has another job."""
    with lab(tmp_path) as here:
        here.submit(**more)
        for _ in range(others):
            here.submit(device="pocl-1")
        here.run(AFTER_S + 1.0)
        assert here.trials.begun == []


def test_no_trials_where_there_are_to_be_none(tmp_path: Path) -> None:
    with lab(tmp_path) as here:
        here.engine.trials = DeviceTrials()
        again = Lab(here.journal, here.engine, "mctbm")
        again.submit()
        again.run(2 * AFTER_S)


@pytest.mark.parametrize("what", ["cancel", "suspend", "migrate", "submit", "wait"])
def test_a_trial_gives_way(tmp_path: Path, what: str) -> None:
    with lab(tmp_path) as here:
        job = here.submit()
        here.run(AFTER_S)
        assert here.trials.busy
        verb = getattr(here.coordinator, what, None)
        if what == "submit":
            here.submit(device="pocl-1")
        elif what == "migrate":
            here.coordinator.migrate([job.id], "pocl-1")
        elif verb is not None:
            verb([job.id])
        else:
            here.run(LIMIT_S)
        assert here.trials.given_up
        here.trials.end(None)
        here.run(1.0)
        stage = {"cancel": Stage.CANCELLED, "suspend": Stage.HELD}.get(what, Stage.RUNNING)
        assert job.stage is stage


@pytest.mark.parametrize("policy", ["mctbm", "weigh"])
def test_the_running_job_moves_and_the_next_one_is_expected_there(tmp_path: Path, policy: str) -> None:
    """40 s here, a quarter there: after 5.5 s what is left takes 8.6 s; a job from its beginning 10 s."""
    with lab(tmp_path, policy) as here:
        job = here.tried()
        waiting = [here.submit(device="pocl-0"), here.submit(name="other", device="pocl-0")]
        here.trials.end(trial())
        here.run(1.0)
        assert job.predicted is not None
        assert job.predicted["run_s"]["pocl-1"]["middle"] == pytest.approx(WORK_S / 4)
        assert waiting[0].predicted is not None and "tried" in waiting[0].predicted
        assert waiting[1].predicted is None or "tried" not in waiting[1].predicted
        assert (job.placement and job.placement.pool, job.migrations) == ("pocl-1", 1)
        here.run(8.0)
        assert job.stage is Stage.RUNNING
        here.run(0.5)
        assert job.stage is Stage.DONE
        here.coordinator.cancel([each.id for each in waiting])
        now = here.engine.now
    with lab(tmp_path, policy, now) as here:  # a new coordinator
        third = here.submit()
        assert third.predicted is not None and third.predicted["run_s"]["pocl-1"]["basis"] == "tried"
        assert third.placement and third.placement.pool == "pocl-1"
        here.run(WORK_S / 4)
        assert third.stage is Stage.DONE and here.trials.begun == []
    (one,) = predictions_of(tmp_path, kind="trial")
    assert one.job == third.id and one.detail["pool"] == "pocl-1"
    assert one.predicted == pytest.approx(WORK_S / 4) and one.measured == pytest.approx(WORK_S / 4)
    (void,) = [each for each in predictions_of(tmp_path, kind="run-time") if each.job == job.id]
    assert void.void == "it moved meanwhile"


def test_a_ratio_alone_is_kept_for_the_next_job(tmp_path: Path) -> None:
    """Nobody knows how long it runs: it stays, and what it took tells the next one both times."""
    with lab(tmp_path) as here:
        job = here.submit()
        here.run(AFTER_S)
        here.trials.end(trial())
        here.run(0.5)
        assert job.predicted is not None and not job.predicted["run_s"] and job.migrations == 0
        here.run(WORK_S)
        assert job.stage is Stage.DONE
        after = here.submit()
        assert after.predicted is not None
        told = {pool: found["middle"] for pool, found in after.predicted["run_s"].items()}
        assert told == pytest.approx({"pocl-0": WORK_S, "pocl-1": WORK_S / 4})


def test_where_results_differ_only_its_owner_moves_it(tmp_path: Path) -> None:
    with lab(tmp_path) as here:
        job = here.tried()
        here.trials.end(trial(agrees=False))
        here.run(2.0)
        assert (job.placement and job.placement.pool, job.migrations) == ("pocl-0", 0)
        assert "differ" in here.coordinator.job_table.history(job.id)[-1][2]
        there = here.submit(device="pocl-1")
        here.run(1.0)
        with pytest.raises(BadInput, match="cannot move to pocl-1"):
            here.coordinator.migrate([job.id], "pocl-1")
        # Policies may move it as little as before.
        assert not here.coordinator.job_table.job(job).runs_on("pocl-1")
        here.coordinator.cancel([there.id])
        here.run(2.0)
        assert (job.placement and job.placement.pool, job.migrations) == ("pocl-0", 0)
        here.coordinator.migrate([job.id], "pocl-1")
        here.run(1.0)
        assert (job.placement and job.placement.pool, job.stage) == ("pocl-1", Stage.RUNNING)
        after = here.submit(device="pocl-0")
        later = here.submit()
        here.run(1.0)
        assert after.placement and after.placement.pool == "pocl-0" and later.stage is Stage.WAITING
        here.run(WORK_S)
        assert (after.migrations, later.migrations) == (0, 0)
