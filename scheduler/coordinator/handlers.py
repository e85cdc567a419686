"""The actions of a coordinator at each event: one handler for each type of event.

A handler changes cluster state and journal. It returns the event that the policy is told, or None if the
event has become void. Reports of the engine and requests of users become such events.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from profiles.errors import BadInput
from profiles.instants import stamp
from scheduler.coordinator import events as ev
from scheduler.coordinator.dispatcher import Dispatcher
from scheduler.coordinator.holds import Holds, left, not_before_s
from scheduler.coordinator.outcomes import FAULT, outcome_of, told_to_end
from scheduler.engines.protocol import Report
from scheduler.jobs.array_limits import ArrayLimits
from scheduler.jobs.entry import Entry, Stage
from scheduler.jobs.memory_admission import MemoryAdmission
from scheduler.jobs.policy_view import results_differ
from scheduler.jobs.retries import pause_s, tried_again
from scheduler.jobs.sizes import beyond
from scheduler.model.events import Event, Failed, Finished, Started, Submitted
from scheduler.model.jobs import Placement
from scheduler.prediction.run_times import RunTimePredictor
from scheduler.prediction.tracker import CoLocationTracker

PARK_AGAIN_S = 2.0  # after a program could not be parked for now
MOST_FAILURES = 5  # a job whose attempts are lost so often is not tried again
Handler = Callable[[Any], Event | None]
log = logging.getLogger("tenbin")


class Handlers:
    """The handlers of all events, by type.

    Args:
        memory: what is set aside of the machine's memory, and who waits for it.

    Attributes:
        array_limits: the members of arrays that have places, and those that wait for one.
        of: the handler of each type of event (``Departures`` adds to them).
        stale: something has changed for which there is no event: the policy has to begin anew.
        postponed: running jobs that cannot be parked for now.
        unsure: jobs that may be predicted better than they are, by number.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        run_times: RunTimePredictor,
        memory: MemoryAdmission,
        co_location: CoLocationTracker | None,
    ) -> None:
        self.dispatcher, self.run_times = dispatcher, run_times
        self.memory, self.co_location = memory, co_location
        self.array_limits = ArrayLimits()
        self.state, self.job_table, self.engine = dispatcher.state, dispatcher.job_table, dispatcher.engine
        self.tracker, self.queue = dispatcher.tracker, dispatcher.queue
        self.holds = Holds(self.job_table)
        self.stale = False
        self.postponed = set[int]()
        self.unsure: dict[int, None] = {}
        self.of: dict[type[ev.Event], Handler] = {
            ev.Applied: lambda event: event.event,
            ev.Admitted: self._admitted,
            ev.Ended: self.ended,
            ev.AttemptOver: self._attempt_over,
            ev.Fault: self._set_aside,
            ev.Blocked: self._blocked,
            ev.AttemptLost: self._attempt_lost,
            ev.FailedByItself: self._failed_by_itself,
        }

    def handle(self, event: ev.Event) -> Event | None:
        """Enter an event in cluster state and journal; return what the policy is told of it.

        An event of a job that has left meanwhile is void.
        """
        if not isinstance(event, ev.Applied | ev.Fault) and event.entry.id not in self.job_table.entries:
            return None
        return self.of[type(event)](event)

    # -- what the engine reports ----------------------------------------------------------------------

    def report(self, report: Report) -> None:
        """Note what the engine reports of an attempt, and put the event that follows from it."""
        entry = self.job_table.entries.get(report.job_id)
        if entry is None or entry.attempt != report.attempt:
            return  # an attempt that nobody waits for any more
        if report.what == "started":
            self.job_table.record_later(entry, self.state.now, "started", f"attempt {entry.attempt}")
            self.tracker.began(entry, report.at_s)
            self.queue.put(ev.Applied(Started(self.job_table.job(entry))))
            self._keep_from_other_results(entry)
        elif report.what == "obeyed":
            self.tracker.obeyed(entry, report.done, report.at_s)
            if entry.want == "run" and report.done == entry.request:
                self.queue.put(ev.Applied(Started(self.job_table.job(entry))))
            self._keep_from_other_results(entry)
            if report.state is not None and entry.fixed is not None:
                self.queue.put(ev.Obeyed(entry, report.state))
        elif report.what == "tried":
            self.queue.put(ev.Tried(entry, report.trial, report.trouble, report.for_now))
        else:
            follows = self._what_follows(entry, report)
            self.queue.put(ev.AttemptOver(Failed if follows is None else follows.kind, entry, report))

    def _keep_from_other_results(self, entry: Entry) -> None:
        """Have the policy plan anew for a job that it must not move to some class from where it is now."""
        if entry.id in self.state.running and results_differ(entry):
            self.state.reconsider(self.job_table.renewed(entry))
            self.stale = True

    def allow_other_results(self, entry: Entry, pool: str) -> None:
        """Let policies move a job as its owner does, to a class where a trial had other results."""
        if pool in results_differ(entry):
            entry.predicted = {**(entry.predicted or {}), "moved_by_hand": True}
            self.state.reconsider(self.job_table.renewed(entry))

    def _attempt_over(self, event: ev.AttemptOver) -> Event | None:
        """Note the end of an attempt, and decide by what the job is now what becomes of it."""
        entry, result = event.entry, event.report.result
        if entry.attempt != event.report.attempt or not entry.alive:
            return None
        entry.alive = False
        if result is not None:
            entry.usage = asdict(result.usage)
        follows = self._what_follows(entry, event.report)
        if result is not None and isinstance(follows, ev.Ended | ev.FailedByItself):
            with self.queue.sparing(None, f"what is learnt from job {entry.label}"):
                if self.co_location is not None:
                    self.co_location.ended(entry, result)
                if not self.unfit(entry):
                    self.tracker.ended(entry, result)
            entry.code, entry.signal = result.code, result.signal
        if follows is not None:
            return self.handle(follows)
        if entry.stage is Stage.RUNNING:
            # Decided, and not carried out when the coordinator was killed: now.
            self.dispatcher.new_attempt(entry)
        else:  # it stays suspended, and goes on by a new attempt
            self.job_table.record(entry, self.state.now, "taken back", "it had not begun")
            self._may_go_anywhere(entry)
        return None

    def _what_follows(self, entry: Entry, report: Report) -> ev.Event | None:
        """Return what follows from the end of a job's attempt; None: a new attempt, now or in its turn."""
        result, to_end = report.result, entry.want == "end"
        if result is None:
            return self._without_result(entry, report)
        if result.how == "cancelled" or (to_end and result.how in ("interrupted", "checkpointed")):
            return ev.Ended(entry, *told_to_end(entry), result.ended_s)
        if result.how == "checkpointed" and (entry.stage is Stage.STOPPING or entry.held_by_user):
            return ev.CheckpointWritten(entry, result.ended_s)
        if result.how in ("checkpointed", "interrupted") and entry.spec.requeue:
            return ev.AttemptLost(entry, f"it was {result.how}")
        stage, trouble = outcome_of(entry.spec, self.job_table.tasks(entry), result)
        if not to_end and tried_again(entry.spec, entry.retried, result):
            return ev.FailedByItself(entry, trouble)
        return ev.Ended(entry, stage, trouble, result.ended_s)

    def _without_result(self, entry: Entry, report: Report) -> ev.Event | None:
        """Return what follows from an attempt that will have no result."""
        trouble = report.trouble or "its supervisor was killed"
        hopeless = report.what == "never" and report.trouble and not report.for_now
        unbegun = report.what == "never" and not report.trouble  # taken back: nothing has failed
        if entry.want == "end":
            return ev.Ended(entry, *told_to_end(entry))
        once = report.what == "lost" and not entry.spec.requeue  # only what has begun is not run again
        if not unbegun and (hopeless or once or entry.failures >= MOST_FAILURES):
            return ev.Ended(entry, Stage.FAILED, trouble)
        if unbegun and entry.stage in (Stage.RUNNING, Stage.SUSPENDED):
            return None
        if unbegun and entry.stage is Stage.STOPPING:
            return ev.TakenBack(entry)
        return ev.AttemptLost(entry, "it had not begun" if unbegun else trouble, counts=not unbegun)

    def _may_go_anywhere(self, entry: Entry) -> None:
        """Free a job that does not run, and whose attempt has ended, from where that attempt had to stay."""
        job = self.job_table.renewed(entry)
        if entry.id in self.state.waiting or entry.id in self.state.suspended:
            self.state.reconsider(job)
            self.stale = True

    # -- jobs wait, or may not yet ---------------------------------------------------------------------

    def admit(self, entry: Entry) -> None:
        """Let a job wait for its turn; held for others, for a time, or where this machine cannot run it."""
        if entry.stage is Stage.STOPPING:
            return  # it is about to be suspended, and then the policy's
        self.run_times.watch(entry)
        self.holds.alarm(entry, entry.spec.deadline_s)
        told, begin_s = self.holds.verdict(entry), not_before_s(entry)
        held, entry.stage = entry.stage is Stage.HELD, Stage.HELD
        if told.hopeless:
            self.queue.put(ev.Ended(entry, Stage.CANCELLED, told.hopeless))
        elif entry.blocked and entry.spec.external:
            self.job_table.mark_changed(entry)
        elif told.waits:
            self.holds.hold(entry, told)
        elif begin_s is not None and begin_s > self.state.now:
            self.holds.alarm(entry, begin_s)
        elif not entry.spec.external and (why := self.unfit(entry)):
            entry.blocked = why
            self.job_table.mark_changed(entry)
        else:
            entry.stage, entry.blocked, entry.trouble = Stage.WAITING, "", ""
            if held:
                self.job_table.mark_changed(entry)
            if not self.array_limits.must_wait(entry):
                self._admit_to_queue(entry)

    def _admit_to_queue(self, entry: Entry) -> None:
        """Let a job enter the policy's queue as soon as its memory is free."""
        if self.must_wait_for_memory(entry):
            self.admit_by_memory()
        else:
            self.queue.put(ev.Admitted(entry))

    def must_wait_for_memory(self, entry: Entry) -> bool:
        """Let a job that has no memory set aside wait for the memory that it asks for; False: it need not."""
        needed_mb = self.job_table.memory_mb(entry)
        if not needed_mb or self.memory.is_held(entry.id):
            return False
        self.memory.wait(entry.id, entry.priority, needed_mb)
        return True

    def admit_by_memory(self) -> None:
        """Let the jobs enter the policy's queue whose memory is free."""
        for job_id in self.memory.in_the_way(self._has_not_begun):
            entry = self.job_table.entries[job_id]
            self.state.withdraw(job_id)
            self.stale = True
            self.memory.release(job_id)
            self.must_wait_for_memory(entry)
        for job_id in self.memory.admit():
            self.queue.put(ev.Admitted(self.job_table.entries[job_id]))

    def recover_admission(self) -> None:
        """After a restart: what runs or is paused has memory and place, the others wait for theirs."""
        waiting = []
        for entry in self.job_table.entries.values():
            with self.queue.sparing(entry, "at the start"):
                if entry.alive or entry.stage in (Stage.RUNNING, Stage.STOPPING, Stage.SUSPENDED):
                    self.memory.hold(entry.id, entry.priority, self.job_table.memory_mb(entry))
                    self.array_limits.hold(entry)
                elif entry.stage is Stage.WAITING and self._without_memory(entry):
                    entry.stage = Stage.HELD  # admit will say why
                elif entry.stage is Stage.WAITING:
                    waiting.append(entry)
        for entry in sorted(waiting, key=lambda entry: not entry.attempt):  # who had a place keeps it
            with self.queue.sparing(entry, "at the start"):
                if not self.array_limits.must_wait(entry):
                    self.must_wait_for_memory(entry)
        self.memory.admit()

    def waits_for_admission(self, entry: Entry) -> bool:
        """Return true if a job waits for a place in its array, or for memory."""
        return self.array_limits.waits(entry.id) or self.memory.waits(entry.id)

    def _has_not_begun(self, job_id: int) -> bool:
        return job_id in self.state.waiting and not self.job_table.entries[job_id].attempt

    def unfit(self, entry: Entry) -> str:
        """Say as a sentence why this machine cannot run the job; "" if it can.

        The machine may have been larger, or divided otherwise, when the job was submitted.
        """
        try:
            why = self.state.misfit(self.job_table.job(entry)) or self._without_memory(entry)
        except BadInput as error:
            why = error.what
        return f"this machine cannot run the job: {why}" if why else ""

    def _without_memory(self, entry: Entry) -> str:
        """Say as a clause why the job can never have its memory; "": it can."""
        if self.memory.is_held(entry.id):
            return ""
        return beyond(self.job_table.memory_mb(entry), self.memory.total_mb)

    def park_later(self, entry: Entry) -> None:
        """Let a running job be asked again to park, but not at once."""
        self.postponed.add(entry.id)
        self.holds.alarm(entry, self.state.now + PARK_AGAIN_S)

    def set_alarms_anew(self) -> None:
        """Have each job looked at when it is time by the clock as it is now."""
        self.holds.clear_alarms()
        for entry in self.job_table.entries.values():
            self.holds.alarm(entry, entry.spec.deadline_s)
            self.holds.alarm(entry, not_before_s(entry) if entry.stage is Stage.HELD else None)
        for job_id in self.postponed:
            self.holds.alarm(self.job_table.entries[job_id], self.state.now + PARK_AGAIN_S)

    # -- a handler for each event ----------------------------------------------------------------------

    def _admitted(self, event: ev.Admitted) -> Event | None:
        """Enter a job in the policy's queue."""
        entry = event.entry
        if entry.stage is not Stage.WAITING or entry.id in self.state.waiting:
            return None
        self.state.restore(self.job_table.as_state(entry))
        if self.memory.is_held(entry.id):
            self.state.take_turn(entry.id)
        return Submitted(self.job_table.job(entry))

    def leave(self, entry: Entry) -> Placement | None:
        """Take a job out of the cluster state; return where it ran, if at all."""
        if entry.id in self.state.running:
            state = self.state.state(entry.id)
            self.state.finish(state)
            self.engine.free(entry)
            self.job_table.copy_state(entry, state)
            entry.goals = ()
            return state.placement
        if entry.id in self.state.waiting or entry.id in self.state.suspended:
            self.state.withdraw(entry.id)
            self.stale = True
        return None

    def ended(self, event: ev.Ended) -> Event | None:
        """Let a job leave; those that wait for it may go on."""
        entry, stage = event.entry, event.stage
        placement = self.leave(entry)
        job = self.job_table.job(entry) if placement else None
        self._close(entry, stage, event.trouble, min(event.ended_s or self.state.now, self.state.now))
        ended = [entry]
        while ended:  # whoever can never begin now ends as well, and may be waited for in turn
            for follower in self.holds.followers(ended.pop()):
                if hopeless := self.holds.verdict(follower).hopeless:
                    self._close(follower, Stage.CANCELLED, hopeless, self.state.now)
                    ended.append(follower)
                else:
                    self.admit(follower)
        how = "killed" if stage is Stage.KILLED else "done"
        return Finished(job, placement, how) if job and placement else None

    def _close(self, entry: Entry, stage: Stage, trouble: str, ended_s: float) -> None:
        """Note the end of a job that has left the cluster state, or was never in it."""
        entry.stage, entry.trouble, entry.end_s = stage, trouble, ended_s
        entry.held_by_user = entry.alive = False
        if entry.start_s is not None and entry.usage:  # the clock may have been set while nobody saw it
            entry.start_s = min(entry.start_s, ended_s - entry.usage["wall_s"])
        self.postponed.discard(entry.id)
        self.job_table.record(entry, self.state.now, stage.value, trouble)
        self.job_table.drop(entry)
        self.give_back(entry)
        self.run_times.forget(entry)
        self.unsure.update(dict.fromkeys(self.run_times.ended(entry)))

    def _set_aside(self, event: ev.Fault) -> Event | None:
        """Have a job end, and fail, with which tenbin cannot cope; all others go on."""
        entry, error = event.entry, event.error
        trouble = f"{FAULT}: {type(error).__name__}: {error}"
        self.stale = True
        if entry.alive and entry.want == "end":
            return None
        if entry.alive:  # it has its place until it has ended
            entry.trouble = trouble
            self.job_table.record(entry, self.state.now, "fault", trouble)
            self.dispatcher.request(entry, "end")
            return None
        told = None
        try:
            if entry.id in self.job_table.entries:
                told = self.ended(ev.Ended(entry, Stage.FAILED, trouble))
        except Exception:  # whatever it is, the next coordinator has no such job
            log.exception("a fault of tenbin's: job %s cannot be set aside", entry.label)
            entry.stage, entry.trouble, entry.end_s = Stage.FAILED, trouble, self.state.now
            self.job_table.entries.pop(entry.id, None)
            self.job_table.mark_changed(entry)
        self._admit_anew()
        return told

    def _admit_anew(self) -> None:
        """Let jobs wait for their turn whose predecessor, or place, was lost sight of by a fault."""
        for entry in list(self.job_table.entries.values()):
            with self.queue.sparing(entry, "after a fault"):
                if entry.stage is Stage.HELD and not (entry.held_by_user or entry.blocked):
                    self.admit(entry)
                elif (
                    entry.stage is Stage.WAITING
                    and entry.id not in self.state.waiting
                    and not self.waits_for_admission(entry)
                ):
                    self.queue.put(ev.Admitted(entry))

    def give_back(self, entry: Entry) -> None:
        """Give back the job's memory, and its place in its array."""
        for member in self.array_limits.release(entry):
            self._admit_to_queue(member)
        if self.memory.release(entry.id):
            self.admit_by_memory()

    def _blocked(self, event: ev.Blocked) -> Event | None:
        """Hold a job that waits."""
        self._block(event.entry, event.why)
        return None

    def _block(self, entry: Entry, why: str) -> None:
        if entry.stage in (Stage.WAITING, Stage.SUSPENDED) and not entry.alive:
            self.leave(entry)
            entry.stage = Stage.HELD
            self.give_back(entry)
        if entry.stage is Stage.HELD:
            entry.blocked = why
            self.job_table.mark_changed(entry)

    def _attempt_lost(self, event: ev.AttemptLost) -> Event | None:
        """Let a job wait again, ahead of all others."""
        entry, trouble = event.entry, event.trouble
        self.job_table.record(entry, self.state.now, "lost", trouble)
        self.job_table.predictions.void(entry.id, trouble)
        if entry.id not in self.state.running and entry.id not in self.state.suspended:
            if entry.stage is Stage.HELD:
                self.give_back(entry)
            self._may_go_anywhere(entry)
            return None  # it waits, or its owner holds it: it stays as it is
        state, had_place = self.state.state(entry.id), entry.id in self.state.running
        state.job = self.job_table.renewed(entry)
        self.state.fail(state, entry.kept, entry.kept_s)
        if had_place:
            self.engine.free(entry)
            entry.goals = ()
        if not event.counts:
            state.failures -= 1
        self.job_table.copy_state(entry, state)
        entry.stage = Stage.WAITING
        if entry.blocked:
            self._block(entry, entry.blocked)
        elif entry.held_by_user:  # its owner had suspended it, and it was about to leave
            self.leave(entry)
            entry.stage = Stage.HELD
            self.give_back(entry)
        return Failed(state.job, state.placement) if state.placement else None

    def _failed_by_itself(self, event: ev.FailedByItself) -> Event | None:
        """Hold a job until it is tried again; for the policy it is gone until then."""
        entry = event.entry
        placement = self.leave(entry)
        job = self.job_table.renewed(entry)
        entry.not_before_s = self.state.now + pause_s(entry.spec, entry.retried)
        entry.retried += 1
        entry.stage, entry.trouble = Stage.HELD, event.trouble
        entry.code = entry.signal = None
        entry.done, entry.served_s = entry.kept, entry.kept_s
        self.job_table.predictions.void(entry.id, event.trouble)
        told = f"{event.trouble}; tried again at {stamp(entry.not_before_s)}, {left(entry)}"
        self.job_table.record(entry, self.state.now, "failed", told)
        self.give_back(entry)
        if not entry.held_by_user:
            self.admit(entry)
        return Finished(job, placement) if placement else None
