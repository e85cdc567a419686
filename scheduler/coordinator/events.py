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
from typing import ClassVar, Literal

from agent.attempts.records import RunState, Want
from agent.notifier import Notice
from agent.opencl_layer.trials import Trial
from scheduler.engines.protocol import ExternalJob, Report
from scheduler.jobs.entry import Entry, Stage
from scheduler.model.events import ORDER, Checkpointed, Failed, Finished, Submitted, Timer
from scheduler.model.events import Event as PolicyEvent

log = logging.getLogger("tenbin")


@dataclass(frozen=True, slots=True)
class Applied:
    """A change that the cluster state has already: a job has started or is paused, a node went, a timer."""

    event: PolicyEvent

    @property
    def kind(self) -> type[PolicyEvent]:
        return type(self.event)


@dataclass(frozen=True)
class JobEvent:
    """An event of one job. ``kind``: of the event that the policy is told of it, which gives its turn."""

    kind: ClassVar[type[PolicyEvent]]
    entry: Entry


class Admitted(JobEvent):
    """A job may enter the policy's queue: it is new, or what it waited for has come."""

    kind = Submitted


@dataclass(frozen=True)
class Ended(JobEvent):
    """A job has ended, by itself, by a limit or because a user has cancelled it; 0 s: it ends now."""

    kind = Finished
    stage: Stage
    trouble: str = ""
    ended_s: float = 0.0


@dataclass(frozen=True, slots=True)
class AttemptOver:
    """An attempt has ended, is lost, or never was; its transition decides what becomes of the job.

    ``kind``: of the event that follows if nothing else happens to the job before.
    """

    kind: type[PolicyEvent]
    entry: Entry
    report: Report


@dataclass(frozen=True)
class Fault(JobEvent):
    """An error of tenbin's own, by which something of a job was left undone; the job is set aside."""

    kind = Finished
    error: Exception


class SubmittedByOwner(JobEvent):
    """A user has submitted a job, or has one run again that the journal has as held."""

    kind = Submitted


class CancelledByOwner(JobEvent):
    """A user has cancelled a job."""

    kind = Finished


class ResumedByOwner(JobEvent):
    """A user lets a job go on that was suspended by its owner."""

    kind = Submitted


class RetriedByOwner(JobEvent):
    """A user has a job that did not succeed run again, under the same number."""

    kind = Submitted


class TimeHasCome(JobEvent):
    """The time has come for which a job was to be looked at: to begin, to be tried or parked again."""

    kind = Timer


class DeadlinePassed(JobEvent):
    """The deadline of a job has passed, and it has not ended."""

    kind = Finished


class SuspendedByOwner(JobEvent):
    """A user has suspended a job; for the policy it is gone."""

    kind = Finished


@dataclass(frozen=True)
class GpusIdle(JobEvent):
    """A job has done nothing on all of its GPUs for as long as the rule for them says."""

    kind = Finished
    which: str
    then: Literal["end", "park"]


@dataclass(frozen=True)
class Blocked(JobEvent):
    """A job that waits may not start for now, by no decision of tenbin's."""

    kind = Finished
    why: str


@dataclass(frozen=True)
class CheckpointWritten(JobEvent):
    """An attempt has written the checkpoint that was asked for, and ended."""

    kind = Checkpointed
    ended_s: float


@dataclass(frozen=True)
class Obeyed(JobEvent):
    """A supervisor has carried out a request, or refused it."""

    kind = Checkpointed
    state: RunState


@dataclass(frozen=True)
class Tried(JobEvent):
    """A trial of a running job on another class of device has ended, in vain (``for_now``) if it is None."""

    kind = Timer
    trial: Trial | None
    trouble: str
    for_now: bool


class TakenBack(JobEvent):
    """An attempt that was to write a checkpoint had not begun; it never will."""

    kind = Checkpointed


class NotBegun(JobEvent):
    """An attempt had not begun, and never will; there is another one, now or when the job goes on."""

    kind = Failed


@dataclass(frozen=True)
class AttemptLost(JobEvent):
    """An attempt is lost, and the job runs again; ``counts``: as one of its failures."""

    kind = Failed
    trouble: str
    counts: bool = True


@dataclass(frozen=True)
class FailedByItself(JobEvent):
    """A job has failed by itself and is tried again, after a pause."""

    kind = Finished
    trouble: str


@dataclass(frozen=True)
class StartedElsewhere(JobEvent):
    """The cluster's own scheduler has started an external job, without tenbin."""

    kind = Timer
    external: ExternalJob


Event = Applied | JobEvent | AttemptOver


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


@dataclass(frozen=True, slots=True)
class Tell:
    """Tell what has happened to jobs, to those who want to know."""

    notices: tuple[Notice, ...]


Effect = SetCaps | Revoke | Ask | Start | Tell


# -- the queue -----------------------------------------------------------------------------------------------


class EventQueue:
    """The events that have not been handled; those of an instant are taken in the order of their kinds.

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
