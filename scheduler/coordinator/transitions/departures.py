"""Jobs that leave their place and go on later: by a checkpoint, parked, paused, suspended by their owner."""

from __future__ import annotations

from agent.attempts.records import RunState
from agent.supervisor.parking import NOT_USED
from scheduler.coordinator import events as ev
from scheduler.coordinator.handlers import Handlers
from scheduler.jobs.entry import Entry, Phase, Stage
from scheduler.model import actions as act
from scheduler.model.events import Checkpointed, Event, Finished
from scheduler.model.jobs import Placement

NO_LAYER = "its supervisor knows nothing of parking"
NOT_RUNNING = "it had not gone on yet"  # a request to go on was overtaken by that to park


class Departures:
    """The handlers of the events by which a job leaves its place; they are added to those of ``handlers``."""

    def __init__(self, handlers: Handlers) -> None:
        self.handlers, self.dispatcher = handlers, handlers.dispatcher
        self.state, self.job_table = handlers.state, handlers.job_table
        self.engine, self.tracker = handlers.engine, handlers.tracker
        handlers.of |= {
            ev.SuspendedByOwner: self._suspended_by_owner,
            ev.CheckpointWritten: self._checkpoint_written,
            ev.TakenBack: self._taken_back,
            ev.Obeyed: self._obeyed,
        }

    def _suspended_by_owner(self, event: ev.SuspendedByOwner) -> Event | None:
        """Take a job from the policy; if it runs, it is parked or paused."""
        entry = event.entry
        if entry.alive and entry.parks and entry.id in self.state.running:
            entry.held_by_user = True
            entry.goals = entry.goals[:1] if entry.moves_to else ()
            self.job_table.mark_changed(entry)
            if entry.stage is Stage.RUNNING:
                self.dispatcher.apply(act.Suspend(entry.id))
                self.handlers.stale = True  # no policy has asked for this
            return None  # it has its device until it is parked
        return self._hold(entry)

    def _hold(self, entry: Entry, *, parked: bool = False) -> Event | None:
        """Let a job that its owner has suspended leave; its supervisor stops what is not ``parked``."""
        placement = self.handlers.leave(entry)
        entry.stage, entry.held_by_user = Stage.HELD, True
        job = self.job_table.renewed(entry)  # paused, it must go on where it was
        self.job_table.record(entry, self.state.now, "suspended", "by its owner")
        if entry.alive and not parked:
            self.dispatcher.request(entry, "pause")
            self.tracker.pauses(entry, placement.pool if placement else "", self.state.now)
        elif not entry.alive:
            self.handlers.give_back(entry)
        return Finished(job, placement) if placement else None

    # -- checkpoints ------------------------------------------------------------------------------------

    def _checkpoint_written(self, event: ev.CheckpointWritten) -> Event | None:
        """Let a job leave its place with a checkpoint."""
        entry = event.entry
        if entry.stage is Stage.HELD:  # its owner has suspended it meanwhile
            entry.kept, entry.kept_s = entry.done, entry.served_s
            self.job_table.record(entry, self.state.now, "checkpointed")
            self.handlers.give_back(entry)
            return None
        self.tracker.left(entry, event.ended_s, self.state.now)
        self.state.end_stop(entry)
        entry.kept, entry.kept_s = entry.done, entry.served_s
        return self._left(entry, "checkpointed")

    def _taken_back(self, event: ev.TakenBack) -> Event | None:
        """Let a job leave its place with what was kept of it before."""
        entry = event.entry
        self.job_table.predictions.void(entry.id, "it had not begun")
        entry.done, entry.served_s = entry.kept, entry.kept_s
        if entry.held_by_user:  # it was to be parked
            return self._hold(entry)
        self.state.end_stop(entry)
        self.job_table.renewed(entry)
        return self._left(entry, "taken back")

    def _left(self, entry: Entry, told: str) -> Event:
        """Free the place that the job has left; one that moves goes on at its goal."""
        before = entry.place
        self.engine.free(entry)
        self.job_table.record(entry, self.state.now, told)
        goals, entry.goals = entry.goals, ()
        self.handlers.stale = self.handlers.stale or bool(goals)
        may_be = (goal for goal in goals if entry.job.runs_on(goal.pool))
        target = next((goal for goal in may_be if not self.state.obstacle(entry.job, goal)), None)
        if target is not None:
            self.dispatcher.apply(act.Resume(entry.id, target))
        return Checkpointed(entry.job, before, target is not None)

    # -- programs that the engine parks -----------------------------------------------------------------

    def _obeyed(self, event: ev.Obeyed) -> Event | None:
        """Enter what became of a request to park a job's programs, or to let them go on."""
        entry, now = event.entry, event.state
        if not entry.alive or now.done != entry.request:
            return None  # a later request follows
        if entry.phase in (Phase.PARKING, Phase.MOVING):
            if now.parked_mb is not None:
                return self._parked(entry, now.parked_mb)
            if entry.moves_to and not now.refused and now.device == entry.moves_to.pool:
                return self._moved(entry, now)
            overtaken = now.paused and not now.refused
            why = NOT_RUNNING if overtaken else now.refused or NO_LAYER
            return self._refused(entry, why, for_now=now.for_now or overtaken)
        if entry.phase is Phase.RUNNING:
            if now.parked_mb is not None:
                return self._refused_there(entry, now.refused, now.device)
            if entry.fixed and now.for_now:
                self.handlers.park_later(entry)
        return None

    def _parked(self, entry: Entry, mb: float) -> Event | None:
        """Let a job leave its place whose programs are parked; its attempt goes on later."""
        self.tracker.parked(entry, mb, self.state.now)
        if entry.held_by_user:
            return self._hold(entry, parked=True)
        self.state.end_stop(entry)
        return self._left(entry, "parked")

    def _moved(self, entry: Entry, now: RunState) -> Event:
        """Let a job whose program has moved while it ran leave its old place."""
        self.tracker.moved(entry, now, self.state.now)
        self.state.end_stop(entry)
        told = self._left(entry, "moved")
        self.state.expect(entry, self.state.now)  # it needs no restart
        self._suspend_now(entry)
        return told

    def _suspend_now(self, entry: Entry) -> None:
        """Have a running job parked that its owner has suspended while it moved."""
        if entry.held_by_user and entry.stage is Stage.RUNNING:
            self.dispatcher.apply(act.Suspend(entry.id))
            self.handlers.stale = True

    def _refused(self, entry: Entry, why: str, *, for_now: bool) -> Event | None:
        """Let a job run on that cannot be parked.

        It is paused where it is if its owner has suspended it, or if it has nothing on its device so far.

        Args:
            for_now: it may be asked again.
        """
        self.job_table.predictions.void(entry.id, why, "checkpoint", "migration", "suspension")
        there = f"{entry.moves_to.pool}: " if entry.moves_to else ""
        self.job_table.record(entry, self.state.now, "not moved" if there else "not parked", f"{there}{why}")
        self.handlers.stale = True
        if entry.held_by_user and entry.phase is Phase.MOVING:
            entry.goals = ()
            self.state.go_on(entry)
            self._suspend_now(entry)
            return None
        if entry.held_by_user:
            told = self._hold(entry)
            self.dispatcher.fix(entry, why)
            return told
        if entry.goals or why != NOT_USED:
            entry.goals = ()
            self.state.go_on(entry)
            self.dispatcher.fix(entry, why)
            self.dispatcher.request(entry, "run")
            if for_now:
                self.handlers.park_later(entry)
            return None
        self.state.end_stop(entry)
        self.engine.free(entry)
        self.dispatcher.fix(entry, why)
        self.dispatcher.request(entry, "pause")
        return Checkpointed(entry.job, entry.place)

    def _refused_there(self, entry: Entry, why: str, device: str) -> Event:
        """Let a job go on where it was, now or in its turn, because another device did not take it."""
        job, there = entry.job, entry.place
        self.job_table.record(entry, self.state.now, "not moved", f"{there.pool}: {why}")
        self.state.begin_stop(entry)
        self.state.end_stop(entry)
        self.engine.free(entry)
        back = entry.placement = Placement(device, there.units)
        self.dispatcher.fix(entry, f"{there.pool}: {why}")
        self.handlers.stale = True
        if not self.state.obstacle(entry.job, back):
            self.dispatcher.apply(act.Resume(entry.id, back))
            return Checkpointed(job, there, True)
        self.handlers.leave(entry)  # not every policy resumes jobs, so it waits like a new one
        entry.stage = Stage.HELD
        self.handlers.admit(entry)
        return Finished(job, there)
