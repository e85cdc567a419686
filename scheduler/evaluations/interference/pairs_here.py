"""Paper D on this machine: its five kernels measured beside the probes and beside each other, really.

With ``TENBIN_HOSTS=a,b`` the kernels are ranks over these hosts, and comprobe is measured too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations_with_replacement, count

import numpy as np
import pandas as pd

from agent.job_profile.kernels import KERNELS, command
from agent.job_profile.network import cores_of
from agent.job_profile.pair_trials import Times, program_of, run_pairs
from agent.job_profile.profiler import make_job_profile, pooled
from agent.job_profile.session import JobOrder
from agent.job_profile.trial import as_ranks
from probes.mpi.detection import find_mpi
from probes.mpi.launchers import MpiInstall
from probes.topology import usable_cores
from profiles.jobs import JobProfile
from profiles.models.neighbours import slowdown_beside
from scheduler.evaluations import Evaluation, Progress, Scale
from scheduler.evaluations.interference import pairs_here_tables as tables
from scheduler.model.interference import Pressure
from scheduler.policies.sharing.pairing import by_probes, ends_inwards, pairings
from scheduler.policies.sharing.pairs import over_network, together_s
from scheduler.prediction.profiles import pressure_of

PAPER = (
    "Y. Konishi, A. Nomura, H. Matsuba, Y. Ishikawa: Efficient Scheduling for Cluster of NUMA Parallel "
    "Computers (2008), measured on this machine"
)
LIMIT_S = 600.0  # of a run
Pairs = Sequence[tuple[str, str]]
Factor = Callable[[str, str], float]


@dataclass(frozen=True)
class PairsSize:
    """The extent of a run: kernels and their classes, least seconds of a run, repetitions of each pair.

    Attributes:
        repetitions, budget_s: of one session; no further repetition of a job profile is begun after the time.
        sessions: in each all job profiles go on, and then the pairs: what changes in hours falls on both.
    """

    kernels: Mapping[str, str]
    least_s: float
    repetitions: int
    budget_s: float
    quick: bool
    sessions: int = 1


SIZES: dict[Scale, PairsSize] = {
    "small": PairsSize({"ep": "S", "ft": "S", "mg": "S"}, 1.2, 2, 60.0, quick=True),
    "full": PairsSize(KERNELS, 3.0, 4, 240.0, quick=False, sessions=3),
}


@dataclass(frozen=True)
class MeasuredPairs:
    """The kernels' job profiles, and the pairs' times."""

    jobs: Mapping[str, JobProfile]
    times: Times

    def ratios(self, a: str, b: str) -> list[float]:
        """Slow-downs of a beside b, by a's clock."""
        return self.times.slowdowns(a, b, self.jobs[a].clock)

    def measured(self, a: str, b: str) -> float:
        """Return the median of ``ratios``."""
        return float(np.median(self.ratios(a, b)))

    def predicted(self, a: str, b: str) -> float:
        """Predict by the profiles; 1 where they lack a value."""
        network = over_network(tuple(self.jobs.values()))
        found = slowdown_beside(self.jobs[a], [self.jobs[b]], network)
        return 1.0 if found is None else found.value

    def bandwidths(self, a: str, b: str) -> float:
        """Predict by a baseline: jobs slow down once their traffic together exceeds memprobe's maximum."""
        pressures = [self.jobs[name].pressure_by() for name in (a, b)]
        gbs = [p.equivalent_gbs.value for p in pressures if p and p.equivalent_gbs]
        curve = next((c for c in self.jobs[a].reference if c.clock == self.jobs[a].clock), None)
        if curve is None or len(gbs) < 2:
            return 1.0
        most = 2 * curve.levels[-1].offered_gbs / max(curve.levels[-1].slowdown.value, 1.0)
        return max(sum(gbs) / most, 1.0)

    def alone_s(self, name: str) -> float:
        return float(np.median([run["wall"] for run in self.times.alone[name]]))


def evaluate(scale: Scale, progress: Progress) -> Evaluation:
    """Measure, predict, choose, compare.

    Raises:
        UserError: this machine has no room for a probe beside a job, is being profiled, or a host is amiss.
    """
    size = SIZES[scale]
    hosts = tuple(host for host in os.environ.get("TENBIN_HOSTS", "").split(",") if host)
    seen = measure(size, hosts, progress)
    names = tuple(seen.jobs)
    errors = {
        "job profiles": _errors(seen, seen.predicted),
        "no slow-down": _errors(seen, lambda a, b: 1.0),
        "sum of bandwidths": _errors(seen, seen.bandwidths),
    }
    floor = noise_floor(seen)
    chosen = choices(seen)
    return Evaluation(
        paper=PAPER,
        scale=scale,
        assumptions=tables.assumptions(size.sessions, size.repetitions, hosts, seen.jobs),
        findings=(*tables.degradations(seen.jobs), *tables.aims(errors, floor, chosen)),
        tables=(
            tables.probes(seen.jobs),
            tables.pairs([(a, b, seen.predicted(a, b), seen.ratios(a, b)) for a in names for b in names]),
            tables.errors(errors, floor),
            tables.choices(chosen),
        ),
        pictures=(tables.picture(names, seen.measured, seen.predicted),),
        remarks=tables.remarks(seen.jobs, errors["no slow-down"], floor),
    )


def measure(size: PairsSize, hosts: tuple[str, ...], progress: Progress) -> MeasuredPairs:
    """Profile each kernel, then run all pairs; in every session."""
    jobs: dict[str, JobProfile] = {}
    samples: dict[str, dict[str, pd.DataFrame]] = {}
    times = Times()
    mpi = find_mpi() if hosts else None
    cores = tuple(cores_of(hosts, mpi)[0]) if mpi else ()
    orders = _orders(size, hosts, mpi, cores)
    steps, whole = count(), size.sessions * (len(orders) + 1)
    for session in range(1, size.sessions + 1):
        of = f" (session {session} of {size.sessions})" if size.sessions > 1 else ""
        for name, order in orders.items():
            progress(next(steps), whole, f"job profile of {name}{of}")
            made = make_job_profile(replace(order, seed=session))
            jobs[name], samples[name] = pooled(*made, jobs[name], samples[name]) if name in jobs else made
            if jobs[name].interrupted:
                raise KeyboardInterrupt
        progress(next(steps), whole, f"pairs{of}")
        programs = [program_of(job, mpi, cores) for job in jobs.values()]
        wanted = list(combinations_with_replacement(range(len(programs)), 2))
        times.add(
            run_pairs(programs, wanted, usable_cores(), size.repetitions, limit_s=LIMIT_S, seed=session)
        )
        if times.interrupted:
            raise KeyboardInterrupt
    return MeasuredPairs(jobs, times)


def _orders(
    size: PairsSize, hosts: tuple[str, ...], mpi: MpiInstall | None, cores: Sequence[Sequence[int]]
) -> dict[str, JobOrder]:
    """Make an order for the job profile of each kernel."""
    start = (
        partial(as_ranks, mpi, cores=[own[0] for own in cores], hosts=hosts, limit_s=LIMIT_S) if mpi else None
    )
    return {
        kernel: JobOrder(
            kernel,
            command(kernel, letter, size.least_s, ranks=len(hosts) or 1, start=start),
            "/",
            len(hosts) or 1,
            quick=size.quick,
            budget_s=size.budget_s,
            mpi=bool(hosts),
            hosts=hosts,
        )
        for kernel, letter in size.kernels.items()
    }


# --- what comes of it


def _errors(seen: MeasuredPairs, model: Factor) -> list[float]:
    """List predicted over measured - 1, in %, of every job beside every job; their runs are in no profile."""
    return [100 * (model(a, b) / seen.measured(a, b) - 1) for a in seen.jobs for b in seen.jobs]


def noise_floor(seen: MeasuredPairs) -> list[float]:
    """Compare every other repetition of a pair with the remaining ones, in %."""
    found = []
    for a in seen.jobs:
        for b in seen.jobs:
            ratios = seen.ratios(a, b)
            found.append(100 * (float(np.median(ratios[::2])) / float(np.median(ratios[1::2])) - 1))
    return found


def group_s(seen: MeasuredPairs, a: str, b: str, factor: Factor) -> float:
    """Compute how long two jobs that begin together have the node; the longer one ends undisturbed."""
    slowed = factor(a, b), factor(b, a)
    return together_s({0: seen.alone_s(a), 1: seen.alone_s(b)}, lambda member, others: slowed[member])


def choices(seen: MeasuredPairs) -> dict[str, tuple[Pairs, float]]:
    """Choose pairs of two jobs of each kernel in each way, with the node seconds measured for them."""
    names = [name for name in seen.jobs for _ in range(2)]

    def total(pairs: Pairs, factor: Factor) -> float:
        return sum(group_s(seen, a, b, factor) for a, b in pairs)

    def inwards(keys: Mapping[str, float]) -> Pairs:
        groups = ends_inwards([keys[name] for name in names], lambda a, b: False)
        return [(names[a], names[b]) for a, b in groups]

    def mean(what: Sequence[str], job: JobProfile) -> float:
        needs = [job.need(name) for name in (*what, "run_s")]
        values = [need.value if need else 0.0 for need in needs]
        return sum(values[:-1]) / values[-1]

    ways = [*pairings(names)]
    pressures = {name: pressure_of(job) or Pressure() for name, job in seen.jobs.items()}
    ruled = by_probes([pressures[name] for name in names])
    chosen: dict[str, Pairs] = {
        "best by measurement": min(ways, key=lambda pairs: total(pairs, seen.measured)),
        "matching by job profiles": min(ways, key=lambda pairs: total(pairs, seen.predicted)),
        "the paper's rule": [(names[g.members[0]], names[g.members[1]]) for g in ruled],
        "mean bandwidth": inwards({n: p.memory_percent for n, p in pressures.items()}),
        "mean CPU": inwards({n: mean(["cpu_s"], job) for n, job in seen.jobs.items()}),
        "mean I/O": inwards({n: mean(["read_mb", "written_mb"], job) for n, job in seen.jobs.items()}),
        "worst by measurement": max(ways, key=lambda pairs: total(pairs, seen.measured)),
    }
    return {how: (pairs, total(pairs, seen.measured)) for how, pairs in chosen.items()}
