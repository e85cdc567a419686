"""The next step of an attempt: one pure function of its record, folder, Slurm job and nodes.

The folder is believed before Slurm. The claim in it lets an attempt run at most once, however often Slurm
starts it. A node is lost when Slurm says so, which takes up to SlurmdTimeout; or, for an attempt without a
heartbeat for the time of its lease, when the node does not answer.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

from agent.attempts.records import Result, RunState
from agent.multi_node.lease import MARGIN_S
from scheduler.engines.protocol import Report
from scheduler.engines.slurm.attempts import external_step
from scheduler.engines.slurm.attempts.attempt import Next, SlurmAttempt, do
from scheduler.engines.slurm.attempts.effects import Cancel, Effect, Expect, Fence, Look, PutBack, Revoke
from scheduler.engines.slurm.attempts.evidence import ClusterView, FolderView
from scheduler.engines.slurm.client.parse import ENDS, NODE_ENDS, SlurmJob
from scheduler.engines.slurm.client.sbatch_jobs import SbatchJob

AGAIN_S = 3.0  # a supervisor that has not done what it was told is told again
PATIENCE_S = 15.0  # beyond a job's grace, before Slurm is told to end it
SETTLES_S = 2.0  # until what a node has written is seen on others
SKEW_S = 1.0  # of the clocks of a node and of slurmctld
VERDICT_S = 0.1  # between looks at who ended a job
NO_SIGN = "no sign of life"
DOWN = ("end", "pause", "park", "checkpoint")  # requests that an attempt meets by not beginning


def step(
    attempt: SlurmAttempt, folder: FolderView | None, job: SlurmJob | SbatchJob | None, view: ClusterView
) -> Next:
    """Find out what became of an attempt since its last step, and what is to be done about it.

    Args:
        folder: None for an external job.
        job: its Slurm job in the last snapshot, None if there was none.

    Returns:
        The next record, and the effects in their order. There is no further step after a Report that ends the
        attempt, or a Revoke that succeeds.
    """
    if folder is None:
        assert not isinstance(job, SlurmJob)
        return external_step.step(attempt, job, view)
    assert not isinstance(job, SbatchJob)
    effects: list[Effect] = []
    fresh = view.number != attempt.snapshot
    if fresh:
        attempt = replace(attempt, snapshot=view.number)
        # A job that is being submitted may be missing in a snapshot from before.
        submitting = attempt.calling and attempt.slurm is None
        before = attempt.seen
        if not submitting:
            attempt = _note_snapshot(attempt, job, effects)
    if folder.result is not None:
        return _finish(attempt, folder, view, effects, result=folder.result)
    if fresh:
        if not submitting and not attempt.given_up:
            attempt = _judge(attempt, folder, view, effects, before=before)
        if not _decided(effects):
            attempt = _judge_nodes(attempt, folder, view, effects)
        if _decided(effects):
            return attempt, effects
    return _follow(attempt, folder, view, effects)


def _decided(effects: Iterable[Effect]) -> bool:
    return any(isinstance(effect, Report | Revoke) for effect in effects)


# -- what Slurm says ---------------------------------------------------------------------------------------


def _note_snapshot(attempt: SlurmAttempt, job: SlurmJob | None, effects: list[Effect]) -> SlurmAttempt:
    attempt = replace(attempt, seen=job, snapshots=attempt.snapshots + 1)
    if not attempt.given_up:
        parked = attempt.want == "park" and attempt.done >= attempt.request
        beats = should_beat(job, paused=attempt.want == "pause" or parked)
        if beats is not None:
            effects.append(Expect(beats))
    elif job is not None and not job.final and job.state != "COMPLETING":
        effects.append(Cancel(job.id))  # slurmctld was told before, and may have forgotten it
    return attempt


def should_beat(job: SlurmJob | None, *, paused: bool) -> bool | None:
    """Say whether an attempt should leave heartbeats; None: as before.

    Of jobs on a node out of reach, Slurm also says that they are over: the silence there goes on.
    """
    if job is not None and job.final:
        return None
    return job is not None and job.state in ("RUNNING", "COMPLETING") and not paused


def _judge(
    attempt: SlurmAttempt,
    folder: FolderView,
    view: ClusterView,
    effects: list[Effect],
    *,
    before: SlurmJob | SbatchJob | None,
) -> SlurmAttempt:
    """Draw conclusions from the Slurm job of an attempt without a result."""
    job = attempt.seen
    if job is None:  # the submission failed, or Slurm has lost or forgotten the job
        if not folder.claimed and not attempt.started:
            effects.append(Revoke(_report(attempt, "never", view)))
        elif isinstance(before, SlurmJob) and before.final:
            return _vanished(attempt, folder, view, effects, job=before)
        else:
            return _give_up(attempt, "Slurm does not know it any more", view, effects)
        return attempt
    assert isinstance(job, SlurmJob)
    suspended = attempt.suspended if attempt.calling else job.state == "SUSPENDED"
    attempt = replace(attempt, slurm=job.id, suspended=suspended)
    if job.final:
        attempt = replace(attempt, final_since=attempt.final_since or view.now)
        if view.now >= (attempt.final_since or 0.0) + SETTLES_S:
            return _vanished(attempt, folder, view, effects, job=job)
    return attempt


def _vanished(
    attempt: SlurmAttempt, folder: FolderView, view: ClusterView, effects: list[Effect], *, job: SlurmJob
) -> SlurmAttempt:
    """Explain the end of a Slurm job without a result: its supervisor never began, or was killed."""
    began = attempt.started or folder.claimed
    if began:
        effects.append(PutBack())
        if job.state in NODE_ENDS or not view.lost.keys().isdisjoint(attempt.cpus):
            return _give_up(attempt, f"{attempt.where}: lost ({job.state})", view, effects)
    report = _report_of_vanished(attempt, folder, job, view, began=began)
    effects.append(report if began else Revoke(report))
    return attempt


def _report_of_vanished(
    attempt: SlurmAttempt, folder: FolderView, job: SlurmJob, view: ClusterView, *, began: bool
) -> Report:
    if attempt.passed_on and not began:
        return _report(attempt, "never", view)  # the allocation was gone: next time one of its own
    # A job that its node refuses is cancelled by Slurm itself, for instance after a restart of slurmctld,
    # because the number was used before.
    refused = not began and job.state == "CANCELLED" and bool(job.nodes)
    how = None if refused or _start_forgotten(folder, job) else ENDS.get(job.state)
    said = folder.spoiled or folder.complaint
    if how is not None and not attempt.cancelled:
        result = folder.noted or Result(how, view.time_s, trouble=said)
        return _report(attempt, "ended", view, result=result)
    if began or refused or job.state in NODE_ENDS or job.state == "PREEMPTED" or attempt.cancelled:
        ended = "ended without a result" if began else "did not begin"
        reason = f": {said}" if said else ""
        trouble = f"its supervisor on {attempt.where} {ended} ({job.state}){reason}"
        return _lost(replace(attempt, trouble=trouble), folder, view)
    store = attempt.folder.path.parents[2] if attempt.folder else ""
    reason = said or f"are {store} and its Python there under the same paths?"
    return _report(
        attempt, "never", view, trouble=f"{attempt.where} could not start it ({job.state}): {reason}"
    )


def _start_forgotten(folder: FolderView, job: SlurmJob) -> bool:
    """Say whether slurmctld was killed and had forgotten the start of the job.

    slurmctld restarts the job, the node refuses, Slurm cancels it. CANCELLED is no user's cancel then.
    """
    return folder.state is not None and job.start_s > folder.state.started_s + SKEW_S


def _lost(attempt: SlurmAttempt, folder: FolderView, view: ClusterView) -> Report:
    """Report an attempt whose supervisor has ended, by the result that it noted if there is one."""
    if folder.noted is not None:
        return _report(attempt, "ended", view, result=folder.noted)
    said = "its supervisor was killed"
    if folder.spoiled:
        said = folder.spoiled
    elif not folder.claimed and attempt.folder is not None:
        said = f"the files of its attempt were removed from {attempt.folder.path}"
    elif folder.complaint:
        said = f"its supervisor failed: {folder.complaint}"
    return _report(attempt, "lost", view, trouble=attempt.trouble or f"{attempt.where}: {said}")


# -- what the nodes say ------------------------------------------------------------------------------------


def _judge_nodes(
    attempt: SlurmAttempt, folder: FolderView, view: ClusterView, effects: list[Effect]
) -> SlurmAttempt:
    """Give up an attempt whose node is lost; of one that was given up, see whether it is over."""
    if not attempt.given_up:
        if trouble := _unusable(attempt, folder, view):
            effects.append(Revoke(_report(attempt, "lost", view, trouble=trouble)))
            return attempt
        if trouble := _doubt(attempt, folder, view):
            attempt = _give_up(attempt, trouble, view, effects)
    if attempt.given_up and not attempt.over:
        over = folder.ended | (view.gone & folder.begun & folder.silent)
        return replace(attempt, over=over.issuperset(attempt.cpus))
    return attempt


def _unusable(attempt: SlurmAttempt, folder: FolderView, view: ClusterView) -> str:
    """Say why an attempt that has not begun never will: one of its nodes cannot be used now."""
    away = next((name for name in attempt.cpus if name in view.away), None)
    job = attempt.seen
    if away is None or job is None or attempt.started or folder.claimed:
        return ""
    waits = job.state == "PENDING" or (job.state == "RUNNING" and away in view.mute)
    return f"{away} could not be used: {view.away[away]}" if waits else ""


def _doubt(attempt: SlurmAttempt, folder: FolderView, view: ClusterView) -> str:
    """Say which node of an attempt is lost, and why; "": none is."""
    for name in attempt.cpus:
        if name in view.lost:
            return f"{name} is lost: {view.lost[name]}"
        if name in folder.silent and name in view.mute:
            return f"{name} is lost: {NO_SIGN}"
        if name in folder.silent & folder.begun:
            # The node is there; the job's supervisor, or keeper of ranks, is not, or sees no disk.
            return f"what runs on {name} gives {NO_SIGN}"
    return ""


def give_up(attempt: SlurmAttempt, trouble: str, now: float) -> Next:
    """Fence an attempt: what may run of it must end before it runs elsewhere."""
    effects: list[Effect] = [Fence()]
    if attempt.slurm is not None:
        effects.append(Cancel(attempt.slurm))
    cancelled = attempt.cancelled or attempt.slurm is not None
    return replace(attempt, fenced_at=now, trouble=trouble, cancelled=cancelled), effects


def _give_up(attempt: SlurmAttempt, trouble: str, view: ClusterView, effects: list[Effect]) -> SlurmAttempt:
    attempt, more = give_up(attempt, trouble, view.now)
    effects += more
    return attempt


# -- what its folder says ----------------------------------------------------------------------------------


def _finish(
    attempt: SlurmAttempt, folder: FolderView, view: ClusterView, effects: list[Effect], *, result: Result
) -> Next:
    """Report a result. Slurm, or a look at the nodes, may explain an end by a signal or of ranks."""
    if result.how == "interrupted" and attempt.want == "end":
        result = replace(result, how="cancelled")  # Slurm was told to end it, because it did not answer
    unexplained = result.how == "interrupted" and not result.trouble
    by_signal = unexplained or result.signal in (signal.SIGTERM, signal.SIGKILL)
    if by_signal and not attempt.cancelled and not attempt.given_up:
        job = attempt.seen
        if isinstance(job, SlurmJob) and job.final:
            if not _start_forgotten(folder, job):
                result = replace(result, how=ENDS.get(job.state, result.how))
        elif _explanation_comes(attempt, view):
            return _await_snapshot(attempt, effects, VERDICT_S), effects
    failed = result.how in ("exited", "signalled") and result.code != 0
    lost = Report(*attempt.key, "lost", result.ended_s)
    if attempt.given_up and failed:
        # Slurm was told to cancel it, and mpiexec, which is told as well, ends by some code of its own.
        return attempt, [*effects, lost._replace(trouble=attempt.trouble)]
    of_node = result.trouble if result.how == "interrupted" else ""  # its supervisor saw that one is lost
    if of_node or (failed and len(attempt.cpus) > 1):  # ranks may have died with a node
        if attempt.awaits_after < 0:
            attempt = _await_snapshot(attempt, effects)
        if attempt.awaits_after == attempt.snapshots:
            return attempt, effects  # begun anew once it is known which node is lost
        if trouble := of_node or _lost_node(attempt, view):
            return attempt, [*effects, lost._replace(trouble=trouble)]
    return attempt, [*effects, Report(*attempt.key, "ended", result.ended_s, result=result)]


def _explanation_comes(attempt: SlurmAttempt, view: ClusterView) -> bool:
    """Say whether Slurm will explain the end: not of a job that waits again, or on a node out of reach.

    A job that waits in a snapshot from before its end may have begun since.
    """
    if attempt.seen is None:
        return attempt.snapshots == 0
    waits_again = attempt.seen.state == "PENDING" and attempt.awaits_after not in (-1, attempt.snapshots)
    return not waits_again and view.gone.isdisjoint(attempt.cpus)


def _await_snapshot(attempt: SlurmAttempt, effects: list[Effect], after_s: float = 0.0) -> SlurmAttempt:
    if attempt.awaits_after != attempt.snapshots:
        effects.append(Look(after_s, tuple(attempt.cpus)))
    return replace(attempt, awaits_after=attempt.snapshots)


def _lost_node(attempt: SlurmAttempt, view: ClusterView) -> str:
    """Say which of its nodes is lost, and why; "": none, as far as the last snapshot tells."""
    name = next((name for name in attempt.cpus if name in view.gone), "")
    if name:
        return f"{name} is lost: {view.lost.get(name, NO_SIGN)}"
    job = attempt.seen
    return f"{attempt.where}: lost ({job.state})" if job is not None and job.state in NODE_ENDS else ""


def _follow(attempt: SlurmAttempt, folder: FolderView, view: ClusterView, effects: list[Effect]) -> Next:
    """Follow an attempt without a result: it has begun, has obeyed, is to be told something, or is over."""
    state = folder.state
    if state is not None and not attempt.started:
        attempt = replace(attempt, started=True)
        effects.append(Report(*attempt.key, "started", state.started_s))
    if state is not None and _still_parked(attempt, state):
        state = replace(state, done=attempt.request)
    if state is not None and state.done > attempt.done:
        attempt = replace(attempt, done=state.done)
        effects.append(Report(*attempt.key, "obeyed", view.time_s, done=state.done, state=state))
    unbegun = not attempt.started and not folder.claimed
    if attempt.fenced_at is not None:
        if unbegun:
            effects.append(Revoke(_lost(attempt, folder, view)))
        elif attempt.over or view.now >= attempt.fenced_at + view.lease_s + MARGIN_S:
            effects.append(_lost(attempt, folder, view))
    elif unbegun and attempt.want in DOWN:
        effects.append(Revoke(_report(attempt, "never", view)))
    elif (
        attempt.started or attempt.want == "end"
    ):  # without a state its files were removed, or it cannot tell
        attempt = _steer(attempt, state, view.now, effects, recap=folder.recap)
    return attempt, effects


def _still_parked(attempt: SlurmAttempt, state: RunState) -> bool:
    """Tell if an attempt that is to be parked has not gone on since it was parked last."""
    stopped = attempt.suspended and state.paused and not attempt.calling
    return attempt.want == "park" and stopped and state.done < attempt.request


def _steer(
    attempt: SlurmAttempt, state: RunState | None, now: float, effects: list[Effect], *, recap: bool
) -> SlurmAttempt:
    """Bring what runs closer to what is wanted, by one call at a time."""
    want, obeyed = attempt.want, state is not None and state.done >= attempt.request
    if attempt.calling or attempt.slurm is None or not (want or recap) or now < attempt.wait_until:
        return attempt
    if want == "end" and now > attempt.asked_at + attempt.grace_s + PATIENCE_S:
        effects.append(Cancel(attempt.slurm))
        return replace(attempt, cancelled=True, wait_until=now + PATIENCE_S)
    parked = want == "park" and obeyed and state is not None and state.paused
    if (want == "pause" and (attempt.suspended or obeyed)) or parked:
        # Its clock has stopped: now its CPUs are for others.
        return attempt if attempt.suspended else do(attempt, "suspend", effects)
    if attempt.suspended:
        return do(attempt, "resume", effects)
    if (obeyed and not recap) or now < attempt.wake_at:
        return attempt
    return replace(do(attempt, "wake", effects), wake_at=now + AGAIN_S)


def _report(
    attempt: SlurmAttempt,
    what: Literal["ended", "lost", "never"],
    view: ClusterView,
    *,
    result: Result | None = None,
    trouble: str = "",
) -> Report:
    """Report the end of an attempt: at the time of its result, else now."""
    at_s = view.time_s if result is None else result.ended_s
    return Report(*attempt.key, what, at_s, result, trouble)
