"""What a policy is told, one event at a time.

Events of one instant come in this order, which is also the order of the definitions below: jobs that
finished, checkpoints that are done, jobs that started (real engines need time for that), failures of jobs,
nodes that went down or came up, a changed power budget, timers, and last the jobs that were submitted.
Events of one kind come in the order of their causes.
"""

from __future__ import annotations

from typing import get_args

from scheduler.model.jobs import Job, Placement
from scheduler.model.record import record


@record
class Finished:
    """The job has ended, where ``placement`` says. ``how``: "done", or "killed" at its limit."""

    job: Job
    placement: Placement
    how: str = "done"


@record
class Checkpointed:
    """A stop has been carried out: the units are free, the job is suspended, or already restarted elsewhere.

    ``resumed`` is False after a ``Migrate`` whose destination was no longer free: resume it yourself.
    """

    job: Job
    placement: Placement
    resumed: bool = False


@record
class Started:
    """The job now runs."""

    job: Job


@record
class Failed:
    """The job lost its node; it waits again, first of its priority, with what its last checkpoint kept."""

    job: Job
    placement: Placement


@record
class NodeDown:
    """``units`` units of a counted pool, or one node, left service."""

    pool: str
    units: int = 1
    node: int | None = None


@record
class NodeUp:
    """``units`` units of a counted pool, or one node, are back."""

    pool: str
    units: int = 1
    node: int | None = None


@record
class BudgetChanged:
    """The cluster may now draw ``budget_w`` (None: not limited). Running jobs may exceed it: shrink them."""

    budget_w: float | None


@record
class Timer:
    """The time of a ``WakeAt``, with its tag."""

    at_s: float
    tag: object = None


@record
class Submitted:
    """A new job waits."""

    job: Job


Event = Finished | Checkpointed | Started | Failed | NodeDown | NodeUp | BudgetChanged | Timer | Submitted
KINDS: tuple[type[Event], ...] = get_args(Event)
ORDER = {kind: position for position, kind in enumerate(KINDS)}
