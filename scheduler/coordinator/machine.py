"""The state machine of a coordinator: events in, effects out, with the policy's decisions between.

A turn goes like this. Events of one instant are taken in the order of their kinds. Each changes the state by
its transition, the policy is told of it, and what the policy decides changes the state at once, so that the
next event meets jobs as they are now. When no event is left, the effects follow from the state.

Why not an effect with each decision? Because a turn has many events, and a later one may withdraw what an
earlier one has led to: a job that the policy has started as another one ended may be past its deadline. So
a decision only marks its job, and at the end of the turn the job is looked at as it is then: it is started if
it is to run, asked for what was asked last, capped as it is placed. What was withdrawn cannot be carried out.

Why first the journal, and then the effects? Because a coordinator may be killed at any instant. What it has
started without noting it would run without anybody knowing. What it has noted without starting it is seen
after the restart: no attempt of that number exists, so it is started under another number. A request or a cap
that was noted is repeated, and the supervisor knows its number. So each effect may be missed, or repeated,
but never be unknown. If the journal cannot be written nothing is lost either: the marks stay, and the effects
of the next turn follow from the same state.

Another priority is no event of the table: it changes no phase, and the queue is put in its new order once for
all jobs of a request (``admission.prioritize``). The policy begins anew with that order.

An error of tenbin's own ends no queue: the job is set aside on whose event a transition chokes
(``ev.Fault``), and a policy that chokes begins anew with the next event.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from profiles.errors import BadInput
from scheduler.coordinator import admission, decisions, trials
from scheduler.coordinator import events as ev
from scheduler.coordinator.machine_state import MachineState
from scheduler.coordinator.transitions import handle
from scheduler.jobs.entry import Phase
from scheduler.model.events import Action, Event, Timer, WakeAt
from scheduler.model.jobs import Job
from scheduler.model.state import RuleBroken
from scheduler.policies.base import actions_of, check_kind
from scheduler.policies.registry import create, fault_in_file

POLICY_AGAIN_S = 10.0  # a policy that has choked begins anew then at the latest
MANY = 1000  # waiting jobs for each that has to be predicted anew before a policy begins anew
log = logging.getLogger("tenbin")


class StateMachine:
    """The state of a coordinator, and the policy that decides.

    Args:
        policy: name and parameters, as for the simulator.

    Attributes:
        failure: why the policy decided nothing when it was last asked, and what to do; "": it has decided.
    """

    def __init__(self, policy: str, state: MachineState) -> None:
        self.policy_text, self.policy = policy, create(policy)
        self.state, self.failure = state, ""

    # -- a turn ---------------------------------------------------------------------------------------------

    def happen(self, event: ev.Event) -> None:
        """Let an event happen before those that wait in the queue."""
        handle(self.state, event)

    def handle(self) -> list[ev.Effect]:
        """Let all events that wait happen, and what follows from them; return the effects."""
        self._run()
        return self.effects()

    def effects(self) -> list[ev.Effect]:
        """Return what is to be done, in its order: at no instant is more drawn than before, or in the end.

        It follows from the jobs as they are now. Marks of jobs for which there is nothing to do are dropped.
        """
        m = self.state
        for job_id in [job_id for job_id, entry in m.starts.items() if not entry.alive]:
            del m.starts[job_id]
        starts = tuple(entry for entry in m.starts.values() if entry.phase is Phase.RUNNING)
        revoked = [entry for entry in m.starts.values() if entry.phase is not Phase.RUNNING]
        starting = {entry.id for entry in starts}
        for job_id, entry in list(m.asks.items()):
            if not (entry.alive and entry.want) or job_id in starting:
                del m.asks[job_id]
        capped = tuple(m.caps)
        return [
            *([ev.SetCaps(capped, lower=True)] if capped else ()),
            *(ev.Revoke(entry) for entry in revoked),
            *(ev.Ask(entry, entry.want) for entry in m.asks.values() if entry.want),
            *([ev.SetCaps(capped, lower=False)] if capped else ()),
            *([ev.Tell(tuple(m.notices))] if m.notices else ()),
            *([ev.Start(starts)] if starts else ()),
        ]

    def settle(self, effect: ev.Effect) -> None:
        """Note that an effect has been carried out."""
        m = self.state
        if isinstance(effect, ev.Ask):
            m.asks.pop(effect.job.id, None)
        elif isinstance(effect, ev.Revoke):
            m.starts.pop(effect.job.id, None)
        elif isinstance(effect, ev.Start):
            for entry in effect.jobs:
                m.starts.pop(entry.id, None)
        elif isinstance(effect, ev.Tell):
            m.notices.clear()
        elif not effect.lower:
            m.caps.clear()

    def settled(self) -> bool:
        """Return true if all that was decided has been carried out."""
        return not (self.state.starts or self.state.asks or self.state.caps or self.state.notices)

    def look_at_times(self) -> None:
        """Let the time come of jobs that are to begin, to be tried or asked again, or to end by now."""
        for entry in self.state.holds.due(self.state.now):
            with self.state.queue.sparing(entry, "whose time has come"):
                deadline_s = entry.spec.deadline_s
                late = deadline_s is not None and deadline_s <= self.state.now
                self.happen(ev.DeadlinePassed(entry) if late else ev.TimeHasCome(entry))

    def _run(self) -> None:
        """Let all events of the queue happen, also those that follow from them at once."""
        m = self.state
        while m.queue:
            due = m.queue.take()
            # What the policy ignores is nothing to wait for, because the policy is not called again for it.
            upcoming: list[type[Event] | None] = [None]
            for event in reversed(due[1:]):
                upcoming.append(upcoming[-1] if event.kind in self.policy.ignores else event.kind)
            for position, event in enumerate(due):
                if m.queue:  # an action at no cost has taken effect, and comes in its order
                    m.queue.put_back(due[position:])
                    break
                m.cluster.upcoming = upcoming.pop()
                said = self._step(event)
                admission.let_return(m)
                if m.update_nodes():  # a unit that was freed is one that cannot be used
                    m.stale = True  # the policy counts on it: it was only told of the end
                self._ask_policy(said)
        with m.queue.sparing(None, "trials of programs"):
            trials.look(m)

    def _step(self, event: ev.Event) -> Event | None:
        of = None if isinstance(event, ev.Applied | ev.Fault) else event.entry
        with self.state.queue.sparing(of, type(event).__name__):
            return handle(self.state, event)
        return None

    # -- the policy -----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Let the policy begin with the cluster state as it is.

        Raises:
            BadInput: it does not schedule such a cluster.
        """
        self.state.stale = True  # until it has begun
        with self._sparing_policy(BadInput):
            self._begin()
            check_kind(self.policy, self.state.cluster.cluster)

    def _begin(self) -> None:
        self.state.cluster.arrange()
        self.policy = create(self.policy_text)
        self.policy.begin(self.state.cluster)
        self.state.stale = False

    @contextmanager
    def _sparing_policy(self, *but: type[Exception]) -> Iterator[None]:
        """Let a policy that chokes begin anew, soon; ``but`` some errors, which are raised."""
        try:
            yield
        except but:
            raise
        except (Exception, SystemExit) as error:  # whatever its author has written
            self.state.stale = True
            decisions.apply(self.state, WakeAt(self.state.now + POLICY_AGAIN_S))
            failure = _policy_failure(self.policy_text, error)
            if failure != self.failure:  # once: it is asked again and again
                log.exception(failure)
            self.failure = failure

    def _ask_policy(self, event: Event | None) -> None:
        with self._sparing_policy():
            for action in self._decisions(event):
                self._apply(action)

    def _decisions(self, event: Event | None) -> Sequence[Action]:
        self._predict_anew()
        cluster = self.state.cluster
        if self.state.stale or cluster.overtaken:
            if cluster.upcoming is not None:
                return ()  # once for all of this instant
            # A waiting job is gone or goes before others, for which there is no event: the policy begins anew
            # with what is there, also with what this event is about.
            self._begin()
            event = None
        # What has become void is still an event: the policy may have been told to wait for it.
        event = event or Timer(self.state.now)
        if type(event) in self.policy.ignores:
            return ()
        actions = actions_of(self.policy, self.policy.decide(cluster, event))
        self.failure = ""
        return actions

    def _apply(self, action: Action) -> None:
        entry = self.state.jobs.entries.get(getattr(action, "job_id", 0) or 0)
        with self.state.queue.sparing(entry, type(action).__name__):
            try:
                decisions.apply(self.state, action)
            except RuleBroken as error:  # a fault to be seen, but no reason to stop
                log.error("policy %s: %s", self.policy_text, error)

    def _predict_anew(self) -> None:
        """Predict the jobs anew that may be better known now.

        A policy begins anew in a time as long as the queue; in a long queue a few jobs wait until there are
        more.
        """
        unsure, waiting = len(self.state.unsure), len(self.state.cluster.waiting)
        if not unsure or (not self.policy.revises and unsure * MANY < waiting):
            return
        revised = self._predict_unsure()
        if self.policy.revises and not self.state.stale and not self.state.cluster.overtaken:
            self.policy.revise(revised)
        elif revised:
            self.state.stale = True

    def _predict_unsure(self) -> list[Job]:
        """Predict the unsure jobs anew; return those that wait and are better known."""
        m = self.state
        known = (m.jobs.entries.get(job_id) for job_id in m.unsure)
        entries = [entry for entry in known if entry is not None and not entry.attempt]
        m.unsure.clear()
        so_far = [entry.predicted for entry in entries]
        anew = m.run_times.expect([entry.spec for entry in entries], so_far)
        revised = []
        for entry, new in zip(entries, anew, strict=True):
            if new is None:
                continue
            entry.predicted = new
            job = m.jobs.renewed(entry)
            m.run_times.watch(entry)
            if entry.id in m.cluster.waiting:
                m.cluster.reconsider(job)
                revised.append(job)
        return revised


def _policy_failure(text: str, error: BaseException) -> str:
    """Say where a policy failed, and what to do."""
    fault = fault_in_file(text, error)
    if fault is None:
        what, how = f"a fault of tenbin's: policy {text}: {type(error).__name__}: {error}", ""
    else:
        what, how = fault.what, "when the file is mended, or "
    until = f"no job is started until it decides again, with the next event or in {POLICY_AGAIN_S:g} s"
    return (
        f"{what}; {until}; if it never does, jobs stay: tenbin down, and tenbin up {how}with another policy"
    )
