"""Slow-down of a job beside others, from their job profiles.

Memory: traffic adds up. Each neighbour counts as the traffic of memprobe beside which memprobe suffers as
much as beside that neighbour. Where memprobe does not suffer beside itself there is no contention for memory,
and a job suffers from cores at work next to it; then each neighbour counts by its busy cores. The cost of a
core at work is a fact of the machine more than of the job. memprobe's many windows beside itself, in the
profiles of all these jobs, measure that cost better than a few runs of the job, which count only if their
interval lies apart from memprobe's. Network: see ``network_share``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from profiles.jobs import Clock, Curve, JobProfile, ProbePressure
from profiles.models import Prediction
from profiles.models.curve import FURTHEST, bounded, predict, three
from profiles.models.network_share import beside as beside_on_network


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
    found = predict(curve, value, low, high)
    return found if known else Prediction(found.value, 0.0, math.inf)


def _beside_cores(job: JobProfile, curve: Curve, others: Sequence[JobProfile]) -> Prediction:
    """Predict where memory is not contended, at the sum of the others' busy cores."""
    busy, writers = sum(map(_busy_cores, others)), len(job.probe_cpus)
    own = predict(curve, curve.levels[-1].offered_gbs * busy / writers)
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
    return Prediction(1 + busy * value, max(1 + busy * low, 0.0), 1 + busy * high)


def _references(jobs: Sequence[JobProfile], clock: Clock) -> list[tuple[Curve, int]]:
    """Collect memprobe beside itself in each of these profiles, with the number of cores."""
    profiles = {(one.name, one.id): one for one in jobs}
    return [
        (curve, one.cores) for one in profiles.values() for curve in one.reference if curve.clock == clock
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
