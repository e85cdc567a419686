"""Slow-down of jobs beside each other, from their job profiles: by memory, by busy cores, by the network."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from profiles.jobs import Clock, Curve, JobProfile, NetworkHalf, ProbePressure
from profiles.models import Prediction
from profiles.models.constant import judge, judged
from profiles.records import Coefficient

# -- slow-down over the traffic beside ---------------------------------------------------------------------
#
# Straight between the measured levels, never falling. More traffic never speeds a program up, so
# neighbouring levels that fall are pooled (isotonic regression, weighted by the number of observations).
# Beyond the last level the curve goes on with the mean slope, up to twice the last traffic.


FURTHEST = 2.0  # times the last level's traffic
LEAST_RISE = 0.05  # if a reference rises less, an error of 1 % is a fifth of the pressure or more
Floats = NDArray[np.float64]


class Lines(NamedTuple):
    """A curve and its 95 % bounds at ascending traffic (GB/s), all never falling."""

    gbs: Floats
    middle: Floats
    low: Floats
    high: Floats


def predict_slowdown(
    curve: Curve, gbs: float, low_gbs: float | None = None, high_gbs: float | None = None
) -> Prediction:
    """Predict the slow-down beside this traffic; the 95 % interval is of the median (0 to infinity: unknown).

    ``low_gbs`` and ``high_gbs`` bound the traffic, if that is uncertain too.
    """
    lines = lines_of(curve)
    if not bounded(level.slowdown for level in curve.levels):
        return Prediction(_at(lines.gbs, lines.middle, gbs), 0.0, math.inf)
    low = _at(lines.gbs, lines.low, gbs if low_gbs is None else low_gbs)
    high = _at(lines.gbs, lines.high, gbs if high_gbs is None else high_gbs)
    middle = _at(lines.gbs, lines.middle, gbs)
    return Prediction(middle, min(low, middle), max(high, middle))


def equivalent(reference: Curve, slowdown: Coefficient) -> Coefficient | None:
    """Find the traffic (GB/s) beside which the reference suffers as much; None if it hardly suffers."""
    if not suffers(reference):
        return None
    lines = lines_of(reference)
    value = _inverse(lines.gbs, lines.middle, slowdown.value)
    low = high = None
    if (
        slowdown.low is not None
        and slowdown.high is not None
        and bounded(level.slowdown for level in reference.levels)
    ):
        low = min(_inverse(lines.gbs, lines.high, slowdown.low), value)
        high = max(_inverse(lines.gbs, lines.low, slowdown.high), value)
    full = float(lines.gbs[-1])
    note = "beyond what memprobe itself can do" if value > full else ""
    return judged("equivalent", value, "GB/s", (low, high), n=slowdown.n, scale=full, note=note)


def suffers(reference: Curve) -> bool:
    """Tell whether a probe is slowed down beside itself, by more than a little and by more than chance."""
    lines, most = lines_of(reference), reference.levels[-1].slowdown
    rise = lines.middle[-1] - lines.middle[0]
    return bool(rise >= LEAST_RISE and (most.low is None or most.low > 1))


def bounded(coefficients: Iterable[Coefficient]) -> bool:
    """Tell whether the intervals are known (a single repetition has none)."""
    return all(c.low is not None and c.high is not None for c in coefficients)


def three(coefficient: Coefficient) -> tuple[float, float, float]:
    """Give value, low and high; the value also for an unknown bound."""
    low, high = (
        coefficient.value if bound is None else bound for bound in (coefficient.low, coefficient.high)
    )
    return coefficient.value, low, high


def lines_of(curve: Curve) -> Lines:
    """Make lines of the levels that never fall."""
    from scipy.optimize import isotonic_regression  # late, because the display of a profile needs none

    levels = curve.levels
    weights = [level.slowdown.n for level in levels]
    bounds = zip(*(three(level.slowdown) for level in levels), strict=True)
    rising = (isotonic_regression(y, weights=weights).x for y in bounds)
    return Lines(np.array([level.offered_gbs for level in levels]), *rising)


def _at(gbs: Floats, values: Floats, x: float) -> float:
    last = float(gbs[-1])
    if x <= last:
        return float(np.interp(x, gbs, values))
    return float(values[-1] + _mean_slope(gbs, values) * (min(x, FURTHEST * last) - last))


def _inverse(gbs: Floats, values: Floats, y: float) -> float:
    """Find the least traffic at which the line reaches ``y``."""
    if y <= values[0]:
        return 0.0
    for i in range(1, len(gbs)):
        if y <= values[i]:
            rise = values[i] - values[i - 1]
            return float(gbs[i - 1] + (gbs[i] - gbs[i - 1]) * (y - values[i - 1]) / rise)
    last, slope = float(gbs[-1]), _mean_slope(gbs, values)
    return min(last + (y - float(values[-1])) / slope, FURTHEST * last) if slope > 0 else last


def _mean_slope(gbs: Floats, values: Floats) -> float:
    """Compute the slope of the whole curve, because the last two levels lie too near each other."""
    return float((values[-1] - values[0]) / (gbs[-1] - gbs[0])) if len(gbs) > 1 else 0.0


# -- on a network that hosts share -------------------------------------------------------------------------
#
# A job's *share* is the part of its run time in which the job has the network as comprobe has when at work.
#
# - Beside a share x a job's speed is the mean of its speed alone and beside comprobe at work, weighted 1 - x
#   and x. The curve over comprobe's intensity measures that speed; between its levels speeds are straight.
# - Beside comprobe a job has the share (1 - 1 / s) / (1 - 1 / r): s is comprobe's slow-down beside the job, r
#   beside comprobe.
# - The job itself is slowed down there S times, and sends as much as alone in S times the time. Alone its
#   share is therefore S times as large, but not larger than the share of its time inside MPI.
# - The time for which a job has the network is a line in its run time through these two points, so its share
#   is a + b / S. A job that waits for small messages has a = 0, because it always sends the same. A job that
#   fills the link has a near 1, because all its lost time goes to the network.
#
# The slow-downs of jobs beside each other solve these equations together. The model is ours.


ROUNDS = 200  # until the slow-downs of jobs beside each other fit together
CLOSE = 1e-9


class NetworkShare(NamedTuple):
    """Part of its time in which a job has the network: alone, and ``slowed`` times slower by comprobe."""

    alone: float
    beside: float
    slowed: float

    def at(self, slowdown: float) -> float:
        """Compute the share at this slow-down by others, up to that by comprobe."""
        if self.slowed <= 1:
            return self.alone
        weight = (1 - 1 / max(slowdown, 1.0)) / (1 - 1 / self.slowed)
        return self.alone + (self.beside - self.alone) * min(weight, 1.0)


class _Job(NamedTuple):
    """An estimate of a job: its speed beside comprobe at work for these shares of time, and its share."""

    shares: Floats
    speeds: Floats
    share: NetworkShare

    def slowdown(self, share: float) -> float:
        """Compute the slow-down beside others that have the network for this share of the time."""
        return 1 / float(np.interp(share, self.shares, self.speeds))


def share_alone(half: NetworkHalf, inside_mpi: Coefficient | None) -> Coefficient | None:
    """Compute the part of its run time in which the job alone has the network; None if unknown.

    Args:
        inside_mpi: share of its time; None: unknown.
    """
    estimates = _estimates(half, inside_mpi)
    if estimates is None:
        return None
    value, low, high = (job.share.alone for job in estimates)
    known = _known(half, inside_mpi)
    return Coefficient(
        name="share",
        value=value,
        unit="ratio",
        low=min(low, value) if known else None,
        high=max(high, value) if known else None,
        n=half.pressure.slowdown.n if half.pressure else 0,
        quality=judge(value, low, high, scale=1.0) if known else judge(value, None, None),
        scale=1.0,
    )


def beside_on_network(job: JobProfile, others: Sequence[JobProfile]) -> Prediction | None:
    """Predict the slow-down of a job beside others on the network; None if not measured, or unknown."""
    of_jobs, known = [], True
    for member in (job, *others):
        inside = member.need("mpi_share")
        estimates = _estimates(member.network, inside) if member.network else None
        if member.network is None or estimates is None:
            return None
        of_jobs.append(estimates)
        known = known and _known(member.network, inside)
    value, low, high = (_together(jobs)[0] for jobs in zip(*of_jobs, strict=True))
    return Prediction(value, min(low, value), max(high, value)) if known else Prediction(value, 0.0, math.inf)


def _together(jobs: Sequence[_Job]) -> list[float]:
    """Solve for the slow-downs of jobs beside each other."""
    slowed = [1.0] * len(jobs)
    for _ in range(ROUNDS):
        has = [job.share.at(s) for job, s in zip(jobs, slowed, strict=True)]
        after = [job.slowdown(min(sum(has) - own, 1.0)) for job, own in zip(jobs, has, strict=True)]
        moved = max(abs(a - b) for a, b in zip(after, slowed, strict=True))
        slowed = [(a + b) / 2 for a, b in zip(after, slowed, strict=True)]
        if moved < CLOSE:
            break
    return slowed


def _estimates(half: NetworkHalf, inside_mpi: Coefficient | None) -> tuple[_Job, _Job, _Job] | None:
    """Estimate the job from values, low bounds and high bounds."""
    curve, reference, pressure = half.sensitivity, half.reference, half.pressure
    if curve is None or reference is None or pressure is None or not suffers(reference):
        return None
    insides = (1.0, 1.0, 1.0) if inside_mpi is None else three(inside_mpi)
    lost_to_probe = 1 - 1 / reference.levels[-1].slowdown.value
    shares, *lines = lines_of(curve)

    def estimate(pressed: float, suffered: Floats, inside: float) -> _Job:
        share = min((1 - 1 / max(pressed, 1.0)) / lost_to_probe, 1.0)
        slowed = max(float(suffered[-1]), 1.0)
        return _Job(
            shares / shares[-1],
            1 / np.maximum(suffered, 1e-9),
            NetworkShare(min(share * slowed, inside, 1.0), share, slowed),
        )

    value, low, high = map(estimate, three(pressure.slowdown), lines, insides)
    return value, low, high


def _known(half: NetworkHalf, inside_mpi: Coefficient | None) -> bool:
    """Tell whether the intervals are known (a single repetition has none)."""
    levels = half.sensitivity.levels if half.sensitivity else ()
    pressed = [half.pressure.slowdown] if half.pressure else []
    inside = [inside_mpi] if inside_mpi else []
    return bounded([*pressed, *inside, *(level.slowdown for level in levels)])


# -- of a job beside others --------------------------------------------------------------------------------
#
# Memory: traffic adds up. Each neighbour counts as the traffic of memprobe beside which memprobe suffers
# as much as beside that neighbour. Where memprobe does not suffer beside itself there is no contention
# for memory, and a job suffers from cores at work next to it; then each neighbour counts by its busy
# cores. The cost of a core at work is a fact of the machine more than of the job. memprobe's many windows
# beside itself, in the profiles of all these jobs, measure that cost better than a few runs of the job,
# whose value counts only if their interval lies apart from memprobe's; the interval is never narrower than
# theirs. What the network costs comes on top.


def slowdown_beside(
    job: JobProfile, others: Sequence[JobProfile], network: bool = False
) -> Prediction | None:
    """Predict the run time of a job beside others / run time alone.

    With ``network`` the jobs share the hosts' network too, which costs extra. None where the job's
    sensitivity, or the pressure of a neighbour, was not measured or cannot be told.
    """
    pressures = [other.pressure_by() for other in others]
    contended = any(pressure and pressure.equivalent_gbs for pressure in pressures)
    curve = job.sensitivity_by()
    if curve is None or any(pressure is None for pressure in pressures):
        return None
    if contended:
        memory = _beside_traffic(curve, len(job.probe_cpus), others, pressures)
    else:
        memory = _beside_cores(job, curve, others)
    if not network:
        return memory
    added = beside_on_network(job, others)
    if added is None:
        return None
    if contended:
        return Prediction(*(max(a + b - 1, 0.0) for a, b in zip(memory, added, strict=True)))
    # Both probes keep a core busy, so that cost is in both, and counts once.
    return Prediction(*map(max, memory, added))


def _beside_traffic(
    curve: Curve, writers: int, others: Sequence[JobProfile], pressures: Sequence[ProbePressure | None]
) -> Prediction:
    """Predict where memory is contended, at the sum of the others' traffic."""
    full_gbs = curve.levels[-1].offered_gbs
    value = low = high = 0.0
    known = True
    for other, pressure in zip(others, pressures, strict=True):
        gbs = pressure.equivalent_gbs if pressure else None
        if gbs is None:
            as_much = full_gbs * _busy_cores(other) / writers
            value, low, high = value + as_much, low + as_much, high + as_much
            continue
        known = known and bounded([gbs])
        value, low, high = (sum(pair) for pair in zip((value, low, high), three(gbs), strict=True))
    slowdown = predict_slowdown(curve, value, low, high)
    return slowdown if known else Prediction(slowdown.value, 0.0, math.inf)


def _beside_cores(job: JobProfile, curve: Curve, others: Sequence[JobProfile]) -> Prediction:
    """Predict where memory is not contended, at the sum of the others' busy cores."""
    busy, writers = sum(map(_busy_cores, others)), len(job.probe_cpus)
    own = predict_slowdown(curve, curve.levels[-1].offered_gbs * busy / writers)
    references = _references((job, *others), curve.clock)
    if not references:
        return own
    value, low, high = _core_costs(references)
    known = all(bounded(level.slowdown for level in reference.levels) for reference, _ in references)
    if known and bounded([curve.levels[-1].slowdown]):
        _, least, most = three(curve.levels[-1].slowdown)
        if least > 1 + writers * high or most < 1 + writers * low:
            return own
    busy = min(busy, FURTHEST * max(cores for _, cores in references))
    if not known:
        return Prediction(1 + busy * value, 0.0, math.inf)
    return Prediction(
        1 + busy * value, max(min(1 + busy * low, own.low), 0.0), max(1 + busy * high, own.high)
    )


def _references(jobs: Sequence[JobProfile], clock: Clock) -> list[tuple[Curve, int]]:
    """Collect memprobe beside itself in each of these profiles, with the number of cores."""
    profiles = {(member.name, member.id): member for member in jobs}
    return [
        (curve, member.cores)
        for member in profiles.values()
        for curve in member.reference
        if curve.clock == clock
    ]


def _core_costs(references: Sequence[tuple[Curve, int]]) -> tuple[float, float, float]:
    """Compute the share of its time by which each core at work slows memprobe down: measured, least and most.

    It is the slope of the least-squares line through no slow-down beside no core.
    """
    levels = [(level, cores) for curve, cores in references for level in curve.levels]
    at_work = np.array([cores * level.intensity_percent / 100 for level, cores in levels])
    weights = at_work * [level.slowdown.n for level, _ in levels]
    added = np.array([three(level.slowdown) for level, _ in levels]) - 1
    value, low, high = weights @ added / (weights @ at_work)
    return max(float(value), 0.0), float(low), max(float(high), 0.0)


def _busy_cores(job: JobProfile) -> float:
    """Compute the mean number of busy cores of a job on a node; all its cores, if unknown."""
    run, cpu = job.need("run_s"), job.need("cpu_s")
    if run is None or cpu is None or run.value <= 0:
        return float(job.cores)
    return min(cpu.value / run.value, job.cores)
