"""External jobs, as the coordinator sees them: submitted by another way than tenbin, and taken over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

from agent.attempts.records import Result
from scheduler.jobs.specs import JobSpec
from scheduler.model.jobs import Placement


class Needs(NamedTuple):
    """The needs of an external job.

    Attributes:
        at_once: of an array the most tasks that may run at a time; None: any number.
    """

    spec: JobSpec
    at_once: int | None


class ExternalJob(NamedTuple):
    """A job as it is there now.

    Attributes:
        key: its name there; ``array`` is the part that all tasks of one array share.
        blocked: why it may not start whatever tenbin decides; "" if it may.
        limit_s: its limit of run time now; infinite: none.
        needs: None: not looked up any more, or not understood: ``unclear`` says why.
        nodes: where it runs, by number; None: on nodes that are not tenbin's.
        result: of one that has ended.
    """

    key: str
    state: Literal["waiting", "running", "ended"]
    submitted_s: float
    restarts: int
    blocked: str
    limit_s: float
    needs: Needs | None
    unclear: str
    nodes: tuple[int, ...] | None
    result: Result | None

    @property
    def array(self) -> str:
        return self.key.split("_")[0]


class ExternalJobSource(Protocol):
    """The capability of an engine to take over jobs that came to the cluster another way.

    Attributes:
        scheduler: name of the cluster's own scheduler. command: the command by which users submit there.
    """

    scheduler: str
    command: str

    def look(self) -> Sequence[ExternalJob] | None:
        """Return all external jobs; None: as at the last look."""

    def has_room(self, placement: Placement) -> bool:
        """Return true if the nodes of a placement are free in the cluster state."""

    def let_go(self, key: str, remark: str) -> None:
        """Leave the job to the cluster's own scheduler, for that reason."""

    def drop(self, key: str) -> None:
        """Drop a job that was cancelled while it waited."""
