"""Free resources on each node of a pool whose nodes have identity."""

from __future__ import annotations

from collections.abc import Sequence
from operator import le
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from scheduler.model.jobs import EPSILON, Job, Placement, Pool

T = TypeVar("T", bound=np.generic)


class Nodes:
    """The nodes of one pool, read by policies and changed by ``ClusterState``.

    Attributes:
        capacity, free: nodes x resources (read-only arrays); a node that is down has nothing free.
        up: whether each node is in service.
        jobs: for each node the jobs on it and how many of their units, in the order of their starts.
    """

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        rows = pool.capacities or [pool.capacity] * pool.units
        self._capacity = np.array(rows, dtype=np.float64).reshape(pool.units, len(pool.resources))
        self._free = self._capacity.copy()
        # Python's numbers, because sums over one node are several times as fast with them.
        self._rows: Sequence[Sequence[float]] = rows
        self._held = [[0.0] * len(pool.resources) for _ in rows]
        self._up = np.ones(pool.units, dtype=np.bool_)
        self.capacity, self.free, self.up = (_read_only(a) for a in (self._capacity, self._free, self._up))
        self.jobs: list[dict[int, int]] = [{} for _ in range(pool.units)]

    def fits(self, demand: tuple[float, ...], units: int = 1) -> NDArray[np.bool_]:
        """Tell for each node if ``units`` units of ``demand`` fit on it now."""
        mask: NDArray[np.bool_] = (self._free >= np.multiply(demand, units) - EPSILON).all(axis=1) & self._up
        return mask

    def room(self, demand: tuple[float, ...]) -> NDArray[np.int64]:
        """Count for each node how many units of ``demand`` fit on it now."""
        return rooms(self._free, demand) * self._up

    def misfit(self, job: Job) -> str:
        """Say why the job fits on no set of empty nodes, as a clause; "" if it does."""
        if job.units == 1 and job.demand and self._holds_one(job.demand):
            return ""
        name, resources = self.pool.name, self.pool.resources
        if len(job.demand) != len(resources):
            return f"it states {len(job.demand)} demands, {name} has the resources {', '.join(resources)}"
        if any(d < 0 for d in job.demand) or not any(d > 0 for d in job.demand):
            return f"it demands nothing of {name}"
        room = int(rooms(self._capacity, job.demand).sum())
        if room >= job.units:
            return ""
        return f"it needs {job.units} times {_vector(job.demand)}, {name} has room for {room}"

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
            if any(units * d > f + EPSILON for d, f in zip(job.demand, free, strict=True)):
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
            here[job.id] = units
        return emptied

    def give(self, job: Job, placement: Placement) -> int:
        """Free a placement; the number of nodes in service that are empty now."""
        emptied = 0
        for node, units in placement.nodes:
            here = self.jobs[node]
            held = self._held[node]
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
    wanted = needed > 0
    if not wanted.any():
        return np.zeros(len(free), dtype=np.int64)
    room: NDArray[np.int64] = (
        np.floor(free[:, wanted] / needed[wanted] + EPSILON).min(axis=1).astype(np.int64)
    )
    return room


def _vector(values: tuple[float, ...]) -> str:
    return "(" + ", ".join(f"{v:g}" for v in values) + ")"


def _read_only(array: NDArray[T]) -> NDArray[T]:
    view: NDArray[T] = array.view()
    view.flags.writeable = False
    return view
