"""Numbers, tables and a picture of the pairs measured on this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from profiles.jobs import JobProfile
from profiles.records import Coefficient
from profiles.stats import median_interval
from scheduler.evaluations import Estimate, Finding, Picture, Series, Table, exactly

MEMPROBE = {"ep": 3.1, "cg": 20.1, "ft": 26.2, "lu": 29.9, "mg": 38.2}  # %, the paper's
COMPROBE = {"lu": 1.9, "cg": 4.0, "mg": 4.3, "ft": 11.2}  # %, the paper's, near core
BEST, MATCHING, RULE = "best by measurement", "matching by job profiles", "the paper's rule"
Jobs = Mapping[str, JobProfile]
Chosen = Mapping[str, tuple[Sequence[tuple[str, str]], float]]


def assumptions(sessions: int, repetitions: int, hosts: Sequence[str], jobs: Jobs) -> tuple[str, ...]:
    """List the assumptions of all figures."""
    where = f"one rank on each of {', '.join(hosts)}" if hosts else "one process on one core, beside another"
    each = f" in each of {sessions} sessions, after the job profiles had gone on" if sessions > 1 else ""
    emulated = any(job.network is not None and job.network.emulated for job in jobs.values())
    return (
        f"The kernels are tenbin's own (probes.loads), {where}; the paper's are NPB class C on 8 processes.",
        f"Each pair ran {repetitions} times{each}, in random order with each kernel alone twice as often.",
        "The pairs' runs are in no job profile: every prediction is of pairs that were never seen.",
        "There are no counters of memory traffic to be had everywhere: the mean bandwidth is memprobe's mean "
        "slow-down, so that choosing by it is the paper's rule without its second step.",
        "Choices are of two jobs of each kernel; a pair has the node until both have ended.",
        *(["EMULATED: the hosts are namespaces of one machine."] if emulated else []),
    )


def degradations(jobs: Jobs) -> list[Finding]:
    """Set the paper's tables 3 and 4 beside what was measured here."""
    found = []
    for name, job in jobs.items():
        if pressure := job.pressure_by():
            what = f"memprobe beside {name}: degradation"
            found.append(Finding(what, MEMPROBE.get(name), _percent(pressure.slowdown), "%"))
        if job.network and job.network.pressure:
            what = f"comprobe beside {name}: degradation"
            found.append(Finding(what, COMPROBE.get(name), _percent(job.network.pressure.slowdown), "%"))
    return found


def aims(errors: Mapping[str, Sequence[float]], floor: Sequence[float], chosen: Chosen) -> list[Finding]:
    """Compare errors of the predictions with their aims, and list what the choices lose."""
    mine = np.abs(errors["job profiles"])
    median, p95 = float(np.median(mine)), _p95(mine)
    baseline = min(float(np.median(np.abs(found))) for how, found in errors.items() if how != "job profiles")
    best = chosen[BEST][1]
    return [
        Finding("prediction of a pair: median error", None, exactly(median), "%", (0.0, 5.0)),
        Finding(
            "prediction of a pair: p95 of the error, above the noise floor",
            None,
            exactly(p95 - _p95(np.abs(floor))),
            "%",
            (-100.0, 10.0),
        ),
        Finding(
            "median error / that of the better baseline",
            None,
            exactly(median / max(baseline, 1e-9)),
            "",
            (0.0, 0.5),
        ),
        *(
            Finding(f"regret of {how}, throughput", None, exactly(regret(best, seconds)), "%")
            for how, (_, seconds) in chosen.items()
            if how != BEST
        ),
    ]


def regret(best_s: float, seconds: float) -> float:
    """Return the share of the best choice's throughput that is lost, in percent."""
    return 100 * (1 - best_s / seconds)


def probes(jobs: Jobs) -> Table:
    """Each kernel beside the probes."""
    rows = []
    for name, job in jobs.items():
        curve, half, share = job.sensitivity_by(), job.network, job.need("mpi_share")
        phases, pressure = job.phases_by(), job.pressure_by()
        network = half.sensitivity if half else None
        rows.append(
            (
                name,
                need.value if (need := job.need("run_s")) else None,
                _added(pressure.slowdown if pressure else None),
                _added(phases.peak if phases else None),
                _added(curve.levels[-1].slowdown if curve else None),
                _added(half.pressure.slowdown if half and half.pressure else None),
                _added(network.levels[-1].slowdown if network else None),
                100 * share.value if share else None,
                job.clock,
            )
        )
    columns = (
        *("kernel", "alone, s", "memprobe slower, %", "in its worst part, %", "slower beside memprobe, %"),
        *("comprobe slower, %", "slower beside comprobe, %", "inside MPI, %", "clock"),
    )
    return Table("Kernels beside the probes at full intensity", columns, tuple(rows))


def pairs(rows: Sequence[tuple[str, str, float, Sequence[float]]]) -> Table:
    """Every kernel beside every one: predicted, and measured."""
    cells = []
    for a, b, predicted, ratios in rows:
        value, low, high = median_interval(ratios)
        error = 100 * (predicted / value - 1)
        cells.append((a, b, predicted, value, low, high, len(ratios), error))
    columns = ("kernel", "beside", "predicted", "measured", "low", "high", "n", "error, %")
    return Table("All pairs: run time beside / alone", columns, tuple(cells))


def errors(found: Mapping[str, Sequence[float]], floor: Sequence[float]) -> Table:
    """Errors of each way to predict, and how much the measured pairs differ from themselves."""
    rows = []
    for how, signed in [*found.items(), ("noise floor: half the repetitions against the rest", floor)]:
        sizes = np.abs(signed)
        middle, mean = float(np.median(sizes)), float(np.mean(sizes))
        rows.append((how, middle, mean, _p95(sizes), float(np.median(signed)), len(signed)))
    columns = ("predicted by", "median |error|, %", "mean, %", "p95, %", "median, signed, %", "pairs")
    return Table("Errors of predicted pairs, held out", columns, tuple(rows))


def choices(chosen: Chosen) -> Table:
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
    found = [f"{name}: {job.note}" for name, job in jobs.items() if job.note]
    there, noise = (float(np.median(np.abs(errors))) for errors in (slowed, floor))
    if there <= noise:
        found.append(
            f"Beside each other the kernels' times change by {there:.1f} % (median), and by {noise:.1f} % "
            "when nothing changes: they do not disturb each other here, no prediction can be better than "
            "none, and the regrets are noise."
        )
    return tuple(found)


def _percent(found: Coefficient) -> Estimate:
    low, high = (found.value if bound is None else bound for bound in (found.low, found.high))
    return Estimate(100 * (found.value - 1), 100 * (low - 1), 100 * (high - 1), found.n)


def _added(found: Coefficient | None) -> float | None:
    return None if found is None else 100 * (found.value - 1)


def _p95(values: Sequence[float] | NDArray[np.float64]) -> float:
    return float(np.quantile(values, 0.95))
