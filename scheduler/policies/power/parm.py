"""Power-capped scheduling with energy in the objective: PARM as Huang et al. (2014) extend it.

Algorithm: after every change (a submission, an end, a new budget, nodes that fail or come back) choose the
jobs that run, their units and power caps, so that

    sum of w * (beta * s + (1 - beta) * Er)
 is greatest while units and watts suffice. s: speed against the fewest units at the lowest cap; Er: energy
at these over energy of the configuration; w = (remaining time there + time since submission) ^ alpha.
Running jobs go on: malleable ones may get another number of units and another cap, moldable ones keep both
as they started. Solved exactly to within ``gap`` (see ``scheduler.policies.power.multiple_choice_knapsack``).

Guarantee: the budget holds, and no running job is stopped. The chosen sum is within ``gap`` of the greatest
unless the limits of the search are met. No job is promised a start; with alpha = 0 a job may wait as long as
others are worth more.
Cost: 50 jobs on 64 nodes some 10 ms a decision, see ``tests/benchmarks/policies/test_parm_speed.py``.

Paper: W. Huang, N. Iwazawa, T. Cao, Y. He, M. Kondo, H. Nakamura: Throughput-oriented job scheduling under
power constraints considering energy efficiency (IPSJ SIG HPC, 2014), after O. Sarood et al. (SC14). beta = 1
is performance, beta = 0 energy, as in its equation 4.1 and results. At beta = 0 one unit is best for every
job (Er is greatest there), so all jobs crawl. ``least_beta`` lets speed decide between nearly equal energies;
``least_beta=0`` is the literal equation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from profiles.errors import BadInput
from scheduler.model.events import Action, Event, Resize, SetPowerCap, Start
from scheduler.model.jobs import Cluster, Job, JobState, Placement, Pool
from scheduler.policies.base import Policy, Reason, View, waits_for
from scheduler.policies.power.multiple_choice_knapsack import Floats, Problem, Solution, solve

# -- configurations ----------------------------------------------------------------------------------------


MANY = 2**15  # tables of some 2 KB, each made in some ms; more than there are different jobs in a queue


@dataclass(frozen=True)
class Configurations:
    """Some (units, cap) of one job, in the order of preference between equals: lower cap, then fewer units.

    Attributes:
        caps_w: None: uncapped.
        watts: of all units together.
        merit: value of the objective, before the job's weight.
    """

    units: NDArray[np.int64]
    caps_w: tuple[float | None, ...]
    watts: Floats
    merit: Floats

    @cached_property
    def hottest_w(self) -> float:
        """The most that one unit draws under any of them."""
        return float((self.watts / self.units).max())

    def __len__(self) -> int:
        return len(self.units)

    def subset(self, kept: NDArray[np.bool_]) -> Configurations:
        """Leave out those that are not kept."""
        caps = tuple(cap for cap, keep in zip(self.caps_w, kept, strict=True) if keep)
        return Configurations(self.units[kept], caps, self.watts[kept], self.merit[kept])


def every(job: Job, pool: Pool, beta: float, counts: int) -> Configurations:
    """List all configurations, under all caps.

    ``counts``: of a job that can take more different numbers of units than this, so many are considered,
    evenly spaced on a logarithmic scale, with both ends.
    """
    return configurations(_curves(job), _range(job, pool), pool, beta=beta, counts=counts)


def considered(job: Job, pool: Pool, beta: float, counts: int, *, watts_matter: bool) -> Configurations:
    """Return those of ``every`` that can be part of a best choice."""
    least_most = _range(job, pool)
    return _considered(_curves(job), least_most, pool, beta=beta, counts=counts, watts_matter=watts_matter)


def _curves(job: Job) -> Any:
    """Return speed and power, as a key: they must have a hash, as frozen dataclasses have."""
    return job.speed, job.power


def _range(job: Job, pool: Pool) -> tuple[int, int]:
    most = min(job.units if job.max_units is None else job.max_units, pool.units)
    return job.units, max(most, job.units)


@lru_cache(maxsize=MANY)
def _considered(
    curves: Any, least_most: tuple[int, int], pool: Pool, *, beta: float, counts: int, watts_matter: bool
) -> Configurations:
    if not watts_matter:
        considered = _considered(curves, least_most, pool, beta=beta, counts=counts, watts_matter=True)
        return considered.subset(_undominated(considered.units, np.zeros(len(considered)), considered.merit))
    considered = configurations(curves, least_most, pool, beta=beta, counts=counts)
    # For each number of units, higher caps of no more merit are left out first, because it is a quick test.
    merit = considered.merit.reshape(-1, len(numbers(*least_most, counts)))
    rising = np.vstack((np.ones(merit.shape[1], bool), merit[1:] > np.maximum.accumulate(merit)[:-1]))
    considered = considered.subset(rising.ravel())
    return considered.subset(_undominated(considered.units, considered.watts, considered.merit))


@lru_cache(maxsize=4096)
def configurations(
    curves: Any, least_most: tuple[int, int], pool: Pool, *, beta: float, counts: int
) -> Configurations:
    """List all configurations of a job of such speed and power, cap after cap."""
    speed, power = curves
    units = numbers(*least_most, counts)
    caps: tuple[float | None, ...] = pool.caps_w or (None,)
    fast = np.array([[1.0 if speed is None else speed(n, cap) for n in units.tolist()] for cap in caps])
    watts = np.array([[pool.power_w(n, cap, power) for n in units.tolist()] for cap in caps])
    energy_ratio = fast * watts[0, 0] / watts if watts[0, 0] > 0 else fast  # equation 4.2
    return Configurations(
        np.tile(units, len(caps)),
        tuple(cap for cap in caps for _ in units),
        watts.ravel(),
        (beta * fast + (1.0 - beta) * energy_ratio).ravel(),
    )


def numbers(least: int, most: int, counts: int) -> NDArray[np.int64]:
    """List all whole numbers from ``least`` to ``most``, or ``counts`` of them."""
    if most - least < counts:
        return np.arange(least, most + 1)
    return np.unique(np.round(np.geomspace(least, most, counts)).astype(np.int64))


def _undominated(units: NDArray[np.int64], watts: Floats, merit: Floats) -> NDArray[np.bool_]:
    """Tell which configurations no other one makes superfluous.

    A configuration dominates another if it needs no more units and watts and has at least its merit (the
    first of equals dominates). No optimum is lost: in any choice that fits, put the dominating configuration
    in the place of the dominated. The choice still fits, and the objective is no less, because a job's weight
    is not negative and equal for all its configurations. The relation is transitive and the first of equals
    stays, so that each superfluous configuration is dominated by one that stays.
    """
    no_worse = (
        (units <= units[:, None]) & (watts <= watts[:, None]) & (merit >= merit[:, None])
    )  # [i, k]: k is no worse than i
    equal = no_worse & no_worse.T
    earlier = np.tri(len(units), k=-1, dtype=bool)  # [i, k]: k comes before i
    kept: NDArray[np.bool_] = ~(no_worse & (~equal | earlier)).any(axis=1)
    return kept


# -- the policy --------------------------------------------------------------------------------------------


LEAST_WEIGHT_S = 1.0  # least sum of remaining time and wait, because a job of weight 0 would never start


@dataclass(frozen=True)
class ParmParameters:
    """Objective and limits of the search.

    Attributes:
        alpha: 0: throughput only; 1: fairness (weight of long jobs and long waits).
        beta: 1: performance only; 0: energy only.
        least_beta: beta counts as at least this.
        gap: sufficient relative distance of a choice from the best.
        time_limit_s, node_limit: of one decision's branch and bound; the best found by then counts. The
            time limit is for emergencies, because it makes decisions depend on the machine.
        unit_choices: number of different numbers of units considered for a job.
        depth: number of waiting jobs considered, in the order of submission; none: all.
    """

    alpha: float = 0.5
    beta: float = 1.0
    least_beta: float = 0.001
    gap: float = 0.001
    time_limit_s: float = 30.0
    node_limit: int = 20_000
    unit_choices: int = 64
    depth: int | None = None

    def __post_init__(self) -> None:
        for name in ("alpha", "beta", "least_beta"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be from 0 to 1")
        if not self.gap >= 0 or not self.time_limit_s > 0 or self.node_limit < 1:
            raise ValueError("gap must not be negative, time_limit_s and node_limit must be above 0")
        if self.unit_choices < 2 or (self.depth is not None and self.depth < 1):
            raise ValueError("unit_choices must be at least 2, depth at least 1")


class Parm(Policy):
    """Chooses units and power caps of all jobs at once.

    Attributes:
        decisions: problems solved so far. worst_gap: the largest proven gap of any of them.
        short_w: power of the running jobs beyond the budget, although they draw as little as they can.
    """

    Parameters = ParmParameters
    parameters: ParmParameters
    suits = frozenset({"power"})

    def begin(self, view: View) -> None:
        self.pool = capped_pool(view.cluster, "parm")
        self.decisions, self.worst_gap, self.short_w = 0, 0.0, 0.0

    def refuses(self, job: Job, cluster: Cluster) -> str:
        return too_hungry(job, cluster)

    @property
    def beta(self) -> float:
        """As it is used."""
        return max(self.parameters.beta, self.parameters.least_beta)

    def decide(self, view: View, event: Event) -> Sequence[Action]:
        if view.upcoming is not None:
            return ()  # once for an instant, when all of its events have happened
        free_units = float(view.in_service[self.pool.name])
        free_watts = math.inf if view.budget_w is None else view.budget_w
        malleable: list[JobState] = []
        for state in view.running.values():
            if state.job.malleable:
                malleable.append(state)
            else:
                free_units -= state.place.units
                free_watts -= self.pool.power_of(state.job, state.place)
        waiting = self._may_start(list(view.waiting.values())[: self.parameters.depth], free_units, view)
        self.short_w = 0.0 if malleable else max(0.0, -free_watts)
        if not waiting and not malleable:
            return ()
        jobs = [state.job for state in malleable] + waiting
        options = self.options(jobs, free_units, free_watts)
        problem = self._problem(
            jobs, len(malleable), options, view, free_units=free_units, free_watts=free_watts
        )
        solution = self.solve(problem, view)
        if solution is None:
            return self._least(malleable, problem)
        self.decisions += 1
        self.worst_gap = max(self.worst_gap, solution.gap)
        chosen = [
            self._placement(table, column) if column else None
            for table, column in zip(options, solution.choice.tolist(), strict=True)
        ]
        starts = [
            Start(job.id, placement)
            for job, placement in zip(waiting, chosen[len(malleable) :], strict=True)
            if placement is not None
        ]
        return [*changes(malleable, chosen), *starts]

    def _may_start(self, waiting: list[Job], free_units: float, view: View) -> list[Job]:
        """Leave out jobs without which the best choice is as good.

        Of jobs with the same configurations only so many can run as have room with their fewest units. In the
        place of one of the others, one of the heaviest is worth no less.
        """
        if free_units < 1:
            return []
        alike: dict[tuple[object, int, int | None], list[Job]] = {}
        for job in waiting:
            alike.setdefault((_curves(job), job.units, job.max_units), []).append(job)
        kept = set[int]()
        for (_, least, _), jobs in alike.items():
            room = max(0, int(free_units // least))
            if len(jobs) <= room:
                kept.update(job.id for job in jobs)
            else:
                heaviest = sorted(jobs, key=lambda job: -self._weight(job, view))
                kept.update(job.id for job in heaviest[:room])
        return [job for job in waiting if job.id in kept]

    def solve(self, problem: Problem, view: View) -> Solution | None:
        """Choose; None if not even the running jobs' least configurations fit."""
        limits = self.parameters
        return solve(problem, limits.gap, limits.time_limit_s, limits.node_limit)

    def why(self, job: Job, view: View) -> Reason:
        if self.short_w > 0:
            return Reason(
                f"the running jobs draw {self.short_w:.4g} W more than the budget of {view.budget_w:g} W and "
                "cannot draw less: nothing starts before some of them have ended"
            )
        place = list(view.waiting).index(job.id)
        depth = self.parameters.depth
        if depth is not None and place >= depth:
            return Reason(f"{place} jobs wait ahead of it; the first {depth} are considered")
        left = ""
        if view.budget_w is not None:
            left = f", {max(0.0, view.budget_w - view.power_w):.4g} of {view.budget_w:g} W free"
        growing = "; its weight grows as it waits" if self.parameters.alpha else ""
        return Reason(f"{waits_for(job, view)}{left}; other jobs gain more from them now{growing}")

    # -- the problem ---------------------------------------------------------------------------------------

    def options(self, jobs: list[Job], free_units: float, free_watts: float) -> list[Configurations]:
        """List configurations of each job; watts do not count where they can never run short.

        They cannot if all free units together, each under the highest cap of any configuration, draw no
        more than is free.
        """
        choices = self.parameters.unit_choices
        tables = [considered(job, self.pool, self.beta, choices, watts_matter=True) for job in jobs]
        hottest = max(table.hottest_w for table in tables)
        if free_units * hottest > free_watts:
            return tables
        return [considered(job, self.pool, self.beta, choices, watts_matter=False) for job in jobs]

    def _problem(
        self,
        jobs: list[Job],
        running: int,
        options: list[Configurations],
        view: View,
        *,
        free_units: float,
        free_watts: float,
    ) -> Problem:
        """Make rows (malleable running jobs, then waiting ones) and columns (waiting, then the options)."""
        lengths = np.array([len(table) for table in options])
        weights = np.repeat([self._weight(job, view) for job in jobs], lengths)
        filled = np.arange(1 + lengths.max()) <= lengths[:, None]
        filled[:, 0] = False
        values = np.full(filled.shape, -np.inf)
        taken = np.zeros((2, *filled.shape))
        values[running:, 0] = 0.0
        values[filled] = weights * np.concatenate([table.merit for table in options])
        taken[0, filled] = np.concatenate([table.units for table in options])
        taken[1, filled] = np.concatenate([table.watts for table in options])
        return Problem(values, taken[0], taken[1], free_units, free_watts)

    def _weight(self, job: Job, view: View) -> float:
        """Compute equation 3.7 as its text has it; the wait alone counts if the run time is unknown."""
        remaining = view.state(job.id).remaining_s(view.now, self.pool.name)
        known = remaining if math.isfinite(remaining) else 0.0
        return float(max(known + view.now - job.submit_s, LEAST_WEIGHT_S) ** self.parameters.alpha)

    def _placement(self, table: Configurations, column: int) -> Placement:
        return Placement(self.pool.name, int(table.units[column - 1]), cap_w=table.caps_w[column - 1])

    def _least(self, malleable: list[JobState], problem: Problem) -> list[Action]:
        """Draw as little as possible and admit nothing, because the budget is too low for what runs."""
        _, _, watts = problem.totals(problem.start)
        self.short_w = max(watts - problem.max_watts, 0.0)
        cap = self.pool.caps_w[0] if self.pool.caps_w else None
        return changes(malleable, [Placement(self.pool.name, s.job.units, cap_w=cap) for s in malleable])


def changes(running: Sequence[JobState], chosen: Sequence[Placement | None]) -> list[Action]:
    """List actions that bring running jobs to their placements, never over what is allowed in between.

    First every job gives (down to the smaller number of units and the lower cap of before and after), then
    every job takes. So after each step no more is held than before or than in the end.
    """
    give: list[Action] = []
    take: list[Action] = []
    for state, after in zip(running, chosen, strict=False):
        before = state.place
        assert after is not None
        cap = after.cap_w
        if before.cap_w is not None and cap is not None:
            cap = min(before.cap_w, cap)
        between = Placement(after.pool, min(before.units, after.units), cap_w=cap)
        give += _change(state.job.id, before, between)
        take += _change(state.job.id, between, after)
    return give + take


def _change(job_id: int, before: Placement, after: Placement) -> list[Action]:
    if before.units != after.units:
        return [Resize(job_id, after)]
    return [] if before.cap_w == after.cap_w else [SetPowerCap(job_id, after.cap_w)]


def capped_pool(cluster: Cluster, policy: str) -> Pool:
    """Return the one counted class of resource that these policies schedule.

    Raises:
        BadInput: there are several classes, or nodes with resources.
    """
    if len(cluster.pools) != 1 or not cluster.pools[0].counted:
        raise BadInput(
            f"policy {policy} schedules units of one class, the cluster has "
            + ", ".join(pool.name + ("" if pool.counted else " (nodes)") for pool in cluster.pools),
            "describe one class by its units, with base_w and caps_w",
        )
    return cluster.pools[0]


def too_hungry(job: Job, cluster: Cluster) -> str:
    """Say why the budget can never carry the job, as a clause; "" if it can."""
    if cluster.budget_w is None:
        return ""
    able = [pool for pool in cluster.pools if job.runs_on(pool.name) and job.units <= pool.units]
    caps = [(pool, min(pool.caps_w, default=None)) for pool in able]
    watts = [pool.power_w(job.units, cap, job.power) if pool.has_power else 0.0 for pool, cap in caps]
    least_w = min(watts, default=0.0)
    if least_w <= cluster.budget_w:
        return ""
    return f"it needs at least {least_w:g} W, the budget is {cluster.budget_w:g} W"
