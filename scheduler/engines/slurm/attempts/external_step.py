"""Steps of external jobs: there is no folder and no supervisor, and all evidence is what Slurm shows."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from scheduler.engines.protocol import Report
from scheduler.engines.slurm.attempts.attempt import Next, SlurmAttempt, do
from scheduler.engines.slurm.attempts.effects import Effect, Look
from scheduler.engines.slurm.attempts.evidence import ClusterView
from scheduler.engines.slurm.client.sbatch_jobs import SbatchJob, result_of

CANCELS_S = 15.0  # until a job that was to be cancelled is cancelled again
# A node refuses a job that it was told to kill in this very second of slurmctld's clock, and the end of the
# killed run may be told late. Slurm takes either for a failure of the job. So a job that was put back into
# the queue rests before it starts again.
REST_S = 2.0


def step(attempt: SlurmAttempt, job: SbatchJob | None, view: ClusterView) -> Next:
    """As ``attempts.step``, for an external job."""
    effects: list[Effect] = []
    if attempt.calling or view.number == attempt.snapshot:
        return replace(attempt, snapshot=view.number), effects  # the snapshot may be older than the call
    attempt = replace(attempt, seen=job, snapshot=view.number)
    if job is None:
        effects.append(_end(attempt, "never", f"Slurm does not know job {attempt.external} any more", view))
    elif job.final:
        result = result_of(job, view.time_s)
        effects.append(Report(*attempt.key, "ended", result.ended_s, result=result))
    elif job.pending:
        attempt = _wait(attempt, job, view, effects)
    else:
        attempt = _run(attempt, job, view, effects)
    return attempt, effects


def _wait(attempt: SlurmAttempt, job: SbatchJob, view: ClusterView, effects: list[Effect]) -> SlurmAttempt:
    """Follow a job that was to run and waits: not started yet, or not any more."""
    if attempt.restarts is None:
        attempt = replace(attempt, restarts=job.restarts)
    away = next((name for name in attempt.cpus if name in view.away), None)
    if attempt.started or job.restarts > (attempt.restarts or 0):
        return _leave(attempt, f"put back into the queue in Slurm ({job.reason})", view, effects)
    if blocked := job.blocked(view.time_s):
        return _leave(attempt, blocked, view, effects)
    if away is not None:
        return _leave(attempt, f"{away} could not be used: {view.away[away]}", view, effects)
    if attempt.want in ("pause", "end"):
        return steer(attempt, view, effects)
    if job.gated(view.time_s):  # the call was not heard, or not made before the last coordinator ended
        return start(attempt, view, effects)
    return attempt


def _run(attempt: SlurmAttempt, job: SbatchJob, view: ClusterView, effects: list[Effect]) -> SlurmAttempt:
    if job.nodes and set(job.nodes) != set(attempt.cpus):
        where = ", ".join(job.nodes)
        effects.append(_end(attempt, "lost", f"somebody has had Slurm start it on {where}", view))
        return attempt
    if not attempt.started:
        attempt = replace(attempt, started=True)
        effects.append(Report(*attempt.key, "started", job.start_s or view.time_s))
    return steer(attempt, view, effects)


def start(attempt: SlurmAttempt, view: ClusterView, effects: list[Effect]) -> SlurmAttempt:
    """Start it at once; a job that was put back into the queue a moment ago, at a later snapshot."""
    job = attempt.seen
    if isinstance(job, SbatchJob):
        seen_s = view.put_back.get((job.key, job.restarts))
        if seen_s is not None and (rest_s := seen_s + REST_S - view.now) > 0:
            effects.append(Look(rest_s))
            return attempt
    return do(attempt, "start", effects)


def steer(attempt: SlurmAttempt, view: ClusterView, effects: list[Effect]) -> SlurmAttempt:
    """Bring it closer to what is wanted."""
    job, want = attempt.seen, attempt.want
    if attempt.calling or not isinstance(job, SbatchJob) or view.now < attempt.wait_until or not want:
        return attempt
    if want == "end":
        return replace(do(attempt, "cancel", effects), wait_until=view.now + CANCELS_S)
    if job.pending:
        return _leave(attempt, "", view, effects, what="never") if want == "pause" else attempt
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


def _leave(
    attempt: SlurmAttempt,
    trouble: str,
    view: ClusterView,
    effects: list[Effect],
    *,
    what: Literal["lost", "never"] = "lost",
) -> SlurmAttempt:
    """Have it wait for tenbin again; if Slurm has just started it, it runs after all."""
    leaving = _end(attempt, what, trouble, view)
    return do(replace(attempt, leaving=leaving), "hold", effects)


def _end(attempt: SlurmAttempt, what: Literal["lost", "never"], trouble: str, view: ClusterView) -> Report:
    return Report(*attempt.key, what, view.time_s, trouble=trouble)
