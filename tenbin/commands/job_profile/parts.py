"""Parts of a job profile that are measured on request: speed-up over cores (--scale), power caps (--caps)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from agent.job_profile.scaling import ScalingOrder
    from agent.job_profile.session import JobOrder, Listener
    from profiles.errors import UserError
    from profiles.jobs import JobProfile

    Made = tuple[JobProfile, dict[str, pd.DataFrame]]


def planned(counts: tuple[int, ...], order: JobOrder) -> ScalingOrder:
    """Plan the runs over cores, here or (as ranks) over hosts; raise BadInput if there are too few cores."""
    from agent.job_profile.scaling import ScalingOrder, ask, check_counts
    from probes.topology import usable_cores

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
    from agent.job_profile.session import LONGEST_S

    return LONGEST_S if order.budget_s is None else order.budget_s


def with_scaling(made: Made, scaling: ScalingOrder, listener: Listener) -> Made:
    """Add the speed-up over cores."""
    from agent.job_profile.scaling import fit, measure
    from agent.job_profile.trial import CommandFailed

    def runs() -> tuple[object, pd.DataFrame, str]:
        table, doubt = measure(scaling, _teller(listener))
        return fit(table, scaling.hosts), table, doubt

    what = f"scaling over {', '.join(map(str, scaling.counts))} cores"
    return _with_part(made, "scaling", what, runs, failures=(CommandFailed,))


def with_caps(made: Made, order: JobOrder, emulated: str, listener: Listener) -> Made:
    """Add run time and energy under power caps."""
    from agent.job_profile.caps import UnderCapsOrder, measure
    from agent.job_profile.trial import CommandFailed
    from profiles.errors import Unavailable
    from profiles.fits.job import fit_caps

    profile = made[0]
    times = order.limit_s, budget_s(order), profile.quick, profile.seed, profile.mpi
    under_caps = UnderCapsOrder(profile.command, profile.folder, profile.cpus, *times, emulated=emulated)

    def runs() -> tuple[object, pd.DataFrame, str]:
        table, doubt = measure(under_caps, _teller(listener, "caps, "))
        return fit_caps(table, emulated, doubt), table, ""

    what = "run time and energy under power caps"
    return _with_part(made, "caps", what, runs, failures=(CommandFailed, Unavailable))


def _teller(listener: Listener, of: str = "") -> Callable[[str], None]:
    from agent.job_profile.session import JobProgress

    return lambda doing: listener(JobProgress(f"{of}{doing}", 1.0, 0.0))


def _with_part(
    made: Made,
    part: str,
    what: str,
    runs: Callable[[], tuple[object, pd.DataFrame, str]],
    *,
    failures: tuple[type[UserError], ...],
) -> Made:
    """Add what ``runs`` finds; if the runs fail or are interrupted, keep the profile measured before."""
    from profiles.records import Absent

    profile, samples = made
    try:
        found, table, doubt = runs()
    except KeyboardInterrupt:
        return profile.model_copy(update={"interrupted": True}), samples
    except failures as error:
        absent = Absent(probe="job", what=what, reason=error.what, remedy=error.remedy, failed=True)
        return profile.model_copy(update={"absent": (*profile.absent, absent)}), samples
    note = "; ".join(filter(None, (profile.note, doubt)))
    return profile.model_copy(update={part: found, "note": note}), {**samples, part: table}
