"""Takes over jobs that came to the cluster by another way, and follows what others change of them.

Each look compares all of them with the journal: what was missed while no coordinator was there is seen then.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence

from profiles.errors import BadInput
from scheduler.coordinator import events as ev
from scheduler.coordinator.admission import admit, limit
from scheduler.coordinator.decisions import apply
from scheduler.coordinator.ends import outcome_of
from scheduler.coordinator.job_table import NoRoom
from scheduler.coordinator.machine_state import MachineState
from scheduler.engines.protocol import ExternalJob, ExternalJobSource
from scheduler.jobs.entry import Entry, Phase, Stage
from scheduler.jobs.specs import JobSpec
from scheduler.model import events as act
from scheduler.model.events import Event, Started
from scheduler.model.jobs import Placement

SIZE = ("tasks", "cores", "nodes", "memory_mb")
Check = Callable[[JobSpec, float], None]
log = logging.getLogger("tenbin")


def recall(m: MachineState, past: Iterable[Entry]) -> None:
    """Know the external jobs among those of the journal, the last ones at least."""
    m.external = {entry.spec.external.id: entry.id for entry in past if entry.spec.external is not None}


def look(m: MachineState, check: Check) -> None:
    """Follow what has happened since the last look; ``check``: BadInput if a job can never run here."""
    external_jobs = _source(m).look()
    if external_jobs is None:
        return
    present = {external.key for external in external_jobs}
    new = sorted((external for external in external_jobs if _compare(m, external)), key=_order)
    for entry in list(m.jobs.entries.values()):
        origin = entry.spec.external
        if origin is not None and origin.id not in present and not entry.alive:
            _finish(
                m,
                entry,
                f"{_source(m).scheduler} does not know it any more, or it is not tenbin's any more",
            )
    _take_in(m, new, check)


def waiting(m: MachineState) -> dict[str, Entry]:
    """Return the external jobs that wait for tenbin, by their names there."""
    entries = m.jobs.entries.values()
    return {e.spec.external.id: e for e in entries if e.spec.external is not None and not e.alive}


def leave(m: MachineState, remark: str) -> None:
    """Leave all external jobs that wait to their own scheduler."""
    for key, entry in waiting(m).items():
        _let_go(m, key, entry, remark)


def _compare(m: MachineState, external: ExternalJob) -> bool:
    """Follow what has changed; return true if the job is to be accepted."""
    entry = _entry(m, external)
    if entry is not None and entry.stage.final:
        if external.state != "waiting":
            return False
        if entry.stage is Stage.CANCELLED and external.submitted_s <= (entry.end_s or math.inf):
            _source(m).drop(external.key)  # in tenbin, while it waited
            return False
        entry = None  # it was put back into the queue after it had ended
    if entry is None:
        return external.state == "waiting"
    if external.limit_s != (entry.way.time_s or math.inf) and external.state != "ended":
        limit(m, entry, external.limit_s)
    if entry.alive and not m.queue.ends(entry):
        return False
    if external.result is not None:
        stage, trouble = outcome_of(entry.way, 1, external.result)
        _finish(m, entry, trouble or f"{stage} in {_source(m).scheduler}", stage)
    elif external.state == "running":
        # No policy may start it, until it is booked.
        entry.blocked = entry.blocked or f"{_source(m).scheduler} has started it"
        m.queue.put(ev.StartedElsewhere(entry, external))  # after what it was before has ended
    elif external.unclear:
        _let_go(m, external.key, entry, external.unclear)
    elif external.needs is not None and _size(external.needs.spec) != _size(entry.spec):
        _finish(m, entry, f"changed in {_source(m).scheduler}; taken over anew")
        return True
    elif external.blocked != entry.blocked:
        _block(m, entry, external.blocked)
    return False


def _entry(m: MachineState, external: ExternalJob) -> Entry | None:
    """Find the job of an external job; None: tenbin does not know it, or another job had its number."""
    number = m.external.get(external.key)
    entry = None if number is None else m.jobs.entry(number)
    if entry is None or entry.spec.external is None:
        return None
    if not external.restarts and external.submitted_s > entry.spec.external.submitted_s + 1.0:
        if not entry.stage.final:
            _finish(m, entry, f"{_source(m).scheduler} has given its number to another job")
        return None
    return entry


def _take_in(m: MachineState, new: Sequence[ExternalJob], check: Check) -> None:
    """Accept the jobs that are understood and can run here; leave the others to their own scheduler."""
    now, fit = m.now, []
    open_tasks = [e.spec.external.id.split("_")[0] for e in m.jobs.entries.values() if e.spec.external]
    for external in new:
        if external.unclear:
            _let_go(m, external.key, None, external.unclear)
        elif external.needs is not None:
            spec, most = external.needs
            if most is not None and open_tasks.count(external.array) >= most:
                continue  # of the array so many may run at once: it comes when one of them has ended
            try:
                check(spec, now)
            except BadInput as error:
                _let_go(m, external.key, None, error.what)
                continue
            open_tasks.append(external.array)
            fit.append((external, spec))
    if not fit:
        return
    specs = [spec for _, spec in fit]
    blocked = [external.blocked for external, _ in fit]
    try:
        entries = m.jobs.add(specs, {}, now, predicted=m.run_times.expect(specs), blocked=blocked)
    except NoRoom as error:  # they are taken in at a later look
        log.error("jobs of %s wait in %s: %s", _source(m).command, _source(m).scheduler, error)
        return
    for entry in entries:
        assert entry.spec.external is not None
        m.external[entry.spec.external.id] = entry.id
        admit(m, entry)


def _let_go(m: MachineState, key: str, entry: Entry | None, remark: str) -> None:
    names = _source(m).command, _source(m).scheduler
    log.warning("job %s of %s is left to %s: %s", key, *names, remark)
    _source(m).let_go(key, remark)
    if entry is not None:
        _finish(m, entry, f"left to {_source(m).scheduler}: {remark}")


def _finish(m: MachineState, entry: Entry, trouble: str, stage: Stage = Stage.CANCELLED) -> None:
    m.queue.put(ev.Ended(entry, stage, trouble))


def _block(m: MachineState, entry: Entry, why: str) -> None:
    m.record(entry, "blocked" if why else "unblocked", why)
    entry.blocked = why
    if why:  # one that is about to wait again is blocked as soon as it does
        m.queue.put(ev.Blocked(entry, why))
    elif entry.phase is Phase.HELD:
        admit(m, entry)


def _source(m: MachineState) -> ExternalJobSource:
    return m.engine.external_jobs


def adopt(m: MachineState, event: ev.StartedElsewhere) -> Event | ev.Event | None:
    """Take over a job that was started by somebody else, if the cluster state has room for it."""
    entry, external = event.entry, event.external
    if entry.alive:
        return None
    m.stale = True
    entry.blocked, entry.held_by_user = "", False
    if entry.id in m.cluster.suspended:
        m.cluster.withdraw(entry.id)
    if entry.id not in m.cluster.waiting:
        entry.stage = Stage.WAITING
        m.jobs.job(entry)
        m.cluster.restore(entry)
    job, nodes = entry.job, external.nodes or ()
    share, more = divmod(job.units, len(nodes) or 1)
    there = tuple((node, share + (place < more)) for place, node in enumerate(nodes))
    placement = Placement(m.cluster.cluster.pools[0].name, job.units, there)
    why = "" if nodes and share and _source(m).has_room(placement) else "its nodes are taken, or others"
    why = why or m.cluster.obstacle(job, placement)
    if why:
        trouble = f"somebody has had it start where tenbin has no room for it ({why})"
        return ev.Ended(entry, Stage.CANCELLED, f"left to {_source(m).scheduler}: {trouble}")
    apply(m, act.Start(entry.id, placement))
    return Started(job)


def _size(spec: JobSpec) -> tuple[object, ...]:
    return tuple(getattr(spec, name) for name in SIZE)


def _order(external: ExternalJob) -> tuple[float, int, int]:
    """Return the key that sorts external jobs as they came."""
    array, _, task = external.key.partition("_")
    return external.submitted_s, int(array), int(task or 0)
