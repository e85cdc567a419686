"""Decisions: entered in the cluster state at once, carried out when the journal has them.

A turn has many events, and a later one may withdraw what followed from an earlier one. So what is carried out
follows from the jobs as they are at the end of the turn.
"""

from __future__ import annotations

import heapq
import logging
import sqlite3
from collections.abc import Iterable

from agent.attempts.records import Want
from scheduler.coordinator.events import Applied, EventQueue
from scheduler.coordinator.job_table import JobTable
from scheduler.coordinator.machine_hold import MachineHold
from scheduler.engines.protocol import Engine
from scheduler.jobs.entry import Entry, Phase
from scheduler.model import actions as act
from scheduler.model.events import Checkpointed
from scheduler.model.jobs import Placement, Stop
from scheduler.model.state import ClusterState
from scheduler.prediction.tracker import PredictionTracker

NO_ROOM = (sqlite3.Error, OSError)  # the next turn tries it again
log = logging.getLogger("tenbin")


class Dispatcher:
    """Applies decisions to the cluster state at once, and hands them to the engine by ``carry_out``.

    Args:
        tracker: told of every decision before it is carried out.

    Attributes:
        queue: the events of this coordinator; an action at no cost puts its event there at once.
        hold: of all starts on a machine without named nodes.
    """

    def __init__(
        self, state: ClusterState, job_table: JobTable, engine: Engine, tracker: PredictionTracker
    ) -> None:
        self.state, self.job_table, self.journal = state, job_table, job_table.journal
        self.engine, self.tracker = engine, tracker
        self.queue, self.hold = EventQueue(), MachineHold()
        if engine.device_moves is not None:
            job_table.why_not_moved = engine.device_moves.why_not
        # Jobs with an attempt that no engine knows yet, and jobs with a request, in the order of the last.
        self._starts: dict[int, Entry] = {}
        self._asks: dict[int, Entry] = {}
        self._caps: list[Entry] = []
        self._timers = [(at, number, tag) for number, (at, tag) in enumerate(self.journal.timers())]
        heapq.heapify(self._timers)
        self._timers_made = len(self._timers)
        self._timers_changed = False
        self._regions_changed = False

    def apply(self, action: act.Action) -> None:
        """Enter an action in the cluster state and note what the engine has to do.

        Raises:
            RuleBroken: it cannot be.
        """
        if isinstance(action, act.Start | act.Resume):
            change = self.state.start if isinstance(action, act.Start) else self.state.resume
            change(action.job_id, action.placement)
            self._run(self.job_table.entries[action.job_id], action.placement)
        elif isinstance(action, act.Suspend):
            units = self.state.check_stop("suspend", action.job_id).job.units
            self._stop(action.job_id, Placement(action.towards, units) if action.towards else None)
        elif isinstance(action, act.Migrate):
            self.state.check_stop("migrate", action.job_id, Stop.CHECKPOINT)
            self.job_table.entries[action.job_id].goals = (action.placement,)
            self._stop(action.job_id, action.placement)
        elif isinstance(action, act.SetPowerCap):
            self.state.check_running("set power cap", action.job_id)
            entry = self.job_table.entries[action.job_id]
            self.state.set_cap(entry, action.cap_w)
            self.job_table.record(entry, self.state.now, "power cap", _watts(action.cap_w))
            self.tracker.recaps(entry)
            self._caps.append(entry)
        elif isinstance(action, act.Resize):
            self.state.broken(action.job_id, "resize", "a running job keeps its size")
        elif isinstance(action, act.Repartition):
            self.state.repartition(action.pool, action.regions)
            if self.engine.regions is not None:
                self.engine.regions.cut(action.pool, action.regions)
            self._regions_changed = True
        elif isinstance(action, act.WakeAt):
            self._timers_made += 1
            heapq.heappush(self._timers, (max(action.at_s, self.state.now), self._timers_made, action.tag))
            self._timers_changed = True
        else:
            self.state.broken(None, type(action).__name__, "this engine cannot do that")

    def new_attempt(self, entry: Entry) -> None:
        """Start the job once more."""
        entry.attempt += 1
        entry.alive, entry.want = True, ""
        self._starts[entry.id] = entry
        if self.engine.device_moves is not None and entry.spec.checkpoint_signal is None:
            self.fix(entry, self.engine.device_moves.why_not(entry.spec, entry.devices))
        self.job_table.record(entry, self.state.now, "start", f"attempt {entry.attempt}")
        self.tracker.starts(entry, self.state.now)

    def fix(self, entry: Entry, why: str) -> None:
        """Note why the engine cannot park and move the job's attempt; "": it can."""
        before, entry.fixed = entry.job, why
        job = self.job_table.renewed(entry)
        if entry.id in self.state.running or entry.id in self.state.suspended:
            if before.stop is not job.stop or before.estimates_s.keys() != job.estimates_s.keys():
                self.state.overtaken = True  # the policy begins anew
            self.state.reconsider(job)

    def request(self, entry: Entry, want: Want) -> None:
        """Ask the job's supervisor for something; a job that is to end is asked for nothing else."""
        if entry.phase is Phase.ENDING and want != "end":
            return
        entry.request += 1
        entry.want = want
        self._ask(entry)

    def cap_again(self, entry: Entry) -> None:
        """After a restart: a cap that was decided may not have been set."""
        self._caps.append(entry)

    def request_again(self, entry: Entry) -> None:
        """After a restart: what was asked may not have been heard."""
        if entry.want:
            self._ask(entry)

    def _ask(self, entry: Entry) -> None:
        self._asks.pop(entry.id, None)
        self._asks[entry.id] = entry

    def shift(self, step_s: float) -> None:
        """Move what is due after a while with a clock that was set."""
        self._timers = [(at + step_s, number, tag) for at, number, tag in self._timers]
        self._timers_changed = True
        self.hold.until_s += step_s

    def due(self) -> list[tuple[float, object]]:
        """Take the timers whose time has come, as (time, tag)."""
        found = []
        while self._timers and self._timers[0][0] <= self.state.now:
            at, _, tag = heapq.heappop(self._timers)
            found.append((at, tag))
            self._timers_changed = True
        return found

    def timers(self) -> list[tuple[float, object]]:
        """Return the pending timers, as (time, tag)."""
        return [(at, tag) for at, _, tag in self._timers]

    def next_timer_s(self) -> float | None:
        """Return when the next timer is due, in seconds since 1970."""
        return self._timers[0][0] if self._timers else None

    def carry_out(self) -> None:
        """Commit to the journal, then have the engine act. If there is no room, call this again.

        Raises:
            sqlite3.Error, OSError: the journal, or a job's folder, cannot be written.
        """
        timers = [(at, tag) for at, _, tag in self._timers] if self._timers_changed else None
        self.job_table.commit(timers, self.state.regions if self._regions_changed else None, self.state.now)
        self._timers_changed = self._regions_changed = False
        # First those that give way: at no instant is more drawn than before, or than in the end.
        if self.engine.caps is not None:
            self.engine.caps.cap(self._caps, lower=True)
        for entry in list(self._starts.values()):
            if not _is_to_run(entry):
                if entry.alive:  # the engine reports that this attempt never was, and sees that it never is
                    with self.queue.sparing(entry, "recover", NO_ROOM):
                        self.engine.recover(entry)
                del self._starts[entry.id]
        for entry in list(self._asks.values()):
            if entry.alive and entry.want and entry.id not in self._starts:
                with self.queue.sparing(entry, entry.want, NO_ROOM):
                    self.engine.ask(entry, entry.want)
            del self._asks[entry.id]
        if self.engine.caps is not None:
            self.engine.caps.cap(self._caps, lower=False)
        self._caps.clear()
        if self._starts:
            try:
                self._start(self._starts.values())
                self._starts.clear()
            except NO_ROOM:
                raise
            except Exception:
                log.exception("a fault of tenbin's: of several jobs one cannot be started")
                for entry in list(self._starts.values()):  # the one stays, and is told to end
                    with self.queue.sparing(entry, "start", NO_ROOM):
                        self._start([entry])
                        del self._starts[entry.id]

    def _start(self, entries: Iterable[Entry]) -> None:
        self.engine.start([(entry, self.journal.environment(entry.environment)) for entry in entries])

    def _run(self, entry: Entry, placement: Placement) -> None:
        self.engine.place(entry, placement)
        nodes = self.engine.nodes
        self.job_table.place(entry, placement, nodes.where(entry) if nodes is not None else [])
        self.job_table.mark_changed(entry)
        if entry.alive:
            self.request(entry, "run")
            self.tracker.unpauses(entry, self.state.now)
        else:
            self.new_attempt(entry)

    def _stop(self, job_id: int, towards: Placement | None) -> None:
        """Pause a job, whose cores are free at once, or have it parked or moved, or ask for a checkpoint."""
        if not self.engine.moves:
            self.state.broken(job_id, "suspend", "this engine cannot stop a job and let it go on")
        self.state.check_stop("suspend", job_id)
        entry = self.job_table.entries[job_id]
        want = self._way_out(entry, towards)
        self.tracker.stops(entry, self.state.now)
        self.state.begin_stop(entry)
        if want == "pause":
            self.state.end_stop(entry)
            self.engine.free(entry)
            self.queue.put(Applied(Checkpointed(entry.job, entry.place)))
        self.request(entry, want)
        there = entry.moves_to
        told = ("moving", f"to {there.pool}") if there else (entry.stage.value, "")
        self.job_table.record(entry, self.state.now, *told)

    def _way_out(self, entry: Entry, towards: Placement | None) -> Want:
        """Choose how a job leaves its place; a program below the layer moves while it runs, if it can."""
        if entry.job.stop is not Stop.CHECKPOINT:
            return "pause"
        if entry.spec.checkpoint_signal is not None:
            return "checkpoint"
        if towards is None or towards.pool == entry.place.pool or self.state.obstacle(entry.job, towards):
            return "park"
        entry.goals = (towards,)
        self.state.reserve(entry, towards)
        return "move"


def _is_to_run(entry: Entry) -> bool:
    return entry.alive and entry.phase is Phase.RUNNING


def _watts(cap_w: float | None) -> str:
    return "none" if cap_w is None else f"{cap_w:g} W"
