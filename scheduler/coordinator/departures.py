"""Departures: jobs leave their place and go on later, by a checkpoint, parked, paused, for their owner.

What a job keeps while it leaves decides where it may go on. With a checkpoint its attempt is over and
nothing is kept but files, so it may go on anywhere. A parked program is copied out of its device and goes on
in the same attempt. A paused one keeps all that it has, so it goes on where it was. A job that moves holds
both places until its supervisor has told which of them its program has, or its checkpoint is written.
"""

from __future__ import annotations

from agent.attempts.records import RunState
from scheduler.coordinator import events as ev
from scheduler.coordinator.admission import admit, give_back, hold_blocked, leave, park_later, unfit
from scheduler.coordinator.decisions import apply, fix, request
from scheduler.coordinator.machine_state import MachineState
from scheduler.jobs.entry import UNKNOWN, Entry, Phase, Stage
from scheduler.model import events as act
from scheduler.model.events import Checkpointed, Event, Finished, Timer
from scheduler.model.jobs import Placement

NO_LAYER = "its supervisor knows nothing of parking"
NOT_RUNNING = "it had not gone on yet"  # a request to go on was overtaken by that to park

# -- suspended by their owner --------------------------------------------------------------------------------


def suspend_running(m: MachineState, event: ev.SuspendedByOwner | ev.GpusIdle) -> Event | None:
    """Have a running job parked, or pause it where it is; one with GPUs writes a checkpoint."""
    entry = event.entry
    if not (entry.parks or (entry.way.gpus_asked and m.jobs.unit.gpus)):
        return _hold(m, entry)
    entry.held_by_user = True
    m.jobs.mark_changed(entry)
    apply(m, act.Suspend(entry.id))
    m.stale = True  # no policy has asked for this
    return None  # it has its device until it is parked


def suspend_leaving(m: MachineState, event: ev.SuspendedByOwner) -> None:
    """Let a job that is being parked, or moves, do so first."""
    entry = event.entry
    entry.held_by_user, entry.fallbacks = True, ()
    m.jobs.mark_changed(entry)


def suspend(m: MachineState, event: ev.SuspendedByOwner) -> Event | None:
    """Take a job from the policy; its processes, if it has any, are paused."""
    return _hold(m, event.entry)


def _hold(m: MachineState, entry: Entry, *, parked: bool = False) -> Event | None:
    """Let a job that its owner has suspended leave; its supervisor stops what is not ``parked``."""
    placement = leave(m, entry)
    entry.stage, entry.held_by_user = Stage.HELD, True
    job = m.jobs.renewed(entry)  # paused, it must go on where it was
    m.record(entry, "suspended")
    if entry.alive and not parked:
        request(m, entry, "pause")
        m.tracker.pauses(entry, placement.pool if placement else "", m.now)
    elif not entry.alive:
        give_back(m, entry)
    return Finished(job, placement) if placement else None


# -- checkpoints ---------------------------------------------------------------------------------------------


def checkpoint_written(m: MachineState, event: ev.CheckpointWritten) -> Event | None:
    """Let a job leave its place with a checkpoint."""
    entry = event.entry
    m.tracker.left(entry, event.ended_s, m.now)
    entry.kept, entry.kept_s = entry.done, entry.served_s
    if entry.held_by_user:  # it has left its GPUs
        m.record(entry, "checkpointed")
        return _hold(m, entry)
    return _left(m, entry, "checkpointed")


def checkpoint_kept(m: MachineState, event: ev.CheckpointWritten) -> None:
    """Keep the checkpoint of a job that its owner has suspended meanwhile."""
    entry = event.entry
    entry.kept, entry.kept_s = entry.done, entry.served_s
    m.record(entry, "checkpointed")
    give_back(m, entry)


def taken_back(m: MachineState, event: ev.TakenBack) -> Event | None:
    """Let a job leave its place with what was kept of it before."""
    entry = event.entry
    m.jobs.predictions.void(entry.id, "it had not begun")
    entry.done, entry.served_s = entry.kept, entry.kept_s
    if entry.held_by_user:  # it was to be parked
        return _hold(m, entry)
    return _left(m, entry, "taken back")


def _left(m: MachineState, entry: Entry, kind: str) -> Event:
    """Free the place that the job has left; one that moves goes on at its goal.

    One that began when the machine was larger, and can go on nowhere, is held.
    """
    job, before, goals = entry.job, entry.place, entry.goals
    m.cluster.end_stop(entry)
    entry.fallbacks = ()
    m.engine.free(entry)
    m.record(entry, kind)
    if not entry.alive and not entry.spec.external:
        entry.job = UNKNOWN  # it may have been that of its place
        if why := unfit(m, entry):
            hold_blocked(m, entry, why)
            return Finished(job, before)
    m.stale = m.stale or bool(goals)
    may_be = (goal for goal in goals if entry.job.runs_on(goal.pool))
    target = next((goal for goal in may_be if not m.cluster.obstacle(entry.job, goal)), None)
    if target is not None:
        apply(m, act.Resume(entry.id, target))
    return Checkpointed(entry.job, before, target is not None)


# -- programs that the engine parks --------------------------------------------------------------------------


def obeyed_to_leave(m: MachineState, event: ev.Obeyed) -> Event | None:
    """Enter what became of a request to park a job's programs, or to move them."""
    entry, now = event.entry, event.state
    if not entry.alive or now.done != entry.request:
        return None  # a later request follows
    if now.parked_mb is not None:
        return _parked(m, entry, now.parked_mb)
    there = entry.moves_to if entry.phase is Phase.MOVING else None
    if there and not now.refused and now.device == there.pool:
        return _moved(m, entry, now)
    overtaken = now.paused and not now.refused
    why = NOT_RUNNING if overtaken else now.refused or NO_LAYER
    _refused(m, entry, why, for_now=now.for_now or overtaken, unused=now.unused)
    return None  # the policy begins anew


def obeyed_to_run(m: MachineState, event: ev.Obeyed) -> None:
    """Enter what became of a request to a job's programs to go on."""
    entry, now = event.entry, event.state
    if not entry.alive or now.done != entry.request:
        return  # a later request follows
    if now.parked_mb is not None:
        _refused_there(m, entry, now.refused, now.device)
    elif entry.fixed and now.for_now:
        park_later(m, entry)


def may_park_again(m: MachineState, event: ev.TimeHasCome) -> None:
    """Let the policy know that a running job may be asked again to park."""
    entry = event.entry
    if entry.id in m.postponed:
        m.postponed.remove(entry.id)
        fix(m, entry, "")
        m.queue.put(ev.Applied(Timer(m.now)))


def _parked(m: MachineState, entry: Entry, mb: float) -> Event | None:
    """Let a job leave its place whose programs are parked; its attempt goes on later."""
    m.tracker.parked(entry, mb, m.now)
    if entry.held_by_user:
        return _hold(m, entry, parked=True)
    return _left(m, entry, "parked")


def _moved(m: MachineState, entry: Entry, now: RunState) -> Event:
    """Let a job whose program has moved while it ran leave its old place."""
    m.tracker.moved(entry, now, m.now)
    event_of_policy = _left(m, entry, "moved")
    m.cluster.expect(entry, m.now)  # it needs no restart
    _suspend_now(m, entry)
    return event_of_policy


def _suspend_now(m: MachineState, entry: Entry) -> None:
    """Have a running job parked that its owner has suspended while it moved."""
    if entry.held_by_user and entry.phase is Phase.RUNNING:
        apply(m, act.Suspend(entry.id))
        m.stale = True


def _refused(m: MachineState, entry: Entry, why: str, *, for_now: bool, unused: bool) -> None:
    """Let a job run on that cannot be parked.

    It is paused where it is if its owner has suspended it, or if it has nothing on its device so far.

    Args:
        for_now: it may be asked again. unused: it has nothing on its device so far.
    """
    m.jobs.predictions.void(entry.id, why, "checkpoint", "migration", "suspension")
    there = f"{entry.moves_to.pool}: " if entry.moves_to else ""
    m.record(entry, "not moved" if there else "not parked", f"{there}{why}")
    m.stale = True
    if entry.held_by_user and entry.phase is Phase.MOVING:
        entry.fallbacks = ()
        m.cluster.go_on(entry)
        _suspend_now(m, entry)
    elif entry.held_by_user:
        _hold(m, entry)
        fix(m, entry, why)
    elif entry.goals or not unused:
        entry.fallbacks = ()
        m.cluster.go_on(entry)
        fix(m, entry, why)
        request(m, entry, "run")
        if for_now:
            park_later(m, entry)
    else:
        m.cluster.end_stop(entry)
        m.engine.free(entry)
        fix(m, entry, why)
        request(m, entry, "pause")


def _refused_there(m: MachineState, entry: Entry, why: str, device: str) -> None:
    """Let a job go on where it was, now or in its turn, because another device did not take it."""
    there = entry.place
    m.record(entry, "not moved", f"{there.pool}: {why}")
    m.cluster.begin_stop(entry)
    m.cluster.end_stop(entry)
    m.engine.free(entry)
    back = entry.placement = Placement(device, there.units)
    fix(m, entry, f"{there.pool}: {why}")
    m.stale = True
    if not m.cluster.obstacle(entry.job, back):
        apply(m, act.Resume(entry.id, back))
    else:
        leave(m, entry)  # not every policy resumes jobs, so it waits like a new one
        entry.stage = Stage.HELD
        admit(m, entry)
