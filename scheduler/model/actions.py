"""Actions of a policy. Those of one decision are carried out in their order, so free units first.

An engine checks each action. It refuses impossible actions (``state.RuleBroken``) and never alters them.
"""

from __future__ import annotations

from dataclasses import field

from scheduler.model.jobs import Placement, Region
from scheduler.model.record import record


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
    """Let a suspended job go on where it was, or anywhere if it can be checkpointed."""

    job_id: int
    placement: Placement


@record
class Migrate:
    """Checkpoint a running job where it is, then restart it at ``placement``.

    The destination is charged when the checkpoint is done. If it is not free then, the job stays suspended.
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


Action = Start | Suspend | Resume | Migrate | Resize | SetPowerCap | Repartition | WakeAt
