"""How good predictions were: errors by kind and place, and measured phases as samples of a profile."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np

from scheduler.prediction.predictions import UNITS, Forecast, apart

BOUND = 1.0  # paper A: 95 % of its predictions have an error of at most this


@dataclass(frozen=True)
class Row:
    """The predictions of one kind at one place. An error is (predicted - measured) / measured.

    Attributes:
        place: the class, or from which to which.
        n: outcomes for which something had been predicted.
        blind: outcomes of which nothing was known yet.
        open, void: predictions whose outcome is not known yet, or never will be.
        predicted, measured: medians, in ``unit``.
        median, p95: of the signed errors, and of their absolute values; None without outcomes.
        within: share of the outcomes with an absolute error of at most ``BOUND``.
        worst, worst_job: the error that is largest, and whose it was.
        is_stated: ``predicted`` is what users said by --expect: no prediction of tenbin's.
    """

    kind: str
    place: str
    unit: str
    emulated: bool
    n: int
    blind: int
    open: int
    void: int
    predicted: float | None = None
    measured: float | None = None
    median: float | None = None
    median_absolute: float | None = None
    p95: float | None = None
    within: float | None = None
    worst: float | None = None
    worst_job: int | None = None
    is_stated: bool = False

    def told(self) -> dict[str, Any]:
        """As JSON knows it."""
        values = asdict(self)
        return apart(values, values.pop("is_stated"))


def error_of(forecast: Forecast) -> float | None:
    """(predicted - measured) / measured; None if nothing was predicted, or nothing is measured."""
    if not forecast.measured or forecast.predicted <= 0:
        return None
    return (forecast.predicted - forecast.measured) / forecast.measured


def summary(forecasts: Sequence[Forecast]) -> list[Row]:
    """One row for each kind and place; emulated ones apart, and what users stated."""
    groups: dict[tuple[str, str, bool, bool], list[Forecast]] = defaultdict(list)
    for one in forecasts:
        groups[one.kind, _place(one), one.emulated, one.is_stated].append(one)
    order = list(UNITS)
    keys = sorted(groups, key=lambda key: (order.index(key[0]), key[1:]))  # type: ignore[arg-type]
    return [_row(*key, groups[key]) for key in keys]


def _row(kind: str, place: str, emulated: bool, is_stated: bool, forecasts: list[Forecast]) -> Row:
    found = [(error, one) for one in forecasts if (error := error_of(one)) is not None]
    unit = UNITS[kind]  # type: ignore[index]
    known = sum(one.measured is not None for one in forecasts)
    counts = (sum(one.open for one in forecasts), sum(bool(one.void) for one in forecasts))
    if not found:
        return Row(kind, place, unit, emulated, 0, known, *counts, is_stated=is_stated)
    errors = np.array([error for error, _ in found])
    worst, whose = max(found, key=lambda pair: abs(pair[0]))
    return Row(
        kind,
        place,
        unit,
        emulated,
        len(found),
        known - len(found),
        *counts,
        predicted=median(one.predicted for _, one in found),
        measured=median(one.measured for _, one in found if one.measured is not None),
        median=float(np.median(errors)),
        median_absolute=float(np.median(abs(errors))),
        p95=float(np.quantile(abs(errors), 0.95)),
        within=float((abs(errors) <= BOUND).mean()),
        worst=worst,
        worst_job=whose.job,
        is_stated=is_stated,
    )


def parts(forecasts: Sequence[Forecast]) -> list[tuple[str, int, float, float]]:
    """(part, n, median predicted, median measured) in seconds, of checkpoints and restarts whose program
    notes its phases; in the order in which they follow each other."""
    found: dict[str, list[tuple[float, float]]] = {}
    for one in forecasts:
        if one.kind in ("checkpoint", "restart"):
            for part, seconds in one.detail.get("measured", {}).items():
                found.setdefault(part, []).append((one.detail["parts"][part], seconds))
    return [
        (part, len(pairs), median(p for p, _ in pairs), median(m for _, m in pairs))
        for part, pairs in found.items()
    ]


def samples(forecasts: Sequence[Forecast], storage: str) -> list[dict[str, Any]]:
    """What jobs' checkpoints showed, as rows that the checkpoint probe would have recorded: see
    ``profiles.fits.checkpoint``. What belongs to a program's start and end is not in them."""
    rows: list[dict[str, Any]] = []
    for one in forecasts:
        took, mb = one.detail.get("measured"), one.detail.get("mb", 0.0)
        if one.measured is None or not took or not mb:
            continue
        device, common = one.detail["pool"], {"emulated": one.emulated}
        where = {"device": device, "storage": storage, "memory_mb": mb} | common
        if one.kind == "checkpoint":
            rows.append({"kind": "checkpoint", **where, "seconds": took["save"]})
        elif one.kind == "restart":
            context, kernels = took["context"], took["compile"]
            rows.append({"kind": "restart", **where, "seconds": context + took["restore"]})
            rows.append({"kind": "compile", "cache": "warm", "device": device, "seconds": kernels} | common)
            rows.append({"kind": "phase", "phase": "context", "device": device, "seconds": context} | common)
        elif one.kind == "migration":
            to = one.detail["to"]
            seconds = sum(took[part] for part in ("drain", "save", "context", "compile", "restore"))
            twin = {"to_device": to, "costs_of": device, "to_costs_of": to}
            rows.append({"kind": "migration", **where, **twin, "seconds": seconds})
    return [{**row, "repetition": number} for number, row in enumerate(rows)]


def _place(one: Forecast) -> str:
    place = str(one.detail.get("pool", ""))
    return f"{place} -> {one.detail['to']}" if "to" in one.detail else place
