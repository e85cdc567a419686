"""``tenbin job profile --scale``: how a program speeds up over cores."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from agent.job_profile.scaling import Scaling
    from agent.job_profile.session import Listener
    from profiles.jobs import JobProfile


def planned(
    counts: tuple[int, ...],
    command: tuple[str, ...],
    folder: str,
    times: tuple[float, float],
    quick: bool,
    seed: int,
    mpi: bool,
    hosts: tuple[str, ...] = (),
) -> Scaling:
    """What is to be run over cores, here or (as ranks) over hosts; BadInput if it cannot be."""
    from agent.job_profile.scaling import Scaling, ask, check_counts
    from probes.topology import usable_cores

    if hosts:
        there = ask(hosts)
        counts = check_counts(counts, there.most, "these hosts have, as many on each,")
        return Scaling(command, folder, counts, (), *times, quick, seed, mpi=True, hosts=there)
    cpus = usable_cores()
    return Scaling(command, folder, check_counts(counts, len(cpus)), cpus, *times, quick, seed, mpi)


def with_scaling(
    made: JobProfile, samples: dict[str, pd.DataFrame], scaling: Scaling, listener: Listener
) -> tuple[JobProfile, dict[str, pd.DataFrame]]:
    """The profile with its scaling; what was measured before stays, whatever comes of it."""
    from agent.job_profile.scaling import ScalingFailed, fit, measure
    from agent.job_profile.session import JobProgress
    from profiles.records import Absent

    try:
        table = measure(scaling, lambda doing: listener(JobProgress(doing, 1.0, 0.0)))
    except KeyboardInterrupt:
        return made.model_copy(update={"interrupted": True}), samples
    except ScalingFailed as error:
        what = f"scaling over {', '.join(map(str, scaling.counts))} cores"
        absent = Absent(probe="job", what=what, reason=error.what, remedy=error.remedy, failed=True)
        return made.model_copy(update={"absent": (*made.absent, absent)}), samples
    found = fit(table, scaling.hosts)
    return made.model_copy(update={"scaling": found}), {**samples, "scaling": table}
