"""Watts as one more resource of several counted classes, which share them.

Each class has a portion of the budget, by what all its units draw at full power. A job is *planned* under the
cap that is the best of all when the machine is full: least in (1 + price of a joule x watts) / speed, times
its share of the portion over its share of the units where that is above 1. So the plans of all units fit the
budget together where such caps keep to the portions; else jobs wait for watts, which then have a price.

What is left of the budget is *lent*: who runs gets a higher cap, the shortest job first, as long as its own
cost falls, and gives the watts back when others need them. So a job ends no later than planned, if changes
of its cap cost no time.

When the budget falls all caps do. If that is not enough, jobs with a checkpoint stop, the longest first. Who
is being stopped, or moves, keeps what it draws until it has left.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

from scheduler.model.events import Action, Migrate, Resume, SetPowerCap, Start, Suspend
from scheduler.model.jobs import CHECKPOINT, RUNNING, Job, JobState, Placement, Pool, counted
from scheduler.model.quantiles import Quantiles
from scheduler.policies.base import View
from scheduler.policies.weigh.waiting import left_s

NANO = 1e9  # a plan counts whole nanowatts, so that sums of many jobs are no less than the state's
MOST_W = 4e9  # no budget
MANY = 2**14  # plans that are kept


class Step(NamedTuple):
    """What a job draws (nW) under a cap, and what a second of its work costs it."""

    watts: int
    cap_w: float | None
    own_s: float


@lru_cache(maxsize=4096)
def _steps(curves: Any, units: int, pool: Pool, joule_s: float) -> tuple[Step, ...]:
    """List what a job of such speed and power may draw, without caps to which a lower one is as good."""
    speed, power = curves
    steps = list[Step]()
    for cap in pool.caps_w or (None,):
        drawn_w = pool.power_w(units, cap, power)
        own_s = (1.0 + joule_s * drawn_w) / (1.0 if speed is None else speed(units, cap))
        steps.append(Step(round(NANO * drawn_w), cap, own_s))
    kept = list[Step]()
    for step in sorted(steps, key=lambda step: (step.watts, step.own_s)):
        if not kept or step.own_s < kept[-1].own_s:
            kept.append(step)
    return tuple(kept)


@dataclass(frozen=True)
class Watts:
    """The budget at present.

    Attributes:
        pools: names of all classes. classes: those whose power is known.
        budget: in nW.
        unit_w: the portion of each class, for each of its units.
        joule_s: price of a joule.
    """

    pools: Sequence[str]
    classes: Mapping[str, Pool]
    budget: int
    unit_w: Mapping[str, float]
    joule_s: float
    _plans: dict[tuple[int, int, str, int], Step] = field(default_factory=dict)
    _jobs: dict[tuple[int, int, int], Job] = field(default_factory=dict)

    @classmethod
    def of(cls, view: View, joule_s: float) -> Watts | None:
        """Return None where watts neither are limited nor cost anything."""
        classes = {pool.name: pool for pool in view.cluster.pools if pool.has_power}
        if not classes or (view.budget_w is None and not joule_s):
            return None
        budget_w = MOST_W if view.budget_w is None else min(view.budget_w, MOST_W)
        full_w = {name: pool.power_w(1, max(pool.caps_w, default=None)) for name, pool in classes.items()}
        all_w = sum(view.in_service[name] * unit_w for name, unit_w in full_w.items())
        unit_w = {name: full * budget_w / max(all_w, 1.0) for name, full in full_w.items()}
        pools = tuple(pool.name for pool in view.cluster.pools)
        return cls(pools, classes, round(NANO * budget_w), unit_w, joule_s)

    def drawn(self, job: Job, place: Placement) -> int:
        """Return what a job draws at a place, in nW."""
        pool = self.classes.get(place.pool)
        return 0 if pool is None else round(NANO * pool.power_of(job, place))

    def steps(self, job: Job, pool: str, units: int) -> Sequence[Step]:
        """List what the job may draw on so many units of a class."""
        if pool not in self.classes:
            return (Step(0, None, 1.0),)
        return _steps((job.speed, job.power), units, self.classes[pool], self.joule_s)

    def planned(self, job: Job, pool: str, units: int) -> Step:
        """Return what the job is planned to draw on so many units of a class."""
        key = job.id, job.alternative, pool, units
        if key not in self._plans:
            if len(self._plans) == MANY:
                self._plans.clear()
            steps, fair = self.steps(job, pool, units), NANO * units * self.unit_w.get(pool, 0.0)
            able = [step for step in steps if step.watts <= self.budget] or steps[:1]
            self._plans[key] = min(able, key=lambda step: step.own_s * max(fair, step.watts))
        return self._plans[key]

    def on(self, job: Job, units: int) -> Job:
        """Return a job whose speed is known as it is planned on so many units of each class."""
        key = job.id, job.alternative, units
        if key not in self._jobs:
            if len(self._jobs) == MANY:
                self._jobs.clear()
            self._jobs[key] = self._on(job, units)
        return self._jobs[key]

    def _on(self, job: Job, units: int) -> Job:
        assert job.speed is not None
        pools = [pool for pool in self.pools if job.runs_on(pool)]
        speeds = {pool: job.speed(units, self.planned(job, pool, units).cap_w) for pool in pools}
        quantiles_s = {pool: job.quantiles_s.get(pool) or job.quantiles_s.get("") for pool in pools}
        return replace(
            job,
            units=units,
            max_units=None,
            speed=None,
            estimate_s=None,
            estimates_s={pool: job.reference_s(pool) / speed for pool, speed in speeds.items()},
            quantiles_s={
                pool: Quantiles(*(run_s / speeds[pool] for run_s in run))
                for pool, run in quantiles_s.items()
                if run is not None
            },
        )

    def need(self, job: Job, way: Job, pool: str) -> int:
        """Return what a job is planned to draw on a class, in a way of it that is made for one size."""
        whole = job.way(counted(pool, way.units, way.alternative))
        return self.planned(whole, pool, way.units).watts

    def units(self, watts: int, pool: str) -> float:
        """Return for how many units of a class so many nW are the portion."""
        unit_w = self.unit_w.get(pool, 0.0)
        return watts / (NANO * unit_w) if unit_w else 0.0

    def free(self, view: View) -> int:
        """Return what the plans of those that run leave of the budget."""
        return self.budget - sum(sum(self.held(state)) for state in view.running.values())

    def held(self, state: JobState) -> Iterator[int]:
        """Yield what a running job holds of the budget at each of its places."""
        job, place = state.job, state.place
        if state.stage is RUNNING:
            yield self.planned(job.way(place), place.pool, place.units).watts
        else:
            yield from (self.drawn(job, at) for at in state.places)

    def stops(self, view: View) -> list[Action]:
        """Stop jobs that the budget does not carry even under the lowest caps."""
        over, stops = -self.budget, list[Action]()
        for state in view.running.values():
            if state.stage is RUNNING:
                over += self._least(state)
            elif state.moves_to is not None:
                over += self.drawn(state.job, state.moves_to)
        for state in reversed(self._in_order(view.running.values(), view.now)) if over > 0 else ():
            if over > 0 and state.stage is RUNNING and state.job.stop is CHECKPOINT:
                over -= self._least(state)
                stops.append(Suspend(state.job.id))
        return stops

    def _least(self, state: JobState) -> int:
        return self.steps(state.job.way(state.place), state.place.pool, state.place.units)[0].watts

    def _in_order(self, states: Iterable[JobState], now: float) -> list[JobState]:
        """Sort jobs by priority, and the shortest first."""
        return sorted(states, key=lambda s: (-s.job.priority, left_s(s, now, s.place.pool), s.job.id))

    def with_caps(self, view: View, actions: Sequence[Action]) -> list[Action]:
        """Lower caps before ``actions``, and raise others after them, also of those that begin."""
        begin = {action.job_id: action for action in actions if isinstance(action, Start | Resume)}
        leave = {action.job_id for action in actions if isinstance(action, Suspend | Migrate)}
        states = [state for state in view.running.values() if state.stage is RUNNING]
        free = self.budget - sum(sum(self.held(s)) for s in view.running.values() if s.stage is not RUNNING)
        for action in actions:
            if isinstance(action, Migrate):
                free -= self.drawn(view.state(action.job_id).job, action.placement)
        for job_id, action in begin.items():
            job, place = view.state(job_id).job, action.placement
            states.append(replace(view.state(job_id), job=job.way(place), placement=place))
        chosen = self._chosen(self._in_order(states, view.now), leave, free)
        lower, raised = list[Action](), list[Action]()
        for state in states:
            job_id, place, step = state.job.id, state.place, chosen[state.job.id]
            if job_id in begin:
                begin[job_id] = replace(begin[job_id], placement=replace(place, cap_w=step.cap_w))
            elif step.cap_w != place.cap_w:
                lowers = step.watts <= self.drawn(state.job, place)
                (lower if lowers else raised).append(SetPowerCap(job_id, step.cap_w))
        now = [begin[action.job_id] if isinstance(action, Start | Resume) else action for action in actions]
        return [*lower, *now, *raised]

    def _chosen(self, states: Sequence[JobState], leave: Container[int], free: int) -> dict[int, Step]:
        """Choose the cap of each job: first all that is planned, in turn, then what is left over.

        Args:
            leave: jobs that could not give back what they are lent.
        """
        ways = {s.job.id: (s.job.way(s.place), s.place.pool, s.place.units) for s in states}
        steps = {job_id: self.steps(*way) for job_id, way in ways.items()}
        chosen = {job_id: its[0] for job_id, its in steps.items()}
        free -= sum(step.watts for step in chosen.values())
        for lent in (False, True):
            for state in states:
                job_id, has = state.job.id, chosen[state.job.id]
                most = has.watts + free
                if not lent:
                    most = min(most, self.planned(*ways[job_id]).watts)
                if job_id in leave:
                    most = min(most, self.drawn(state.job, state.place))
                able = [step for step in steps[job_id] if has.watts < step.watts <= most]
                chosen[job_id] = able[-1] if able else has
                free -= chosen[job_id].watts - has.watts
        return chosen
