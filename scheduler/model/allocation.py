"""Free and allocated units of a cluster, by class, node, region and watt, with the reasons for refusals.

The counts do not tell which job has which units; ``state.ClusterState`` does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NoReturn

from profiles.errors import UserError
from scheduler.model.jobs import Cluster, Job, Placement, Region
from scheduler.model.nodes import Nodes

POWER_TOLERANCE_W = 1e-6


class RuleBroken(UserError):
    """An impossible action, which is a fault of the policy; no action is altered to make it possible.

    Attributes:
        why: the reason, without the time, the job and the rule.
    """

    why = ""


class Allocation:
    """Free and allocated units of a cluster. Methods raise ``RuleBroken``."""

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
        reasons = []
        for pool in self.cluster.pools:
            if not job.runs_on(pool.name):
                continue
            if pool.counted:
                if job.units <= pool.units:
                    return ""
                reasons.append(f"it needs {job.units} units, {pool.name} has {pool.units}")
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
            why = self.nodes[name].refusal(job, placement)
            if why:
                return why
        elif units > self.free[name]:
            return f"{units} units of {name} needed, {self.free[name]} free"
        if placement.region:
            why = self._region_obstacle(placement)
            if why:
                return why
        return self._power_obstacle(placement, drew_w) if self._has_power else ""

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
            self._add_power(placement, 1)
        if placement.region:
            key = (name, placement.region)
            self.region_used[key] = self.region_used.get(key, 0) + units
        self.free[name] -= units if pool.counted else self.nodes[name].take(job, placement)

    def _take_again(self, job: Job, placement: Placement) -> None:
        """Charge a job's units after a restart, even if its region no longer exists."""
        name, region = placement.pool, placement.region
        if not region or any(one.name == region for one in self.regions.get(name, ())):
            self._take("restore", job, placement)
            return
        self._take("restore", job, replace(placement, region=""))
        self.region_used[name, region] = self.region_used.get((name, region), 0) + placement.units

    def _give(self, job: Job, placement: Placement) -> None:
        """Free what a placement holds."""
        name = placement.pool
        if name in self._plain and not placement.region:
            self.free[name] += placement.units
            return
        self.free[name] += (
            placement.units if self._pools[name].counted else self.nodes[name].give(job, placement)
        )
        if placement.region:
            self.region_used[name, placement.region] -= placement.units
        if self._has_power:
            self._add_power(placement, -1)

    def _region_obstacle(self, placement: Placement) -> str:
        for region in self.regions.get(placement.pool, ()):
            if region.name == placement.region:
                used = self.region_used.get((placement.pool, region.name), 0)
                if used + placement.units <= region.units:
                    return ""
                has = f"region {region.name} has {region.units}, {used} are used"
                return f"{placement.units} units needed, {has}"
        return f"{placement.pool} has no region {placement.region}"

    def _power_obstacle(self, placement: Placement, drew_w: float = 0.0) -> str:
        pool, cap = self._pools[placement.pool], placement.cap_w
        if cap is not None and not (pool.caps_w and pool.caps_w[0] <= cap <= pool.caps_w[-1]):
            allowed = f"caps of {pool.caps_w[0]:g} to {pool.caps_w[-1]:g} W" if pool.caps_w else "no caps"
            return f"a cap of {cap:g} W; {pool.name} can be set to {allowed}"
        more = pool.power_w(placement.units, cap)
        if self.budget_w is None or more <= drew_w + POWER_TOLERANCE_W:
            return ""
        if self.power_w + more > self.budget_w + POWER_TOLERANCE_W:
            drawn = f"{self.power_w:g} W are drawn, {more:g} W more would exceed"
            return f"{drawn} the budget of {self.budget_w:g} W"
        return ""

    def _add_power(self, placement: Placement, sign: int) -> None:
        self.power_w += sign * self._pools[placement.pool].power_w(placement.units, placement.cap_w)
