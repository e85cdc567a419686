"""How much slower a job gets beside others, from their job profiles.

Memory: traffic adds up. Each neighbour counts as the traffic of memprobe beside which memprobe suffers as
much as beside it. Where memprobe does not suffer beside itself there is no contention for memory, and what a
job suffers beside memprobe comes of a core at work next to it: then each neighbour counts as memprobe at the
share of the time that it keeps its cores busy. Network: see ``network_share``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from profiles.jobs import JobProfile, ProbePressure
from profiles.models import Prediction
from profiles.models.curve import bounded, predict
from profiles.models.network_share import beside as beside_on_network


def slowdown_beside(
    job: JobProfile, others: Sequence[JobProfile], network: bool = False
) -> Prediction | None:
    """Run time of a job beside others / run time alone.

    With ``network`` they share the hosts' network too, and what that costs comes on top of what memory costs.
    None where its sensitivity, or the pressure of one of the others, was not measured, or cannot be told.
    """
    pressures = [other.pressure_by() for other in others]
    memory = _beside(job, others, pressures)
    if not network or memory is None:
        return memory
    added = beside_on_network(job, others)
    if added is None:
        return None
    if any(pressure and pressure.equivalent_gbs for pressure in pressures):
        return Prediction(*(max(a + b - 1, 0.0) for a, b in zip(memory, added, strict=True)))
    # Both probes keep a core busy: what that costs is in both, and counts once.
    return Prediction(*map(max, memory, added))


def _beside(
    job: JobProfile, others: Sequence[JobProfile], pressures: Sequence[ProbePressure | None]
) -> Prediction | None:
    curve = job.sensitivity_by()
    if curve is None:
        return None
    full_gbs = curve.levels[-1].offered_gbs
    value = low = high = 0.0
    known = True
    for other, pressure in zip(others, pressures, strict=True):
        if pressure is None:
            return None
        gbs = pressure.equivalent_gbs
        if gbs is None:
            as_much = full_gbs * _busy_cores(other) / len(job.probe_cpus)
            value, low, high = value + as_much, low + as_much, high + as_much
            continue
        known = known and bounded([gbs])
        value += gbs.value
        low += gbs.value if gbs.low is None else gbs.low
        high += gbs.value if gbs.high is None else gbs.high
    found = predict(curve, value, low, high)
    return found if known else Prediction(found.value, 0.0, math.inf)


def _busy_cores(job: JobProfile) -> float:
    """How many of its cores on a node a job keeps busy, in the mean over its run; all, if that is unknown."""
    run, cpu = job.need("run_s"), job.need("cpu_s")
    if run is None or cpu is None or run.value <= 0:
        return float(job.cores)
    return min(cpu.value / run.value, job.cores)
