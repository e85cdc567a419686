"""Ends: of attempts, as the engine reports them, and of jobs.

An attempt that ends is judged twice. When it is reported, its turn among the events of the instant follows
from what would become of the job then. When its turn comes the job may be another: asked to end, suspended.
So what follows is judged anew, by the phase that the job has then (``_what_follows``).
"""

from __future__ import annotations

import logging
import signal

from agent.attempts.records import Result
from agent.notifier import Notice
from profiles.quantities import stamp
from scheduler.coordinator import events as ev
from scheduler.coordinator.admission import admit, admit_anew, give_back, hold, hold_blocked, leave, unfit
from scheduler.coordinator.decisions import new_attempt, request
from scheduler.coordinator.machine_state import MachineState, tries_left
from scheduler.engines.protocol import Report
from scheduler.jobs.arrays import array_stage
from scheduler.jobs.dependencies import pause_s, tried_again
from scheduler.jobs.entry import UNKNOWN, Entry, Phase, Stage
from scheduler.jobs.policy_view import results_differ
from scheduler.jobs.specs import JobSpec
from scheduler.model.events import Event, Failed, Finished, Started

SIGNALLED = 128  # added to a signal, as shells do
MOST_FAILURES = 5  # a job whose attempts are lost so often is not tried again
# As the trouble of a job that is told to end because of it:
DEADLINE = "it reached its deadline"
FAULT = "a fault of tenbin's, see the log of tenbin up"  # and the fault
log = logging.getLogger("tenbin")


# -- what the engine reports ---------------------------------------------------------------------------------


def note(m: MachineState, report: Report) -> None:
    """Note what the engine reports of an attempt, and put the event that follows from it."""
    entry = m.jobs.entries.get(report.job_id)
    if entry is None or entry.attempt != report.attempt:
        return  # an attempt that nobody waits for any more
    if report.what == "started":
        m.jobs.record_later(entry, m.now, "started", f"attempt {entry.attempt}")
        m.tracker.began(entry, report.at_s)
        m.queue.put(ev.Applied(Started(m.jobs.job(entry))))
        _keep_from_other_results(m, entry)
    elif report.what == "obeyed":
        m.tracker.obeyed(entry, report.done, report.at_s)
        if entry.want == "run" and report.done == entry.request:
            m.queue.put(ev.Applied(Started(m.jobs.job(entry))))
        _keep_from_other_results(m, entry)
        if report.state is not None and entry.may_park:
            m.queue.put(ev.Obeyed(entry, report.state))
    elif report.what == "tried":
        m.queue.put(ev.Tried(entry, report.trial, report.trouble, report.for_now))
    else:
        m.queue.put(ev.AttemptOver(_what_follows(m, entry, report).kind, entry, report))


def _keep_from_other_results(m: MachineState, entry: Entry) -> None:
    """Have the policy plan anew for a job that it must not move to some class from where it is now."""
    if entry.id in m.cluster.running and results_differ(entry):
        m.cluster.reconsider(m.jobs.renewed(entry))
        m.stale = True


def attempt_over(m: MachineState, event: ev.AttemptOver) -> ev.Event | None:
    """Note the end of an attempt, and decide by what the job is now what becomes of it."""
    entry, result = event.entry, event.report.result
    if entry.attempt != event.report.attempt or not entry.alive:
        return None
    follows = _what_follows(m, entry, event.report)
    entry.alive = False
    if result is not None:
        entry.usage = vars(result.usage).copy()
    if result is not None and isinstance(follows, ev.Ended | ev.FailedByItself):
        with m.queue.sparing(None, f"what is learnt from job {entry.label}"):
            if m.co_location is not None:
                m.co_location.ended(entry, result)
            if not unfit(m, entry):
                m.tracker.ended(entry, result)
        entry.code, entry.signal = result.code, result.signal
    return follows


def _what_follows(m: MachineState, entry: Entry, report: Report) -> ev.Event:
    """Return what follows from the end of a job's attempt."""
    result, to_end = report.result, entry.phase is Phase.ENDING
    if result is None:
        return _without_result(entry, report)
    if result.how == "cancelled" or (to_end and result.how in ("interrupted", "checkpointed")):
        stage, trouble = told_to_end(entry)
        return ev.Ended(entry, stage, trouble or result.trouble, result.ended_s)
    if result.how == "checkpointed" and (entry.phase.leaving or entry.held_by_user):
        return ev.CheckpointWritten(entry, result.ended_s)
    # A checkpoint was asked for: it goes on from there, also if that was taken back meanwhile.
    if result.how == "checkpointed" or (result.how == "interrupted" and entry.spec.requeue):
        return ev.AttemptLost(entry, f"it was {result.how}")
    stage, trouble = outcome_of(entry.way, m.jobs.tasks(entry), result)
    if not to_end and tried_again(entry.spec, entry.retried, result):
        return ev.FailedByItself(entry, trouble)
    return ev.Ended(entry, stage, trouble, result.ended_s)


def _without_result(entry: Entry, report: Report) -> ev.Event:
    """Return what follows from an attempt that will have no result."""
    trouble = report.trouble or "its supervisor was killed"
    hopeless = report.what == "never" and report.trouble and not report.for_now
    unbegun = report.what == "never" and not report.trouble  # taken back: nothing has failed
    if entry.phase is Phase.ENDING:
        return ev.Ended(entry, *told_to_end(entry))
    once = report.what == "lost" and not entry.spec.requeue  # only what has begun is not run again
    if not unbegun and (hopeless or once or entry.failures >= MOST_FAILURES):
        return ev.Ended(entry, Stage.FAILED, trouble)
    if unbegun and entry.phase in (Phase.RUNNING, Phase.PAUSED):
        return ev.NotBegun(entry)
    if unbegun and entry.phase.leaving:
        return ev.TakenBack(entry)
    return ev.AttemptLost(entry, "it had not begun" if unbegun else trouble, counts=not unbegun)


def outcome_of(spec: JobSpec, tasks: int, result: Result) -> tuple[Stage, str]:
    """Return the final stage, and why as a sentence ("" for a job that succeeded)."""
    limit_mb = (spec.memory_mb or 0.0) * tasks
    reasons = {
        "not-started": (Stage.FAILED, f"it could not be started: {result.trouble}"),
        "cancelled": (Stage.CANCELLED, ""),
        "interrupted": (Stage.FAILED, "its supervisor was told to end"),
        "time-limit": (Stage.KILLED, f"it reached its time limit of {spec.time_s or 0:g} s"),
        "memory-limit": (
            Stage.KILLED,
            result.trouble
            or f"it used more than {limit_mb:g} MB ({result.usage.peak_memory_mb:.0f} MB seen)",
        ),
    }
    if result.how in reasons:
        return reasons[result.how]
    if result.trouble:
        return Stage.FAILED, result.trouble
    if result.signal is not None:
        return Stage.FAILED, f"killed by {_name(result.signal)}"
    return (Stage.FAILED, f"exit code {result.code}") if result.code else (Stage.DONE, "")


def told_to_end(entry: Entry) -> tuple[Stage, str]:
    """Return the final stage of a job that was told to end, and why: by its owner if nothing is noted."""
    return (Stage.CANCELLED, "") if entry.ending is None else (entry.ending, entry.trouble)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


# -- attempts that are not the job's end ---------------------------------------------------------------------


def begin_again(m: MachineState, event: ev.NotBegun) -> None:
    """Start a job that was to run: the coordinator was killed before that was carried out."""
    new_attempt(m, event.entry)


def stay_suspended(m: MachineState, event: ev.NotBegun) -> None:
    """Let a job stay suspended; it goes on by a new attempt."""
    m.record(event.entry, "taken back", "it had not begun")
    _may_go_anywhere(m, event.entry)


def _may_go_anywhere(m: MachineState, entry: Entry) -> None:
    """Free a job that does not run, and whose attempt has ended, from where that attempt had to stay."""
    job = m.jobs.renewed(entry)
    if entry.id in m.cluster.waiting or entry.id in m.cluster.suspended:
        m.cluster.reconsider(job)
        m.stale = True


def lose(m: MachineState, event: ev.AttemptLost) -> Event | None:
    """Let a job wait again that runs or is suspended, ahead of all others."""
    entry = event.entry
    _note_loss(m, event)
    had_place = entry.id in m.cluster.running
    job = m.jobs.renewed(entry)
    m.stale = m.stale or entry.moves_to is not None  # policies are told of one place only
    m.cluster.fail(entry, entry.kept, entry.kept_s)
    if had_place:
        m.engine.free(entry)
        entry.fallbacks = ()
    if not event.counts:
        entry.failures -= 1
    if why := entry.blocked or ("" if entry.spec.external else unfit(m, entry)):
        hold_blocked(m, entry, why)
    elif entry.held_by_user:  # its owner had suspended it, and it was about to leave
        hold(m, entry)
    return Failed(job, entry.placement) if entry.placement else None


def lose_aside(m: MachineState, event: ev.AttemptLost) -> None:
    """Let a job stay as it is that waits, or that its owner holds; it goes on by a new attempt."""
    entry = event.entry
    _note_loss(m, event)
    if entry.stage is Stage.HELD:
        give_back(m, entry)
    if entry.phase is Phase.HELD:  # its place was gone when the coordinator started
        entry.job = UNKNOWN
        admit(m, entry)
    else:
        _may_go_anywhere(m, entry)


def _note_loss(m: MachineState, event: ev.AttemptLost) -> None:
    m.record(event.entry, "lost", event.trouble)
    m.jobs.predictions.void(event.entry.id, event.trouble)


def try_again(m: MachineState, event: ev.FailedByItself) -> Event | None:
    """Hold a job until it is tried again; for the policy it is gone until then."""
    entry = event.entry
    placement = leave(m, entry)
    job = m.jobs.renewed(entry) if placement else None
    entry.not_before_s = m.now + pause_s(entry.spec, entry.retried)
    entry.retried += 1
    entry.stage, entry.trouble = Stage.HELD, event.trouble
    entry.code = entry.signal = None
    entry.done, entry.served_s = entry.kept, entry.kept_s
    m.jobs.predictions.void(entry.id, event.trouble)
    m.record(
        entry, "failed", f"{event.trouble}; tried again at {stamp(entry.not_before_s)}, {tries_left(entry)}"
    )
    give_back(m, entry)
    if not entry.held_by_user:
        admit(m, entry)
    return Finished(job, placement) if job and placement else None


# -- jobs that are to end ------------------------------------------------------------------------------------


def cancel(m: MachineState, event: ev.CancelledByOwner) -> None:
    """End a job for its owner: at once, or as soon as its attempt is over."""
    m.record(event.entry, "cancel")
    if event.entry.alive:
        _have_end(m, event.entry)
    else:
        m.queue.put(ev.Ended(event.entry, Stage.CANCELLED))


def _have_end(m: MachineState, entry: Entry) -> None:
    """Have the attempt of a job end; the policy gives no place to one that waits or is suspended."""
    if entry.id not in m.cluster.running:
        leave(m, entry)
    request(m, entry, "end")


def pass_deadline(m: MachineState, event: ev.DeadlinePassed) -> None:
    """End a job at its deadline, whether it runs or waits."""
    entry = event.entry
    if not entry.alive:
        trouble = f"its deadline passed before it could {'go on' if entry.attempt else 'start'}"
        m.queue.put(ev.Ended(entry, Stage.CANCELLED, trouble))
    else:
        entry.ending, entry.trouble = Stage.KILLED, DEADLINE
        m.record(entry, "deadline")
        _have_end(m, entry)


def end(m: MachineState, event: ev.Ended) -> Event | None:
    """Let a job leave; those that wait for it may go on."""
    entry, stage = event.entry, event.stage
    placement = leave(m, entry)
    job = m.jobs.job(entry) if placement else None
    _close(m, entry, stage, event.trouble, ended_s=min(event.ended_s or m.now, m.now))
    ended = [entry]
    while ended:  # whoever can never begin now ends as well, and may be waited for in turn
        for follower in m.holds.followers(ended.pop()):
            if hopeless := m.holds.verdict(follower).hopeless:
                _close(m, follower, Stage.CANCELLED, hopeless, ended_s=m.now)
                ended.append(follower)
            else:
                admit(m, follower)
    how = "killed" if stage is Stage.KILLED else "done"
    return Finished(job, placement, how) if job and placement else None


def _close(m: MachineState, entry: Entry, stage: Stage, trouble: str, *, ended_s: float) -> None:
    """Note the end of a job that has left the cluster state, or was never in it."""
    entry.stage, entry.trouble, entry.end_s = stage, trouble, ended_s
    entry.held_by_user, entry.alive, entry.ending = False, False, None
    if entry.start_s is not None and entry.usage:  # the clock may have been set while nobody saw it
        entry.start_s = min(entry.start_s, ended_s - entry.usage["wall_s"])
    m.postponed.discard(entry.id)
    m.record(entry, stage.value, trouble)
    m.jobs.drop(entry)
    give_back(m, entry)
    m.run_times.forget(entry)
    m.unsure.update(dict.fromkeys(m.run_times.ended(entry)))
    _give_notice(m, entry)


def _give_notice(m: MachineState, entry: Entry) -> None:
    """Have the end of a job told to those who want to know it; its owner hears of an array as a whole."""
    if m.on_event:
        m.notices.append(Notice(m.on_event, _of_job(entry), entry.spec.folder))
    array, to = entry.array, entry.spec.notify
    if to and array is None:
        m.notices.append(Notice(to, _of_job(entry), entry.spec.folder))
    elif to and array is not None and not m.jobs.arrays.open(array):
        news = about(entry, str(array), array_stage(m.jobs.arrays.ended(array)))
        m.notices.append(Notice(to, news, entry.spec.folder))


def _of_job(entry: Entry) -> dict[str, str]:
    code: int | str = SIGNALLED + entry.signal if entry.signal else entry.code or ""
    if entry.stage is Stage.DONE:
        code = 0
    news = about(entry, entry.label, entry.stage)
    return {**news, "TENBIN_EXIT_CODE": str(code), "TENBIN_REASON": entry.trouble}


def about(entry: Entry, label: str, stage: Stage) -> dict[str, str]:
    """Return the variables that say of which job a notice is."""
    return {
        "TENBIN_EVENT": "failed" if stage in (Stage.FAILED, Stage.KILLED) else "ended",
        "TENBIN_JOB": label,
        "TENBIN_JOB_NAME": entry.spec.name,
        "TENBIN_STATE": stage.value,
    }


def set_aside(m: MachineState, event: ev.Fault) -> Event | None:
    """Have a job end, and fail, with which tenbin cannot cope; all others go on."""
    entry, error = event.entry, event.error
    trouble = f"{FAULT}: {type(error).__name__}: {error}"
    m.stale = True
    if entry.phase is Phase.ENDING:
        return None
    if entry.alive:  # it has its place until it has ended
        entry.ending, entry.trouble = Stage.FAILED, trouble
        m.record(entry, "fault", trouble)
        _have_end(m, entry)
        return None
    follows = None
    try:
        if entry.id in m.jobs.entries:
            follows = end(m, ev.Ended(entry, Stage.FAILED, trouble))
    except Exception:  # whatever it is, the next coordinator has no such job
        log.exception("a fault of tenbin's: job %s cannot be set aside", entry.label)
        entry.stage, entry.trouble, entry.end_s = Stage.FAILED, trouble, m.now
        m.jobs.entries.pop(entry.id, None)
        m.jobs.mark_changed(entry)
    admit_anew(m)
    return follows


# -- jobs that have ended, and run again ---------------------------------------------------------------------


def renew(m: MachineState, event: ev.RetriedByOwner) -> None:
    """Make an ended job one that is held: from its last checkpoint, with failures counted anew."""
    entry = event.entry
    entry.stage, entry.since_s, entry.job = Stage.HELD, m.now, UNKNOWN
    entry.done, entry.served_s = entry.kept, entry.kept_s
    entry.alive, entry.want, entry.held_by_user, entry.fallbacks = False, "", False, ()
    entry.placement, entry.cores, entry.devices, entry.tasks, entry.hosts = None, (), (), None, None
    entry.start_s = entry.end_s = entry.code = entry.signal = entry.usage = None
    entry.trouble, entry.failures = "", 0
    entry.retried, entry.not_before_s = 0, None
    entry.eligible_s = m.now if entry.attempt else None
    m.record(entry, "retry", "by its owner")
