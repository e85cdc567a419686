"""Consequences of a change for what is predicted of jobs on the node: pairs, moves, caps, run times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from profiles.checks.causes import losses
from profiles.checks.check import Change
from profiles.jobs import JobProfile
from profiles.models import predict
from profiles.records import Profile

CHECKPOINT_MB = 1000.0
MEMORY_BOUND = 1.1  # slow-down beside memprobe from which on a job is said to live on memory
MOST_NAMED = 5


def consequences(changes: Sequence[Change], profile: Profile | None, jobs: Sequence[JobProfile]) -> list[str]:
    """Say in sentences what no longer holds; empty where nothing is worse."""
    found = losses(changes)
    return [
        *_speed(max(found.speed, found.clock), jobs),
        *_memory(max(found.one, found.all), found.far, jobs),
        *_storage(changes, profile),
        *_messages(max(found.messages, found.network)),
    ]


def _longer(loss: float) -> str:
    """Turn a loss of speed into the time that it adds."""
    return f"{100 * (1 / (1 - min(loss, 0.99)) - 1):.0f} %"


def _speed(loss: float, jobs: Sequence[JobProfile]) -> Iterator[str]:
    if loss:
        yield f"Run times: programs that compute take up to {_longer(loss)} longer here than elsewhere."
        capped = [job.name for job in jobs if job.caps is not None]
        if capped:
            yield f"Caps: the speeds under caps of {_names(capped)} were measured at the full clock."


def _memory(bandwidth: float, latency: float, jobs: Sequence[JobProfile]) -> Iterator[str]:
    if not max(bandwidth, latency):
        return
    bound = [job.name for job in jobs if _slowdown(job) >= MEMORY_BOUND]
    whom = _names(bound) if bound else "jobs that live on memory"
    longer = _longer(bandwidth) if bandwidth else f"{100 * latency:.0f} %"
    yield f"Run times: {whom} take up to {longer} longer here."
    yield "Pairs: two jobs that fit beside each other by their profiles may not fit here any more."


def _slowdown(job: JobProfile) -> float:
    """Return the largest slow-down beside memprobe; 1 where it was not measured."""
    curve = job.sensitivity_by()
    return max((level.slowdown.value for level in curve.levels), default=1.0) if curve else 1.0


def _storage(changes: Sequence[Change], profile: Profile | None) -> Iterator[str]:
    for quantity, model_name, what in (
        ("storage_write_mbs", "checkpoint_s", "a checkpoint"),
        ("storage_read_mbs", "restart_s", "a restart"),
    ):
        change = next((c for c in changes if c.quantity == quantity and c.state == "worse"), None)
        if change is None:
            continue
        model = profile.find(model_name, storage=change.labels["storage"]) if profile else None
        if model is None or len(model.coefficients) < 2:
            yield f"Moves: {what} takes up to {_longer(change.loss_ratio)} longer here."
            continue
        before = predict(model, CHECKPOINT_MB)[0]
        after = before / (1 - min(change.loss_ratio, 0.99))
        yield f"Moves: {what} of 1 GB, predicted in {before:.2g} s, takes up to {after:.2g} s."


def _messages(loss: float) -> Iterator[str]:
    if loss:
        yield "Run times: jobs whose ranks send many messages take longer here."


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more
