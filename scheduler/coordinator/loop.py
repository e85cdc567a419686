"""The event loop: takes events, has each handled, and asks the policy after each.

An error of tenbin's own ends no queue: the job is set aside on whose event a handler chokes, and a policy
that chokes begins anew with the next event.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from profiles.errors import BadInput
from scheduler.coordinator import events as ev
from scheduler.coordinator import node_availability
from scheduler.coordinator.handlers import Handlers
from scheduler.coordinator.transitions.departures import Departures
from scheduler.coordinator.trials import ProgramTrials
from scheduler.model.actions import Action, WakeAt
from scheduler.model.events import Event, Timer
from scheduler.model.jobs import Job
from scheduler.model.state import RuleBroken
from scheduler.policies.registry import create

POLICY_AGAIN_S = 10.0  # a policy that has choked begins anew then at the latest
MANY = 1000  # waiting jobs for each that has to be predicted anew before a policy begins anew
log = logging.getLogger("tenbin")


class EventLoop:
    """Handles the events of an instant in their order, and applies what the policy decides after each.

    Args:
        policy: name and parameters, as for the simulator.
    """

    def __init__(self, policy: str, handlers: Handlers) -> None:
        self.policy_text, self.policy = policy, create(policy)
        self.handlers, self.queue, self.state = handlers, handlers.queue, handlers.state
        Departures(handlers)
        self.trials = ProgramTrials(handlers)

    def run(self) -> None:
        """Handle all events, also those that follow from them at once."""
        while self.queue:
            due = self.queue.take()
            # What the policy ignores is nothing to wait for, because the policy is not called again for it.
            upcoming: list[type[Event] | None] = [None]
            for event in reversed(due[1:]):
                upcoming.append(upcoming[-1] if event.kind in self.policy.ignores else event.kind)
            for position, event in enumerate(due):
                if self.queue:  # an action at no cost has taken effect, and comes in its order
                    self.queue.put_back(due[position:])
                    break
                self.state.upcoming = upcoming.pop()
                told = self._handle(event)
                # A unit that was freed may be one that cannot be used.
                node_availability.update(self.state, self.handlers.engine, self.handlers.dispatcher.hold)
                self._ask_policy(told)
        with self.queue.sparing(None, "trials of programs"):
            self.trials.look()

    def begin(self) -> None:
        """Let the policy begin with the cluster state as it is.

        Raises:
            BadInput: it does not schedule such a cluster.
        """
        self.handlers.stale = True  # until it has begun
        with self._sparing_policy(BadInput):
            self._begin()

    def _begin(self) -> None:
        self.state.arrange()
        self.policy = create(self.policy_text)
        self.policy.begin(self.state)
        self.handlers.stale = False

    @contextmanager
    def _sparing_policy(self, *but: type[Exception]) -> Iterator[None]:
        """Let a policy that chokes begin anew, soon; ``but`` some errors, which are raised."""
        try:
            yield
        except but:
            raise
        except Exception:
            self.handlers.stale = True
            self.handlers.dispatcher.apply(WakeAt(self.state.now + POLICY_AGAIN_S))
            log.exception("a fault of tenbin's: policy %s", self.policy_text)

    def _handle(self, event: ev.Event) -> Event | None:
        of = None if isinstance(event, ev.Applied | ev.Fault) else event.entry
        with self.queue.sparing(of, f"{type(event).__name__}"):
            return self.handlers.handle(event)
        return None

    def _ask_policy(self, event: Event | None) -> None:
        with self._sparing_policy():
            for action in self._decisions(event):
                self._apply(action)

    def _decisions(self, event: Event | None) -> Sequence[Action]:
        self._predict_anew()
        if self.handlers.stale or self.state.overtaken:
            if self.state.upcoming is not None:
                return ()  # once for all of this instant
            # A waiting job is gone or goes before others, for which there is no event: the policy begins anew
            # with what is there, also with what this event is about.
            self._begin()
            event = None
        # What has become void is still an event: the policy may have been told to wait for it.
        event = event or Timer(self.state.now)
        return () if type(event) in self.policy.ignores else self.policy.decide(self.state, event)

    def _apply(self, action: Action) -> None:
        entry = self.handlers.job_table.entries.get(getattr(action, "job_id", 0) or 0)
        with self.queue.sparing(entry, type(action).__name__):
            try:
                self.handlers.dispatcher.apply(action)
            except RuleBroken as error:  # a fault to be seen, but no reason to stop
                log.error("policy %s: %s", self.policy_text, error)

    def _predict_anew(self) -> None:
        """Predict the jobs anew that may be better known now.

        A policy begins anew in a time as long as the queue; in a long queue a few jobs wait until there are
        more.
        """
        unsure, waiting = len(self.handlers.unsure), len(self.state.waiting)
        if not unsure or (not self.policy.revises and unsure * MANY < waiting):
            return
        revised = self._predict_unsure()
        if self.policy.revises and not self.handlers.stale and not self.state.overtaken:
            self.policy.revise(revised)
        elif revised:
            self.handlers.stale = True

    def _predict_unsure(self) -> list[Job]:
        """Predict the unsure jobs anew; return those that wait and are better known."""
        handlers, job_table = self.handlers, self.handlers.job_table
        found = (job_table.entries.get(job_id) for job_id in handlers.unsure)
        entries = [entry for entry in found if entry is not None and not entry.attempt]
        handlers.unsure.clear()
        so_far = [entry.predicted for entry in entries]
        told = handlers.run_times.expect([entry.spec for entry in entries], so_far)
        revised = []
        for entry, new in zip(entries, told, strict=True):
            if new is None:
                continue
            job = job_table.expect(entry, new)
            handlers.run_times.watch(entry)
            if entry.id in self.state.waiting:
                self.state.reconsider(job)
                revised.append(job)
        return revised
