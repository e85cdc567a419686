"""The CPUs, devices and packages of this machine: which a coordinator may have, and which job has them."""

from __future__ import annotations

import logging
import os
import time
from bisect import insort
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path

from agent.attempts.folder import Attempt
from agent.inventory import Roots, read_limits
from agent.journal import restore_leftovers
from agent.power.caps import requested_cap, set_package_caps
from agent.processes.claims import Claims, holder, running_jobs
from probes.topology import cpu_ranges, read_topology
from profiles.errors import BadInput
from profiles.files.safe_files import state_dir
from profiles.quantities import counted
from scheduler.engines.common.region_placement import StoredRegionPlacement
from scheduler.engines.protocol import Regions, Taken
from scheduler.jobs.entry import Entry
from scheduler.model.jobs import Cluster, Placement, Region

# -- the CPUs and devices that a coordinator may have ------------------------------------------------------
#
# Of those that this process may use, not those of other coordinators, and no more CPUs than a quota is
# worth. Whole cores come first: a job has the second hardware thread of a core only when no whole core is
# left.


CORE, DEVICE = "core {}", "device {}"  # names of claims
ROOTS = Roots(Path("/sys"), Path("/proc"), Path("/"))
FEWER = "ask for fewer"
SHARE = "stop that one, start it with fewer, or share them: --share"


def whole_cores_first(free: Iterable[int], core_of: Mapping[int, int], busy: Iterable[int] = ()) -> list[int]:
    """Sort CPUs by how many hardware threads of their core are in use before them; else as they come."""
    threads = Counter(core_of[cpu] for cpu in busy)
    before = {}
    for cpu in free:
        before[cpu] = threads[core_of[cpu]]
        threads[core_of[cpu]] += 1
    return sorted(before, key=before.__getitem__)


@dataclass(frozen=True)
class UsableCpus:
    """The CPUs that this process may use.

    Attributes:
        core_of: of each the first CPU of its core; neighbours in memory and cache stand together.
        quota: how many cores' worth of time a control group allows; None: all.
        taken: those of others, and whose each is.
        own: those on which jobs of this coordinator run already.
    """

    core_of: Mapping[int, int]
    quota: float | None = None
    taken: Mapping[int, str] = field(default_factory=dict)
    own: Collection[int] = ()

    def choose(self, count: int | None, *, whole: bool = False) -> list[int]:
        """Choose so many CPUs, None: all that are left; those of own jobs first, then whole cores.

        Args:
            whole: one CPU of each core, of cores that nobody else uses.

        Raises:
            BadInput: there are not so many.
        """
        usable, taken = list(self.core_of), list(self.taken)
        if whole:
            first: dict[int, int] = {}
            for cpu, core in self.core_of.items():
                first.setdefault(core, cpu)
            usable = list(first.values())
            taken = [first[core] for core in {self.core_of[cpu] for cpu in taken}]
        most = len(usable) if self.quota is None else max(1, min(len(usable), int(self.quota)))
        free = [cpu for cpu in usable if cpu not in taken]
        left = min(len(free), most)  # the quota may not be of those who have the others
        if count is None and left < 1:
            raise Taken(f"no core is left for jobs: {self.holders()}", SHARE)
        if count is not None and count > len(usable):
            kind = " whole cores" if whole else ""
            raise BadInput(f"--cores {count}: this process may use {len(usable)}{kind}", FEWER)
        if count is not None and count > most:
            raise BadInput(f"--cores {count}: the CPU quota is worth {self.quota:g}", FEWER)
        if count is not None and count > left:
            raise Taken(f"--cores {count}: {max(left, 0)} are left; {self.holders()}", SHARE)
        own = [cpu for cpu in free if cpu in self.own]
        others = whole_cores_first(
            (cpu for cpu in free if cpu not in self.own), self.core_of, [*self.taken, *own]
        )
        chosen = {*[*own, *others][: left if count is None else count]}
        return [cpu for cpu in usable if cpu in chosen]

    def threads_of(self, chosen: Collection[int]) -> dict[int, int]:
        """Return the core of each of these CPUs; {} if each has a core of its own."""
        core_of = {cpu: self.core_of[cpu] for cpu in chosen if cpu in self.core_of}
        return core_of if len(set(core_of.values())) < len(core_of) else {}

    def holders(self) -> str:
        """Say whose the CPUs of others are."""
        parts = []
        for who in dict.fromkeys(self.taken.values()):
            cpus = [cpu for cpu, whose in self.taken.items() if whose == who]
            parts.append(f"core{'s' * (len(cpus) > 1)} {cpu_ranges(cpus)} of {who}")
        return "; ".join(parts)

    def notes(self, chosen: Collection[int]) -> list[str]:
        """Say what is to be known of the CPUs that were chosen."""
        notes = []
        if self.quota is not None:
            slower = ", at that speed" if self.quota < 1 else ""
            cores = f"{self.quota:g} core{'s' * (self.quota != 1)}"
            notes.append(f"a CPU quota is worth {cores}: jobs get {len(chosen)}{slower}")
        if core_of := self.threads_of(chosen):
            cores = counted(len(set(core_of.values())), "core")
            what = f"{len(chosen)} hardware threads of {cores} count as cores"
            notes.append(f"{what}; jobs get whole cores as long as there are any")
        return notes


def usable_cpus(
    roots: Roots,
    allowed: Set[int],
    home: Path | None = None,
    whose: Callable[[str], str] = holder,
) -> UsableCpus:
    """Find the CPUs that this process may use, and those of others.

    Args:
        allowed: by this process's affinity.
        home: folder of the coordinator; None: others are not looked for.
        whose: says who has claimed what has a name.
    """
    core_of = {cpu.index: cpu.core for cpu in read_topology(roots.sysfs, allowed).cpus}
    quota = read_limits(roots, len(core_of), 0.0).quota_cores
    if home is None:
        return UsableCpus(core_of, quota)
    taken = {cpu: who for cpu in core_of if (who := whose(CORE.format(cpu)))}
    own: set[int] = set()
    for job in running_jobs(roots.procfs):
        cpus = core_of.keys() & set(job.cores)
        if job.is_of(home):
            own |= cpus
        else:
            taken |= dict.fromkeys(cpus - taken.keys(), f"another coordinator's job, process {job.pid}")
    return UsableCpus(core_of, quota, {cpu: taken[cpu] for cpu in core_of if cpu in taken}, own)


class Supply:
    """The CPUs and devices of this process, of which a coordinator claims those for its jobs.

    Args:
        home: folder of the coordinator; None: nothing is claimed, and nobody else's are minded.
        share: those of others may be taken as well.

    Attributes:
        cpus: those that were taken.
    """

    def __init__(self, home: Path | None = None, *, share: bool = False, roots: Roots = ROOTS) -> None:
        self.home, self.share, self.claims, self._roots = home, share, Claims(), roots
        self.usable = usable_cpus(roots, os.sched_getaffinity(0), None if share else home)
        self.cpus: list[int] = []
        self._left_out: list[str] = []  # devices, and whose they are

    def __enter__(self) -> Supply:
        return self

    def __exit__(self, *_: object) -> None:
        self.claims.close()

    def take(self, count: int | None = None, *, whole: bool = False) -> list[int]:
        """Choose CPUs as ``UsableCpus.choose`` does, and claim them."""
        while True:
            chosen = self.usable.choose(count, whole=whole)
            if self._claim(chosen):
                return chosen

    def take_packages(self, packages: Sequence[Sequence[int]], count: int | None) -> list[Sequence[int]]:
        """Choose so many of the packages, None: all, of which nobody else has a CPU, and claim their CPUs.

        Those of own jobs come first.

        Raises:
            BadInput: there are not so many.
        """
        while True:
            free = [cpus for cpus in packages if not self.usable.taken.keys() & set(cpus)]
            if len(free) < (count or 1) and len(free) < len(packages):
                raise Taken(f"{len(free)} packages are left: {self.usable.holders()}", SHARE)
            own = [cpus for cpus in free if {*cpus} & {*self.usable.own}]
            chosen = [*own, *(cpus for cpus in free if cpus not in own)][:count]
            if self._claim([cpu for cpus in chosen for cpu in cpus]):
                return chosen

    def take_devices(self, keys: Sequence[str], *, by_uuid: bool = False) -> list[int]:
        """Claim devices; return the places of those that nobody else has.

        Args:
            by_uuid: they are GPUs by their UUIDs, else OpenCL devices.

        Raises:
            BadInput: others have all of them.
        """
        if self.home is None:
            return list(range(len(keys)))
        jobs = [job for job in running_jobs(self._roots.procfs) if not job.is_of(self.home)]
        whose = {
            device: f"another coordinator's job, process {job.pid}"
            for job in jobs
            for device in (job.gpus if by_uuid else job.devices)
        }
        mine = []
        for number, key in enumerate(keys):
            who = whose.get(key if by_uuid else number, "")
            if not who and not self.claims.take(name := DEVICE.format(key)):
                who = holder(name) or "another coordinator"
            if not who or self.share:
                mine.append(number)
            else:
                self._left_out.append(f"{key} of {who}")
        if not mine:
            raise Taken(f"no device is left for jobs: {'; '.join(self._left_out)}", SHARE)
        return mine

    def notes(self) -> list[str]:
        """Say what is to be known of what was taken."""
        others = self.left_to_others()
        return [*([others] if others else []), *(self.usable.notes(self.cpus) if self.cpus else [])]

    def left_to_others(self) -> str:
        """Say what is left to others, and how to have it too; "": nothing."""
        whose = [*self._left_out, *([self.usable.holders()] if self.cpus and self.usable.taken else [])]
        return f"left to others: {'; '.join(whose)}; to use them too: tenbin up --share" if whose else ""

    def _claim(self, cpus: list[int]) -> bool:
        """Claim CPUs; False if somebody has claimed one of them since they were looked at."""
        names = {cpu: CORE.format(cpu) for cpu in cpus if self.home is not None}
        lost = {
            cpu: holder(name) or "another coordinator"
            for cpu, name in names.items()
            if not self.claims.take(name)
        }
        if lost and not self.share:
            self.usable = replace(self.usable, taken={**self.usable.taken, **lost})
            return False
        self.claims.keep(names.values())
        self.cpus = cpus
        return True


class Cores(Regions):
    """The cores node by node, and the devices of each pool of devices; free ones, and jobs' own.

    Args:
        store: folder of the coordinator.
        whole: jobs get whole nodes (each is a package of a processor).
        core_of: the physical core of each CPU, where some have two hardware threads; else {}.

    Attributes:
        choose_gpus: chooses a number of GPUs for a job on some cores, of the free ``devices`` of a resource
            of the one node; by itself, the first.
        node_of: each core's node.
        free_devices: the numbers of each pool of devices, or kind of GPU, that no job has.
    """

    def __init__(
        self,
        store: Path,
        cluster: Cluster,
        cores: Sequence[Sequence[int]],
        devices: Mapping[str, Sequence[int]],
        *,
        whole: bool,
        core_of: Mapping[int, int] = {},
        choose_gpus: Callable[[Collection[int], Collection[int], int], list[int]] = (
            lambda free, cores, count: [*free][:count]
        ),
    ) -> None:
        self.choose_gpus = choose_gpus
        self.whole, self._core_of = whole, core_of
        self._all_cores = [list(node) for node in cores]
        self._free_cores = [list(node) for node in cores]
        self._rank = {core: rank for node in cores for rank, core in enumerate(node)}
        self.free_devices = {pool: sorted(numbers) for pool, numbers in devices.items()}
        self._pool_of = {n: pool for pool, numbers in self.free_devices.items() for n in numbers}
        self._device_rank = {number: number for number in self._pool_of}
        self.node_of = {core: number for number, node in enumerate(cores) for core in node}
        # Where cores are counted, and may be cut into regions:
        self._fences: StoredRegionPlacement | None = None
        self._number_of: dict[int, int] = {}  # there
        if len(cores) == 1 and cluster.pools[0].counted and not devices and not whole:
            self._fences = StoredRegionPlacement(store, [1] * len(cores[0]))
            self._number_of = {core: number for number, core in enumerate(self._all_cores[0])}

    def place(self, job: Entry, placement: Placement) -> None:
        """Give the job what a placement says; it is its own until ``free``."""
        if placement.pool in self.free_devices:
            free = self.free_devices[placement.pool]
            job.devices, free[:] = tuple(free[: placement.units]), free[placement.units :]
        elif self._fences is not None:
            job.cores = self._in_region(self._fences, placement)
            self._hold(job, placement)
        elif self.whole:
            nodes = [n for n, cores in enumerate(self._all_cores) if self._free_cores[n] == cores]
            job.cores = self._take({n: len(self._all_cores[n]) for n in nodes[: placement.units]})
        else:
            cores, _, *wishes = job.job.way(placement).demand
            job.cores, gpus = self._take({node: units * int(cores) for node, units in placement.nodes}), []
            for free, count in zip(self.free_devices.values(), wishes, strict=True):
                gpus += self.choose_gpus(free, job.cores, int(count))
                free[:] = [number for number in free if number not in gpus]
            job.devices = tuple(gpus)

    def _in_region(self, fences: StoredRegionPlacement, placement: Placement) -> tuple[int, ...]:
        own = [self._all_cores[0][number] for number in fences.place(placement.region, placement.units)]
        for core in own:
            self._free_cores[0].remove(core)
        return (*own, *self._take({0: placement.units - len(own)}))

    def occupy(self, job: Entry) -> None:
        """After a restart: they are its own again."""
        for number, free, _ in self._of(job):
            if number in free:
                free.remove(number)
        if job.placement is not None:
            self._hold(job, job.placement)

    def free(self, job: Entry) -> None:
        for number, free, rank in self._of(job):
            insort(free, number, key=rank.__getitem__)
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

    def _take(self, counts: Mapping[int, int]) -> tuple[int, ...]:
        """Take so many free cores of each node, whole ones first."""
        taken: list[int] = []
        for node, count in counts.items():
            free, best = self._free_cores[node], self._free_cores[node]
            if self._core_of:
                busy = [core for core in self._all_cores[node] if core not in free]
                best = whole_cores_first(free, self._core_of, busy)
            taken += sorted(best[:count], key=self._rank.__getitem__)
            free[:] = [core for core in free if core not in taken]
        return tuple(taken)

    def _of(self, job: Entry) -> Iterator[tuple[int, list[int], Mapping[int, int]]]:
        """Each core and device of a job, the free ones among which it belongs, and their order."""
        for core in job.cores:
            if core in self.node_of:
                yield core, self._free_cores[self.node_of[core]], self._rank
        for device in job.devices:
            if device in self._pool_of:
                yield device, self.free_devices[self._pool_of[device]], self._device_rank


# -- packages, under the cap of a placement ----------------------------------------------------------------
#
# Each job has some to itself.


PAUSES_S = 2.0  # a supervisor that lives stops its job and gives its packages back in milliseconds
log = logging.getLogger("tenbin")


@dataclass(frozen=True)
class Packages:
    """The packages of this machine that jobs may have.

    Attributes:
        sysfs: root of the tree with their zones.
        keys: of the zones, node by node.
        emulated: name of the emulated machine; empty: it is real.
    """

    sysfs: Path
    keys: tuple[str, ...]
    emulated: str = ""

    def set_caps(self, attempt: Attempt, nodes: Sequence[int], cap_w: float | None) -> None:
        """Give the attempt these nodes, each package under this cap: from its start on, or now if it runs."""
        if attempt.path.exists():
            set_package_caps(attempt, self.sysfs, [self.keys[node] for node in nodes], cap_w)


def lowers(attempt: Attempt, cap_w: float | None) -> bool:
    """Return true if this cap is lower than the attempt's present cap."""
    before = requested_cap(attempt)
    return cap_w is not None and (before is None or before.cap_w is None or cap_w < before.cap_w)


def await_pause(attempt: Attempt, request: int) -> None:
    """Until its packages are no longer the job's: what they drew is given to others next."""
    deadline = time.monotonic() + PAUSES_S
    while time.monotonic() < deadline and attempt.result() is None and attempt.lives():
        state = attempt.state()
        if state is not None and state.done >= request:
            return
        time.sleep(0.001)


def put_back() -> None:
    """Caps that killed supervisors, or a killed profile, have left."""
    for restored in restore_leftovers(state_dir() / "journal"):
        log.warning("left changed by a crash, now %s", restored)
