"""Takes over jobs that came to the cluster by another way, and follows what others change of them.

Each look compares all of them with the journal: what was missed while no coordinator was there is seen then.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence

from profiles.errors import BadInput
from scheduler.coordinator import events as ev
from scheduler.coordinator.handlers import Handlers
from scheduler.coordinator.job_table import NoRoom
from scheduler.coordinator.outcomes import outcome_of
from scheduler.engines.external_jobs import ExternalJob, ExternalJobSource
from scheduler.jobs.entry import Entry, Phase, Stage
from scheduler.jobs.specs import JobSpec
from scheduler.model import actions as act
from scheduler.model.events import Event, Started
from scheduler.model.jobs import Placement

SIZE = ("tasks", "cores", "nodes", "memory_mb")
log = logging.getLogger("tenbin")


class ExternalJobTracker:
    """The external jobs that the engine sees, entered in the cluster state.

    Args:
        past: jobs of the journal, the last ones at least.
        check: BadInput if a job can never run here.
    """

    def __init__(
        self,
        past: Iterable[Entry],
        handlers: Handlers,
        source: ExternalJobSource,
        check: Callable[[JobSpec, float], None],
    ) -> None:
        self.state, self.job_table = handlers.state, handlers.job_table
        self.handlers, self.dispatcher, self.queue = handlers, handlers.dispatcher, handlers.queue
        self.source, self.run_times, self._check = source, handlers.run_times, check
        handlers.of[ev.StartedElsewhere] = self._adopt
        self._known = {entry.spec.external.id: entry.id for entry in past if entry.spec.external is not None}

    def look(self) -> None:
        """Follow what has happened since the last look."""
        external_jobs = self.source.look()
        if external_jobs is None:
            return
        present = {external.key for external in external_jobs}
        new = sorted(filter(self._compare, external_jobs), key=_order)
        for entry in list(self.job_table.entries.values()):
            origin = entry.spec.external
            if origin is not None and origin.id not in present and not entry.alive:
                self._finish(
                    entry,
                    f"{self.source.scheduler} does not know it any more, or it is not tenbin's any more",
                )
        self._take_in(new)

    def waiting(self) -> dict[str, Entry]:
        """Return the external jobs that wait for tenbin, by their names there."""
        found = self.job_table.entries.values()
        return {e.spec.external.id: e for e in found if e.spec.external is not None and not e.alive}

    def leave(self, remark: str) -> int:
        """Leave all external jobs that wait to their own scheduler; return their count."""
        waiting = self.waiting()
        for key, entry in waiting.items():
            self._let_go(key, entry, remark)
        return len(waiting)

    def _compare(self, external: ExternalJob) -> bool:
        """Follow what has changed; return true if the job is to be accepted."""
        entry = self._entry(external)
        if entry is not None and entry.stage.final:
            if external.state != "waiting":
                return False
            if entry.stage is Stage.CANCELLED and external.submitted_s <= (entry.end_s or math.inf):
                self.source.drop(external.key)  # in tenbin, while it waited
                return False
            entry = None  # it was put back into the queue after it had ended
        if entry is None:
            return external.state == "waiting"
        if external.limit_s != self._limit_s(entry) and external.state != "ended":
            self._limit(entry, external.limit_s)
        if entry.alive and not self.queue.ends(entry):
            return False
        if external.result is not None:
            stage, trouble = outcome_of(entry.spec, 1, external.result)
            self._finish(entry, trouble or f"{stage} in {self.source.scheduler}", stage)
        elif external.state == "running":
            entry.blocked = (
                entry.blocked or f"{self.source.scheduler} has started it"
            )  # no policy may, until it is booked
            self.queue.put(ev.StartedElsewhere(entry, external))  # after what it was before has ended
        elif external.unclear:
            self._let_go(external.key, entry, external.unclear)
        elif external.needs is not None and self._size(external.needs.spec) != self._size(entry.spec):
            self._finish(entry, f"changed in {self.source.scheduler}; taken over anew")
            return True
        elif external.blocked != entry.blocked:
            self._block(entry, external.blocked)
        return False

    def _entry(self, external: ExternalJob) -> Entry | None:
        """Find the job of an external job; None: tenbin does not know it, or another job had its number."""
        number = self._known.get(external.key)
        entry = None if number is None else self.job_table.entry(number)
        if entry is None or entry.spec.external is None:
            return None
        if not external.restarts and external.submitted_s > entry.spec.external.submitted_s + 1.0:
            if not entry.stage.final:
                self._finish(entry, f"{self.source.scheduler} has given its number to another job")
            return None
        return entry

    def _take_in(self, new: Sequence[ExternalJob]) -> None:
        """Accept the jobs that are understood and can run here; leave the others to their own scheduler."""
        now, fit = self.state.now, []
        open_tasks = [
            e.spec.external.id.split("_")[0] for e in self.job_table.entries.values() if e.spec.external
        ]
        for external in new:
            if external.unclear:
                self._let_go(external.key, None, external.unclear)
            elif external.needs is not None:
                spec, most = external.needs
                if most is not None and open_tasks.count(external.array) >= most:
                    continue  # of the array so many may run at once: it comes when one of them has ended
                try:
                    self._check(spec, now)
                except BadInput as error:
                    self._let_go(external.key, None, error.what)
                    continue
                open_tasks.append(external.array)
                fit.append((external, spec))
        if not fit:
            return
        specs = [spec for _, spec in fit]
        blocked = [external.blocked for external, _ in fit]
        try:
            entries = self.job_table.add(
                specs, {}, now, predicted=self.run_times.expect(specs), blocked=blocked
            )
        except NoRoom as error:
            log.error(
                "jobs of %s wait in %s: %s", self.source.command, self.source.scheduler, error
            )  # and are taken in at a later look
            return
        for entry in entries:
            assert entry.spec.external is not None
            self._known[entry.spec.external.id] = entry.id
            self.handlers.admit(entry)

    def _let_go(self, key: str, entry: Entry | None, remark: str) -> None:
        told = self.source.command, self.source.scheduler
        log.warning("job %s of %s is left to %s: %s", key, *told, remark)
        self.source.let_go(key, remark)
        if entry is not None:
            self._finish(entry, f"left to {self.source.scheduler}: {remark}")

    def _finish(self, entry: Entry, trouble: str, stage: Stage = Stage.CANCELLED) -> None:
        self.queue.put(ev.Ended(entry, stage, trouble))

    def _block(self, entry: Entry, why: str) -> None:
        self.job_table.record(entry, self.state.now, "blocked" if why else "unblocked", why)
        entry.blocked = why
        if why:  # one that is about to wait again is blocked as soon as it does
            self.queue.put(ev.Blocked(entry, why))
        elif entry.phase is Phase.HELD:
            self.handlers.admit(entry)

    def _limit_s(self, entry: Entry) -> float:
        return entry.limit_s or entry.spec.time_s or math.inf

    def _limit(self, entry: Entry, limit_s: float) -> None:
        self.job_table.record(
            entry, self.state.now, "time limit", "none" if math.isinf(limit_s) else f"{limit_s:g} s"
        )
        job = self.job_table.limit(entry, limit_s)
        if entry.id in self.state.waiting or entry.id in self.state.running:
            self.state.reconsider(job)
            self.handlers.stale = True

    def _adopt(self, event: ev.StartedElsewhere) -> Event | None:
        """Take over a job that was started by somebody else, if the cluster state has room for it."""
        entry, external = event.entry, event.external
        if entry.alive:
            return None
        self.handlers.stale = True
        entry.blocked, entry.held_by_user = "", False
        if entry.id in self.state.suspended:
            self.state.withdraw(entry.id)
        if entry.id not in self.state.waiting:
            entry.stage = Stage.WAITING
            self.job_table.job(entry)
            self.state.restore(entry)
        job, nodes = entry.job, external.nodes or ()
        each, more = divmod(job.units, len(nodes) or 1)
        there = tuple((node, each + (place < more)) for place, node in enumerate(nodes))
        placement = Placement(self.state.cluster.pools[0].name, job.units, there)
        why = "" if nodes and each and self.source.has_room(placement) else "its nodes are taken, or others"
        why = why or self.state.obstacle(job, placement)
        if why:
            trouble = f"somebody has had it start where tenbin has no room for it ({why})"
            return self.handlers.ended(
                ev.Ended(entry, Stage.CANCELLED, f"left to {self.source.scheduler}: {trouble}")
            )
        self.dispatcher.apply(act.Start(entry.id, placement))
        return Started(job)

    @staticmethod
    def _size(spec: JobSpec) -> tuple[object, ...]:
        return tuple(getattr(spec, name) for name in SIZE)


def _order(external: ExternalJob) -> tuple[float, int, int]:
    """Return the key that sorts external jobs as they came."""
    array, _, task = external.key.partition("_")
    return external.submitted_s, int(array), int(task or 0)
