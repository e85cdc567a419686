"""From a job's runs under power caps to its run time, power and energy at each, and its speed over the cap.

Samples are those of ``agent.job_profile.caps``. Speed under a cap is the run time without cap over the run
time under the cap, of the same repetition; the curve has the form of the node's loads
(``profiles.models.knee``, paper C, eq. 4.5).
"""

from __future__ import annotations

import pandas as pd

from profiles.jobs import CapLevel, UnderCaps
from profiles.models import constant, knee
from profiles.records import Model

NEEDS = {"run_s": ("wall_s", "s"), "power_w": ("power_w", "W"), "energy_j": ("energy_j", "J")}


def fit(samples: pd.DataFrame, emulated: str = "", doubt: str = "") -> UnderCaps:
    """Fit the runs under caps; without a curve where there are too few caps, and then ``note`` says why.

    Args:
        doubt: why there is no curve, if known.
    """
    rows = samples.assign(cap_w=samples["cap_w"].astype(float))
    caps = sorted(set(rows["cap_w"].dropna().tolist()))
    levels = [_level(cap, rows[rows["cap_w"] == cap]) for cap in caps]
    levels.append(_level(None, rows[rows["cap_w"].isna()]))
    speed, note = _speed(rows, bool(emulated))
    notes = [doubt or note] if speed is None else [note]
    return UnderCaps(
        levels=tuple(levels), speed=speed, emulated=emulated, note="; ".join(filter(None, notes))
    )


def ratios(samples: pd.DataFrame) -> pd.DataFrame:
    """Select rows under caps that held, with ``speed_ratio`` to the uncapped run of the same repetition."""
    rows = samples.assign(cap_w=samples["cap_w"].astype(float))
    uncapped = rows[rows["cap_w"].isna()].groupby("repetition")["wall_s"].median()
    under = rows[rows["cap_w"].notna() & (rows["held"] == True)]  # noqa: E712 - the column may hold None
    return under.assign(speed_ratio=under["repetition"].map(uncapped) / under["wall_s"]).dropna(
        subset=["speed_ratio"]
    )


def _speed(rows: pd.DataFrame, emulated: bool) -> tuple[Model | None, str]:
    under, lost = ratios(rows), int((rows["held"] == False).sum())  # noqa: E712
    note = f"{lost} of {int(rows['cap_w'].notna().sum())} runs did not keep to their cap and were left out"
    try:
        model = knee.fit(
            list(under["cap_w"]),
            list(under["speed_ratio"]),
            probe="job",
            quantity="job_power_speed_ratio",
            emulated=emulated,
        )
    except ValueError as error:
        return None, f"{error}; {note}" if lost else str(error)
    return model, note if lost else ""


def _level(cap_w: float | None, group: pd.DataFrame) -> CapLevel:
    held = [bool(value) for value in group["held"].dropna()]
    found = {
        name: constant.median(group[column].dropna().astype(float).tolist(), name=name, unit=unit)
        for name, (column, unit) in NEEDS.items()
    }
    return CapLevel(cap_w=cap_w, held=all(held), **found)
