"""Events that a policy is told, one at a time, and the actions with which it answers.

Events of one instant come in the order of the definitions below: finished jobs, checkpoints, started jobs
(real engines need time for a start), failed jobs, nodes down and up, a changed power budget, timers, and last
submitted jobs. Events of one kind come in the order of their causes.

Actions of one decision are carried out in their order, so free units first. An engine checks each action. It
refuses impossible actions (``state.RuleBroken``) and never alters them.
"""

from __future__ import annotations

from dataclasses import field
from typing import get_args

from scheduler.model.jobs import Job, Placement, Region, record


@record
class Finished:
    """The end of a job at ``placement``. ``how``: "done", or "killed" at its limit."""

    job: Job
    placement: Placement
    how: str = "done"


@record
class Checkpointed:
    """The end of a stop: the units are free, and the job is suspended or already restarted elsewhere.

    ``resumed`` is False after a ``Migrate`` whose destination is gone (a node is down, the budget fell); the
    policy must resume it.
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


@record
class Start:
    """Start a waiting job now."""

    job_id: int
    placement: Placement


@record
class Suspend:
    """Stop a running job. A ``Checkpointed`` follows; a stop without cost frees the units at once.

    ``towards``: the pool where the plan has it go on. If units are free there, an engine may move it at once
    while it runs, and says ``resumed``.
    """

    job_id: int
    towards: str = field(default="", compare=False)


@record
class Resume:
    """Let a suspended job go on where it was.

    With a checkpoint it may also be anywhere, and on another number of the units that it can use.
    """

    job_id: int
    placement: Placement


@record
class Migrate:
    """Checkpoint a running job where it is, then restart it at ``placement``, which it holds from now on.

    It may have another number of the units that the job can use. Both places are charged until the checkpoint
    is done. If the destination is gone by then, the job stays suspended.
    """

    job_id: int
    placement: Placement


@record
class Resize:
    """Give a running malleable job other units, and the cap that ``placement`` names."""

    job_id: int
    placement: Placement


@record
class SetPowerCap:
    """Change the power cap of a running job's units (None: uncapped)."""

    job_id: int
    cap_w: float | None


@record
class Repartition:
    """Divide a pool into regions. Running jobs keep their units and stay charged to the region they named."""

    pool: str
    regions: tuple[Region, ...]


@record
class WakeAt:
    """Send a ``Timer`` at that time, or now if the time is past. Equal time and tag make one timer."""

    at_s: float
    tag: object = None


@record
class Promise:
    """Note when a waiting job is to start, so that the policy knows it when it begins anew."""

    job_id: int
    start_s: float


Action = Start | Suspend | Resume | Migrate | Resize | SetPowerCap | Repartition | WakeAt | Promise
