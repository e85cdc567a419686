"""The cluster state: jobs that wait, run or are suspended, and free units. Every change is checked first.

Simulator and coordinator share this class. A policy reads it as its ``View`` and never changes it.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import merge
from operator import le
from types import MappingProxyType
from typing import TYPE_CHECKING, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from profiles.errors import UserError
from scheduler.model.costs import FREE, Costs
from scheduler.model.events import Event
from scheduler.model.interference import NOTHING_KNOWN, Slowdowns
from scheduler.model.jobs import (
    CHECKPOINT,
    EPSILON,
    NEVER,
    PAUSE,
    RUNNING,
    STOPPING,
    SUSPENDED,
    WAITING,
    Cluster,
    Job,
    JobState,
    Placement,
    Pool,
    Region,
    Stop,
    instant,
)

if TYPE_CHECKING:
    from profiles.records import Profile


T = TypeVar("T", bound=np.generic)


class Nodes:
    """The nodes of one pool, read by policies and changed by ``ClusterState``.

    Attributes:
        capacity, free: nodes x resources (read-only arrays); a node that is down has nothing free.
        up: whether each node is in service.
        jobs: for each node the jobs on it and how many of their units, in the order of their starts.
        exceeded: nodes on which jobs have more than there is: they began when it was larger.
    """

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        rows = pool.capacities or [pool.capacity] * pool.units
        self._capacity = np.array(rows, dtype=np.float64).reshape(pool.units, len(pool.resources))
        self._free, self._whole = self._capacity.copy(), self._capacity.copy()
        # Python's numbers, because sums over one node are several times as fast with them.
        self._rows: list[Sequence[float]] = list(rows)
        self._held = [[0.0] * len(pool.resources) for _ in rows]
        self._up = np.ones(pool.units, dtype=np.bool_)
        self.capacity, self.free, self.up = (
            _read_only(self._capacity),
            _read_only(self._free),
            _read_only(self._up),
        )
        self.jobs: list[dict[int, int]] = [{} for _ in range(pool.units)]
        self.exceeded: set[int] = set()

    def fits(self, demand: tuple[float, ...], units: int = 1) -> NDArray[np.bool_]:
        """Tell for each node if ``units`` units of ``demand`` fit on it now."""
        mask: NDArray[np.bool_] = (self._free >= np.multiply(demand, units) - EPSILON).all(axis=1) & self._up
        return mask

    def room(self, demand: tuple[float, ...]) -> NDArray[np.int64]:
        """Count for each node how many units of ``demand`` fit on it now."""
        return rooms(self._free, demand) * self._up

    def misfit(self, job: Job) -> str:
        """Say why the job fits on no set of empty nodes, as a clause; "" if it does."""
        alike = 1 if self.pool.capacities else self.pool.units
        if job.units <= alike and job.demand and self._holds_one(job.demand):
            return ""
        name, resources = self.pool.name, self.pool.resources
        if len(job.demand) != len(resources):
            return f"it states {len(job.demand)} demands, {name} has the resources {', '.join(resources)}"
        if any(d < 0 for d in job.demand) or not any(d > 0 for d in job.demand):
            return f"it demands nothing of {name}"
        room = int(rooms(self._whole, job.demand).sum())
        if room >= job.units:
            return ""
        demand = ", ".join(f"{round(d, 3):g} {r}" for d, r in zip(job.demand, resources, strict=True) if d)
        return f"it needs {job.units} times {demand}, {name} has room for {room}"

    def _holds_one(self, demand: tuple[float, ...]) -> bool:
        """Tell if one unit fits on the first node, because that is the usual case and a quick check."""
        first = self.pool.capacity_of(0)
        return len(demand) == len(first) and min(demand) >= 0 < max(demand) and all(map(le, demand, first))

    def refusal(  # noqa: PLR0911 (one line a rule)
        self, job: Job, placement: Placement
    ) -> str:
        """Say why the placement is impossible now, as a clause; "" if it is possible."""
        if len(job.demand) != len(self.pool.resources):
            return f"the job states no demand of {', '.join(self.pool.resources)}"
        placed = 0
        for node, units in placement.nodes:
            if not 0 <= node < len(self.jobs) or units < 1:
                return f"{units} units on node {node} of {self.pool.name}, which has {len(self.jobs)} nodes"
            if not self._up[node]:
                return f"node {node} of {self.pool.name} is down"
            free = self._free[node].tolist()
            # As ``rooms``: sums of large amounts carry larger rounding errors.
            if any(units * d > f + EPSILON * max(1.0, d) for d, f in zip(job.demand, free, strict=True)):
                need = _vector(tuple(units * d for d in job.demand))
                return f"node {node} of {self.pool.name} has {_vector(tuple(free))} free, {need} needed"
            placed += units
        if placed != placement.units:
            return f"{placed} units on named nodes, {placement.units} in all"
        if len({node for node, _ in placement.nodes}) != len(placement.nodes):
            return "a node is named twice"
        return ""

    def take(self, job: Job, placement: Placement) -> int:
        """Charge a possible placement; the number of nodes that were empty before."""
        emptied = 0
        for node, units in placement.nodes:
            here = self.jobs[node]
            held = self._held[node]
            emptied += not here
            for r, demand in enumerate(job.demand):
                self._free[node, r] -= units * demand
                held[r] += units * demand
            here[job.id] = here.get(job.id, 0) + units  # it may move between nodes of which it has some
        return emptied

    def give(self, job: Job, placement: Placement) -> int:
        """Free a placement; the number of nodes in service that are empty now."""
        emptied = 0
        for node, units in placement.nodes:
            here = self.jobs[node]
            held = self._held[node]
            here[job.id] -= units
            if not here[job.id]:
                del here[job.id]
            if not here:  # no rounding error outlives an empty node
                held[:] = [0.0] * len(held)
                emptied += bool(self._up[node])
            else:
                for r, demand in enumerate(job.demand):
                    held[r] -= units * demand
            self._set_free(node)
        return emptied

    def set_up(self, node: int, up: bool) -> None:
        """Mark a node as up or down; jobs on it stay charged until they are given back."""
        self._up[node] = up
        self._set_free(node)

    def withhold(self, node: int, amounts: Mapping[str, float]) -> bool:
        """Leave so much of each resource out of what a node has for jobs; return whether that is a change.

        What its jobs have beyond that they keep.
        """
        whole = zip(self.pool.resources, self.pool.capacity_of(node), strict=True)
        row = [amount - amounts.get(name, 0.0) for name, amount in whole]
        if node in self.exceeded:
            there, row = row, [*map(max, row, self._held[node])]
            if row == there:
                self.exceeded.remove(node)
        if row == list(self._rows[node]):
            return False
        self._rows[node] = self._capacity[node] = row
        self._set_free(node)
        return True

    def exceed(self, job: Job, placement: Placement) -> None:
        """Let the nodes of a placement have as much as it needs, until its job has left (``withhold``)."""
        for node, units in placement.nodes:
            if node < len(self.jobs) and len(job.demand) == len(self.pool.resources):
                need = [held + units * d for held, d in zip(self._held[node], job.demand, strict=True)]
                self._rows[node] = self._capacity[node] = [*map(max, self._rows[node], need)]
                self.exceeded.add(node)
                self._set_free(node)

    def _set_free(self, node: int) -> None:
        up = self._up[node]
        for r, (capacity, held) in enumerate(zip(self._rows[node], self._held[node], strict=True)):
            self._free[node, r] = capacity - held if up else 0.0

    def neighbours(self, job_id: int, placement: Placement) -> set[int]:
        """Return the other jobs on any node of the placement."""
        return {other for node, _ in placement.nodes for other in self.jobs[node] if other != job_id}


def rooms(free: NDArray[np.float64], demand: tuple[float, ...]) -> NDArray[np.int64]:
    """Count for each node how many units of ``demand`` fit into what is ``free`` there."""
    needed = np.asarray(demand)
    demanded = needed > 0
    if not demanded.any():
        return np.zeros(len(free), dtype=np.int64)
    room: NDArray[np.int64] = (
        np.floor(free[:, demanded] / needed[demanded] + EPSILON).min(axis=1).astype(np.int64)
    )
    return room


def _vector(values: tuple[float, ...]) -> str:
    return "(" + ", ".join(f"{v:g}" for v in values) + ")"


def _read_only(array: NDArray[T]) -> NDArray[T]:
    view: NDArray[T] = array.view()
    view.flags.writeable = False
    return view


POWER_TOLERANCE_W = 1e-6


class RuleBroken(UserError):
    """An impossible action, which is a fault of the policy; no action is altered to make it possible.

    Attributes:
        why: the reason, without the time, the job and the rule.
    """

    why = ""


class Allocation:
    """Free and allocated units of a cluster, by class, node, region and watt. Methods raise ``RuleBroken``.

    The counts do not tell which job has which units; ``ClusterState`` does.
    """

    now: float
    cluster: Cluster

    def __init__(self) -> None:
        self.free = {pool.name: pool.units for pool in self.cluster.pools}
        self.in_service = dict(self.free)
        self.nodes = {pool.name: Nodes(pool) for pool in self.cluster.pools if not pool.counted}
        self.regions: dict[str, tuple[Region, ...]] = {}
        self.region_used: dict[tuple[str, str], int] = {}
        self.power_w = 0.0
        self.budget_w = self.cluster.budget_w
        self._pools = {pool.name: pool for pool in self.cluster.pools}
        # A job of at most so many units fits on some class, unless it names its classes.
        self._surely = max((pool.units for pool in self.cluster.pools if pool.counted), default=0)
        self._plain = {pool.name for pool in self.cluster.pools if pool.counted and not pool.has_power}
        self._has_power = any(pool.has_power for pool in self.cluster.pools)

    def misfit(self, job: Job) -> str:
        """Say why the job can never run on this cluster, as a clause; "" if it can."""
        if job.units <= self._surely and not job.estimates_s:
            return ""
        for way in job.alternatives:
            if not self.misfit(way):
                return ""
        reasons = []
        for pool in self.cluster.pools:
            if not job.runs_on(pool.name):
                continue
            if pool.counted:
                if job.units <= pool.units:
                    return ""
                alone = len(self.cluster.pools) == 1
                has = ("there is" if pool.units == 1 else "there are") if alone else f"{pool.name} has"
                reasons.append(f"it needs {self.cluster.amount(job.units)}, {has} {pool.units}")
            else:
                reason = self.nodes[pool.name].misfit(job)
                if not reason:
                    return ""
                reasons.append(reason)
        return "; ".join(reasons) or "none of its classes of resource is here"

    # -- changes of the machine --------------------------------------------------------------------------

    def repartition(self, pool: str, regions: tuple[Region, ...]) -> None:
        """Divide a pool into regions."""
        if pool not in self._pools:
            self.broken(None, "repartition", f"there is no pool {pool}")
        total = sum(region.units for region in regions)
        if total > self._pools[pool].units:
            self.broken(
                None, "repartition", f"{total} units in regions, {pool} has {self._pools[pool].units}"
            )
        if any(region.units < 1 for region in regions) or len({r.name for r in regions}) != len(regions):
            self.broken(None, "repartition", "each region needs a name of its own and at least one unit")
        self.regions[pool] = regions

    def down(self, pool: str, units: int) -> None:
        """Take free units of a counted pool out of service (jobs on them have failed before)."""
        self.free[pool] -= units
        self.in_service[pool] -= units

    def exceed(self, job: Job, placement: Placement) -> None:
        """Have room for a placement of a time when the cluster was larger.

        It is in service, and nobody else's, until its job has left (``MachineState.update_nodes``).
        """
        pool = self._pools.get(placement.pool)
        if pool is None:
            return
        if not pool.counted:
            self.nodes[pool.name].exceed(job.way(placement), placement)
        elif placement.units > self.free[pool.name]:
            self.up(pool.name, placement.units - self.free[pool.name])

    def _settable(self, job: Job, placement: Placement) -> Placement:
        """Return a placement of an earlier time under a cap of now: the lowest, if its own is too high."""
        pool = self._pools.get(placement.pool)
        if pool is None or placement.cap_w is None or not pool.caps_w or placement.units > pool.units:
            return placement
        obstacle = self._power_obstacle(job, placement)
        return replace(placement, cap_w=pool.caps_w[0]) if obstacle else placement

    def up(self, pool: str, units: int) -> None:
        """Bring units of a counted pool back."""
        self.free[pool] += units
        self.in_service[pool] += units

    def set_node(self, pool: str, node: int, up: bool) -> None:
        """Take a node out of service or bring it back; jobs on it stay charged until they leave."""
        nodes = self.nodes[pool]
        if bool(nodes.up[node]) != up:
            nodes.set_up(node, up)
            change = 1 if up else -1
            self.free[pool] += 0 if nodes.jobs[node] else change
            self.in_service[pool] += change

    # -- rules -----------------------------------------------------------------------------------------

    def broken(self, job_id: int | None, rule: str, why: str) -> NoReturn:
        """Raise ``RuleBroken``: time, job and rule."""
        job = "" if job_id is None else f", job {job_id}"
        error = RuleBroken(f"at {self.now:.6f} s{job}: {rule}: {why}", "this is a fault of the policy")
        error.why = why
        raise error

    def _check_shape(self, rule: str, job: Job, placement: Placement) -> None:
        most = job.units if job.max_units is None else job.max_units
        if placement.units != job.units and not job.units <= placement.units <= most:
            needs = f"{job.units}" if most == job.units else f"{job.units} to {most}"
            self.broken(job.id, rule, f"the job needs {needs} units, not {placement.units}")
        if job.estimates_s and placement.pool not in job.estimates_s:
            self.broken(job.id, rule, f"the job cannot run on {placement.pool}")

    def obstacle(self, job: Job, placement: Placement, drew_w: float = 0.0) -> str:
        """Say why the units of ``placement`` cannot be had now, as a clause; "" if they can.

        ``drew_w`` is what the job has just drawn: drawing no more than that is allowed over any budget.
        """
        name, units = placement.pool, placement.units
        pool = self._pools.get(name)
        if pool is None:
            return f"there is no pool {name}"
        if not pool.counted:
            why = self.nodes[name].refusal(job.way(placement), placement)
            if why:
                return why
        elif units > self.free[name]:
            return f"{units} units of {name} needed, {self.free[name]} free"
        if placement.region:
            why = self._region_obstacle(placement)
            if why:
                return why
        return self._power_obstacle(job, placement, drew_w) if self._has_power else ""

    def _take(self, rule: str, job: Job, placement: Placement, drew_w: float = 0.0) -> None:
        """Charge the units, or refuse."""
        name, units = placement.pool, placement.units
        if name in self._plain and not placement.region and units <= self.free[name]:
            self.free[name] -= units  # the usual case, without regions and power
            return
        why = self.obstacle(job, placement, drew_w)
        if why:
            self.broken(job.id, rule, why)
        pool = self._pools[name]
        if self._has_power:
            self._add_power(job, placement, 1)
        if placement.region:
            key = (name, placement.region)
            self.region_used[key] = self.region_used.get(key, 0) + units
        self.free[name] -= units if pool.counted else self.nodes[name].take(job.way(placement), placement)

    def _take_again(self, job: Job, placement: Placement, drew_w: float = 0.0) -> None:
        """Charge a job's units after a restart, even if its region no longer exists."""
        name, region = placement.pool, placement.region
        if not region or any(other.name == region for other in self.regions.get(name, ())):
            self._take("restore", job, placement, drew_w)
            return
        self._take("restore", job, replace(placement, region=""), drew_w)
        self.region_used[name, region] = self.region_used.get((name, region), 0) + placement.units

    def _give(self, job: Job, placement: Placement) -> None:
        """Free what a placement holds."""
        name = placement.pool
        if name in self._plain and not placement.region:
            self.free[name] += placement.units
            return
        self.free[name] += (
            placement.units
            if self._pools[name].counted
            else self.nodes[name].give(job.way(placement), placement)
        )
        if placement.region:
            self.region_used[name, placement.region] -= placement.units
        if self._has_power:
            self._add_power(job, placement, -1)

    def _region_obstacle(self, placement: Placement) -> str:
        for region in self.regions.get(placement.pool, ()):
            if region.name == placement.region:
                used = self.region_used.get((placement.pool, region.name), 0)
                if used + placement.units <= region.units:
                    return ""
                has = f"region {region.name} has {region.units}, {used} are used"
                return f"{placement.units} units needed, {has}"
        return f"{placement.pool} has no region {placement.region}"

    def _power_obstacle(self, job: Job, placement: Placement, drew_w: float = 0.0) -> str:
        pool, cap = self._pools[placement.pool], placement.cap_w
        if cap is not None and not (pool.caps_w and pool.caps_w[0] <= cap <= pool.caps_w[-1]):
            allowed = f"caps of {pool.caps_w[0]:g} to {pool.caps_w[-1]:g} W" if pool.caps_w else "no caps"
            return f"a cap of {cap:g} W; {pool.name} can be set to {allowed}"
        more = pool.power_of(job, placement)
        if self.budget_w is None or more <= drew_w + POWER_TOLERANCE_W:
            return ""
        if self.power_w + more > self.budget_w + POWER_TOLERANCE_W:
            drawn = f"{self.power_w:g} W are drawn, {more:g} W more would exceed"
            return f"{drawn} the budget of {self.budget_w:g} W"
        return ""

    def _add_power(self, job: Job, placement: Placement, sign: int) -> None:
        self.power_w += sign * self._pools[placement.pool].power_of(job, placement)


def estimate_under(job: Job, placement: Placement) -> float:
    """Return the believed run time of the whole job under a placement."""
    return job.way(placement).estimate_on(placement.pool, placement.units, placement.cap_w)


@dataclass
class ClusterState(Allocation):
    """The state of one cluster, which is the ``View`` of a policy.

    The policy shares the mappings, and only reads them. Methods raise ``RuleBroken``.

    Attributes:
        ranked: a job had a priority.
    """

    cluster: Cluster
    costs: Costs = FREE
    profiles: Mapping[str, Profile] = field(default_factory=lambda: MappingProxyType({}))
    slowdowns: Slowdowns = NOTHING_KNOWN
    now: float = 0.0
    upcoming: type[Event] | None = None
    overtaken: bool = field(default=False, init=False)  # ``arrange`` is due before the next decision

    def __post_init__(self) -> None:
        super().__init__()
        # Ordered, because the first item of a plain dictionary gets slow as its front is deleted.
        self.waiting: OrderedDict[int, Job] = OrderedDict()
        self.running: dict[int, JobState] = {}
        self.suspended: dict[int, JobState] = {}
        self._jobs: dict[int, JobState] = {}
        self.ranked = False

    def state(self, job_id: int) -> JobState:
        return self._jobs[job_id]

    # -- transitions of jobs -----------------------------------------------------------------------------

    def submit(self, job: Job) -> JobState:
        """Let a new job wait."""
        if job.id in self._jobs:
            self.broken(job.id, "submit", "a job of this number is already in the system")
        if job.priority or self.ranked:
            self._rank(job)
        self.waiting[job.id] = job
        state = self._jobs[job.id] = JobState(job=job, since_s=self.now)
        return state

    def start(self, job_id: int, placement: Placement) -> JobState:
        """Start a waiting job; work that a checkpoint kept of it needs a restart."""
        job = self.waiting.get(job_id)
        if job is None:
            self._not("start", job_id, "waiting")
        state = self._jobs[job_id]
        job = job.way(placement)
        if placement.alternative != job.alternative:  # the policy knows of none
            placement = replace(placement, alternative=job.alternative)
        if placement.units != job.units or (job.estimates_s and placement.pool not in job.estimates_s):
            self._check_shape("start", job, placement)
        self._take("start", job, placement)
        del self.waiting[job_id]
        state.promised_s = None
        if state.start_s is None:
            state.start_s = self.now
        self._run(state, placement, state.served_s > 0.0)
        return state

    def promise(self, job_id: int, start_s: float) -> JobState:
        """Note when a waiting job is to start."""
        if job_id not in self.waiting:
            self._not("promise", job_id, "waiting")
        state = self._jobs[job_id]
        state.promised_s = start_s
        return state

    def resume(self, job_id: int, placement: Placement) -> JobState:
        """Resume a suspended job."""
        state = self.suspended.get(job_id)
        if state is None:
            self._not("resume", job_id, "suspended")
        placement, moves = self._where_it_goes_on("resume", state, placement)
        self._take("resume", state.job, placement)
        del self.suspended[job_id]
        state.migrations += moves
        self._run(state, placement, True)
        return state

    def check_stop(self, rule: str, job_id: int, least: Stop = PAUSE) -> JobState:
        """Return the running job if it may be stopped, else refuse."""
        state = self.running.get(job_id)
        if state is None:
            self._not(rule, job_id, "running")
        if state.stage is STOPPING:
            self.broken(job_id, rule, "it is already being stopped")
        if state.job.stop is NEVER or (least is CHECKPOINT and state.job.stop is PAUSE):
            self.broken(
                job_id,
                rule,
                "this job can only be paused" if state.job.stop is PAUSE else "this job cannot be stopped",
            )
        return state

    def begin_stop(self, state: JobState, *, works_on: bool = False) -> None:
        """Mark the running job as stopping: it holds its units, and makes no progress unless it works on."""
        self._settle(state)
        state.stage = STOPPING
        state.since_s = self.now
        state.expected_end_s = math.inf
        if not works_on:
            state.works_from_s = math.inf

    def reserve(self, state: JobState, placement: Placement) -> None:
        """Give a job the place to which it moves, beside its own, until it goes on or leaves."""
        placement, _ = self._where_it_goes_on("migrate", state, placement)
        self._take("migrate", state.job, placement)
        state.moves_to = placement

    def give_up_move(self, state: JobState) -> None:
        """Free the place to which a job moves, if there is one."""
        if state.moves_to is not None:
            self._give(state.job, state.moves_to)
            state.moves_to = None

    def go_on(self, state: JobState) -> None:
        """Let a stopping job run on where it is."""
        self._settle(state)
        self.give_up_move(state)
        state.stage = RUNNING
        state.since_s = self.now
        self.expect(state, self.now)

    def end_stop(self, state: JobState) -> None:
        """Suspend the job and free its units."""
        self._settle(state)
        self._leave(state)
        state.stage = SUSPENDED
        state.since_s = self.now
        state.expected_end_s = math.inf
        state.preemptions += 1
        self.suspended[state.job.id] = state

    def finish(self, state: JobState) -> None:
        """Remove a job that has ended."""
        if state.works and self.now > state.works_from_s:
            state.served_s += self.now - state.works_from_s
        self._leave(state)
        del self._jobs[state.job.id]

    def withdraw(self, job_id: int) -> None:
        """Remove a job that waits or is suspended."""
        self._jobs.pop(job_id).promised_s = None
        if self.waiting.pop(job_id, None) is None:
            del self.suspended[job_id]

    def reconsider(self, job: Job) -> None:
        """Replace what is known of a job that waits or runs; the policy must ``begin`` again."""
        state = self._jobs[job.id]
        state.job = job
        if state.stage is WAITING:
            self.waiting[job.id] = job
        elif state.stage is RUNNING:
            self.expect(state, state.works_from_s)

    def restore(self, state: JobState, *, beyond: bool = False) -> None:
        """Enter a job after a restart as it was; a running job is charged its units.

        Args:
            beyond: also where it has more than there is any more, or draws more than the budget.
        """
        job, stage = state.job, state.stage
        self._jobs[job.id] = state
        if stage is WAITING:
            state.expected_end_s = math.inf
            self._rank(job)
            self.waiting[job.id] = job
        elif stage is SUSPENDED:
            self.suspended[job.id] = state
        else:
            if beyond:
                state.placement = self._settable(job, state.place)
                self.exceed(job, state.placement)
            self._take_again(job, state.place, math.inf if beyond else 0.0)
            if state.moves_to is not None:
                self._take_again(job, state.moves_to)
            self.running[job.id] = state
            if stage is RUNNING:
                self.expect(state, state.works_from_s)

    def take_turn(self, job_id: int) -> None:
        """Put a waiting job before those of its priority that were submitted later."""
        job, others = self.waiting[job_id], reversed(self.waiting.values())
        next(others)
        last = next(others, job)
        if last.priority != job.priority or last.id < job_id:
            return
        for other in [other for other in self.waiting.values() if other.priority == job.priority]:
            if other.id > job_id:
                self.waiting.move_to_end(other.id)
        self.overtaken = True

    def fail(self, state: JobState, kept: float, kept_service_s: float) -> None:
        """Let a lost job wait ahead of its priority, with the share of its work that was kept."""
        if state.stage is SUSPENDED:
            del self.suspended[state.job.id]
        else:
            self._leave(state)
        state.stage = WAITING
        state.since_s = self.now
        state.expected_end_s = math.inf
        state.done, state.served_s = kept, kept_service_s
        state.failures += 1
        first = next(iter(self.waiting.values()), None)
        self.waiting[state.job.id] = state.job
        self.waiting.move_to_end(state.job.id, last=False)
        if first is not None and first.priority > state.job.priority:
            self.overtaken = True

    def arrange(self) -> None:
        """Sort the waiting jobs by priority, equal ones as they stand.

        The policy must ``begin`` anew, because all that it derived from the old order is void.
        """
        for job in sorted(self.waiting.values(), key=lambda job: -job.priority):
            self.waiting.move_to_end(job.id)
        self.overtaken = False

    def prioritize(self, jobs: Iterable[Job]) -> None:
        """Put waiting jobs whose priority has changed among the others; the policy must ``begin`` anew.

        Among equals a job stands by its number, a lost job before all others, as if submitted so.
        """
        new = {job.id: job for job in jobs}

        def turn(job: Job) -> tuple[int, bool, int]:
            return -job.priority, not self._jobs[job.id].failures, job.id

        others = (job for job in self.waiting.values() if job.id not in new)
        in_order = [
            *merge(sorted(others, key=lambda job: -job.priority), sorted(new.values(), key=turn), key=turn)
        ]
        for job in in_order:
            self._jobs[job.id].job = self.waiting[job.id] = job
            if job.id in new:
                self._jobs[job.id].promised_s = None
            self.waiting.move_to_end(job.id)
        self.ranked = True

    def _rank(self, job: Job) -> None:
        """Set ``overtaken`` if the job that is about to wait belongs before others."""
        if job.priority or self.ranked:
            self.ranked = True
            last = next(reversed(self.waiting.values()), None)
            if last is not None and last.priority < job.priority:
                self.overtaken = True

    # -- changes of running jobs ----------------------------------------------------------------------

    def resize(self, state: JobState, placement: Placement) -> None:
        """Give a running malleable job other units."""
        job, before, job_id = state.job, state.place, state.job.id
        if not job.malleable and placement.units != before.units:
            self.broken(job_id, "resize", "the job is not malleable")
        if placement.pool != before.pool:
            self.broken(
                job_id, "resize", f"it runs on {before.pool}: moving to {placement.pool} is a migration"
            )
        self._check_shape("resize", job, placement)
        self._settle(state)
        self._give(job, before)
        self._take("resize", job, placement, self._pools[before.pool].power_of(job, before))
        self._run(state, placement, False)

    def set_cap(self, state: JobState, cap_w: float | None) -> None:
        """Give a running job's units another power cap."""
        before, job = state.place, state.job
        after = replace(before, cap_w=cap_w)
        self._settle(state)
        self._add_power(job, before, -1)
        why = self._power_obstacle(job, after, self._pools[before.pool].power_of(job, before))
        if why:
            self.broken(job.id, "set power cap", why)
        self._add_power(job, after, 1)
        self._run(state, after, False)

    def check_running(self, rule: str, job_id: int) -> JobState:
        """Return the job if it runs and is not being stopped, else refuse."""
        state = self.running.get(job_id)
        if state is None or state.stage is not RUNNING:
            self._not(rule, job_id, "running")
        return state

    def expect(self, state: JobState, works_from_s: float) -> None:
        """Let the job make progress from ``works_from_s``; its believed end follows from its estimate."""
        placement = state.place
        state.works_from_s = works_from_s
        whole = state.whole_s = estimate_under(state.job, placement)
        state.expected_end_s = instant(works_from_s + (1.0 - state.done) * whole)

    def _where_it_goes_on(self, rule: str, state: JobState, placement: Placement) -> tuple[Placement, bool]:
        """Return the place as the job can go on there, and if that is another than it has; or refuse."""
        before, job_id = state.place, state.job.id
        job = state.job.way(before)
        if placement.alternative != job.alternative:  # it goes on as it began
            placement = replace(placement, alternative=job.alternative)
        if placement.units != job.units or (job.estimates_s and placement.pool not in job.estimates_s):
            self._check_shape(rule, job, placement)
        moves = placement.pool != before.pool or placement.nodes != before.nodes
        if moves and job.stop is PAUSE:
            self.broken(job_id, rule, "it can only be paused, so it must go on where it was")
        if placement.units != before.units and not job.malleable and job.stop is not CHECKPOINT:
            self.broken(job_id, rule, f"it ran on {before.units} units, and has no checkpoint")
        return placement, moves

    def _not(self, rule: str, job_id: int, stage: str) -> NoReturn:
        state = self._jobs.get(job_id)
        is_ = f"the job is {state.stage}" if state else "there is no such job in the system"
        self.broken(job_id, rule, f"{is_}, not {stage}")

    def _run(self, state: JobState, placement: Placement, restart: bool) -> None:
        state.placement = placement
        state.stage = RUNNING
        now = state.since_s = self.now
        self.running[state.job.id] = state
        self.expect(state, now + self.costs.restart_s(state.job, placement.pool) if restart else now)

    def _settle(self, state: JobState) -> None:
        """Add what the current run has done so far."""
        if state.works and self.now > state.works_from_s:
            state.done = state.done_by(self.now)
            state.served_s += self.now - state.works_from_s
            state.works_from_s = self.now

    def _leave(self, state: JobState) -> None:
        del self.running[state.job.id]
        self._give(state.job, state.place)
        self.give_up_move(state)
        if self._has_power and not self.running:
            self.power_w = 0.0  # no rounding error outlives an idle machine
