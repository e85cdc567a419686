"""Paper D on this machine: its five kernels measured beside the probes and beside each other, really."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations_with_replacement, count

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from agent.job_profile.pair_trials import Times, program_of, run_pairs
from agent.job_profile.profiler import make_job_profile, pooled
from agent.job_profile.session import JobOrder, cores_of
from agent.job_profile.trial import KERNELS, as_ranks, command
from probes.mpi.runner import MpiInstall, find_mpi
from probes.topology import usable_cores
from profiles.jobs import JobProfile
from profiles.models.contention import slowdown_beside
from profiles.records import Coefficient
from profiles.stats import median_interval
from scheduler.evaluations import (
    Estimate,
    Evaluation,
    Finding,
    Picture,
    Progress,
    Scale,
    Series,
    Table,
    exactly,
)
from scheduler.model.interference import Pressure
from scheduler.policies.sharing.pairing import by_probes, ends_inwards, over_network, pairings, together_s
from scheduler.prediction.profiles import pressure_of

# -- numbers, tables and a picture -------------------------------------------------------------------------


MEMPROBE = {"ep": 3.1, "cg": 20.1, "ft": 26.2, "lu": 29.9, "mg": 38.2}  # %, the paper's
COMPROBE = {"lu": 1.9, "cg": 4.0, "mg": 4.3, "ft": 11.2}  # %, the paper's, near core
BEST, MATCHING, RULE = "best by measurement", "matching by job profiles", "the paper's rule"
Jobs = Mapping[str, JobProfile]
Chosen = Mapping[str, tuple[Sequence[tuple[str, str]], float]]


def assumptions(sessions: int, repetitions: int, hosts: Sequence[str], jobs: Jobs) -> tuple[str, ...]:
    """List the assumptions of all figures."""
    where = f"one rank on each of {', '.join(hosts)}" if hosts else "one process on one core, beside another"
    within = f" in each of {sessions} sessions, after the job profiles had gone on" if sessions > 1 else ""
    emulated = any(job.network is not None and job.network.emulated for job in jobs.values())
    return (
        f"The kernels are tenbin's own (probes.loads), {where}; the paper's are NPB class C on 8 processes.",
        f"Each pair ran {repetitions} times{within}, in random order with each kernel alone twice as often. "
        "These runs are in no job profile: every prediction is of pairs that were never seen.",
        "Mean bandwidth is memprobe's mean slow-down (counters of memory traffic are not to be had "
        "everywhere), so that choosing by it is the paper's rule without its second step.",
        "Choices are of two jobs of each kernel; a pair has the node until both have ended.",
        *(["EMULATED: the hosts are namespaces of one machine."] if emulated else []),
    )


def degradations(jobs: Jobs) -> list[Finding]:
    """Set the paper's tables 3 and 4 beside what was measured here."""
    findings = []
    for name, job in jobs.items():
        if pressure := job.pressure_by():
            slowdown = _percent(pressure.slowdown)
            findings.append(Finding("degradation of memprobe", MEMPROBE.get(name), slowdown, "%", of=name))
        if job.network and job.network.pressure:
            slowdown = _percent(job.network.pressure.slowdown)
            findings.append(Finding("degradation of comprobe", COMPROBE.get(name), slowdown, "%", of=name))
    return findings


def aims(errors: Mapping[str, Sequence[float]], floor: Sequence[float]) -> list[Finding]:
    """Compare errors of the predictions with their aims."""
    mine = np.abs(errors["job profiles"])
    median, p95 = float(np.median(mine)), _p95(mine)
    baseline = min(
        float(np.median(np.abs(signed))) for how, signed in errors.items() if how != "job profiles"
    )
    above = "prediction of a pair: p95 of the error, above the noise floor"
    ratio = exactly(median / max(baseline, 1e-9))
    return [
        Finding("prediction of a pair: median error", None, exactly(median), "%", (0.0, 5.0)),
        Finding(above, None, exactly(p95 - _p95(np.abs(floor))), "%", (-100.0, 10.0)),
        Finding("median error / that of the better baseline", None, ratio, "", (0.0, 0.5)),
    ]


def regret(best_s: float, seconds: float) -> float:
    """Return the share of the best choice's throughput that is lost, in percent."""
    return 100 * (1 - best_s / seconds)


def probes(jobs: Jobs) -> Table:
    """Each kernel beside the probes."""
    rows = []
    for name, job in jobs.items():
        curve, half, share = job.sensitivity_by(), job.network, job.need("mpi_share")
        phases = job.phases_by()
        network = half.sensitivity if half else None
        rows.append(
            (
                name,
                need.value if (need := job.need("run_s")) else None,
                _added(phases.peak if phases else None),
                _added(curve.levels[-1].slowdown if curve else None),
                _added(network.levels[-1].slowdown if network else None),
                100 * share.value if share else None,
                job.clock,
            )
        )
    columns = (
        *("kernel", "alone, s", "memprobe slower in its worst part, %", "slower beside memprobe, %"),
        *("slower beside comprobe, %", "inside MPI, %", "clock"),
    )
    return Table("Kernels beside the probes at full intensity", columns, tuple(rows))


def pairs_table(names: Sequence[str], rows: Mapping[tuple[str, str], tuple[float, Sequence[float]]]) -> Table:
    """Every kernel beside every one: predicted, and measured."""
    cells = {pair: (predicted, *median_interval(ratios)) for pair, (predicted, ratios) in rows.items()}
    least = min(len(ratios) for _, ratios in rows.values())
    title = f"Run time beside another over alone (n = {least} each): predicted; measured, low, high"
    return Table(
        title,
        ("of", *(f"beside {b}" for b in names)),
        tuple((a, *(cells[a, b] for b in names)) for a in names),
    )


def errors_table(errors: Mapping[str, Sequence[float]], floor: Sequence[float]) -> Table:
    """Errors of each way to predict, and how much the measured pairs differ from themselves."""
    rows = []
    for how, signed in [*errors.items(), ("noise floor: half the repetitions against the rest", floor)]:
        sizes = np.abs(signed)
        middle, mean = float(np.median(sizes)), float(np.mean(sizes))
        rows.append((how, middle, mean, _p95(sizes), float(np.median(signed)), len(signed)))
    columns = ("predicted by", "median |error|, %", "mean, %", "p95, %", "median, signed, %", "pairs")
    return Table("Errors of predicted pairs, held out", columns, tuple(rows))


def choices_table(chosen: Chosen) -> Table:
    """Pairs by each way to choose, by what was measured of them."""
    best = chosen[BEST][1]
    rows = [
        (how, "; ".join("-".join(pair) for pair in groups), seconds, regret(best, seconds))
        for how, (groups, seconds) in chosen.items()
    ]
    columns = ("chosen by", "pairs", "node time, s", "regret, % of throughput")
    return Table("Two jobs of each kernel in pairs", columns, tuple(rows))


def picture(
    names: Sequence[str], measured: Callable[[str, str], float], predicted: Callable[[str, str], float]
) -> Picture:
    """Predicted over measured."""
    series = [
        Series(a, tuple(measured(a, b) for b in names), tuple(predicted(a, b) for b in names)) for a in names
    ]
    return Picture("Slow-downs of all pairs", "measured", "predicted", tuple(series), "points")


def remarks(jobs: Jobs, slowed: Sequence[float], floor: Sequence[float]) -> tuple[str, ...]:
    """Say what makes the figures doubtful.

    Args:
        slowed: errors of predicting no slow-down, in %. floor: those of the same pairs against themselves.
    """
    notes = [f"{name}: {job.note}" for name, job in jobs.items() if job.note]
    there, noise = (float(np.median(np.abs(errors))) for errors in (slowed, floor))
    if there <= noise:
        notes.append(
            f"Beside each other the kernels' times change by {there:.1f} % (median), and by {noise:.1f} % "
            "when nothing changes: they do not disturb each other here, no prediction can be better than "
            "none, and the regrets are noise."
        )
    return tuple(notes)


def _percent(slowdown: Coefficient) -> Estimate:
    low, high = (slowdown.value if bound is None else bound for bound in (slowdown.low, slowdown.high))
    return Estimate(100 * (slowdown.value - 1), 100 * (low - 1), 100 * (high - 1), slowdown.n)


def _added(slowdown: Coefficient | None) -> float | None:
    return None if slowdown is None else 100 * (slowdown.value - 1)


def _p95(values: Sequence[float] | NDArray[np.float64]) -> float:
    return float(np.quantile(values, 0.95))


# -- the evaluation ----------------------------------------------------------------------------------------
#
# With ``TENBIN_HOSTS=a,b`` the kernels are ranks over these hosts, and comprobe is measured too.


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
        slowdown = slowdown_beside(self.jobs[a], [self.jobs[b]], network)
        return 1.0 if slowdown is None else slowdown.value

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
        assumptions=assumptions(size.sessions, size.repetitions, hosts, seen.jobs),
        findings=(*degradations(seen.jobs), *aims(errors, floor)),
        tables=(
            probes(seen.jobs),
            pairs_table(
                names, {(a, b): (seen.predicted(a, b), seen.ratios(a, b)) for a in names for b in names}
            ),
            errors_table(errors, floor),
            choices_table(chosen),
        ),
        pictures=(picture(names, seen.measured, seen.predicted),),
        remarks=remarks(seen.jobs, errors["no slow-down"], floor),
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
        pairs = list(combinations_with_replacement(range(len(programs)), 2))
        times.add(run_pairs(programs, pairs, usable_cores(), size.repetitions, limit_s=LIMIT_S, seed=session))
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


# -- what comes of it --------------------------------------------------------------------------------------


def _errors(seen: MeasuredPairs, model: Factor) -> list[float]:
    """List predicted over measured - 1, in %, of every job beside every job; their runs are in no profile."""
    return [100 * (model(a, b) / seen.measured(a, b) - 1) for a in seen.jobs for b in seen.jobs]


def noise_floor(seen: MeasuredPairs) -> list[float]:
    """Compare every other repetition of a pair with the remaining ones, in %."""
    errors = []
    for a in seen.jobs:
        for b in seen.jobs:
            ratios = seen.ratios(a, b)
            errors.append(100 * (float(np.median(ratios[::2])) / float(np.median(ratios[1::2])) - 1))
    return errors


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
