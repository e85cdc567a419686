"""Streams of arrivals: kept at a load, stretched in time, resampled in blocks, or with run times filled in.

A machine is kept at a load by a closed loop that submits as others end, or by arrivals stretched in time.
Load is counted in every resource, as a share of what the whole cluster has of it (units count as the one
resource of a counted pool).
"""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from profiles.errors import BadInput
from scheduler.model.jobs import Cluster, EstimateKind, Job, Pool, instant
from scheduler.model.speeds import SpeedRatios, estimates_on_all
from scheduler.model.state import ClusterState
from scheduler.simulator.trace import Arrival


class Closed:
    """A ``ClosedLoop`` over a stream of jobs, whose own times of submission do not count.

    At each instant jobs are submitted, in their order, while the norm (root of the sum of squares over the
    resources) of the demand that has not ended, over the cluster's capacity, is below ``load``. The last one
    may lift it above. Jobs that no empty cluster could hold are passed over, because they would never end.

    Args:
        skipped: counts the jobs passed over, by reason (give the ``Workload``'s).
    """

    def __init__(
        self, arrivals: Iterable[Arrival], cluster: Cluster, load: float, skipped: Counter[str]
    ) -> None:
        if not 0 < load < math.inf:
            raise BadInput(f"closed load {load:g}", "give a number above 0")
        self._arrivals = iter(arrivals)
        self._load = load
        self._skipped = skipped
        self._empty = ClusterState(cluster)  # only to ask what fits
        self._capacity = capacity(cluster)
        self._counted = cluster.pools[0].counted
        self._unfinished = [0.0] * len(self._capacity)
        self._jobs = 0

    def due(self, now: float, ended: Sequence[Job]) -> list[Arrival]:
        """Submit jobs at ``now``, after the jobs ``ended`` left."""
        for job in ended:
            self._count(job, -1)
        submitted: list[Arrival] = []
        while math.hypot(*self._unfinished) < self._load:
            arrival = next(self._arrivals, None)
            if arrival is None:
                break
            why = self._empty.misfit(arrival.job)
            if why:
                self._skipped[why] += 1
                continue
            self._count(arrival.job, 1)
            submitted.append(arrival._replace(job=replace(arrival.job, submit_s=now)))
        return submitted

    def _count(self, job: Job, sign: int) -> None:
        self._jobs += sign
        if not self._jobs:  # no rounding error outlives an empty system
            self._unfinished = [0.0] * len(self._capacity)
            return
        for r, amount in enumerate(demand_of(job, self._counted)):
            self._unfinished[r] += sign * amount / self._capacity[r]


def capacity(cluster: Cluster) -> tuple[float, ...]:
    """Add up what the whole cluster has of each resource; of counted pools the units."""
    resources = {pool.resources for pool in cluster.pools}
    if len(resources) > 1:
        raise BadInput(
            "the load of a cluster whose pools have different resources is not defined",
            "give all pools the same resources",
        )
    if not resources.pop():
        return (float(cluster.units),)
    rows = [pool.capacity_of(node) for pool in cluster.pools for node in range(pool.units)]
    return tuple(map(math.fsum, zip(*rows, strict=True)))


def demand_of(job: Job, counted: bool) -> tuple[float, ...]:
    """Return what all units of a job demand of each resource of nodes, or of a counted pool."""
    return (float(job.units),) if counted else tuple(job.units * d for d in job.demand)


def offered_load(arrivals: Sequence[Arrival], cluster: Cluster) -> float:
    """Compute the offered load of the resource that is demanded most.

    It is demand times run time, over capacity times the time from first to last arrival; infinite when all
    arrive at once. Jobs that no empty cluster could hold offer nothing.
    """
    has, counted, empty = capacity(cluster), cluster.pools[0].counted, ClusterState(cluster)
    work = [0.0] * len(has)
    for job, run_s, *_ in arrivals:
        if not empty.misfit(job):
            for r, amount in enumerate(demand_of(job, counted)):
                work[r] += amount * run_s
    most = max(w / c for w, c in zip(work, has, strict=True))
    span = arrivals[-1].job.submit_s - arrivals[0].job.submit_s if arrivals else 0.0
    return most / span if span > 0 else math.inf


def stretched(arrivals: Sequence[Arrival], cluster: Cluster, load: float) -> Iterator[Arrival]:
    """Stretch the times between the arrivals so that ``offered_load`` is ``load``."""
    natural = offered_load(arrivals, cluster)
    if not 0 < natural < math.inf or not 0 < load < math.inf:
        raise BadInput(
            f"load {load:g} cannot be reached: the jobs as they are offer {natural:g}",
            "give a load above 0, and jobs that arrive at different times",
        )
    first = arrivals[0].job.submit_s
    for arrival in arrivals:
        submit = instant((arrival.job.submit_s - first) * natural / load)
        yield arrival._replace(job=replace(arrival.job, submit_s=submit))


FEWEST = 4  # blocks


class Blocks:
    """The jobs of a workload by blocks of ``length_s`` seconds from the first submission; whole blocks only.

    Days and weeks of users stay as they are within a block, unlike in a draw of single jobs (Zakay and
    Feitelson, Concurrency and Computation 26(12), 2014). Blocks are drawn with replacement.

    Attributes:
        count: number of blocks. left_out: jobs after the last whole block.

    Raises:
        BadInput: there are fewer than 4 whole blocks.
    """

    def __init__(self, arrivals: Sequence[Arrival], length_s: float) -> None:
        first = arrivals[0].job.submit_s if arrivals else 0.0
        last = arrivals[-1].job.submit_s if arrivals else 0.0
        gap = (last - first) / max(1, len(arrivals) - 1)  # until the next job, had there been one
        span = last - first + gap
        places = [int((arrival.job.submit_s - first) // length_s) for arrival in arrivals]
        self.count = int(span // length_s)
        if self.count < FEWEST:
            raise BadInput(
                f"--resamples: the workload spans {span / 86400:.3g} days, {self.count} whole blocks of "
                f"{length_s / 86400:g} days",
                f"give a longer workload, or a --block of which it has at least {FEWEST}",
            )
        self.length_s = length_s
        self._blocks: list[list[Arrival]] = [[] for _ in range(self.count)]
        for place, arrival in zip(places, arrivals, strict=True):
            if place < self.count:
                self._blocks[place].append(arrival)
        self.left_out = sum(place >= self.count for place in places)

    def drawn(self, rng: np.random.Generator) -> list[Arrival]:
        """Draw as many blocks as there are, one after the other; jobs are numbered anew from 1."""
        arrivals: list[Arrival] = []
        for place, number in enumerate(rng.integers(self.count, size=self.count).tolist()):
            later_s = (place - number) * self.length_s
            for arrival in self._blocks[number]:
                submit_s = instant(arrival.job.submit_s + later_s)
                job, *others = (
                    replace(way, id=len(arrivals) + 1, submit_s=submit_s) for way in arrival.job.ways
                )
                arrivals.append(arrival._replace(job=replace(job, alternatives=tuple(others))))
        return arrivals


def estimated_on_all(arrivals: Iterable[Arrival], ratios: SpeedRatios) -> Iterator[Arrival]:
    """Yield the arrivals, with finite run times on all classes that a job can run on, where one is finite."""
    for arrival in arrivals:
        job = arrival.job
        if math.inf in job.estimates_s.values():
            job = replace(job, estimates_s=estimates_on_all(job.estimates_s, ratios))
            yield arrival._replace(job=job)
        else:
            yield arrival


@dataclass
class Unstated:
    """A substitute for run times that jobs do not state.

    Attributes:
        actual: the job's own run time. time_s: the same for all; jobs may take longer. Neither: unknown.
        jobs: how many states no run time, of those that were read so far.
    """

    actual: bool = False
    time_s: float | None = None
    jobs: int = 0

    def filled(self, arrivals: Iterable[Arrival]) -> Iterator[Arrival]:
        """Yield the arrivals, with the substitute where a job states no run time."""
        for arrival in arrivals:
            job = arrival.job
            if job.estimate_s is not None or job.estimates_s:
                yield arrival
                continue
            self.jobs += 1
            if self.actual:
                run_s = None if arrival.runs_s else arrival.run_s
                job = replace(
                    job, estimate_s=run_s, estimates_s=arrival.runs_s, estimate_kind=EstimateKind.EXACT
                )
            elif self.time_s is not None:
                job = replace(job, estimate_s=self.time_s, estimate_kind=EstimateKind.PREDICTED)
            yield arrival._replace(job=job)


# -- jobs on nodes -----------------------------------------------------------------------------------------


CORES = ("cores", "cpu")  # names of the resource that a processor is one of
MEMORY = ("memory_mb", "memory")
ALIKE = {name: names[0] for names in (CORES, MEMORY) for name in names}


def processors(pool: Pool) -> int:
    """Count the processors of a pool: its units, or the cores of its nodes."""
    place = next((place for place, name in enumerate(pool.resources) if name in CORES), None)
    if place is None:
        return pool.units
    return int(sum(pool.capacity_of(node)[place] for node in range(pool.units)))


def by_name(
    arrivals: Iterable[Arrival], demanded: Sequence[str], resources: Sequence[str]
) -> Iterator[Arrival]:
    """Put what jobs demand in the order of a cluster's resources; of those that they do not know, none."""
    names = [ALIKE.get(name, name) for name in demanded]
    places = [
        names.index(ALIKE.get(name, name)) if ALIKE.get(name, name) in names else -1 for name in resources
    ]
    for arrival in arrivals:
        demand = (*arrival.job.demand, 0.0)
        job = replace(arrival.job, demand=tuple(demand[place] for place in places))
        yield arrival._replace(job=job)


class Taken(NamedTuple):
    """Tasks, resources and run time of a job by a line of a file.

    Attributes:
        amounts: by resource, of the whole job. tasks: None: as many as it takes GPUs, or processors.
        run_s: its run time so; None: as the log says.
    """

    amounts: Mapping[str, float] = MappingProxyType({})
    tasks: int | None = None
    run_s: float | None = None


@dataclass(frozen=True)
class TakenResources:
    """Amounts that jobs take of resources of which a log does not tell, such as GPUs.

    Attributes:
        resources: their names. source: the file, for people.
        ways: of jobs of which it is stated, what they take; from the second on, what they may take instead.
        needed: a cluster must have the resources; else jobs are simulated without those that it lacks.
    """

    resources: tuple[str, ...] = ()
    source: str = ""
    ways: Mapping[int, Sequence[Taken]] = field(default_factory=dict)
    needed: bool = True


def with_demands(
    arrivals: Iterable[Arrival], resources: Sequence[str], taken: TakenResources, remarks: Counter[str]
) -> Iterator[Arrival]:
    """Let jobs that state no demand of resources have tasks that do.

    A job has as many tasks as it takes GPUs (or other resources of ``taken``), parts of one rounded up, if it
    takes any, else one for each processor. They share its processors, its memory and what else it takes
    evenly. ``remarks`` counts the jobs of ``taken`` that do not come.
    """
    left = set(taken.ways)
    for arrival in arrivals:
        job = arrival.job
        left.discard(job.id)
        if job.demand:
            yield arrival
            continue
        first, *others = taken.ways.get(job.id, (Taken(),))
        believed = (job.estimate_s or 0.0) / arrival.run_s if arrival.run_s else 1.0
        alternatives = [
            replace(
                _taking(job, way, resources),
                estimate_s=None if job.estimate_s is None else believed * (way.run_s or 0.0),
                alternative=number,
            )
            for number, way in enumerate(others, 1)
        ]
        job = replace(_taking(job, first, resources), alternatives=tuple(alternatives))
        yield arrival._replace(job=job, others_s=tuple(way.run_s or 0.0 for way in others))
    if left:
        remarks[f"only {taken.source} has it, so it is not simulated"] += len(left)


def _taking(job: Job, taken: Taken, resources: Sequence[str]) -> Job:
    """Return the job with its tasks, and what each of them takes."""
    amounts = dict(taken.amounts)
    cores = next((amounts.pop(name) for name in CORES if name in amounts), float(job.units))
    tasks = taken.tasks or math.ceil(sum(amounts.values())) or round(cores)
    amounts = dict.fromkeys(CORES, cores) | {"memory_mb": job.memory_mb or 0.0} | amounts
    return replace(job, units=tasks, demand=tuple(amounts.get(name, 0.0) / tasks for name in resources))


def read_taken(path: Path) -> TakenResources:
    """Read a CSV file with the columns job, tasks and run_s (if wished) and one for each resource.

    Raises:
        BadInput: it cannot be read, or a line is no such line.
    """
    ways = dict[int, list[Taken]]()
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            table = csv.DictReader(lines)
            names = tuple(name for name in table.fieldnames or () if name not in ("job", "tasks", "run_s"))
            if "job" not in (table.fieldnames or ()) or not names:
                raise BadInput(f"{path}, line 1: no columns job and a resource", "write for instance job,gpu")
            for row in table:
                try:
                    amounts = {name: _amount(row[name]) for name in names if row[name] != ""}
                    tasks = max(1, int(row["tasks"])) if row.get("tasks") else None
                    run_s = _amount(row["run_s"]) if row.get("run_s") else None
                    of_job = ways.setdefault(int(row["job"]), [])
                except (TypeError, ValueError) as error:
                    raise BadInput(
                        f"{path}, line {table.line_num}: a field is no number from 0 on",
                        "mend the line",
                    ) from error
                if of_job and not run_s:
                    what = f"{path}, line {table.line_num}: job {row['job']} has a line before"
                    raise BadInput(what, "write its run time so in a column run_s, or one line a job")
                of_job.append(Taken(amounts, tasks, run_s))
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or error}", "name a file that can be read") from error
    except (UnicodeError, csv.Error) as error:
        raise BadInput(f"{path}: {error}", "write valid CSV") from error
    return TakenResources(names, str(path), ways)


def _amount(text: str | None) -> float:
    value = float("nan" if text is None else text or 0)  # not a number where fields are missing
    if not 0 <= value < math.inf:
        raise ValueError(text)
    return value
