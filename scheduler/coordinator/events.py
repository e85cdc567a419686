"""Events, which happen to jobs, and effects, which are to be done for them.

An event says what happens to a job or a node. Its transition (``transitions.TABLE``) enters that in the
state, and gives the event that the policy is told (``scheduler.model.events``). Effects are all that leaves
the coordinator: the shell hands them to the engine when the journal has what they follow from.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

from agent.attempts.records import RunState, Want
from agent.opencl_layer.trials import Trial
from scheduler.engines.external_jobs import ExternalJob
from scheduler.engines.protocol import Report
from scheduler.jobs.entry import Entry, Stage
from scheduler.model import events as told
from scheduler.model.events import ORDER

log = logging.getLogger("tenbin")


@dataclass(frozen=True, slots=True)
class Applied:
    """A change that the cluster state has already: a job has started or is paused, a node went, a timer."""

    event: told.Event

    @property
    def kind(self) -> type[told.Event]:
        return type(self.event)


@dataclass(frozen=True, slots=True)
class Admitted:
    """A job may enter the policy's queue: it is new, or what it waited for has come."""

    kind: ClassVar[type[told.Event]] = told.Submitted
    entry: Entry


@dataclass(frozen=True, slots=True)
class Ended:
    """A job has ended, by itself, by a limit or because a user has cancelled it; 0 s: it ends now."""

    kind: ClassVar[type[told.Event]] = told.Finished
    entry: Entry
    stage: Stage
    trouble: str = ""
    ended_s: float = 0.0


@dataclass(frozen=True, slots=True)
class AttemptOver:
    """An attempt has ended, is lost, or never was; its handler decides what becomes of the job.

    ``kind``: of the event that follows if nothing else happens to the job before.
    """

    kind: type[told.Event]
    entry: Entry
    report: Report


@dataclass(frozen=True, slots=True)
class Fault:
    """An error of tenbin's own, by which something of a job was left undone; the job is set aside."""

    kind: ClassVar[type[told.Event]] = told.Finished
    entry: Entry
    error: Exception


@dataclass(frozen=True, slots=True)
class CancelledByOwner:
    """A user has cancelled a job."""

    kind: ClassVar[type[told.Event]] = told.Finished
    entry: Entry


@dataclass(frozen=True, slots=True)
class ResumedByOwner:
    """A user lets a job go on that was suspended by its owner."""

    kind: ClassVar[type[told.Event]] = told.Submitted
    entry: Entry


@dataclass(frozen=True, slots=True)
class RetriedByOwner:
    """A user has a job that did not succeed run again, under the same number."""

    kind: ClassVar[type[told.Event]] = told.Submitted
    entry: Entry


@dataclass(frozen=True, slots=True)
class TimeHasCome:
    """The time has come for which a job was to be looked at: to begin, to be tried or parked again."""

    kind: ClassVar[type[told.Event]] = told.Timer
    entry: Entry


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """The deadline of a job has passed, and it has not ended."""

    kind: ClassVar[type[told.Event]] = told.Finished
    entry: Entry


@dataclass(frozen=True, slots=True)
class SuspendedByOwner:
    """A user has suspended a job; for the policy it is gone."""

    kind: ClassVar[type[told.Event]] = told.Finished
    entry: Entry


@dataclass(frozen=True, slots=True)
class Blocked:
    """A job that waits may not start for now, by no decision of tenbin's."""

    kind: ClassVar[type[told.Event]] = told.Finished
    entry: Entry
    why: str


@dataclass(frozen=True, slots=True)
class CheckpointWritten:
    """An attempt has written the checkpoint that was asked for, and ended."""

    kind: ClassVar[type[told.Event]] = told.Checkpointed
    entry: Entry
    ended_s: float


@dataclass(frozen=True, slots=True)
class Obeyed:
    """A supervisor has carried out a request, or refused it."""

    kind: ClassVar[type[told.Event]] = told.Checkpointed
    entry: Entry
    state: RunState


@dataclass(frozen=True, slots=True)
class Tried:
    """A trial of a running job on another class of device has ended, in vain (``for_now``) if it is None."""

    kind: ClassVar[type[told.Event]] = told.Timer
    entry: Entry
    trial: Trial | None
    trouble: str
    for_now: bool


@dataclass(frozen=True, slots=True)
class TakenBack:
    """An attempt that was to write a checkpoint had not begun; it never will."""

    kind: ClassVar[type[told.Event]] = told.Checkpointed
    entry: Entry


@dataclass(frozen=True, slots=True)
class NotBegun:
    """An attempt had not begun, and never will; there is another one, now or when the job goes on."""

    kind: ClassVar[type[told.Event]] = told.Failed
    entry: Entry


@dataclass(frozen=True, slots=True)
class AttemptLost:
    """An attempt is lost, and the job runs again; ``counts``: as one of its failures."""

    kind: ClassVar[type[told.Event]] = told.Failed
    entry: Entry
    trouble: str
    counts: bool = True


@dataclass(frozen=True, slots=True)
class FailedByItself:
    """A job has failed by itself and is tried again, after a pause."""

    kind: ClassVar[type[told.Event]] = told.Finished
    entry: Entry
    trouble: str


@dataclass(frozen=True, slots=True)
class StartedElsewhere:
    """The cluster's own scheduler has started an external job, without tenbin."""

    kind: ClassVar[type[told.Event]] = told.Timer
    entry: Entry
    external: ExternalJob


Event = (
    Applied
    | Admitted
    | Ended
    | AttemptOver
    | Fault
    | CancelledByOwner
    | ResumedByOwner
    | RetriedByOwner
    | TimeHasCome
    | DeadlinePassed
    | SuspendedByOwner
    | Blocked
    | CheckpointWritten
    | Obeyed
    | Tried
    | TakenBack
    | NotBegun
    | AttemptLost
    | FailedByItself
    | StartedElsewhere
)


# -- effects -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SetCaps:
    """Lower, or raise, the power caps of running jobs to those of their placements."""

    jobs: tuple[Entry, ...]
    lower: bool


@dataclass(frozen=True, slots=True)
class Revoke:
    """See that an attempt never starts that was withdrawn; the engine reports that it never was."""

    job: Entry


@dataclass(frozen=True, slots=True)
class Ask:
    """Hand a request on to the supervisor of a job."""

    job: Entry
    want: Want


@dataclass(frozen=True, slots=True)
class Start:
    """Start the attempts of these jobs."""

    jobs: tuple[Entry, ...]


Effect = SetCaps | Revoke | Ask | Start


# -- the queue -----------------------------------------------------------------------------------------------


class EventQueue:
    """The events that have not been handled; those of an instant are taken in the order of ``told.KINDS``.

    Of one kind those come first that take jobs from the queue, before the policy can start these.
    """

    def __init__(self) -> None:
        self._events: list[Event] = []

    def __bool__(self) -> bool:
        return bool(self._events)

    def put(self, event: Event) -> None:
        self._events.append(event)

    @contextmanager
    def sparing(
        self, entry: Entry | None, what: str, but: tuple[type[Exception], ...] = ()
    ) -> Iterator[None]:
        """Let an error of tenbin's own in the block concern this job alone; None: nothing rests on it.

        Args:
            but: errors that are raised all the same.
        """
        try:
            yield
        except but:
            raise
        except Exception as error:
            log.exception("a fault of tenbin's: %s", what if entry is None else f"job {entry.label}, {what}")
            if entry is not None:
                self.put(Fault(entry, error))

    def ends(self, entry: Entry) -> bool:
        """Tell if the end of the job's attempt waits to be handled."""
        return any(isinstance(event, AttemptOver) and event.entry is entry for event in self._events)

    def put_back(self, events: list[Event]) -> None:
        """Let events wait once more, because others have come that may be before them."""
        self._events += events

    def take(self) -> list[Event]:
        """Take all events, in their order."""
        self._events.sort(key=lambda event: (ORDER[event.kind], _runs(event)))
        events, self._events = self._events, []
        return events


def _runs(event: Event) -> bool:
    """Return false for an event of a job that has no attempt to come to an end."""
    return isinstance(event, Applied) or event.entry.alive
