"""How much slower a job gets beside others, from their job profiles.

Memory: traffic adds up. Each neighbour counts as the traffic of memprobe beside which memprobe suffers as
much as beside it. Where memprobe does not suffer beside itself there is no contention for memory, and what a
job suffers comes of cores at work next to it: then each neighbour counts as memprobe at the share of the time
that it keeps its cores busy. What that costs is more a fact of the machine than of the job, and memprobe's
many windows beside itself tell it better than a few runs of the job, which count only where their interval
lies apart from memprobe's. Network: see ``network_share``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from profiles.jobs import Curve, JobProfile, ProbePressure
from profiles.models import Prediction
from profiles.models.curve import bounded, predict, three
from profiles.models.network_share import beside as beside_on_network


def slowdown_beside(
    job: JobProfile, others: Sequence[JobProfile], network: bool = False
) -> Prediction | None:
    """Run time of a job beside others / run time alone.

    With ``network`` they share the hosts' network too, and what that costs comes on top of what memory costs.
    None where its sensitivity, or the pressure of one of the others, was not measured, or cannot be told.
    """
    pressures = [other.pressure_by() for other in others]
    contended = any(pressure and pressure.equivalent_gbs for pressure in pressures)
    memory = _beside(job, others, pressures, contended)
    if not network or memory is None:
        return memory
    added = beside_on_network(job, others)
    if added is None:
        return None
    if contended:
        return Prediction(*(max(a + b - 1, 0.0) for a, b in zip(memory, added, strict=True)))
    # Both probes keep a core busy: what that costs is in both, and counts once.
    return Prediction(*map(max, memory, added))


def _beside(
    job: JobProfile,
    others: Sequence[JobProfile],
    pressures: Sequence[ProbePressure | None],
    contended: bool,
) -> Prediction | None:
    """By memory, where it is contended, and by cores at work, where it is not."""
    curve, writers = job.sensitivity_by(), len(job.probe_cpus)
    if curve is None:
        return None
    if not contended:
        curve, writers = _of_busy_cores(job, curve)
    full_gbs = curve.levels[-1].offered_gbs
    value = low = high = 0.0
    known = True
    for other, pressure in zip(others, pressures, strict=True):
        if pressure is None:
            return None
        gbs = pressure.equivalent_gbs
        if gbs is None:
            as_much = full_gbs * _busy_cores(other) / writers
            value, low, high = value + as_much, low + as_much, high + as_much
            continue
        known = known and bounded([gbs])
        value, low, high = (sum(pair) for pair in zip((value, low, high), three(gbs), strict=True))
    found = predict(curve, value, low, high)
    return found if known else Prediction(found.value, 0.0, math.inf)


def _of_busy_cores(job: JobProfile, own: Curve) -> tuple[Curve, int]:
    """What cores at work beside a job cost it where memory is not contended; how many the last level is."""
    reference = job.reference_by()
    if reference is None:
        return own, len(job.probe_cpus)
    of_job, of_memprobe = own.levels[-1].slowdown, reference.levels[-1].slowdown
    (_, low, high), (_, least, most) = three(of_job), three(of_memprobe)
    apart = bounded([of_job, of_memprobe]) and (low > most or high < least)
    return (own, len(job.probe_cpus)) if apart else (reference, job.cores)


def _busy_cores(job: JobProfile) -> float:
    """How many of its cores on a node a job keeps busy, in the mean over its run; all, if that is unknown."""
    run, cpu = job.need("run_s"), job.need("cpu_s")
    if run is None or cpu is None or run.value <= 0:
        return float(job.cores)
    return min(cpu.value / run.value, job.cores)
