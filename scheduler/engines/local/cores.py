"""The cores and devices of this machine, and the jobs that have them."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from scheduler.engines.common.region_placement_store import StoredRegionPlacement
from scheduler.engines.local.supply import whole_cores_first
from scheduler.jobs.entry import Entry
from scheduler.jobs.sizes import Unit
from scheduler.model.jobs import Cluster, Placement, Region


class Cores:
    """The cores node by node, and the devices of each pool of devices; free ones, and jobs' own.

    Args:
        store: folder of the coordinator.
        whole: jobs get whole nodes (each is a package of a processor).
        core_of: the physical core of each CPU, where some have two hardware threads; else {}.

    Attributes:
        node_of: each core's node.
    """

    def __init__(
        self,
        store: Path,
        cluster: Cluster,
        cores: Sequence[Sequence[int]],
        devices: Mapping[str, Sequence[int]],
        *,
        unit: Unit,
        whole: bool,
        core_of: Mapping[int, int] = {},
    ) -> None:
        self.unit, self.whole, self._core_of = unit, whole, core_of
        self._all_cores = [list(node) for node in cores]
        self._free_cores = [list(node) for node in cores]
        self._rank = {core: rank for node in cores for rank, core in enumerate(node)}
        self._free_devices = {pool: sorted(numbers) for pool, numbers in devices.items()}
        self._pool_of = {n: pool for pool, numbers in self._free_devices.items() for n in numbers}
        self.node_of = {core: number for number, node in enumerate(cores) for core in node}
        self._fences: StoredRegionPlacement | None = (
            None  # where cores are counted, and may be cut into regions
        )
        self._number_of: dict[int, int] = {}  # there
        if len(cores) == 1 and cluster.pools[0].counted and not devices and not whole:
            self._fences = StoredRegionPlacement(store, [1] * len(cores[0]))
            self._number_of = {core: number for number, core in enumerate(self._all_cores[0])}

    def place(self, job: Entry, placement: Placement) -> None:
        """Give the job what a placement says; it is its own until ``free``."""
        if placement.pool in self._free_devices:
            free = self._free_devices[placement.pool]
            job.devices, free[:] = tuple(free[: placement.units]), free[placement.units :]
        elif self.whole:
            nodes = [n for n, cores in enumerate(self._all_cores) if self._free_cores[n] == cores]
            job.cores = tuple(core for n in nodes[: placement.units] for core in self._all_cores[n])
            for node in nodes[: placement.units]:
                self._free_cores[node].clear()
        elif self._fences is not None:
            job.cores = self._in_region(self._fences, placement)
            self._hold(job, placement)
        else:
            each = self.unit.cores if job.spec.nodes else job.spec.cores
            parts = [(node, units * each) for node, units in placement.nodes] or [(0, placement.units)]
            job.cores = tuple(core for node, n in parts for core in self._take(node, n))

    def _in_region(self, fences: StoredRegionPlacement, placement: Placement) -> tuple[int, ...]:
        own = [self._all_cores[0][number] for number in fences.place(placement.region, placement.units)]
        for core in own:
            self._free_cores[0].remove(core)
        return (*own, *self._take(0, placement.units - len(own)))

    def occupy(self, job: Entry) -> None:
        """After a restart: they are its own again."""
        for number, free in self._of(job):
            if number in free:
                free.remove(number)
        if job.placement is not None:
            self._hold(job, job.placement)

    def free(self, job: Entry) -> None:
        for number, free in self._of(job):
            insort(free, number, key=self._rank.__getitem__ if number in self.node_of else None)
        if self._fences is not None:
            self._fences.release(job.id)

    def cut(self, pool: str, regions: Sequence[Region]) -> None:
        if self._fences is not None:
            self._fences.cut(regions)

    def places(self) -> dict[str, dict[str, int]]:
        """Of each core, by its number, to which region it belongs."""
        fences = self._fences
        if fences is None or not fences.regions:
            return {}
        return {str(core): fences.of(number) for core, number in self._number_of.items()}

    def _hold(self, job: Entry, placement: Placement) -> None:
        if self._fences is not None:
            where = {self._number_of[core]: 1 for core in job.cores if core in self._number_of}
            self._fences.hold(job.id, placement.region, where)

    def _take(self, node: int, count: int) -> tuple[int, ...]:
        """Take free cores of a node, whole ones first."""
        free, best = self._free_cores[node], self._free_cores[node]
        if self._core_of:
            busy = [core for core in self._all_cores[node] if core not in free]
            best = whole_cores_first(free, self._core_of, busy)
        taken = sorted(best[:count], key=self._rank.__getitem__)
        for core in taken:
            free.remove(core)
        return tuple(taken)

    def _of(self, job: Entry) -> Iterator[tuple[int, list[int]]]:
        """Each core and device of a job, and the free ones among which it belongs."""
        for core in job.cores:
            if core in self.node_of:
                yield core, self._free_cores[self.node_of[core]]
        for device in job.devices:
            if device in self._pool_of:
                yield device, self._free_devices[self._pool_of[device]]
