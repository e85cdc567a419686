"""From the power probe's samples to models.

- ``W_base``: power of the node with nothing running (paper C), over all that the meter covers.
- ``beside_packages_w``: the same without the packages, which caps govern: the W_base of a scheduler that
  counts ``n (p + W_base)`` watts for n nodes under the cap p.
- ``power_w`` {load}: power with the load on every core, under the limits as found.
- ``power_speed_ratio`` {load}: speed over the cap (sum over the packages), relative to uncapped; knee model.
- ``gpu_power_w`` {gpu, state}: an NVIDIA GPU at rest and busy.
"""

from __future__ import annotations

import pandas as pd

from profiles.models import constant, knee
from profiles.records import Model

COLUMNS = ("kind", "load", "cap_w", "package_w", "total_w", "speed_ratio", "held", "gpu", "state", "gpu_w")


def fit(samples: pd.DataFrame) -> list[Model]:
    """Fit every model that ``samples`` support; models without rows are left out."""
    if "kind" not in samples:
        return []
    rows = samples.reindex(columns=list(dict.fromkeys([*samples.columns, *COLUMNS])))
    models = []
    at_rest = rows[rows["kind"] == "idle"]
    idle = at_rest["total_w"].dropna()
    if len(idle):
        models.append(_constant(idle, "W_base", {}))
    beside = (at_rest["total_w"] - at_rest["package_w"]).dropna()
    if len(beside):  # often near 0, where a share of itself says nothing
        scale = float(idle.median())
        models.append(_constant(beside, "beside_packages_w", {}, scale=scale if scale > 0 else None))
    for load, group in rows.groupby("load"):
        labels = {"load": str(load)}
        uncapped = group.loc[group["kind"].isin(["uncapped", "reference"]), "total_w"].dropna()
        if len(uncapped):
            models.append(_constant(uncapped, "power_w", labels))
        if curve := _curve(group, labels):
            models.append(curve)
    gpus = rows[(rows["kind"] == "gpu") & rows["state"].isin(["idle", "busy"])]
    for (gpu, state), group in gpus.groupby(["gpu", "state"]):
        watts = group["gpu_w"].dropna()
        if len(watts):
            subject = {"gpu": str(gpu), "state": str(state)}
            models.append(_constant(watts, "gpu_power_w", subject))
    return models


def sweep(samples: pd.DataFrame) -> pd.DataFrame:
    """Select the rows for a curve: held caps and references, with a speed and a cap."""
    rows = samples.reindex(columns=list(dict.fromkeys([*samples.columns, *COLUMNS])))
    rows = rows[rows["kind"].isin(["cap", "reference"]) & rows["speed_ratio"].notna() & rows["cap_w"].notna()]
    return rows[(rows["kind"] == "reference") | (rows["held"] == True)]  # noqa: E712 - the column may hold None


def _constant(
    watts: pd.Series[float],
    quantity: str,
    labels: dict[str, str],
    *,
    scale: float | None = None,
) -> Model:
    return constant.fit(
        list(watts),
        probe="power",
        quantity=quantity,
        name=quantity,
        unit="W",
        labels=labels,
        scale=scale,
    )


def _curve(group: pd.DataFrame, labels: dict[str, str]) -> Model | None:
    rows = sweep(group)
    if not (rows["kind"] == "cap").any():
        return None
    caps = group[group["kind"] == "cap"]
    lost = int((caps["held"] == False).sum())  # noqa: E712
    try:
        return knee.fit(
            list(rows["cap_w"]),
            list(rows["speed_ratio"]),
            probe="power",
            quantity="power_speed_ratio",
            labels=labels,
            note=f"{lost} of {len(caps)} caps did not hold and were left out" if lost else "",
        )
    except ValueError:  # too few caps so far
        return None
