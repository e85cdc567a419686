"""The fate of an attempt: pure functions of its record, folder, Slurm job and nodes.

The folder is believed before Slurm. The claim in it lets an attempt run at most once, however often Slurm
starts it. A node is lost when Slurm says so, which takes up to SlurmdTimeout; or, for an attempt without a
heartbeat for the time of its lease, when the node does not answer.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from agent.attempts.folder import Attempt
from agent.attempts.records import Request, Result, RunState, Want
from agent.multi_node.lease import MARGIN_S
from scheduler.engines.protocol import Report
from scheduler.engines.slurm.poller import BUSY_S, Key, Outcome
from scheduler.engines.slurm.sbatch_queue import SbatchJob, result_of
from scheduler.engines.slurm.slurm_commands import (
    ENDS_BY_STATE,
    NODE_ENDS,
    Batch,
    SlurmForbidden,
    SlurmJob,
    SlurmNodeRefused,
    SlurmNotNow,
    SlurmSilent,
)

# -- effects of a step; a Report is one of them ------------------------------------------------------------


Call = Literal["submit", "start", "wake", "suspend", "resume", "hold", "cancel"]


class Do(NamedTuple):
    """Make a call of Slurm; its outcome comes back as ``settled``."""

    call: Call


class Cancel(NamedTuple):
    """Cancel the Slurm job of this number, beside any other call."""

    number: int


class Revoke(NamedTuple):
    """Claim an attempt that has not begun; if that succeeds it never will, and the report says so."""

    report: Report


class Fence(NamedTuple):
    """Have the attempt end, wherever it runs."""


class Expect(NamedTuple):
    """Heartbeats are due from now on, or are not."""

    beats: bool


class Look(NamedTuple):
    """Take a snapshot so soon, and ask these nodes whether they answer."""

    after_s: float = 0.0
    ask: tuple[str, ...] = ()


class PutBack(NamedTuple):
    """Restore the power caps that a killed supervisor has left."""


class Refused(NamedTuple):
    """Slurm does not start the external job where tenbin wants."""

    why: str


class WaitsAgain(NamedTuple):
    """The external job waits for tenbin again."""


Effect = Report | Do | Cancel | Revoke | Fence | Expect | Look | PutBack | Refused | WaitsAgain


# -- the record of an attempt ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmAttempt:
    """The record of an attempt; each step makes the next record.

    Times are monotonic.

    Attributes:
        cpus: CPUs on each node, by name.
        folder: its files; None for an external job, which has none.
        external: name of the external job in Slurm (``12_3``); "" for a job of tenbin's own.
        comment: by which its Slurm job is found, whatever its number.
        partition: where its Slurm job is submitted.
        batch: how to submit it; None if it was found again after a restart.
        slurm: number of its Slurm job; None if unknown.
        since: when its Slurm job was submitted.
        passed_on: it reuses the allocation of an earlier attempt.
        seen: its Slurm job in the last snapshot.
        snapshot, snapshots: number of that snapshot, and how many there were of this attempt.
        suspended: Slurm has suspended it, and has its CPUs back.
        request, want, asked_at: the last request.
        wake_at: when its supervisor is signalled (again).
        done: the last request that was carried out.
        calling: a call for it is under way.
        wait_until: no further call before then.
        fenced_at: when it was given up; it may run on until its lease is over.
        over: it was given up, and its nodes show that nothing of it runs any more.
        cancelled: tenbin has cancelled its Slurm job.
        final_since: since when Slurm says that it has ended, without a result.
        awaits_after: its end is explained by the first snapshot after so many; -1: it needs no explanation.
        trouble: why it was given up.
        restarts: how often Slurm had restarted an external job when this attempt began.
        leaving: the report for an external job that is about to wait for tenbin again.
    """

    job_id: int
    number: int
    cpus: Mapping[str, int]
    folder: Attempt | None = None
    external: str = ""
    comment: str = ""
    grace_s: float = 0.0
    partition: str = ""
    batch: Batch | None = None
    slurm: int | None = None
    since: float = 0.0
    passed_on: bool = False
    seen: SlurmJob | SbatchJob | None = None
    snapshot: int = 0
    snapshots: int = 0
    started: bool = False
    suspended: bool = False
    request: int = 0
    want: Want | Literal[""] = ""
    asked_at: float = 0.0
    wake_at: float = 0.0
    done: int = 0
    calling: bool = False
    wait_until: float = 0.0
    fenced_at: float | None = None
    over: bool = False
    cancelled: bool = False
    final_since: float | None = None
    awaits_after: int = -1
    trouble: str = ""
    restarts: int | None = None
    leaving: Report | None = None

    @property
    def key(self) -> Key:
        return self.job_id, self.number

    @property
    def files(self) -> Attempt:
        """The folder of an attempt that is not external."""
        assert self.folder is not None
        return self.folder

    @property
    def where(self) -> str:
        return ", ".join(self.cpus)

    @property
    def given_up(self) -> bool:
        return self.fenced_at is not None

    def hindrance(self, lease_s: float) -> str:
        """Say why it does not get on; "" if nothing is known to hinder it."""
        if self.given_up:
            return f"{self.trouble}; it may still run there, for {lease_s:g} s at most"
        seen = self.seen
        if seen is not None and seen.state == "PENDING":
            return f"waits in Slurm (job {seen.key}): {seen.reason}"
        if seen is not None and seen.state == "SUSPENDED" and self.want != "pause":
            return f"suspended in Slurm by somebody else; go on with: scontrol resume {seen.key}"
        return ""


Next = tuple[SlurmAttempt, list[Effect]]


def do(attempt: SlurmAttempt, what: Call, effects: list[Effect]) -> SlurmAttempt:
    """Have a call made; no other is made until its outcome is known."""
    effects.append(Do(what))
    return replace(attempt, calling=True)


# -- evidence: its folder, and the nodes in the last snapshot ----------------------------------------------


@dataclass(frozen=True, slots=True)
class FolderView:
    """An attempt's folder, read once, and the heartbeats in it.

    Attributes:
        claimed: a supervisor, or a coordinator that revoked it, has the attempt.
        noted: a result that a dead supervisor had noted and not published.
        spoiled: why what lies in place of the result is none.
        complaint: the last line of the supervisor's log.
        silent: nodes without a beat for a lease. begun: nodes with any beat. ended: nodes whose ranks have
            ended, as their keepers say.
        recap: its supervisor has not confirmed its power cap.
    """

    result: Result | None = None
    state: RunState | None = None
    claimed: bool = False
    noted: Result | None = None
    spoiled: str = ""
    complaint: str = ""
    silent: frozenset[str] = frozenset()
    begun: frozenset[str] = frozenset()
    ended: frozenset[str] = frozenset()
    recap: bool = False


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The nodes in the last snapshot.

    Attributes:
        number: of the snapshot; 0 before the first one.
        now: monotonic time. time_s: seconds since 1970.
        away: why nodes cannot be used. lost: why nodes are given up by Slurm. mute: nodes that do not answer.
        put_back: external jobs that wait anew, with the count of their restarts: since when.
    """

    number: int
    now: float
    time_s: float
    lease_s: float
    away: Mapping[str, str]
    lost: Mapping[str, str]
    mute: frozenset[str]
    put_back: Mapping[tuple[str, int], float]

    @property
    def gone(self) -> frozenset[str]:
        return self.mute.union(self.lost)


def read_folder(folder: Attempt, *, closely: bool) -> FolderView:
    """Read an attempt's folder.

    Args:
        closely: also what explains an end without a result.

    Raises:
        OSError: the folder is out of sight.
    """
    result = folder.result()
    if result is not None:
        return FolderView(result, folder.state(), claimed=True)
    state = folder.state()
    claimed = folder.claimed() if closely or state is None else True
    if not closely:
        return FolderView(None, state, claimed=claimed)
    return FolderView(
        None, state, claimed, folder.unpublished_result(), folder.broken_result(), folder.last_log_line()
    )


def look_anew(folder: Path) -> None:
    """List a folder: over NFS, this fetches what other nodes have written."""
    for _ in folder.iterdir():
        pass


# -- the step ----------------------------------------------------------------------------------------------


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
        return external_step(attempt, job, view)
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
        paused = attempt.want == "pause" or parked
        beats = should_beat(job, begun=attempt.started, paused=paused)
        if beats is not None:
            effects.append(Expect(beats))
    elif job is not None and not job.final and job.state != "COMPLETING":
        effects.append(Cancel(job.id))  # slurmctld was told before, and may have forgotten it
    return attempt


def should_beat(job: SlurmJob | None, *, begun: bool = False, paused: bool) -> bool | None:
    """Say whether an attempt should leave heartbeats; None: as before.

    Of jobs on a node out of reach, Slurm also says that they are over: the silence there goes on. A job that
    has begun and waits in Slurm again may run still, because slurmctld has forgotten its start, or be gone;
    and on a drained node Slurm never starts it again. Its heartbeats tell which.
    """
    if job is not None and job.final:
        return None
    states = ("RUNNING", "COMPLETING", "PENDING") if begun else ("RUNNING", "COMPLETING")
    return job is not None and job.state in states and not paused


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
    how = None if refused or _start_forgotten(folder, job) else ENDS_BY_STATE.get(job.state)
    said = folder.spoiled or folder.complaint
    if how is not None and not attempt.cancelled:
        result = folder.noted or Result(how, view.time_s, trouble=said)
        result = replace(result, how=how) if _by_signal(result) else result
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
    if _by_signal(result) and not attempt.cancelled and not attempt.given_up:
        job = attempt.seen
        if isinstance(job, SlurmJob) and job.final:
            if not _start_forgotten(folder, job):
                result = replace(result, how=ENDS_BY_STATE.get(job.state, result.how))
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


def _by_signal(result: Result) -> bool:
    """Say whether it ended by a signal of which only Slurm knows the reason."""
    unexplained = result.how == "interrupted" and not result.trouble
    return unexplained or result.signal in (signal.SIGTERM, signal.SIGKILL)


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
    # If slurmctld has forgotten its start, scancel would try for minutes to signal it.
    forgotten = attempt.seen is not None and attempt.seen.state == "PENDING"
    if (obeyed and not recap) or now < attempt.wake_at or forgotten:
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


# -- external jobs: all evidence is what Slurm shows -------------------------------------------------------


CANCELS_S = 15.0  # until a job that was to be cancelled is cancelled again
# A node refuses a job that it was told to kill in this very second of slurmctld's clock, and the end of the
# killed run may be told late. Slurm takes either for a failure of the job. So a job that was put back into
# the queue rests before it starts again.
REST_S = 2.0


def external_step(attempt: SlurmAttempt, job: SbatchJob | None, view: ClusterView) -> Next:
    """As ``step``, for an external job."""
    effects: list[Effect] = []
    if attempt.calling or view.number == attempt.snapshot:
        return replace(attempt, snapshot=view.number), effects  # the snapshot may be older than the call
    attempt = replace(attempt, seen=job, snapshot=view.number)
    if job is None:
        effects.append(
            _end_external(attempt, "never", f"Slurm does not know job {attempt.external} any more", view)
        )
    elif job.final:
        result = result_of(job, view.time_s)
        effects.append(Report(*attempt.key, "ended", result.ended_s, result=result))
    elif job.pending:
        attempt = _follow_waiting(attempt, job, view, effects)
    else:
        attempt = _follow_running(attempt, job, view, effects)
    return attempt, effects


def _follow_waiting(
    attempt: SlurmAttempt, job: SbatchJob, view: ClusterView, effects: list[Effect]
) -> SlurmAttempt:
    """Follow a job that was to run and waits: not started yet, or not any more."""
    if attempt.restarts is None:
        attempt = replace(attempt, restarts=job.restarts)
    away = next((name for name in attempt.cpus if name in view.away), None)
    if attempt.started or job.restarts > (attempt.restarts or 0):
        return _leave_to_wait(attempt, f"put back into the queue in Slurm ({job.reason})", view, effects)
    if blocked := job.blocked(view.time_s):
        return _leave_to_wait(attempt, blocked, view, effects, what="never")
    if job.over_limit:  # which only Slurm counts: nobody knows for how long its nodes would stay empty
        why = f"a limit in Slurm keeps it waiting ({job.over_limit})"
        effects += [Refused(why), _end_external(attempt, "lost", why, view)]
        return attempt
    if away is not None:
        why = f"{away} could not be used: {view.away[away]}"
        return _leave_to_wait(attempt, why, view, effects, what="never")
    if attempt.want in ("pause", "end"):
        return steer_external(attempt, view, effects)
    # It is gated still if the call was not heard, or not made before the last coordinator ended.
    return start_external(attempt, view, effects) if job.gated(view.time_s) else attempt


def _follow_running(
    attempt: SlurmAttempt, job: SbatchJob, view: ClusterView, effects: list[Effect]
) -> SlurmAttempt:
    if job.nodes and set(job.nodes) != set(attempt.cpus):
        where = ", ".join(job.nodes)
        effects.append(_end_external(attempt, "lost", f"somebody has had Slurm start it on {where}", view))
        return attempt
    if not attempt.started:
        attempt = replace(attempt, started=True)
        effects.append(Report(*attempt.key, "started", job.start_s or view.time_s))
    return steer_external(attempt, view, effects)


def start_external(attempt: SlurmAttempt, view: ClusterView, effects: list[Effect]) -> SlurmAttempt:
    """Start it at once; a job that was put back into the queue a moment ago, at a later snapshot."""
    job = attempt.seen
    if isinstance(job, SbatchJob):
        seen_s = view.put_back.get((job.key, job.restarts))
        if seen_s is not None and (rest_s := seen_s + REST_S - view.now) > 0:
            effects.append(Look(rest_s))
            return attempt
    return do(attempt, "start", effects)


def steer_external(attempt: SlurmAttempt, view: ClusterView, effects: list[Effect]) -> SlurmAttempt:
    """Bring it closer to what is wanted."""
    job, want = attempt.seen, attempt.want
    if attempt.calling or not isinstance(job, SbatchJob) or view.now < attempt.wait_until or not want:
        return attempt
    if want == "end":
        return replace(do(attempt, "cancel", effects), wait_until=view.now + CANCELS_S)
    if job.pending:
        return _leave_to_wait(attempt, "", view, effects, what="never") if want == "pause" else attempt
    if want == "pause" and job.state == "RUNNING":
        return do(attempt, "suspend", effects)
    # What somebody else has suspended, that user resumes.
    stopped = attempt.suspended or (job.state == "SUSPENDED" and attempt.done < attempt.request)
    if want == "run" and stopped:
        return do(attempt, "resume", effects)
    return obeyed(attempt, view.time_s, effects)


def obeyed(attempt: SlurmAttempt, time_s: float, effects: list[Effect]) -> SlurmAttempt:
    if attempt.done < attempt.request:
        attempt = replace(attempt, done=attempt.request)
        effects.append(Report(*attempt.key, "obeyed", time_s, done=attempt.done))
    return attempt


def _leave_to_wait(
    attempt: SlurmAttempt,
    trouble: str,
    view: ClusterView,
    effects: list[Effect],
    *,
    what: Literal["lost", "never"] = "lost",
) -> SlurmAttempt:
    """Have it wait for tenbin again; if Slurm has just started it, it runs after all."""
    leaving = _end_external(attempt, what, trouble, view)
    if what == "never" and trouble:
        leaving = leaving._replace(for_now=True)  # it has not begun, and may at another time or place
    return do(replace(attempt, leaving=leaving), "hold", effects)


def _end_external(
    attempt: SlurmAttempt, what: Literal["lost", "never"], trouble: str, view: ClusterView
) -> Report:
    return Report(*attempt.key, what, view.time_s, trouble=trouble)


# -- after a request, or the outcome of a call -------------------------------------------------------------


CROWDED_S = 0.3  # CPUs that are to be free soon are looked at again
FORBIDDEN_S = 60.0  # until what Slurm forbids is tried again
STARTS_S = 0.1  # until an external job that may start has started


def requested(attempt: SlurmAttempt, request: Request, view: ClusterView) -> Next:
    """Note a new request; the next step hands it on."""
    attempt = replace(attempt, request=request.number, want=request.want, asked_at=view.now, wake_at=0.0)
    effects: list[Effect] = []
    if attempt.external:
        attempt = steer_external(replace(attempt, wait_until=0.0), view, effects)
    return attempt, effects


def settled(attempt: SlurmAttempt, outcome: Outcome, view: ClusterView) -> Next:
    """Note the outcome of a call of ``Do`` or ``Cancel``."""
    if outcome.what == "submit":
        return _submitted(replace(attempt, calling=False), outcome, view)
    if attempt.external:
        return _settled_external(replace(attempt, calling=False), outcome, view)
    attempt, error = replace(attempt, calling=False), outcome.error
    if isinstance(error, SlurmForbidden) and outcome.what == "suspend":
        # It is stopped, but keeps its CPUs: others wait for them in Slurm.
        attempt = replace(attempt, suspended=False, wait_until=view.now + FORBIDDEN_S)
    elif error is not None:
        attempt = replace(attempt, wait_until=view.now + AGAIN_S)
    elif outcome.what == "suspend":
        attempt = replace(attempt, suspended=True)
    elif outcome.what == "resume" and not outcome.value:
        return _crowded(attempt, view)
    elif outcome.what == "resume":
        # Going on has woken its supervisor, and Slurm drops a signal that comes now.
        attempt = replace(attempt, suspended=False, wake_at=view.now + AGAIN_S)
    return attempt, []


def _crowded(attempt: SlurmAttempt, view: ClusterView) -> Next:
    return replace(attempt, wait_until=view.now + CROWDED_S), [Look(CROWDED_S)]


def _submitted(attempt: SlurmAttempt, outcome: Outcome, view: ClusterView) -> Next:
    if isinstance(outcome.value, int):
        return replace(attempt, slurm=outcome.value), [Look(BUSY_S)]  # else the next snapshot may be later
    if isinstance(outcome.error, SlurmSilent):
        return attempt, [Look()]  # it may be there all the same: the next snapshot tells
    if attempt.started:
        return attempt, []
    what: Literal["lost", "never"] = "lost" if isinstance(outcome.error, SlurmNodeRefused) else "never"
    report = Report(*attempt.key, what, view.time_s, trouble=f"Slurm refused it: {outcome.error}")
    return attempt, [Revoke(report)]


def _settled_external(attempt: SlurmAttempt, outcome: Outcome, view: ClusterView) -> Next:
    what, error = outcome.what, outcome.error
    if what == "start" and error is not None and not isinstance(error, SlurmNotNow):
        report = Report(*attempt.key, "lost", view.time_s, trouble=error.what)
        return attempt, [Refused(f"Slurm refused to start it where tenbin wanted: {error.what}"), report]
    if error is not None:
        return replace(attempt, wait_until=view.now + AGAIN_S), []
    effects: list[Effect] = [Look(STARTS_S if what == "start" else 0.0)]
    if what == "hold" and outcome.value and attempt.leaving is not None:
        return attempt, [WaitsAgain(), attempt.leaving._replace(at_s=view.time_s), *effects]
    if what == "resume" and outcome.value is False:
        return _crowded(attempt, view)
    if what in ("suspend", "resume"):
        attempt = replace(attempt, suspended=what == "suspend")
        if attempt.want == ("pause" if attempt.suspended else "run"):
            attempt = obeyed(attempt, view.time_s, effects)
        else:  # something else is wanted by now
            attempt = steer_external(attempt, view, effects)
    return attempt, effects
