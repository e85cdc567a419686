"""Base of policies that choose in rounds who runs where on counted classes.

A round begins with the first job, and another one ``round_s`` later as long as there are jobs. Between rounds
nothing is chosen: units of a job that ends stay free, and a new job waits. A job that has another place in a
round than before writes its checkpoint, and goes on in its new place when the units there are free; one whose
place is the same is not stopped.

A job keeps its place in a round if it has no checkpoint, while it restarts (else turns shorter than restarts
would let nobody get on), and while it moves.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence

from scheduler.model.events import Action, BudgetChanged, Event, Resume, Start, Started, Suspend, WakeAt
from scheduler.model.jobs import (
    CHECKPOINT,
    PAUSE,
    STOPPING,
    WAITING,
    Job,
    JobState,
    Placement,
    counted,
    instant,
)
from scheduler.policies.base import Policy, Reason, View, counted_pools, waits_for

Configuration = tuple[str, int]  # pool and units


class Rounds(Policy):
    """Chooses in rounds, and carries out what was chosen as units come free."""

    suits = frozenset({"counted", "classes"})
    ignores = frozenset({Started, BudgetChanged})
    resumes = True

    def __init__(self, parameters: object = None, seed: int = 0) -> None:
        super().__init__(parameters, seed)
        self._next_s = -math.inf
        self._chosen: dict[int, Configuration] = {}

    @property
    @abstractmethod
    def round_s(self) -> float:
        """Length of a round."""

    @abstractmethod
    def choose(
        self, jobs: Sequence[JobState], room: Mapping[str, int], view: View
    ) -> Mapping[int, Configuration]:
        """Choose who of these jobs runs in this round, and on what, within the room in each pool.

        One that ``restarts`` has to keep what it has.
        """

    def begin(self, view: View) -> None:
        counted_pools(view, type(self).__name__.lower())
        self._next_s = min(self._next_s, view.now + self.round_s)  # the clock may have been set back

    def decide(self, view: View, event: Event) -> Sequence[Action]:
        if view.upcoming is not None:
            return ()
        if not (view.waiting or view.running or view.suspended):
            return ()
        actions: list[Action] = []
        if view.now >= self._next_s:
            self._next_s = instant(view.now + self.round_s)
            actions += self._begin_round(view)
        return [*actions, *self._starts(view), WakeAt(self._next_s)]

    def _begin_round(self, view: View) -> list[Action]:
        """Choose, and stop who runs elsewhere than was chosen."""
        kept = {job_id: place for job_id, state in view.running.items() if (place := self._kept(state, view))}
        room = dict(view.in_service)
        for pool, units in kept.values():
            room[pool] = max(room[pool] - units, 0)
        jobs = [view.state(job_id) for job_id in (*view.waiting, *view.suspended)]
        jobs += [
            state
            for job_id, state in view.running.items()
            if job_id not in kept and state.stage is not STOPPING
        ]
        jobs.sort(key=lambda state: (-state.job.priority, state.job.submit_s, state.job.id))
        chosen = self.choose(jobs, room, view)
        self._chosen = {**kept, **chosen}
        stops = (state for state in jobs if (has := runs_on(state)) and has != chosen.get(state.job.id))
        return [Suspend(state.job.id, chosen.get(state.job.id, ("", 0))[0]) for state in stops]

    def _kept(self, state: JobState, view: View) -> Configuration | None:
        """Return what a running job has in this round whatever is chosen; None: that is to be chosen."""
        if state.moves_to is not None:
            return state.moves_to.pool, state.moves_to.units
        if state.stage is STOPPING:
            return self._chosen.get(state.job.id)
        if state.job.stop is not CHECKPOINT:
            return state.place.pool, state.place.units
        return None

    def _starts(self, view: View) -> list[Action]:
        """Let those who were chosen start and go on where units are free."""
        actions: list[Action] = []
        free = dict(view.free)
        for job_id, (pool, units) in self._chosen.items():
            if units > free[pool] or not (job_id in view.waiting or job_id in view.suspended):
                continue
            free[pool] -= units
            kind = Start if job_id in view.waiting else Resume
            actions.append(kind(job_id, counted(pool, units)))
        return actions

    def why(self, job: Job, view: View) -> Reason:
        if (place := self._chosen.get(job.id)) is not None:
            return Reason(f"is to get {place[1]} of {place[0]} when those who are there have stopped")
        return Reason(f"{waits_for(job, view)}; who runs is chosen every {self.round_s:g} s")


def runs_on(state: JobState) -> Configuration | None:
    """Return what a running job has; None: it does not run."""
    return (state.place.pool, state.place.units) if state.stage.placed else None


def restarts(state: JobState, view: View) -> bool:
    """Tell if a job has a place where it has not worked yet since it came there."""
    return state.stage.placed and view.now <= state.works_from_s


def begun(state: JobState) -> Placement | None:
    """Return where a job runs, or goes on in the same way; None: it may begin anyhow."""
    return None if state.stage is WAITING else state.placement


def places(state: JobState, units: Sequence[int], room: Mapping[str, int]) -> list[Configuration]:
    """List where a job may run on one of these numbers of units; a paused one, on what it had."""
    before = begun(state)
    if before is not None and state.job.stop is PAUSE:
        units, room = (before.units,), {before.pool: room[before.pool]}
    job = state.as_it_runs
    return [(pool, n) for pool, left in room.items() if job.runs_on(pool) for n in units if n <= left]


def seconds_on(job: Job, place: Configuration) -> float:
    """Return a run time that compares with those on other classes; unknown ones are alike."""
    pool, units = place
    known = [seconds for seconds in job.estimates_s.values() if 0 < seconds < math.inf]
    seconds = job.estimates_s.get(pool, 0.0)
    alike = seconds if 0 < seconds < math.inf else min(known, default=1.0)
    return alike if job.speed is None else alike / job.speed(units, None)
