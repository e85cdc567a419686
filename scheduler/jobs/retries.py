"""Attempts after a failure of the job's own: whether there is another one, and after which pause."""

from __future__ import annotations

from agent.attempts.records import Result
from scheduler.jobs.specs import JobSpec

LONGEST_PAUSE_S = 3600.0
SIGNALLED = 128  # a shell's exit code of a program that a signal has killed: 128 + signal


def tried_again(spec: JobSpec, retried: int, result: Result) -> bool:
    """Return true if a job that ended like this is tried again, after ``retried`` such attempts.

    The job has failed by itself: by its exit code, or by a signal. Limits of time and memory are kept, a
    command that cannot be started stays so.
    """
    code = result.code or (SIGNALLED + result.signal if result.signal else 0)
    if result.how not in ("exited", "signalled") or not code or retried >= spec.retries:
        return False
    return not spec.retry_codes or code in spec.retry_codes


def pause_s(spec: JobSpec, retried: int) -> float:
    """Return the pause before the next attempt: it doubles each time, up to an hour."""
    return min(spec.retry_pause_s * 2.0 ** min(retried, 64), LONGEST_PAUSE_S)
