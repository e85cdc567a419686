"""A policy that does what a scenario says, and keeps what it was told: the same under every engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from scheduler.model.events import Action, Event, Migrate, Resume, Start, Suspend
from scheduler.model.jobs import Job, Placement
from scheduler.policies.base import Policy, View

Told = tuple[str, int | None]


def on(job: Job, node: int) -> Placement:
    return Placement("node", job.units, ((node, job.units),))


class Scripted(Policy):
    """``script``: what to do (start, suspend, ..., job, node) after the first such event of that job."""

    suits = frozenset({"nodes"})
    ignores: ClassVar[frozenset[type[Event]]] = frozenset()
    script: ClassVar[dict[Told, list[tuple[str, int, int]]]] = {}
    told: ClassVar[list[Told]] = []
    moves: ClassVar[set[str]] = set()

    def decide(self, view: View, event: Event) -> Sequence[Action]:
        job = getattr(event, "job", None)
        if job is None:
            return ()
        what = type(event).__name__ + (":killed" if getattr(event, "how", "") == "killed" else "")
        told = (what, job.id)
        self.told.append(told)
        return [self._action(view, *step) for step in self.script.pop(told, ())]

    def _action(self, view: View, what: str, job_id: int, node: int) -> Action:
        if what == "start":
            return Start(job_id, on(view.waiting[job_id], node))
        if what == "suspend":
            return Suspend(job_id)
        states = view.suspended if what == "resume" else view.running
        place = on(states[job_id].job, node)
        return Resume(job_id, place) if what == "resume" else Migrate(job_id, place)
