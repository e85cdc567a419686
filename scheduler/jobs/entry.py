"""A job and its state, as the coordinator keeps them and engines see them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from agent.attempts.records import Want
from scheduler.jobs.specs import JobSpec
from scheduler.model.jobs import FINAL, Job, JobState, Placement, Stage

__all__ = ["FINAL", "LEAVING", "UNKNOWN", "Entry", "Phase", "Stage"]


class Phase(StrEnum):
    """All that a job can be, from its submission to its end. It follows from the record (``Entry.phase``)."""

    HELD = "held"  # for other jobs, for a time, or because something outside tenbin blocks it
    WAITING = "waiting"  # for its turn; with an attempt, that is paused meanwhile
    RUNNING = "running"
    # It has its place, and one to which it moves, until its checkpoint is written and its attempt over.
    CHECKPOINTING = "checkpointing"
    PARKING = "parking"  # it has its place until its program has left the device
    MOVING = "moving"  # it runs on at its place, and has the one to which it moves
    PAUSED = "paused"  # by the policy; its processes are there
    SUSPENDED = "suspended"  # by the policy; of its attempt nothing is left but a checkpoint
    SUSPENDED_BY_OWNER = "suspended by its owner"  # its processes may be there, paused or parked
    ENDING = "ending"  # it was told to end; it has what it had until its attempt is over
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    KILLED = "killed"

    @property
    def leaving(self) -> bool:
        """Return true if a job of this phase is about to leave its place, and may go on later."""
        return self in LEAVING

    @property
    def queued(self) -> bool:
        """Return true if it is the policy's to start or resume a job of this phase."""
        return self in QUEUED


LEAVING = (Phase.CHECKPOINTING, Phase.PARKING, Phase.MOVING)
QUEUED = (Phase.WAITING, Phase.PAUSED, Phase.SUSPENDED)
WAYS_OUT: dict[str, Phase] = {"park": Phase.PARKING, "move": Phase.MOVING}
UNKNOWN = Job(0, 0.0, 0, None)  # the policy's view of a job for which nobody has asked yet


@dataclass(slots=True)
class Entry(JobState):
    """The one record of a job: what the journal has of it is also its state in the cluster state.

    Times in seconds since 1970. What a ``JobState`` has is journalled too, but for what follows from the rest
    (``scheduler.jobs.rows``).

    Attributes:
        job: as policies see it, derived from the rest (``JobTable.job``).
        environment: key of ``Journal.environment``.
        array, array_index: the array that it belongs to, and which of it; the members of an array share one
            spec. An index without an array: submitted with ``array_index`` by itself.
        attempt: number of the last attempt, 0 before the first.
        alive: that attempt was started and is not known to have ended (it runs, or is paused).
        kept, kept_s: share of the work and attained service that the last checkpoint saved.
        cores, devices: of the last attempt, as its placement.
        request: number of the last request to its supervisor, and what it was: ``want``.
        fallbacks: where it is to go on when it has left its place if none is reserved (``moves_to``): the
            first of them that is free.
        held_by_user: suspended by its owner, or about to be: no policy resumes it.
        trouble: why it failed, as a sentence; "" if it did not.
        predicted: what earlier runs and trials of its program said of it; counts where its owner gave no
            estimate. ``moved_by_hand``: it may go where a trial had other results.
        blocked: why a job that was taken over may not start now, whatever is decided; "" if it may.
        limit_s: its limit as changed since; infinite: none. None: as in the spec.
        tasks, hosts: how many tasks it has where it was placed last, and the names of the nodes (none where
            there is only this machine); None: it was not placed yet, or by a tenbin that did not note them.
        retried: how often it was tried again after a failure of its own.
        not_before_s: its next attempt waits until then; None: it need not.
        fixed: why the engine cannot park and move its present attempt, as a clause; "": it can. None: no
            attempt, or no such engine.
        new_priority: its priority as its owner has changed it; None: as in the spec.
        ending: what it becomes, where tenbin told it to end: at its deadline, or for a fault. None: it was
            not told to end, or by its owner.
        eligible_s: since when it could have started, if it was held for others or for a time when it was
            submitted, or was retried. None: since its submission.
    """

    job: Job = field(default=UNKNOWN, kw_only=True, compare=False)
    since_s: float = field(default=0.0, kw_only=True)
    id: int
    spec: JobSpec
    environment: str
    submit_s: float
    array: int | None = None
    array_index: int | None = None
    attempt: int = 0
    alive: bool = False
    cores: tuple[int, ...] = ()
    devices: tuple[int, ...] = ()
    request: int = 0
    want: Want | Literal[""] = ""
    held_by_user: bool = False
    kept: float = 0.0
    kept_s: float = 0.0
    end_s: float | None = None
    code: int | None = None
    signal: int | None = None
    trouble: str = ""
    usage: dict[str, Any] | None = None
    fallbacks: tuple[Placement, ...] = ()
    predicted: dict[str, Any] | None = None
    blocked: str = ""
    limit_s: float | None = None
    tasks: int | None = None
    hosts: list[str] | None = None
    retried: int = 0
    not_before_s: float | None = None
    new_priority: int | None = None
    fixed: str | None = None
    ending: Stage | None = None
    eligible_s: float | None = None

    def shift(self, step_s: float) -> None:
        """Move what durations are counted from with a clock that was set; deadline and begin stay."""
        JobState.shift(self, step_s)
        if self.not_before_s is not None:
            self.not_before_s += step_s

    @property
    def waits_from_s(self) -> float:
        """Since when the job's wait counts for policies."""
        return self.submit_s if self.eligible_s is None else self.eligible_s

    @property
    def way(self) -> JobSpec:
        """The job as it runs where it was placed last: by the alternative chosen there, with its limit."""
        spec = self.spec.limited(self.limit_s)
        return spec if self.placement is None else spec.way(self.placement.alternative)

    @property
    def phase(self) -> Phase:
        """The job's phase; what depends on more than its stage asks here, and nowhere else."""
        if self.alive and self.want == "end":
            return Phase.ENDING
        if self.shown is not self.stage:
            return Phase.SUSPENDED_BY_OWNER
        if self.stage is Stage.SUSPENDED and self.alive:
            return Phase.PAUSED
        if self.stage is Stage.STOPPING:
            return WAYS_OUT.get(self.want, Phase.CHECKPOINTING)
        return Phase(self.stage.value)

    @property
    def paused(self) -> bool:
        """True if the job has processes and no place: they are paused or parked, or about to be."""
        return self.alive and not self.stage.placed

    @property
    def paused_on_nodes(self) -> bool:
        """True if the job's processes are paused, or about to be, on nodes which they cannot leave."""
        return self.paused and bool(self.hosts) and self.placement is not None

    @property
    def goals(self) -> tuple[Placement, ...]:
        """Places where it is to go on when it has left its own; the one reserved for it comes first."""
        return self.fallbacks if self.moves_to is None else (self.moves_to, *self.fallbacks)

    @property
    def parks(self) -> bool:
        """True if the engine can park and move the job's attempt."""
        return self.fixed == ""

    @property
    def may_park(self) -> bool:
        """True if the engine has looked whether it can park the job's attempt, and may be asked to."""
        return self.fixed is not None

    @property
    def priority(self) -> int:
        """The job's priority now."""
        return self.spec.priority if self.new_priority is None else self.new_priority

    @property
    def label(self) -> str:
        """The job as people name it: ``12``, or ``7[3]`` for the member 3 of array 7."""
        return str(self.id) if self.array is None else f"{self.array}[{self.array_index}]"

    @property
    def shown(self) -> Stage:
        """The stage as everybody is told of it: a suspended job is suspended, whoever has paused it."""
        return Stage.SUSPENDED if self.stage is Stage.HELD and self.held_by_user else self.stage
