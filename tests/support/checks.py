"""Checks made up from values, or from real slices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from profiles.checks.check import Check, CheckConditions, Figure, Verdict, stamp

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
QUIET = CheckConditions(
    duration_s=8.0, steal_ratio=0.0, others_processors=0.0, processors=2, cpu_share_ratio=0.99
)


def make_figure(quantity: str, value: float, rounds: Sequence[float] = (), **labels: str) -> Figure:
    return Figure(
        quantity=quantity,
        labels=labels,
        unit="",
        value=value,
        rounds=tuple(rounds) or (value,),
        slices=30,
        spread_ratio=0.02,
    )


def make_check(number: int = 0, figures: Sequence[Figure] = (), **changes: Any) -> Check:
    created = BEGIN + timedelta(hours=number)
    whole: dict[str, Any] = {
        "id": stamp(created),
        "node": "node",
        "created": created,
        "tenbin_version": "0",
        "quick": True,
        "profile": None,
        "figures": tuple(figures),
        "conditions": QUIET,
        "verdict": Verdict.PASS,
    }
    return Check(**{**whole, **changes})


def figures_of(values: Mapping[str, float]) -> list[Figure]:
    """Make figures of values by quantity."""
    return [make_figure(quantity, value) for quantity, value in values.items()]
