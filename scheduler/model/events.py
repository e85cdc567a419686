"""Events that a policy is told, one at a time.

Events of one instant come in the order of the definitions below: finished jobs, checkpoints, started jobs
(real engines need time for a start), failed jobs, nodes down and up, a changed power budget, timers, and last
submitted jobs. Events of one kind come in the order of their causes.
"""

from __future__ import annotations

from typing import get_args

from scheduler.model.jobs import Job, Placement
from scheduler.model.record import record


@record
class Finished:
    """The end of a job at ``placement``. ``how``: "done", or "killed" at its limit."""

    job: Job
    placement: Placement
    how: str = "done"


@record
class Checkpointed:
    """The end of a stop: the units are free, and the job is suspended or already restarted elsewhere.

    ``resumed`` is False after a ``Migrate`` whose destination was no longer free; the policy must resume it.
    """

    job: Job
    placement: Placement
    resumed: bool = False


@record
class Started:
    """The start of a job, or the end of its restart: from now on it makes progress."""

    job: Job


@record
class Failed:
    """The loss of a job's node. The job waits again, first of its priority, with its last checkpoint."""

    job: Job
    placement: Placement


@record
class NodeDown:
    """The loss of ``units`` units of a counted pool, or of one node."""

    pool: str
    units: int = 1
    node: int | None = None


@record
class NodeUp:
    """The return of ``units`` units of a counted pool, or of one node."""

    pool: str
    units: int = 1
    node: int | None = None


@record
class BudgetChanged:
    """A new power budget (None: no limit). Running jobs may exceed it, so the policy must shrink them."""

    budget_w: float | None


@record
class Timer:
    """The time of a ``WakeAt``, with its tag."""

    at_s: float
    tag: object = None


@record
class Submitted:
    """The submission of a job."""

    job: Job


Event = Finished | Checkpointed | Started | Failed | NodeDown | NodeUp | BudgetChanged | Timer | Submitted
KINDS: tuple[type[Event], ...] = get_args(Event)
ORDER = {kind: position for position, kind in enumerate(KINDS)}
