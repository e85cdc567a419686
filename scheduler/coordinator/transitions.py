"""The table of transitions: who changes the phase of a job, and when.

Events happen to a job in the phase that it has when their turn comes. The table says what follows; a pair
that it does not have is void, and so is an event of a job that has left meanwhile. A transition changes the
state and nothing else. It returns the event that the policy is told, or another event of the same job that
takes its place at once, or None if there is nothing to tell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from scheduler.coordinator import admission, departures, ends, external_jobs, idle_gpus, trials
from scheduler.coordinator import events as ev
from scheduler.coordinator.machine_state import MachineState
from scheduler.jobs.entry import LEAVING, Phase
from scheduler.model.events import Event

Function = Callable[[MachineState, Any], "Event | ev.Event | None"]


class Transition(NamedTuple):
    """Function of an event, and the phases to which it may lead a job, besides the one that it has."""

    do: Function
    to: tuple[Phase, ...] = ()


def _on(*phases: Phase, do: Function, to: tuple[Phase, ...] = ()) -> dict[Phase, Transition]:
    return dict.fromkeys(phases, Transition(do, to))


HELD, WAITING, RUNNING, CHECKPOINTING, PARKING, MOVING, PAUSED, SUSPENDED, BY_OWNER, ENDING, *_ENDS = Phase
FINAL = DONE, FAILED, CANCELLED, KILLED = tuple(_ENDS)
OPEN = HELD, WAITING, RUNNING, *LEAVING, PAUSED, SUSPENDED, BY_OWNER  # and ENDING

TABLE: dict[type[ev.Event], Mapping[Phase, Transition]] = {
    # What its owner asks for.
    ev.SubmittedByOwner: _on(HELD, WAITING, do=admission.arrive, to=(HELD, WAITING)),
    ev.CancelledByOwner: _on(*OPEN, ENDING, do=ends.cancel, to=(ENDING,)),  # or an end follows
    ev.SuspendedByOwner: {
        **_on(RUNNING, do=departures.suspend_running, to=(CHECKPOINTING, PARKING, BY_OWNER)),
        **_on(PARKING, MOVING, do=departures.suspend_leaving),  # it is, when it has left
        **_on(HELD, WAITING, CHECKPOINTING, PAUSED, SUSPENDED, do=departures.suspend, to=(BY_OWNER,)),
    },
    ev.ResumedByOwner: _on(*OPEN, do=admission.resume, to=(HELD, WAITING)),
    ev.RetriedByOwner: _on(FAILED, CANCELLED, KILLED, do=ends.renew, to=(HELD,)),
    # Its time has come.
    ev.DeadlinePassed: _on(*OPEN, do=ends.pass_deadline, to=(ENDING,)),  # or an end follows
    ev.GpusIdle: _on(RUNNING, do=idle_gpus.apply_rule, to=(ENDING, CHECKPOINTING)),
    ev.TimeHasCome: {
        **_on(HELD, do=admission.begin, to=(WAITING,)),
        **_on(RUNNING, do=departures.may_park_again),
    },
    # Nothing holds it any more, or something outside tenbin does.
    ev.Admitted: _on(WAITING, do=admission.enter),  # from now on the policy may start it
    ev.Blocked: _on(HELD, WAITING, SUSPENDED, BY_OWNER, do=admission.block, to=(HELD,)),
    # Its attempt is over: one of the six below follows at once.
    ev.AttemptOver: _on(*OPEN, ENDING, do=ends.attempt_over),
    ev.Ended: _on(*OPEN, ENDING, do=ends.end, to=FINAL),
    ev.FailedByItself: _on(*OPEN, do=ends.try_again, to=(HELD, WAITING, BY_OWNER)),
    ev.AttemptLost: {
        **_on(RUNNING, *LEAVING, PAUSED, SUSPENDED, do=ends.lose, to=(WAITING, HELD, BY_OWNER)),
        **_on(HELD, do=ends.lose_aside, to=(WAITING,)),
        **_on(WAITING, BY_OWNER, do=ends.lose_aside),
    },
    ev.NotBegun: {
        **_on(RUNNING, do=ends.begin_again),
        **_on(PAUSED, SUSPENDED, do=ends.stay_suspended),
    },
    ev.CheckpointWritten: {
        **_on(*LEAVING, do=departures.checkpoint_written, to=(SUSPENDED, RUNNING, HELD, BY_OWNER)),
        **_on(BY_OWNER, do=departures.checkpoint_kept),
    },
    ev.TakenBack: _on(*LEAVING, do=departures.taken_back, to=(SUSPENDED, RUNNING, HELD, BY_OWNER)),
    # Its supervisor has done, or refused, what it was asked for.
    ev.Obeyed: {
        **_on(PARKING, MOVING, do=departures.obeyed_to_leave, to=(PAUSED, RUNNING, PARKING, BY_OWNER)),
        **_on(RUNNING, do=departures.obeyed_to_run, to=(HELD, WAITING)),  # a device has refused it
    },
    ev.Tried: _on(*OPEN, ENDING, do=trials.tried),
    # The cluster's own scheduler has started it.
    ev.StartedElsewhere: _on(*OPEN, do=external_jobs.adopt, to=(RUNNING, WAITING)),
}


def handle(m: MachineState, event: ev.Event) -> Event | None:
    """Let an event happen; return what the policy is told of it."""
    outcome: Event | ev.Event | None = event
    while isinstance(outcome, ev.Event):
        outcome = _step(m, outcome)
    return outcome


def _step(m: MachineState, event: ev.Event) -> Event | ev.Event | None:
    if isinstance(event, ev.Applied):
        return event.event
    if isinstance(event, ev.Fault):  # whatever the phase is
        return ends.set_aside(m, event)
    if event.entry.id not in m.jobs.entries:
        return None
    transition = TABLE[type(event)].get(event.entry.phase)
    return transition.do(m, event) if transition is not None else None
