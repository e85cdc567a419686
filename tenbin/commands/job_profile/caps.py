"""``tenbin job profile --caps``: run time and energy of a program under power caps."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from agent.job_profile.session import Listener
    from profiles.jobs import JobProfile


def with_caps(
    made: JobProfile,
    samples: dict[str, pd.DataFrame],
    times: tuple[float, float],
    emulated: str,
    listener: Listener,
) -> tuple[JobProfile, dict[str, pd.DataFrame]]:
    """The profile with its runs under caps; what was measured before stays, whatever comes of it.

    Args:
        times: limit of a run, and budget, s.
    """
    from agent.job_profile.caps import CapsFailed, UnderCapsOrder, measure
    from agent.job_profile.session import JobProgress
    from profiles.errors import Unavailable
    from profiles.fits.job_caps import fit
    from profiles.records import Absent

    where = made.command, made.folder, made.cpus
    order = UnderCapsOrder(*where, *times, made.quick, made.seed, made.mpi, emulated=emulated)
    try:
        table, doubt = measure(order, lambda doing: listener(JobProgress(f"caps, {doing}", 1.0, 0.0)))
    except KeyboardInterrupt:
        return made.model_copy(update={"interrupted": True}), samples
    except (CapsFailed, Unavailable) as error:
        what = "run time and energy under power caps"
        absent = Absent(probe="job", what=what, reason=error.what, remedy=error.remedy, failed=True)
        return made.model_copy(update={"absent": (*made.absent, absent)}), samples
    return made.model_copy(update={"caps": fit(table, emulated, doubt)}), {**samples, "caps": table}
