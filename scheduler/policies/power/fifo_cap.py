"""First come, first served with a fixed number of units and a fixed power cap: the baselines of paper C.

Algorithm: every job has a fixed configuration. ``min``: the fewest units at the lowest cap.
``max``: the most units it can use, at the lowest cap at which it is as fast as it gets. ``mid``: half as
many units (for a job of mean parallelism A and at most 2A - 1 units: A), at the cap in the middle between
these two. A configuration too large for the machine is cut: to its units, then to as many as the budget
carries (but at least the fewest of the job), then to a lower cap. Once for every instant at which something
changed, jobs start in the order of their submission while units and watts suffice. A job that does not fit
holds up all behind it.
Guarantee: no job starts before an earlier one; the budget is never exceeded by a start. Running jobs do not
change, so after a lowered budget nothing starts until enough of them have ended.
Cost: O(1) an instant and a start.

Paper: Huang et al. (2014), see ``scheduler.policies.power.parm``: FIFO_min, FIFO_mid, FIFO_max of its section
5.2.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from scheduler.model.events import Action, Event, Start
from scheduler.model.jobs import Cluster, Job, Placement
from scheduler.model.state import POWER_TOLERANCE_W
from scheduler.policies.base import Policy, Reason, View, in_turn, units, waits_for
from scheduler.policies.power.parm import capped_pool, too_hungry

SAME_SPEED = 1e-9  # relative
ROUNDING_W = POWER_TOLERANCE_W / 2  # less than the engine allows, so that it never refuses a job that fits


@dataclass(frozen=True)
class FifoCapParameters:
    """``level``: the configuration of every job."""

    level: Literal["min", "mid", "max"] = "mid"


class FifoCap(Policy):
    """First come, first served; every job on its fixed configuration."""

    Parameters = FifoCapParameters
    parameters: FifoCapParameters
    promises = frozenset({"in-order"})
    suits = frozenset({"power"})

    def begin(self, view: View) -> None:
        self.pool = capped_pool(view.cluster, f"fifo-{self.parameters.level}")

    def refuses(self, job: Job, cluster: Cluster) -> str:
        return too_hungry(job, cluster)

    def decide(self, view: View, event: Event) -> Sequence[Action]:
        if view.upcoming is not None:
            return ()
        actions: list[Action] = []
        left = view.free[self.pool.name]
        left_w = math.inf if view.budget_w is None else view.budget_w - view.power_w
        for job in view.waiting.values():
            placement = self._placement(job, view)
            watts = self.pool.power_of(job, placement)
            if placement.units > left or watts > left_w + ROUNDING_W:
                break
            left -= placement.units
            left_w -= watts
            actions.append(Start(job.id, placement))
        return actions

    def why(self, job: Job, view: View) -> Reason:
        first = next(iter(view.waiting.values()))
        if first.id != job.id:
            return Reason(waits_for(job, view) + in_turn(job, view, needs=units(first, view.cluster)))
        placement = self._placement(job, view)
        watts = self.pool.power_of(job, placement)
        cap = "" if placement.cap_w is None else f" under {placement.cap_w:g} W"
        left = f"{view.free[self.pool.name]} of {view.in_service[self.pool.name]} free"
        if view.budget_w is not None:
            left += f", {max(0.0, view.budget_w - view.power_w):.4g} of {view.budget_w:g} W"
        return Reason(
            f"waits for its fixed {view.cluster.amount(placement.units)}{cap} and {watts:.4g} W ({left})",
            self._expected(placement, watts, view),
        )

    def _placement(self, job: Job, view: View) -> Placement:
        """Cut the job's configuration to what the machine can carry."""
        pool, level = self.pool, self.parameters.level
        most = job.units if job.max_units is None else job.max_units
        size = {"min": job.units, "mid": max(job.units, (most + 1) // 2), "max": most}[level]
        caps = self._caps(job, size)
        budget = math.inf if view.budget_w is None else view.budget_w
        carried = min(size, view.in_service[pool.name])

        def watts(units: int, cap: float | None) -> float:
            return pool.power_w(units, cap, job.power)

        if watts(carried, caps[-1]) > budget:
            carried = bisect_right(range(1, carried), budget, key=lambda units: watts(units, caps[-1]))
        number = max(carried, job.units)
        cap = next((cap for cap in reversed(caps) if watts(number, cap) <= budget), caps[0])
        return Placement(pool.name, number, cap_w=cap)

    def _caps(self, job: Job, number: int) -> list[float | None]:
        """List the caps up to the job's fixed one."""
        caps = self.pool.caps_w
        if not caps:
            return [None]
        lowest, knee = caps[0], caps[0]
        if job.speed is not None:
            enough = job.speed(number, caps[-1]) * (1 - SAME_SPEED)
            knee = next(cap for cap in caps if job.speed(number, cap) >= enough)
        aim = {"min": lowest, "mid": (lowest + knee) / 2, "max": knee}[self.parameters.level]
        fixed = min(caps, key=lambda cap: (abs(cap - aim), cap))
        return [cap for cap in caps if cap <= fixed]

    def _expected(self, placement: Placement, watts: float, view: View) -> float | None:
        """Predict when enough running jobs have ended."""
        left = view.free[self.pool.name]
        left_w = math.inf if view.budget_w is None else view.budget_w - view.power_w
        for state in sorted(view.running.values(), key=lambda state: state.expected_end_s):
            if state.expected_end_s == math.inf:
                break
            left += state.place.units
            left_w += self.pool.power_of(state.job, state.place)
            if left >= placement.units and left_w >= watts - ROUNDING_W:
                return max(state.expected_end_s, view.now)
        return None
