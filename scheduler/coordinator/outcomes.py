"""The outcome of a job, from the end of its last attempt."""

from __future__ import annotations

import signal

from agent.attempts.records import Result
from scheduler.jobs.entry import Entry, Stage
from scheduler.jobs.specs import JobSpec

# As the trouble of a job that is told to end because of it:
DEADLINE = "it reached its deadline"
FAULT = "a fault of tenbin's, see the log of tenbin up"  # and the fault


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
    """Return the final stage of a job that was told to end, by its owner or at its deadline, and why."""
    if entry.trouble.startswith(FAULT):
        return Stage.FAILED, entry.trouble
    return (Stage.KILLED, DEADLINE) if entry.trouble == DEADLINE else (Stage.CANCELLED, "")


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
