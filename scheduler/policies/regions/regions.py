"""The machine divided into regions, each for jobs of some sizes, and divided anew at intervals.

Algorithm, at the end of each period, from the jobs of the period:

1. In each region the longest wait less the shortest is compared with ``target_s``. If it is lower in all
   regions there will be one region fewer, else one more (1 to ``most``). Waits of started jobs count, and so
   far those of waiting jobs; with fewer than two jobs a region is lower.
2. Bounds and sizes follow from the jobs submitted in the period (``region_sizing``). A job weighs its units x
   the time it ran; if it has not ended, its estimate; if that is unknown, the time it has run.

A job belongs to the region of its size; inside, jobs start by fcfs, EASY or first fit. When regions change,
running jobs keep their units. They are charged to the region of the job's size while it has room, then to
other regions, and are free for their new owners when the job ends. The first period has one region. A job too
large for its region divides the machine anew at once. Periods begin at multiples of ``interval_s``. After a
restart the rule knows only those jobs of the period that still wait or run.
Guarantee: no region holds more units than it has. Jobs of one region never wait for those of another, except
for those that ran before the regions changed.
Cost: that of the queues inside; O(running + waiting) when regions change.
Source: Takayama, Sekizawa, Suzuki, Yamamoto, Oguchi, DEIM 2021. The target is the operator's; 20 h is ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from scheduler.model.actions import Action, Repartition, Start, WakeAt
from scheduler.model.events import Event, Failed, Finished, Submitted, Timer
from scheduler.model.jobs import Cluster, Job, Placement, Region, instant
from scheduler.model.state import JobState
from scheduler.policies.backfill.availability import Availability, start_in_turn
from scheduler.policies.backfill.queue_disciplines import QUEUES, FcfsQueue
from scheduler.policies.base import Policy, Reason, View, only_counted_pool, units
from scheduler.policies.regions.region_sizing import region_of
from scheduler.policies.regions.repartitioning import Repartitioner, RepartitionParameters, size_range

CUT = "regions"  # tag of the timer


@dataclass(frozen=True)
class RegionsParameters(RepartitionParameters):
    """``inside``: the queue discipline inside a region; the others: ``RepartitionParameters``."""

    inside: Literal["fcfs", "easy", "first-fit"] = "fcfs"


@dataclass
class _RegionQueue:
    """One region, its free units, and its queue."""

    region: Region
    free: int
    queue: FcfsQueue


class Regions(Policy):
    """Regions of one counted pool, by the jobs of the last period."""

    Parameters = RegionsParameters
    suits = frozenset({"counted"})
    fences = True
    parameters: RegionsParameters

    def refuses(self, job: Job, cluster: Cluster) -> str:
        given = self.parameters.given()
        if given is None:
            return ""
        size = given.sizes[region_of(job.units, given.bounds)]
        return f"it needs {job.units} units, its region has {size}" if job.units > size else ""

    def begin(self, view: View) -> None:
        self._pool = only_counted_pool(view, "regions")
        self._repartitioner = Repartitioner(self.parameters, view, self._pool)
        self._orders: list[Action] = []  # to be sent with the next decision
        if view.regions.get(self._pool) != self._repartitioner.regions():
            self._orders.append(Repartition(self._pool, self._repartitioner.regions()))
        if self.parameters.given() is None:
            self._orders.append(WakeAt(self._repartitioner.period_end_s, CUT))
        self._settle(view)

    def decide(self, view: View, event: Event) -> Sequence[Action]:
        self._note(view, event)
        orders, self._orders = self._orders, []
        if view.upcoming is None:
            orders.extend(self._starts(view))
        return orders

    def why(self, job: Job, view: View) -> Reason:
        index = self._repartitioner.region_of(job)
        part = self._parts[index]
        soon = instant(view.now + 1e-6)
        held = [
            (max(view.state(other).expected_end_s, soon), held)
            for other, charges in self._held.items()
            for region, held in charges
            if region == index
        ]
        plan = Availability.beside(held, part.region.units, view.now)
        at = start_in_turn(job, part.queue.waiting.values(), {self._pool: plan}, view.now)
        before = list(part.queue.waiting).index(job.id)
        where = (
            ""
            if len(self._parts) == 1
            else f" in the region for {size_range(self._repartitioner.layout.bounds, index)} units"
        )
        turn = "is next" if before == 0 else f"{before} job{'s' * (before > 1)} before it"
        has = f"{part.free} of {part.region.units} free"
        return Reason(f"waits for {units(job)}{where}: {has}, {turn}", at)

    # -- events ---------------------------------------------------------------------------------

    def _note(self, view: View, event: Event) -> None:
        """Apply the event to queues, charges and the period's figures."""
        if isinstance(event, Submitted):
            self._submitted(view, event.job)
        elif isinstance(event, Finished | Failed):
            self._free(event.job.id)
            self._repartitioner.left(event.job, view.now, isinstance(event, Finished))
            if isinstance(event, Failed):
                index = self._repartitioner.region_of(event.job)
                self._parts[index].queue.add_first(event.job)
                self._stirred.add(index)
        elif isinstance(event, Timer) and event.tag == CUT:
            if self._repartitioner.end_period(view):
                self._move(view)
            self._orders.append(WakeAt(self._repartitioner.period_end_s, CUT))
        else:
            self._stir_all()

    def _submitted(self, view: View, job: Job) -> None:
        self._repartitioner.submitted(job)
        index = self._repartitioner.region_of(job)
        self._parts[index].queue.add(job)
        self._stirred.add(index)
        if job.units > self._parts[index].region.units and self._repartitioner.cut_anew(
            view, len(self._parts)
        ):
            self._move(view)

    def _free(self, job_id: int) -> None:
        for index, held in self._held.pop(job_id):
            self._parts[index].free += held
            self._parts[index].queue.ended(job_id)
            self._stirred.add(index)

    def _stir_all(self) -> None:
        for index, part in enumerate(self._parts):
            part.queue.changed()
            self._stirred.add(index)

    def _starts(self, view: View) -> Iterator[Start]:
        """Start jobs region by region; if too few units are in service, the first regions come first."""
        left = view.free[self._pool]
        if left < sum(part.free for part in self._parts):
            self._stir_all()
        for index in sorted(self._stirred):
            part = self._parts[index]
            most = min(part.region.units, view.in_service[self._pool])
            for job in part.queue.choose(view.now, min(part.free, left), most):
                part.free -= job.units
                left -= job.units
                self._held[job.id] = ((index, job.units),)
                self._repartitioner.started(job, view)
                yield Start(job.id, Placement(self._pool, job.units, region=part.region.name))
        self._stirred.clear()

    # -- new regions ---------------------------------------------------------------------------------

    def _move(self, view: View) -> None:
        self._orders.append(Repartition(self._pool, self._repartitioner.regions()))
        self._settle(view)

    def _settle(self, view: View) -> None:
        """Make queues and charges anew from the view."""
        kind, regions = QUEUES[self.parameters.inside], self._repartitioner.regions()
        self._parts = [_RegionQueue(region, region.units, kind(self._pool)) for region in regions]
        self._stirred = set(range(len(regions)))
        self._held: dict[int, tuple[tuple[int, int], ...]] = {}  # running job: (region, units) ...
        numbers = {region.name: index for index, region in enumerate(regions)}
        homeless = []
        for state in view.running.values():
            index = numbers.get(state.place.region)
            if index is None:
                homeless.append(state)
            else:
                self._charge(state, [index])
        for state in homeless:
            home = self._repartitioner.region_of(state.job)
            self._charge(state, [home, *(i for i in range(len(regions)) if i != home)])
        for job in view.waiting.values():
            self._parts[self._repartitioner.region_of(job)].queue.add(job)

    def _charge(self, state: JobState, order: Sequence[int]) -> None:
        """Charge a running job to these regions in turn, to each as much as is free, until all is charged."""
        needed, charges = state.place.units, []
        for index in order:
            part = self._parts[index]
            held = min(needed, part.free)
            if held:
                needed -= held
                part.free -= held
                part.queue.hold(state.job.id, held, state.expected_end_s)
                charges.append((index, held))
        self._held[state.job.id] = tuple(charges)
