"""Takes over jobs that came to the cluster by another way, and follows what others change of them.

Each look compares all of them with the journal: what was missed while no coordinator was there is seen then.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from profiles.errors import BadInput
from scheduler.coordinator.dispatcher import Bookings, Happen
from scheduler.coordinator.job_table import Ledger, NoRoom
from scheduler.coordinator.outcomes import judge
from scheduler.coordinator.transitions import Lives
from scheduler.engines.external_jobs import Guest, Reception
from scheduler.jobs.entry import Entry, Stage
from scheduler.jobs.specs import JobSpec
from scheduler.model import actions as act
from scheduler.model.events import Event, Finished, Started, Timer
from scheduler.model.jobs import Placement
from scheduler.model.state import ClusterState
from scheduler.prediction.run_times import RunTimePredictor

SIZE = ("tasks", "cores", "nodes", "memory_mb")
log = logging.getLogger("tenbin")


class Visitors:
    """Enters guests of the engine in the books.

    Args:
        past: jobs of the journal, the last ones at least.
        check: BadInput if a job can never run here.
    """

    def __init__(
        self,
        past: Iterable[Entry],
        state: ClusterState,
        ledger: Ledger,
        lives: Lives,
        bookings: Bookings,
        reception: Reception,
        run_times: RunTimePredictor,
        check: Callable[[JobSpec, float], None],
        happen: Happen,
    ) -> None:
        self.state, self.ledger, self.lives, self.bookings = state, ledger, lives, bookings
        self.reception, self.run_times = reception, run_times
        self._check, self._happen = check, happen
        self._known = {entry.spec.slurm.id: entry.id for entry in past if entry.spec.slurm is not None}

    def look(self) -> None:
        """Follow what has happened since the last look."""
        guests = self.reception.look()
        if guests is None:
            return
        present = {guest.key for guest in guests}
        new = sorted(filter(self._compare, guests), key=_order)
        for entry in list(self.ledger.entries.values()):
            origin = entry.spec.slurm
            if origin is not None and origin.id not in present and not entry.alive:
                self._finish(entry, "Slurm does not know it any more, or it is not tenbin's any more")
        self._take_in(new)

    def waiting(self) -> dict[str, Entry]:
        """Those that wait for tenbin, by their names there."""
        found = self.ledger.entries.values()
        return {e.spec.slurm.id: e for e in found if e.spec.slurm is not None and not e.alive}

    def leave(self, remark: str) -> int:
        """All that wait are left to Slurm; how many."""
        waiting = self.waiting()
        for key, entry in waiting.items():
            self._let_go(key, entry, remark)
        return len(waiting)

    def _compare(self, guest: Guest) -> bool:
        """Follow what has changed; whether it is to be taken in."""
        entry = self._entry(guest)
        if entry is not None and entry.stage.final:
            if guest.state != "waiting":
                return False
            if entry.stage is Stage.CANCELLED and guest.submitted_s <= (entry.end_s or math.inf):
                self.reception.drop(guest.key)  # in tenbin, while it waited
                return False
            entry = None  # it was put back into the queue after it had ended
        if entry is None:
            return guest.state == "waiting"
        if guest.limit_s != self._limit_s(entry) and guest.state != "ended":
            self._limit(entry, guest.limit_s)
        if entry.alive:
            return False
        if guest.result is not None:
            stage, trouble = judge(entry.spec, 1, guest.result)
            self._finish(entry, trouble or f"{stage} in Slurm", stage)
        elif guest.state == "running":
            entry.blocked = entry.blocked or "Slurm has started it"  # no policy may, until it is booked
            self._happen(Timer, partial(self._adopt, entry, guest))  # after what it was before has ended
        elif guest.unclear:
            self._let_go(guest.key, entry, guest.unclear)
        elif guest.needs is not None and self._size(guest.needs.spec) != self._size(entry.spec):
            self._finish(entry, "changed in Slurm; taken over anew")
            return True
        elif guest.blocked != entry.blocked:
            self._block(entry, guest.blocked)
        return False

    def _entry(self, guest: Guest) -> Entry | None:
        """The job that it is; None: it is not known, or another one had its number."""
        number = self._known.get(guest.key)
        entry = None if number is None else self.ledger.entry(number)
        if entry is None or entry.spec.slurm is None:
            return None
        if not guest.restarts and guest.submitted_s > entry.spec.slurm.submitted_s + 1.0:
            if not entry.stage.final:
                self._finish(entry, "Slurm has given its number to another job")
            return None
        return entry

    def _take_in(self, new: Sequence[Guest]) -> None:
        """Those that are understood and can run here; the others are left to Slurm."""
        now, fit = self.state.now, []
        open_tasks = [e.spec.slurm.id.split("_")[0] for e in self.ledger.entries.values() if e.spec.slurm]
        for guest in new:
            if guest.unclear:
                self._let_go(guest.key, None, guest.unclear)
            elif guest.needs is not None:
                spec, most = guest.needs
                if most is not None and open_tasks.count(guest.array) >= most:
                    continue  # of the array so many may run at once: it comes when one of them has ended
                try:
                    self._check(spec, now)
                except BadInput as error:
                    self._let_go(guest.key, None, error.what)
                    continue
                open_tasks.append(guest.array)
                fit.append((guest, spec))
        if not fit:
            return
        specs = [spec for _, spec in fit]
        blocked = [guest.blocked for guest, _ in fit]
        try:
            entries = self.ledger.take_in(
                specs, {}, now, predicted=self.run_times.expect(specs), blocked=blocked
            )
        except NoRoom as error:
            log.error("jobs of sbatch wait in Slurm: %s", error)  # and are taken in at a later look
            return
        for entry in entries:
            assert entry.spec.slurm is not None
            self._known[entry.spec.slurm.id] = entry.id
            self.lives.admit(entry)

    def _let_go(self, key: str, entry: Entry | None, remark: str) -> None:
        log.warning("job %s of sbatch is left to Slurm: %s", key, remark)
        self.reception.let_go(key, remark)
        if entry is not None:
            self._finish(entry, f"left to Slurm: {remark}")

    def _finish(self, entry: Entry, trouble: str, stage: Stage = Stage.CANCELLED) -> None:
        self._happen(Finished, partial(self.lives.finish, entry, stage, trouble))

    def _block(self, entry: Entry, why: str) -> None:
        self.ledger.tell(entry, self.state.now, "blocked" if why else "unblocked", why)
        entry.blocked = why
        if why:  # one that is about to wait again is blocked as soon as it does
            self._happen(Finished, partial(self.lives.block, entry, why))
        elif entry.stage is Stage.HELD and not entry.held_by_user:
            self.lives.admit(entry)

    def _limit_s(self, entry: Entry) -> float:
        return entry.limit_s or entry.spec.time_s or math.inf

    def _limit(self, entry: Entry, limit_s: float) -> None:
        self.ledger.tell(
            entry, self.state.now, "time limit", "none" if math.isinf(limit_s) else f"{limit_s:g} s"
        )
        job = self.ledger.limit(entry, limit_s)
        if entry.id in self.state.waiting or entry.id in self.state.running:
            self.state.reconsider(job)
            self.lives.stale = True

    def _adopt(self, entry: Entry, guest: Guest) -> Event | None:
        """Somebody has had Slurm start it: it runs where it is, if there is room for that in the books."""
        if entry.alive or entry.id not in self.ledger.entries:
            return None
        self.lives.stale = True
        entry.blocked, entry.held_by_user = "", False
        if entry.id in self.state.suspended:
            self.state.withdraw(entry.id)
        if entry.id not in self.state.waiting:
            entry.stage = Stage.WAITING
            self.state.restore(self.ledger.as_state(entry))
        job, nodes = self.ledger.job(entry), guest.nodes or ()
        each, more = divmod(job.units, len(nodes) or 1)
        there = tuple((node, each + (place < more)) for place, node in enumerate(nodes))
        placement = Placement(self.state.cluster.pools[0].name, job.units, there)
        why = (
            "" if nodes and each and self.reception.has_room(placement) else "its nodes are taken, or others"
        )
        why = why or self.state.obstacle(job, placement)
        if why:
            trouble = f"left to Slurm: somebody has had it start where tenbin has no room for it ({why})"
            return self.lives.finish(entry, Stage.CANCELLED, trouble)
        self.bookings.book(act.Start(entry.id, placement))
        return Started(job)

    @staticmethod
    def _size(spec: JobSpec) -> tuple[object, ...]:
        return tuple(getattr(spec, name) for name in SIZE)


def _order(guest: Guest) -> tuple[float, int, int]:
    """As they came."""
    array, _, task = guest.key.partition("_")
    return guest.submitted_s, int(array), int(task or 0)
