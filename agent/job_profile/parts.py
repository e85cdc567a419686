"""Parts of a job profile that are measured on request: speed-up over cores, run time under power caps."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from agent.job_profile import caps, scaling
from agent.job_profile.caps import UnderCapsOrder
from agent.job_profile.profiler import make_job_profile
from agent.job_profile.scaling import ScalingOrder, ask, check_counts
from agent.job_profile.session import LONGEST_S, JobOrder, JobProgress, Listener
from agent.job_profile.trial import CommandFailed
from probes.topology import usable_cores
from profiles.errors import Unavailable, UserError
from profiles.fits.job import fit_caps
from profiles.jobs import JobProfile
from profiles.records import Absent

Made = tuple[JobProfile, dict[str, pd.DataFrame]]


def plan_scaling(counts: tuple[int, ...], order: JobOrder) -> ScalingOrder:
    """Plan the runs over cores, here or (as ranks) over hosts; raise BadInput if there are too few cores."""
    there, cpus = None, usable_cores()
    if order.hosts:
        there, cpus = ask(order.hosts), ()
        counts = check_counts(counts, there.most, "these hosts have, as many on each,")
    else:
        counts = check_counts(counts, len(cpus))
    return ScalingOrder(
        command=order.command,
        folder=order.folder,
        counts=counts,
        cpus=cpus,
        limit_s=order.limit_s,
        budget_s=budget_s(order),
        quick=order.quick,
        seed=order.seed,
        mpi=order.mpi,
        hosts=there,
    )


def budget_s(order: JobOrder) -> float:
    """Return the time in which repetitions beyond the least number must end."""
    return LONGEST_S if order.budget_s is None else order.budget_s


def measure(order: JobOrder, plan: ScalingOrder | None, listener: Listener) -> Made:
    """Measure a program, and its speed-up over cores if that is planned."""
    made = make_job_profile(order, listener)
    if plan is None or made[0].interrupted:
        return made

    def runs() -> tuple[object, pd.DataFrame, str]:
        table, doubt = scaling.measure(plan, _teller(listener))
        return scaling.fit(table, plan.hosts), table, doubt

    what = f"scaling over {', '.join(map(str, plan.counts))} cores"
    return _add_part(made, "scaling", what, runs, failures=(CommandFailed,))


def add_caps(made: Made, order: JobOrder, emulated: str, listener: Listener) -> Made:
    """Add run time and energy under power caps."""
    profile = made[0]
    times = order.limit_s, budget_s(order), profile.quick, profile.seed, profile.mpi
    under_caps = UnderCapsOrder(profile.command, profile.folder, profile.cpus, *times, emulated=emulated)

    def runs() -> tuple[object, pd.DataFrame, str]:
        table, doubt = caps.measure(under_caps, _teller(listener, "caps, "))
        return fit_caps(table, emulated, doubt), table, ""

    what = "run time and energy under power caps"
    return _add_part(made, "caps", what, runs, failures=(CommandFailed, Unavailable))


def _teller(listener: Listener, of: str = "") -> Callable[[str], None]:
    return lambda doing: listener(JobProgress(f"{of}{doing}", 1.0, 0.0))


def _add_part(
    made: Made,
    part: str,
    what: str,
    runs: Callable[[], tuple[object, pd.DataFrame, str]],
    *,
    failures: tuple[type[UserError], ...],
) -> Made:
    """Add what ``runs`` finds; if the runs fail or are interrupted, keep the profile measured before."""
    profile, samples = made
    try:
        result, table, doubt = runs()
    except KeyboardInterrupt:
        return profile.model_copy(update={"interrupted": True}), samples
    except failures as error:
        absent = Absent(probe="job", what=what, reason=error.what, remedy=error.remedy, failed=True)
        return profile.model_copy(update={"absent": (*profile.absent, absent)}), samples
    note = "; ".join(filter(None, (profile.note, doubt)))
    return profile.model_copy(update={part: result, "note": note}), {**samples, part: table}
