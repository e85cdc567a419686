"""Job profiles that continue an earlier one: the same measurement at another time, pooled.

Machines change from hour to hour, and one session cannot tell how much. The intervals of several sessions
contain that change, and their medians average over it.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from agent.job_profile.profiler import choose_clock
from agent.job_profile.session import JobOrder
from profiles.errors import BadInput
from profiles.fits.job import fit
from profiles.jobs import JobProfile
from profiles.records import Condition

POOLED = ("runs", "windows")


def same_again(job: JobProfile, limit_s: float, budget_s: float | None) -> JobOrder:
    """Return the order that continues a job profile, with another random seed."""
    return JobOrder(
        name=job.name,
        command=job.command,
        folder=job.folder,
        cores=job.ranks or job.cores,
        quick=job.quick,
        limit_s=limit_s,
        budget_s=budget_s,
        seed=job.seed + 1,
        mpi=job.mpi,
        hosts=job.hosts,
    )


def check_samples(job: JobProfile, samples: Mapping[str, pd.DataFrame]) -> None:
    """See that a job profile can be gone on with.

    Raises:
        BadInput: its samples are not there.
    """
    missing = [table for table in POOLED if table not in samples]
    if missing:
        raise BadInput(
            f"job profile {job.name}@{job.id} has no table of {' and '.join(missing)} to go on from",
            f"measure it anew: tenbin job profile {job.name} -- CMD...",
        )


def pooled(
    later: JobProfile,
    samples: Mapping[str, pd.DataFrame],
    earlier: JobProfile,
    earlier_samples: Mapping[str, pd.DataFrame],
) -> tuple[JobProfile, dict[str, pd.DataFrame]]:
    """Fit the later profile to the samples of both sessions, and keep scaling and caps.

    Args:
        samples, earlier_samples: tables ``runs`` and ``windows`` (see ``profiles.fits.job``), and others.
    """
    before = int(earlier_samples["runs"]["repetition"].max())
    tables = {
        name: pd.concat(
            [
                earlier_samples[name],
                samples[name].assign(repetition=lambda rows: rows["repetition"] + before),
            ],
            ignore_index=True,
        )
        for name in POOLED
    }
    fitted = fit(tables["runs"], tables["windows"])
    if later.network and fitted.network:
        half = fitted.network.model_copy(
            update={"emulated": later.network.emulated, "note": later.network.note}
        )
        fitted = fitted._replace(network=half)
    condition = _mean_condition(earlier.condition, later.condition)
    made = later.model_copy(
        update={
            **fitted._asdict(),
            "clock": choose_clock(condition, fitted)[0],
            "condition": condition,
            "sessions": earlier.sessions + later.sessions,
            "repetitions": int(tables["runs"]["repetition"].nunique()),
            "duration_s": round(earlier.duration_s + later.duration_s, 1),
            "scaling": later.scaling or earlier.scaling,
            "caps": later.caps or earlier.caps,
            "emulated": earlier.emulated or later.emulated,
            "note": "; ".join(filter(None, dict.fromkeys((earlier.note, later.note)))),
        }
    )
    return made, {**earlier_samples, **samples, **tables}


def _mean_condition(earlier: Condition, later: Condition) -> Condition:
    """Return the mean condition of both sessions, weighted by their lengths."""
    whole_s = earlier.duration_s + later.duration_s
    weight = later.duration_s / whole_s if whole_s > 0 else 1.0

    def mean(name: str) -> float:
        before, after = getattr(earlier, name), getattr(later, name)
        return round(float(before + weight * (after - before)), 6)

    return later.model_copy(
        update={
            "duration_s": round(whole_s, 3),
            **{name: mean(name) for name in ("reference_s", "steal_ratio", "others_ratio")},
        }
    )
