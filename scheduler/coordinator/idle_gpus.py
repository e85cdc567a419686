"""Consequences of the use of GPUs, by jobs and by others: notices, and the rule for jobs that do nothing."""

from __future__ import annotations

from agent.notifier import Notice
from scheduler.coordinator import departures
from scheduler.coordinator import events as ev
from scheduler.coordinator.decisions import request
from scheduler.coordinator.ends import about
from scheduler.coordinator.machine_state import MachineState
from scheduler.jobs.entry import Entry, Stage
from scheduler.model.events import Event
from scheduler.model.jobs import Stop

RULE = "tenbin up --idle-gpu"
NO_JOB = {"TENBIN_JOB": "", "TENBIN_JOB_NAME": "", "TENBIN_STATE": ""}


def look(m: MachineState) -> None:
    """Tell who does nothing on a GPU, who holds one outside of the queue, and which is lost."""
    for job_id, which, then in m.engine.gpus.idle():
        if (entry := m.jobs.entries.get(job_id)) is None:
            continue
        if then:
            m.queue.put(ev.GpusIdle(entry, which, then))
        else:
            m.record(entry, "idle", which)
            _notify(m, entry, "idle", which)
    for what, which in m.engine.gpus.news():
        if m.on_event:
            m.notices.append(
                Notice(m.on_event, {**NO_JOB, "TENBIN_EVENT": what, "TENBIN_REASON": which}, "/")
            )
        waiting = (
            entry
            for entry in m.jobs.entries.values()
            if entry.spec.notify
            and entry.stage is Stage.WAITING
            and any(way.gpus_asked for way in entry.spec.ways)
        )
        for entry in {entry.spec.notify: entry for entry in waiting}.values():
            _notify(m, entry, what, which, everybody=False)


def _notify(m: MachineState, entry: Entry, event: str, why: str, *, everybody: bool = True) -> None:
    news = {**about(entry, entry.label, entry.stage), "TENBIN_EVENT": event, "TENBIN_REASON": why}
    for to in (m.on_event if everybody else "", entry.spec.notify):
        if to:
            m.notices.append(Notice(to, news, entry.spec.folder))


def apply_rule(m: MachineState, event: ev.GpusIdle) -> Event | None:
    """End a job that does nothing on its GPUs, or have it write a checkpoint and leave them, if it can."""
    entry, why = event.entry, f"{event.which} ({RULE})"
    if event.then == "end":
        entry.ending, entry.trouble = Stage.CANCELLED, why
        m.record(entry, "idle", f"{why}; it is ended")
        _notify(m, entry, "idle", f"{why}; it is ended")
        request(m, entry, "end")
        return None
    parks = entry.job.stop is Stop.CHECKPOINT
    what = f"it writes a checkpoint; go on with: tenbin resume {entry.label}"
    what = f"{why}; {what if parks else 'it makes no checkpoints (--checkpoint), so it runs on'}"
    m.record(entry, "idle", what)
    _notify(m, entry, "idle", what)
    return departures.suspend_running(m, event) if parks else None
