"""Trials of running programs on idle devices, so that their speed there is known before they are moved.

A program is tried once in an attempt on each class, in vain or not, and not where its run time is known: by
its owner, by earlier runs, or by an earlier trial of the same program. One trial is under way at a time. It
is given up when its job is to leave, when the idle device gets a job, and after ``LIMIT_S``.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from scheduler.coordinator import events as ev
from scheduler.coordinator.handlers import Handlers
from scheduler.engines.common.job_folders import JobFolders
from scheduler.jobs.entry import Entry, Phase
from scheduler.model.state import JobState
from scheduler.prediction.tried import ratio_of, tried_words

AFTER_S = 5.0  # since the program began or went on
AGAIN_S = 10.0  # until another look at a program for which there was no trial, or none that launched anything
LIMIT_S = 30.0  # of a trial
TOO_FEW = "too few of its launches could be tried"


class TrialKey(NamedTuple):
    """An attempt of a job, and the class of device on which it is tried."""

    job_id: int
    attempt: int
    pool: str


class ProgramTrials:
    """Begins trials, gives them up, and hands what they tell to the predictions of run times."""

    def __init__(self, handlers: Handlers) -> None:
        self.handlers, self.run_times = handlers, handlers.run_times
        self.state, self.job_table = handlers.state, handlers.job_table
        self._folders = JobFolders(handlers.job_table.journal.store)
        moves = handlers.engine.device_moves
        self._trials = moves.trials if moves is not None else None
        self._present, self._began_s = TrialKey(0, 0, ""), 0.0
        self._not_before_s: dict[TrialKey, float] = {}  # infinite: it was tried, or in vain
        handlers.of[ev.Tried] = self._tried

    def look(self) -> None:
        """Begin a trial where it tells something new, or give up the one that is in the way now."""
        if self._trials is None:
            return
        if self._trials.busy:
            if why := self._hindrance():
                self._trials.give_up(why)
            return
        for state in self.state.running.values():
            entry = self.job_table.entries[state.job.id]
            if self._may_be_tried(state, entry) and self._begin(state, entry):
                return

    def shift(self, step_s: float) -> None:
        """Move what durations are counted from with a clock that was set."""
        self._began_s += step_s
        self._not_before_s = {of: at_s + step_s for of, at_s in self._not_before_s.items()}

    def _hindrance(self) -> str:
        """Say why the trial under way must end; "": nothing is in its way."""
        state = self.state.running.get(self._present.job_id)
        entry = self.job_table.entries.get(self._present.job_id)
        if state is None or entry is None or not self._runs(entry):
            return "its job leaves"
        if not self._idle(self._present.pool):
            return f"{self._present.pool} has a job now"
        return f"it took {LIMIT_S:g} s" if self.state.now >= self._began_s + LIMIT_S else ""

    def _runs(self, entry: Entry) -> bool:
        return entry.phase is Phase.RUNNING and entry.parks

    def _may_be_tried(self, state: JobState, entry: Entry) -> bool:
        return self._runs(entry) and self.state.now >= state.since_s + AFTER_S

    def _idle(self, pool: str) -> bool:
        return self.state.free[pool] == self.state.cluster[pool].units

    def _begin(self, state: JobState, entry: Entry) -> bool:
        """Begin a trial of a job on the first class that is idle and on which its speed is not known."""
        now, here = self.state.now, state.place.pool
        for pool in self.state.cluster.pools:
            one = TrialKey(entry.id, entry.attempt, pool.name)
            if pool.name == here or now < self._not_before_s.get(one, 0.0):
                continue
            if not (state.job.runs_on(pool.name) and self._idle(pool.name)):
                continue
            # Looked at rarely, because each turn of the coordinator comes here.
            began = self.run_times.wants_trial(entry.spec, pool, here) and self._start(entry, pool.name)
            entries = self.job_table.entries
            self._not_before_s = {of: at_s for of, at_s in self._not_before_s.items() if of.job_id in entries}
            self._not_before_s[one] = math.inf if began else now + AGAIN_S
            if began:
                self._present, self._began_s = one, now
                return True
        return False

    def _start(self, entry: Entry, pool: str) -> bool:
        run = self._folders.state(entry)
        if self._trials is None or run is None or run.paused:
            return False
        return self._trials.begin(entry, run, pool)

    # -- what a trial tells ---------------------------------------------------------------------------

    def _tried(self, event: ev.Tried) -> None:
        """Learn from a trial, or note why it failed."""
        found = ratio_of(event.trial) if event.trial is not None else None
        if found is None and event.for_now:
            self._not_before_s[self._present] = self.state.now + AGAIN_S
            return
        if found is None:
            why = f"on {self._present.pool}: {event.trouble or TOO_FEW}"
            self.job_table.record_later(event.entry, self.state.now, "not tried", why)
            return
        self.job_table.record_later(event.entry, self.state.now, "tried", tried_words(found))
        self.handlers.unsure.update(dict.fromkeys(self.run_times.tried(event.entry.spec, found)))
        self._predict_begun(event.entry)

    def _predict_begun(self, tried: Entry) -> None:
        """Predict the jobs anew that have begun to run the same program, and journal the trial with them."""
        program = self.run_times.program(tried.spec)
        begun = [
            entry
            for entry in self.job_table.entries.values()
            if entry.attempt and self.run_times.program(entry.spec) == program
        ]
        told = self.run_times.expect([entry.spec for entry in begun], [entry.predicted for entry in begun])
        for entry, new in zip(begun, told, strict=True):
            if new is None:
                continue
            by_hand = {"moved_by_hand": True} if (entry.predicted or {}).get("moved_by_hand") else {}
            job = self.job_table.expect(entry, new | by_hand)
            if any(
                entry.id in those for those in (self.state.running, self.state.suspended, self.state.waiting)
            ):
                self.state.reconsider(job)
                self.handlers.stale = True
