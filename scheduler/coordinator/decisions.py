"""Decisions of a policy, entered in the state at once.

What has to be done for a decision is not done here, nor written down: a turn has many events, and a later one
may withdraw what followed from an earlier one. A job is only marked (``starts``, ``asks``, ``caps``), and at
the end of the turn the effects follow from what it is then (``machine.effects``).
"""

from __future__ import annotations

from contextlib import suppress

from agent.attempts.records import Want
from scheduler.coordinator.admission import hold_memory, lacks_memory, place_of
from scheduler.coordinator.events import Applied
from scheduler.coordinator.machine_state import MachineState
from scheduler.jobs.entry import Entry, Phase
from scheduler.model import events as act
from scheduler.model.events import Checkpointed
from scheduler.model.jobs import JobState, Placement, Stop
from scheduler.model.state import RuleBroken


def apply(m: MachineState, action: act.Action) -> None:
    """Enter an action in the cluster state.

    Raises:
        RuleBroken: it cannot be.
    """
    if isinstance(action, act.Start | act.Resume):
        _begin(m, action)
    elif isinstance(action, act.Suspend):
        check_stop(m, "suspend", action.job_id)
        entry = m.jobs.entries[action.job_id]
        if action.towards and _may_move(m, entry, there := Placement(action.towards, entry.job.units)):
            _reserve(m, entry, there)
        stop(m, entry)
    elif isinstance(action, act.Migrate):
        check_stop(m, "migrate", action.job_id, Stop.CHECKPOINT)
        entry = m.jobs.entries[action.job_id]
        _reserve(m, entry, action.placement)
        stop(m, entry)
    elif isinstance(action, act.SetPowerCap):
        m.cluster.check_running("set power cap", action.job_id)
        entry = m.jobs.entries[action.job_id]
        m.cluster.set_cap(entry, action.cap_w)
        m.record(entry, "power cap", "none" if action.cap_w is None else f"{action.cap_w:g} W")
        m.tracker.recaps(entry)
        m.caps.append(entry)
    elif isinstance(action, act.Resize):
        m.cluster.broken(action.job_id, "resize", "a running job keeps its size")
    elif isinstance(action, act.Repartition):
        m.cluster.repartition(action.pool, action.regions)
        m.engine.regions.cut(action.pool, action.regions)
        m.regions_changed = True
    elif isinstance(action, act.WakeAt):
        m.timers.set(max(action.at_s, m.now), action.tag)
    elif isinstance(action, act.Promise):
        if action.job_id in m.cluster.waiting:  # a start just before may have left it no memory
            m.cluster.promise(action.job_id, action.start_s)
            m.jobs.mark_changed(m.jobs.entries[action.job_id])
    else:
        m.cluster.broken(None, type(action).__name__, "this engine cannot do that")


# -- to run --------------------------------------------------------------------------------------------------


def _begin(m: MachineState, action: act.Start | act.Resume) -> None:
    """Start or resume a job, if nothing that the policy does not see keeps it from its place."""
    job_id, starts = action.job_id, isinstance(action, act.Start)
    if starts and (job_id in m.returning or lacks_memory(m, job_id, action.placement)):
        return
    placement = place_of(m, job_id, action.placement)
    if placement is None:
        return
    (m.cluster.start if starts else m.cluster.resume)(job_id, placement)
    entry = m.jobs.entries[job_id]
    if starts:
        hold_memory(m, entry)
    _run(m, entry, entry.place)
    if starts and entry.spec.alternatives:  # it has the one that was chosen, until its attempt is over
        m.cluster.reconsider(m.jobs.renewed(entry))


def _run(m: MachineState, entry: Entry, placement: Placement) -> None:
    m.engine.place(entry, placement)
    m.jobs.place(entry, placement, m.engine.nodes.where(entry))
    m.jobs.mark_changed(entry)
    if entry.alive:
        request(m, entry, "run")
        m.tracker.unpauses(entry, m.now)
    else:
        new_attempt(m, entry)


def new_attempt(m: MachineState, entry: Entry) -> None:
    """Start the job once more."""
    entry.attempt += 1
    entry.alive, entry.want = True, ""
    m.starts[entry.id] = entry
    if m.engine.device_moves.able and entry.spec.checkpoint_signal is None:
        fix(m, entry, m.engine.device_moves.why_not(entry.spec, entry.devices))
    m.record(entry, "start", f"attempt {entry.attempt}")
    m.tracker.starts(entry, m.now)


def fix(m: MachineState, entry: Entry, why: str) -> None:
    """Note why the engine cannot park and move the job's attempt; "": it can."""
    before, entry.fixed = entry.job, why
    job = m.jobs.renewed(entry)
    if entry.id in m.cluster.running or entry.id in m.cluster.suspended:
        if before.stop is not job.stop or before.estimates_s.keys() != job.estimates_s.keys():
            m.cluster.overtaken = True  # the policy begins anew
        m.cluster.reconsider(job)


# -- to leave ------------------------------------------------------------------------------------------------


def stop(m: MachineState, entry: Entry) -> None:
    """Pause a job, whose cores are free at once, or have it parked or moved, or ask for a checkpoint."""
    want = _way_out(entry)
    m.tracker.stops(entry, m.now)
    m.cluster.begin_stop(entry, works_on=want == "move")
    if want == "pause":
        m.cluster.end_stop(entry)
        m.engine.free(entry)
        m.queue.put(Applied(Checkpointed(entry.job, entry.place)))
    request(m, entry, want)
    moves = want == "move"
    m.record(entry, *(("moving", f"to {entry.goals[0].pool}") if moves else (entry.stage.value, "")))


def check_stop(m: MachineState, rule: str, job_id: int, least: Stop = Stop.PAUSE) -> JobState:
    """Return the running job if it may be stopped, else refuse."""
    if not m.engine.moves:
        m.cluster.broken(job_id, rule, "this engine cannot stop a job and let it go on")
    return m.cluster.check_stop(rule, job_id, least)


def _may_move(m: MachineState, entry: Entry, there: Placement) -> bool:
    """Tell if the program of a job that is to leave can move there while it runs."""
    below_layer = entry.job.stop is Stop.CHECKPOINT and entry.spec.checkpoint_signal is None
    elsewhere = there.pool != entry.place.pool and entry.job.runs_on(there.pool)
    return below_layer and elsewhere and not m.cluster.obstacle(entry.job, there)


def _reserve(m: MachineState, entry: Entry, there: Placement) -> None:
    """Give a job that is to leave the place where it goes on."""
    m.cluster.reserve(entry, there)
    entry.fallbacks = ()


def reserve_again(m: MachineState, entry: Entry) -> None:
    """After a restart: give a job that leaves the place where it goes on again, if that is there still."""
    leaves = entry.phase.leaving and entry.id in m.cluster.running and entry.moves_to is None
    if leaves and entry.fallbacks and entry.fallbacks[0] != entry.placement:
        with suppress(RuleBroken):
            m.cluster.reserve(entry, entry.fallbacks[0])
            entry.fallbacks = entry.fallbacks[1:]


def _way_out(entry: Entry) -> Want:
    """Choose how a job leaves its place; a program below the layer moves while it runs, if it can."""
    if entry.job.stop is not Stop.CHECKPOINT:
        return "pause"
    if entry.spec.checkpoint_signal is not None:
        return "checkpoint"
    there = entry.moves_to
    return "park" if there is None or there.pool == entry.place.pool else "move"


# -- requests to supervisors ---------------------------------------------------------------------------------


def request(m: MachineState, entry: Entry, want: Want) -> None:
    """Ask the job's supervisor for something; a job that is to end is asked for nothing else."""
    if entry.phase is Phase.ENDING and want != "end":
        return
    entry.request += 1
    entry.want = want
    request_again(m, entry)


def request_again(m: MachineState, entry: Entry) -> None:
    """Have the last request handed on, as after a restart: it may not have been heard."""
    m.asks.pop(entry.id, None)
    if entry.want:
        m.asks[entry.id] = entry
