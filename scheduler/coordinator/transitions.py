"""Job state transitions, applied to cluster state and journal; each returns the event for the policy."""

from __future__ import annotations

from functools import partial

from profiles.errors import BadInput
from scheduler.coordinator.dispatcher import Dispatcher, Happen
from scheduler.coordinator.job_table import JobTable
from scheduler.engines.protocol import Engine
from scheduler.jobs.entry import Entry, Stage
from scheduler.jobs.memory_admission import MemoryAdmission
from scheduler.jobs.sizes import beyond
from scheduler.model import actions as act
from scheduler.model.events import Checkpointed, Event, Failed, Finished, Submitted
from scheduler.model.jobs import Job, Placement
from scheduler.model.state import ClusterState, JobState
from scheduler.prediction.run_times import RunTimePredictor
from scheduler.prediction.tracker import PredictionTracker


class Transitions:
    """Jobs come, leave, and come again.

    Args:
        memory: what is set aside of the machine's memory, and who waits for it.
        happen: told of what follows at once.

    Attributes:
        stale: something has changed for which there is no event: the policy has to begin anew.
        unsure: jobs that may be predicted better than they are, by number.
    """

    def __init__(
        self,
        state: ClusterState,
        job_table: JobTable,
        engine: Engine,
        dispatcher: Dispatcher,
        tracker: PredictionTracker,
        run_times: RunTimePredictor,
        memory: MemoryAdmission,
        happen: Happen,
    ) -> None:
        self.state, self.job_table, self.engine = state, job_table, engine
        self.dispatcher, self.tracker, self.run_times = dispatcher, tracker, run_times
        self.memory = memory
        self.stale = False
        self.unsure: dict[int, None] = {}
        self._happen = happen

    def admit(self, entry: Entry) -> None:
        """Let a job wait for its turn, or for others to end first; held where this machine cannot run it."""
        self.run_times.watch(entry)
        stages = [(other, self.job_table.stage(other)) for other in entry.spec.after]
        failed = [other for other, stage in stages if stage is not Stage.DONE and (not stage or stage.final)]
        entry.stage = Stage.HELD
        if failed:
            trouble = f"job {failed[0]}, which it waited for, did not succeed"
            self._happen(Finished, partial(self.finish, entry, Stage.CANCELLED, trouble))
        elif entry.blocked and entry.spec.external:
            self.job_table.mark_changed(entry)
        elif any(stage is not Stage.DONE for _, stage in stages):
            self.job_table.wait_for_others(entry)
        elif not entry.spec.external and (why := self.unfit(entry)):
            entry.blocked = why
            self.job_table.mark_changed(entry)
        else:
            entry.stage, entry.blocked = Stage.WAITING, ""
            if entry.spec.after or entry.spec.external:  # it was journalled as held
                self.job_table.mark_changed(entry)
            if self.must_wait_for_memory(entry):
                self._admit_by_memory()
            else:
                self._happen(Submitted, partial(self._enter, entry))

    def must_wait_for_memory(self, entry: Entry) -> bool:
        """Let a job that has no memory set aside wait for the memory that it asks for; False: it need not."""
        needed_mb = self.job_table.memory_mb(entry)
        if not needed_mb or self.memory.is_held(entry.id):
            return False
        self.memory.wait(entry.id, entry.spec.priority, needed_mb)
        return True

    def _admit_by_memory(self) -> None:
        """Let the jobs enter the policy's queue whose memory is free."""
        for job_id in self.memory.in_the_way(self._has_not_begun):
            entry = self.job_table.entries[job_id]
            self.state.withdraw(job_id)
            self.stale = True
            self.memory.release(job_id)
            self.must_wait_for_memory(entry)
        for job_id in self.memory.admit():
            self._happen(Submitted, partial(self._enter, self.job_table.entries[job_id]))

    def recover_memory(self) -> None:
        """After a restart: what runs or is paused has its memory, the others wait for theirs."""
        waiting = []
        for entry in self.job_table.entries.values():
            if entry.alive or entry.stage in (Stage.RUNNING, Stage.STOPPING, Stage.SUSPENDED):
                self.memory.hold(entry.id, entry.spec.priority, self.job_table.memory_mb(entry))
            elif entry.stage is Stage.WAITING and self._without_memory(entry):
                entry.stage = Stage.HELD  # admit will say why
            elif entry.stage is Stage.WAITING:
                waiting.append(entry)
        for entry in waiting:
            self.must_wait_for_memory(entry)
        self.memory.admit()

    def _has_not_begun(self, job_id: int) -> bool:
        return job_id in self.state.waiting and not self.job_table.entries[job_id].attempt

    def unfit(self, entry: Entry) -> str:
        """Why this machine cannot run the job, as a sentence; "" if it can. The machine may have been larger,
        or divided otherwise, when the job was submitted."""
        try:
            why = self.state.misfit(self.job_table.job(entry)) or self._without_memory(entry)
        except BadInput as error:
            why = error.what
        return f"this machine cannot run the job: {why}" if why else ""

    def _without_memory(self, entry: Entry) -> str:
        """Why the job can never have its memory, as a clause; "": it can."""
        if self.memory.is_held(entry.id):
            return ""
        return beyond(self.job_table.memory_mb(entry), self.memory.total_mb)

    def _enter(self, entry: Entry) -> Event | None:
        if entry.stage is not Stage.WAITING or entry.id not in self.job_table.entries:
            return None
        self.state.restore(self.job_table.as_state(entry))
        if self.memory.is_held(entry.id):
            self.state.take_turn(entry.id)
        return Submitted(self.job_table.job(entry))

    def _leave(self, entry: Entry) -> Placement | None:
        """Take a job out of the cluster state; where it ran, if it did."""
        if entry.id in self.state.running:
            state = self.state.state(entry.id)
            self.state.finish(state)
            self.job_table.copy_state(entry, state)
            self.engine.free(entry)
            entry.goals = ()
            return state.placement
        if entry.id in self.state.waiting or entry.id in self.state.suspended:
            self.state.withdraw(entry.id)
            self.stale = True
        return None

    def finish(self, entry: Entry, stage: Stage, trouble: str = "", ended_s: float = 0.0) -> Event | None:
        """A job has ended; those that wait for it may go on."""
        if entry.id not in self.job_table.entries:
            return None
        placement = self._leave(entry)
        job = self.job_table.job(entry) if placement else None
        entry.stage, entry.trouble, entry.end_s = stage, trouble, ended_s or self.state.now
        entry.held_by_user = False
        self.job_table.record(entry, self.state.now, stage.value, trouble)
        self.job_table.drop(entry)
        self._give_memory_back(entry)
        self.run_times.forget(entry)
        self.unsure.update(dict.fromkeys(self.run_times.ended(entry)))
        for follower in self.job_table.followers(entry):
            self.admit(follower)
        how = "killed" if stage is Stage.KILLED else "done"
        return Finished(job, placement, how) if job and placement else None

    def _give_memory_back(self, entry: Entry) -> None:
        if self.memory.release(entry.id):
            self._admit_by_memory()

    def expect_anew(self) -> list[Job]:
        """Predict anew those that may be better known now; who waits and is. They keep their places."""
        found = (self.job_table.entries.get(job_id) for job_id in self.unsure)
        entries = [entry for entry in found if entry is not None and not entry.attempt]
        self.unsure.clear()
        so_far = [entry.predicted for entry in entries]
        told = self.run_times.expect([entry.spec for entry in entries], so_far)
        revised = []
        for entry, new in zip(entries, told, strict=True):
            if new is None:
                continue
            job = self.job_table.expect(entry, new)
            self.run_times.watch(entry)
            if entry.id in self.state.waiting:
                self.state.reconsider(job)
                revised.append(job)
        return revised

    def suspend(self, entry: Entry) -> Event | None:
        """A job's owner suspends it: for the policy it is gone."""
        placement = self._leave(entry)
        entry.stage, entry.held_by_user = Stage.HELD, True
        self.job_table.record(entry, self.state.now, "suspended", "by its owner")
        if entry.alive:
            self.dispatcher.request(entry, "pause")
            self.tracker.pauses(entry, placement.pool if placement else "", self.state.now)
        else:
            self._give_memory_back(entry)
        return Finished(self.job_table.job(entry), placement) if placement else None

    def block(self, entry: Entry, why: str) -> Event | None:
        """A job that waits may not start for now, by no decision of tenbin's."""
        if entry.stage in (Stage.WAITING, Stage.SUSPENDED) and not entry.alive:
            self._leave(entry)
            entry.stage = Stage.HELD
            self._give_memory_back(entry)
        if entry.stage is Stage.HELD:
            entry.blocked = why
            self.job_table.mark_changed(entry)
        return None

    def requeue(self, entry: Entry, trouble: str, counts: bool = True) -> Event | None:
        """An attempt is lost; the job waits again, ahead of all others. ``counts``: as its failure."""
        self.job_table.record(entry, self.state.now, "lost", trouble)
        self.job_table.predictions.void(entry.id, trouble)
        if entry.id not in self.state.running and entry.id not in self.state.suspended:
            if entry.stage is Stage.HELD:
                self._give_memory_back(entry)
            return None  # it waits, or its owner holds it: it stays as it is
        state = self.state.state(entry.id)
        if entry.id in self.state.running:
            self.engine.free(entry)
            entry.goals = ()
        self.state.fail(state, entry.kept, entry.kept_s)
        if not counts:
            state.failures -= 1
        self.job_table.copy_state(entry, state)
        entry.stage = Stage.WAITING
        if entry.blocked:
            self.block(entry, entry.blocked)
        return Failed(state.job, state.placement) if state.placement else None

    def checkpointed(self, entry: Entry, ended_s: float) -> Event:
        """A checkpoint is written and the job has left."""
        state = self.state.state(entry.id)
        before = state.placement
        assert before is not None
        self.tracker.left(entry, state.job, before.pool, ended_s, now=self.state.now)
        self.state.end_stop(state)
        return self._left(entry, state, before, "checkpointed")

    def taken_back(self, entry: Entry) -> Event:
        """It was to make a checkpoint and had not begun: it goes on with what was kept of it before."""
        state = self.state.state(entry.id)
        before = state.placement
        assert before is not None
        self.job_table.predictions.void(entry.id, "it had not begun")
        self.state.end_stop(state)
        state.done, state.served_s = entry.kept, entry.kept_s
        return self._left(entry, state, before, "taken back")

    def _left(self, entry: Entry, state: JobState, before: Placement, told: str) -> Event:
        """The job has left its place; one that moves goes on where it is to go."""
        self.engine.free(entry)
        entry.kept, entry.kept_s = state.done, state.served_s
        entry.stage = Stage.SUSPENDED
        self.job_table.copy_state(entry, state)
        self.job_table.record(entry, self.state.now, told)
        goals, entry.goals = entry.goals, ()
        self.stale = self.stale or bool(goals)
        target = next((goal for goal in goals if not self.state.obstacle(state.job, goal)), None)
        if target is not None:
            self.dispatcher.apply(act.Resume(entry.id, target))
        return Checkpointed(state.job, before, target is not None)
