"""The next record of an attempt after a call's outcome, or a new request: pure functions, as ``step``."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from agent.attempts.records import Request
from scheduler.engines.protocol import Report
from scheduler.engines.slurm.attempts import external_step
from scheduler.engines.slurm.attempts.attempt import Next, SlurmAttempt
from scheduler.engines.slurm.attempts.effects import Effect, Look, Refused, Revoke, WaitsAgain
from scheduler.engines.slurm.attempts.evidence import ClusterView
from scheduler.engines.slurm.attempts.step import AGAIN_S
from scheduler.engines.slurm.client.poller import BUSY_S, Outcome
from scheduler.engines.slurm.client.tools import SlurmForbidden, SlurmNodeRefused, SlurmSilent

CROWDED_S = 0.3  # CPUs that are to be free soon are looked at again
FORBIDDEN_S = 60.0  # until what Slurm forbids is tried again
STARTS_S = 0.1  # until an external job that may start has started


def requested(attempt: SlurmAttempt, request: Request, view: ClusterView) -> Next:
    """Note a new request; the next step hands it on."""
    attempt = replace(attempt, request=request.number, want=request.want, asked_at=view.now, wake_at=0.0)
    effects: list[Effect] = []
    if attempt.external:
        attempt = external_step.steer(replace(attempt, wait_until=0.0), view, effects)
    return attempt, effects


def settled(attempt: SlurmAttempt, outcome: Outcome, view: ClusterView) -> Next:
    """Note the outcome of a call of ``Do`` or ``Cancel``."""
    if outcome.what == "submit":
        return _submitted(replace(attempt, calling=False), outcome, view)
    if attempt.external:
        return _external(replace(attempt, calling=False), outcome, view)
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


def _external(attempt: SlurmAttempt, outcome: Outcome, view: ClusterView) -> Next:
    what, error = outcome.what, outcome.error
    if what == "start" and error is not None and not isinstance(error, SlurmSilent):
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
            attempt = external_step.obeyed(attempt, view.time_s, effects)
        else:  # something else is wanted by now
            attempt = external_step.steer(attempt, view, effects)
    return attempt, effects
