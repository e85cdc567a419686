"""What a policy may ask for. Actions of one decision are carried out in their order: free units first.

An engine checks each action and refuses what cannot be (``state.RuleBroken``); it never bends one.
"""

from __future__ import annotations

from scheduler.model.jobs import Placement, Region
from scheduler.model.record import record


@record
class Start:
    """Start a waiting job now."""

    job_id: int
    placement: Placement


@record
class Suspend:
    """Stop a running job. Its units are free at once if that costs nothing; ``Checkpointed`` always comes."""

    job_id: int


@record
class Resume:
    """Go on with a suspended job: where it was, or anywhere if it can be checkpointed."""

    job_id: int
    placement: Placement


@record
class Migrate:
    """Checkpoint a running job here, then restart it there.

    The destination is taken when the checkpoint is done; if it is not free by then the job stays suspended.
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
    """Change the power cap of a running job's units; None: uncapped."""

    job_id: int
    cap_w: float | None


@record
class Repartition:
    """Divide a pool into regions. Running jobs keep their units and are charged to the region they named."""

    pool: str
    regions: tuple[Region, ...]


@record
class WakeAt:
    """Send a ``Timer`` at that time (or now, if it is past). The same time and tag twice is one timer."""

    at_s: float
    tag: object = None


Action = Start | Suspend | Resume | Migrate | Resize | SetPowerCap | Repartition | WakeAt
