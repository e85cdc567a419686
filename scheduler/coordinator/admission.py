"""Admission: from a submission to the policy's queue, out of the cluster state, and back.

A job enters the policy's queue when nothing holds it (other jobs, a time, something outside tenbin), and its
array has a place for it. It leaves the queue until its memory is free if the policy starts it too early. Each
of these is a row of the state; whoever gives one back admits those that wait for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from profiles.errors import BadInput
from scheduler.coordinator import events as ev
from scheduler.coordinator.machine_state import PARK_AGAIN_S, MachineState, not_before_s
from scheduler.jobs.dependencies import named
from scheduler.jobs.entry import UNKNOWN, Entry, Phase, Stage
from scheduler.jobs.machine_memory import Claim
from scheduler.jobs.sizes import beyond
from scheduler.model.events import Event, Submitted, Timer
from scheduler.model.jobs import Placement

# -- into the queue ------------------------------------------------------------------------------------------


def admit(m: MachineState, entry: Entry) -> None:
    """Let a job wait for its turn; held for others, for a time, or where this machine cannot run it."""
    if entry.phase.leaving:
        return  # it is about to be suspended, and then the policy's
    m.run_times.watch(entry)
    m.holds.alarm(entry, entry.spec.deadline_s)
    verdict, begin_s = m.holds.verdict(entry), not_before_s(entry)
    held, entry.stage = entry.stage is Stage.HELD, Stage.HELD
    if verdict.hopeless:
        m.queue.put(ev.Ended(entry, Stage.CANCELLED, verdict.hopeless))
    elif entry.blocked and entry.spec.external:
        m.jobs.mark_changed(entry)
    elif verdict.waits:
        m.holds.hold(entry, verdict)
    elif begin_s is not None and begin_s > m.now:
        m.holds.alarm(entry, begin_s)
    elif not entry.spec.external and (why := unfit(m, entry)):
        entry.blocked = why
        m.jobs.mark_changed(entry)
    else:
        entry.stage, entry.blocked, entry.trouble = Stage.WAITING, "", ""
        if held:
            m.jobs.mark_changed(entry)
            _note_eligible(m, entry)
        if not m.array_limits.must_wait(entry):
            m.queue.put(ev.Admitted(entry))


def _note_eligible(m: MachineState, entry: Entry) -> None:
    """Let the wait of a job count from now on, if so far it was held as it was submitted."""
    spec, new = entry.spec, entry.eligible_s is None and not entry.attempt
    if new and (named(spec) or spec.begin_s is not None or spec.external):
        entry.eligible_s = entry.since_s = m.now
        entry.job = UNKNOWN


def arrive(m: MachineState, event: ev.SubmittedByOwner) -> None:
    """Let a job that the journal has just got wait for its turn."""
    admit(m, event.entry)


def lacks_memory(m: MachineState, job_id: int, placement: Placement) -> bool:
    """Return whether the memory of a job that the policy starts is not free, so that the job waits for it.

    With it wait all others of the queue that are short, because the policy begins anew for each refusal.
    """
    if job_id not in m.cluster.waiting:
        return m.memory.waits(job_id)
    alternative = m.cluster.waiting[job_id].way(placement).alternative
    short = claim_of(m, m.jobs.entries[job_id], alternative)
    if m.memory.holds_other(short):  # of the alternative that it had before
        m.memory.release(job_id)
        _admit_short(m)
    if not m.memory.lacking([short]):
        return False
    m.memory.wait(short)
    for claim in m.memory.lacking([claim_of(m, m.jobs.entries[other]) for other in m.cluster.waiting]):
        m.memory.wait(claim)
        m.cluster.withdraw(claim.job_id)
    if job_id in m.cluster.waiting:  # its least alternative has memory, the chosen one has not
        m.cluster.withdraw(job_id)
    _ask_anew(m)
    return True


def place_of(m: MachineState, job_id: int, placement: Placement) -> Placement | None:
    """Return where a job that the policy starts or resumes begins; a paused one goes on where it is.

    None: others are there, so it waits. A policy that has chosen otherwise begins anew.
    """
    if job_id not in m.cluster.waiting and job_id not in m.cluster.suspended:
        return placement  # the cluster state will refuse it
    entry = m.jobs.entries[job_id]
    if not entry.paused_on_nodes:
        return placement
    if not _has_room(m, entry):
        m.returning[entry.id] = None
        _wait_outside(m, entry)
        _ask_anew(m)
        return None
    if not placement.nodes or entry.place.nodes == placement.nodes:
        return placement
    m.cluster.overtaken = True
    return replace(placement, nodes=entry.place.nodes)


def let_return(m: MachineState) -> None:
    """Let paused jobs wait for their turn again whose own nodes have room, or whose attempt is lost."""
    for job_id in list(m.returning):
        entry = m.jobs.entries[job_id]
        if not entry.paused_on_nodes or _has_room(m, entry):
            del m.returning[job_id]
            m.queue.put(ev.Admitted(entry))


def let_suspended_wait(m: MachineState) -> None:
    """Let the jobs that a policy has suspended wait for their turn again, for a policy that resumes none."""
    for job_id in list(m.cluster.suspended):
        entry = m.jobs.entries[job_id]
        _wait_outside(m, entry)
        m.queue.put(ev.Admitted(entry))


def _wait_outside(m: MachineState, entry: Entry) -> None:
    """Let a job wait that the policy does not see until it is admitted."""
    m.cluster.withdraw(entry.id)
    entry.stage = Stage.WAITING
    m.jobs.renewed(entry)


def _has_room(m: MachineState, entry: Entry) -> bool:
    if not m.engine.nodes.have_room(entry):
        return False
    nodes = m.cluster.nodes.get(entry.place.pool)
    return nodes is None or not nodes.refusal(m.jobs.job(entry), entry.place)


def hold_memory(m: MachineState, entry: Entry) -> None:
    """Set memory aside for a job that has started."""
    if m.memory.hold(claim_of(m, entry)):
        _admit_short(m)


def claim_of(m: MachineState, entry: Entry, alternative: int | None = None) -> Claim:
    """Return what a job asks for of the memory; ``alternative``: that in which it is about to begin."""
    return Claim(-entry.priority, entry.id, m.jobs.memory_mb(entry, alternative))


def _admit_short(m: MachineState) -> None:
    """Let the jobs come back to the policy's queue whose memory is free."""
    for job_id in m.memory.admit():
        m.queue.put(ev.Admitted(m.jobs.entries[job_id]))


def _ask_anew(m: MachineState) -> None:
    """Let the policy begin anew: no event tells it of another order, or of a start that was refused."""
    m.stale = True
    m.queue.put(ev.Applied(Timer(m.now)))


def enter(m: MachineState, event: ev.Admitted) -> Event | None:
    """Enter a job in the policy's queue."""
    entry = event.entry
    if entry.id in m.cluster.waiting:
        return None
    job = m.jobs.job(entry)
    m.cluster.restore(entry)
    if m.memory.is_held(entry.id) or m.memory.is_short(entry.id):
        m.cluster.take_turn(entry.id)
    return Submitted(job)


def waits_for_admission(m: MachineState, entry: Entry) -> bool:
    """Return true if a job waits for a place in its array, for memory, or for its nodes."""
    return entry.id in m.returning or m.array_limits.waits(entry.id) or m.memory.waits(entry.id)


def prioritize(m: MachineState, entries: Iterable[Entry], priority: int) -> None:
    """Give jobs another priority, as if they had been submitted with it."""
    waiting = []
    for entry in entries:
        if entry.priority == priority:
            continue
        m.record(entry, "priority", f"{priority}, {entry.priority} before")
        entry.new_priority = priority
        job = m.jobs.renewed(entry)
        m.memory.prioritize(entry.id, priority)
        if entry.id in m.cluster.waiting:
            waiting.append(job)
        elif entry.id in m.cluster.running or entry.id in m.cluster.suspended:
            m.cluster.reconsider(job)
    m.cluster.prioritize(waiting)
    _admit_short(m)
    _ask_anew(m)


def limit(m: MachineState, entry: Entry, limit_s: float) -> None:
    """Give a job another limit of run time (infinite: none), as if it had been submitted with it."""
    before, entry.limit_s = _duration(entry), limit_s
    job = m.jobs.renewed(entry)
    m.record(entry, "time limit", f"{_duration(entry)}, {before} before")
    if entry.id in m.cluster.waiting or entry.id in m.cluster.running or entry.id in m.cluster.suspended:
        m.cluster.reconsider(job)
        _ask_anew(m)


def _duration(entry: Entry) -> str:
    """Write a job's limit of run time."""
    return "none" if entry.way.time_s is None else f"{entry.way.time_s:g} s"


# -- out of the cluster state --------------------------------------------------------------------------------


def leave(m: MachineState, entry: Entry) -> Placement | None:
    """Take a job out of the cluster state; return where it ran, if at all."""
    m.returning.pop(entry.id, None)
    if entry.id in m.cluster.running:
        # Policies are told of one place only, and what they do for the sake of sizes ends with the last.
        m.stale = m.stale or entry.moves_to is not None or _is_last_with_sizes(m, entry)
        m.cluster.finish(entry)
        m.engine.free(entry)
        m.jobs.mark_changed(entry)
        entry.fallbacks = ()
        return entry.placement
    if entry.id in m.cluster.waiting or entry.id in m.cluster.suspended:
        m.cluster.withdraw(entry.id)
        m.stale = True
    return None


def _is_last_with_sizes(m: MachineState, entry: Entry) -> bool:
    """Tell if the speed of a job depends on its size, or cap, and that of no other does."""
    others = (other for other in m.jobs.entries.values() if other is not entry)
    return entry.job.speed is not None and all(other.job.speed is None for other in others)


def give_back(m: MachineState, entry: Entry) -> None:
    """Give back the job's memory, and its place in its array."""
    for member in m.array_limits.release(entry):
        m.queue.put(ev.Admitted(member))
    if m.memory.release(entry.id):
        _admit_short(m)


def hold(m: MachineState, entry: Entry) -> None:
    """Hold a job that waits or is suspended; its memory, and its place in its array, are for others."""
    leave(m, entry)
    entry.stage = Stage.HELD
    m.jobs.mark_changed(entry)
    give_back(m, entry)


def block(m: MachineState, event: ev.Blocked) -> None:
    """Hold a job that waits, because something outside tenbin keeps it from starting."""
    hold_blocked(m, event.entry, event.why)


def hold_blocked(m: MachineState, entry: Entry, why: str) -> None:
    """Hold a job for that reason, if it waits or is held already."""
    if entry.phase.queued and not entry.alive:
        hold(m, entry)
    if entry.stage is Stage.HELD:
        entry.blocked = why
        m.jobs.mark_changed(entry)


# -- what a job can have -------------------------------------------------------------------------------------


def unfit(m: MachineState, entry: Entry) -> str:
    """Say as a sentence why this machine cannot run the job; "" if it can.

    The machine may have been larger, or divided otherwise, when the job was submitted.
    """
    try:
        why = m.cluster.misfit(m.jobs.job(entry)) or _without_memory(m, entry)
    except BadInput as error:
        why = error.what
    return f"this machine cannot run the job: {why}" if why else ""


def _without_memory(m: MachineState, entry: Entry) -> str:
    """Say as a clause why the job can never have its memory; "": it can."""
    if m.memory.is_held(entry.id):
        return ""
    return beyond(m.jobs.most_memory_mb(entry), m.memory.total_mb)


# -- when a job is looked at again ---------------------------------------------------------------------------


def resume(m: MachineState, event: ev.ResumedByOwner) -> None:
    """Let a job that its owner has suspended, or is about to have suspended, wait for its turn."""
    entry = event.entry
    entry.held_by_user = False
    if entry.phase.leaving and not entry.moves_to:
        entry.fallbacks = (entry.place,)  # not every policy resumes jobs
    m.record(entry, "resumed")
    with m.queue.sparing(entry, "resumed"):
        admit(m, entry)


def begin(m: MachineState, event: ev.TimeHasCome) -> None:
    """Admit a held job whose time has come: to begin, or to be tried again."""
    if not event.entry.blocked:
        admit(m, event.entry)


def park_later(m: MachineState, entry: Entry) -> None:
    """Let a running job be asked again to park, but not at once."""
    m.postponed.add(entry.id)
    m.holds.alarm(entry, m.now + PARK_AGAIN_S)


def set_alarms_anew(m: MachineState) -> None:
    """Have each job looked at when it is time by the clock as it is now, also one admitted too early."""
    m.holds.clear_alarms()
    for entry in m.jobs.entries.values():
        if _is_early(m, entry):
            hold(m, entry)
        m.holds.alarm(entry, entry.spec.deadline_s)
        m.holds.alarm(entry, not_before_s(entry) if entry.stage is Stage.HELD else None)
    for job_id in m.postponed:
        m.holds.alarm(m.jobs.entries[job_id], m.now + PARK_AGAIN_S)


def _is_early(m: MachineState, entry: Entry) -> bool:
    """Tell whether a job waits that has not begun, and may not yet: a clock was ahead."""
    has_not_begun = entry.phase is Phase.WAITING and not entry.attempt
    return has_not_begun and (entry.spec.begin_s or 0.0) > m.now


# -- after a restart, and after a fault ----------------------------------------------------------------------


def recover(m: MachineState) -> None:
    """After a restart: what runs or is paused has memory and place, the others wait for theirs."""
    waiting = []
    for entry in m.jobs.entries.values():
        with m.queue.sparing(entry, "at the start"):
            if entry.alive or entry.stage.begun:
                m.memory.hold(claim_of(m, entry))
                m.array_limits.hold(entry)
            elif entry.phase is Phase.WAITING and (_without_memory(m, entry) or _is_early(m, entry)):
                entry.stage = Stage.HELD  # admit will say why
                m.jobs.mark_changed(entry)
            elif entry.phase is Phase.WAITING:
                waiting.append(entry)
    for entry in sorted(waiting, key=lambda entry: not entry.attempt):  # who had a place keeps it
        with m.queue.sparing(entry, "at the start"):
            m.array_limits.must_wait(entry)


def admit_anew(m: MachineState) -> None:
    """Let jobs wait for their turn whose predecessor, or place, was lost sight of by a fault."""
    for entry in list(m.jobs.entries.values()):
        with m.queue.sparing(entry, "after a fault"):
            if entry.phase is Phase.HELD and not entry.blocked:
                admit(m, entry)
            elif (
                entry.phase is Phase.WAITING
                and entry.id not in m.cluster.waiting
                and not waits_for_admission(m, entry)
            ):
                m.queue.put(ev.Admitted(entry))
