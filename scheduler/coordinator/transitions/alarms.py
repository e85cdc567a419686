"""The jobs whose time has come: to begin, to be tried or asked again, or to be ended at their deadline."""

from __future__ import annotations

from scheduler.coordinator import events as ev
from scheduler.coordinator.handlers import Handlers
from scheduler.coordinator.outcomes import DEADLINE
from scheduler.jobs.entry import Entry, Phase, Stage
from scheduler.model.events import Timer


class Alarms:
    """Looks at each job that has an alarm (``Holds``) when its time has come."""

    def __init__(self, handlers: Handlers) -> None:
        self.handlers, self.holds, self.state = handlers, handlers.holds, handlers.state

    def look(self) -> None:
        """Look at the jobs whose time has come."""
        for entry in self.holds.due(self.state.now):
            with self.handlers.queue.sparing(entry, "whose time has come"):
                self._look_at(entry)

    def _look_at(self, entry: Entry) -> None:
        deadline_s = entry.spec.deadline_s
        if deadline_s is not None and deadline_s <= self.state.now:
            self._end(entry)
        elif entry.phase is Phase.HELD and not entry.blocked:
            self.handlers.admit(entry)
        elif entry.id in self.handlers.postponed and entry.phase is Phase.RUNNING:
            self.handlers.postponed.remove(entry.id)
            self.handlers.dispatcher.fix(entry, "")
            self.handlers.queue.put(ev.Applied(Timer(self.state.now)))

    def _end(self, entry: Entry) -> None:
        """End a job at its deadline, whether it runs or waits."""
        if not entry.alive:
            trouble = f"its deadline passed before it could {'go on' if entry.attempt else 'start'}"
            self.handlers.queue.put(ev.Ended(entry, Stage.CANCELLED, trouble))
        elif entry.phase is not Phase.ENDING:
            entry.trouble = DEADLINE
            self.handlers.job_table.record(entry, self.state.now, "deadline")
            self.handlers.dispatcher.request(entry, "end")
