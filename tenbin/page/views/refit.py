"""The coefficients that the last refit from jobs has changed (``tenbin calibration --refit``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from profiles.compare import compare
from profiles.errors import BadInput
from profiles.files.store import Store, load
from profiles.records import Coefficient, Profile
from tenbin import text

MOST_READ = 50  # profiles, the newest
REFITTED = ", refitted from "  # as ``profiles.refit`` writes in a profile's origin


def last_refit(store: Store) -> dict[str, Any] | None:
    """Describe the newest refitted profile beside the one that it comes from; None: there is none."""
    for path in store.paths()[:MOST_READ]:
        found = _read(path)
        if found is None or REFITTED not in found.origin:
            continue
        before = _read(path.parents[1] / found.origin.partition(REFITTED)[0] / path.name)
        return {
            "node": found.node,
            "profile": found.id,
            "made_s": found.created.timestamp(),
            "origin": found.origin,
            "emulated": found.emulated,
            "changes": None if before is None else _changes(before, found),
        }
    return None


def _read(path: Path) -> Profile | None:
    try:
        return load(path)
    except BadInput:  # deleted or damaged
        return None


def _changes(before: Profile, after: Profile) -> list[dict[str, str]]:
    return [
        {
            "quantity": one.model,
            "coefficient": one.coefficient,
            "before": _value(one.of_a),
            "after": _value(one.of_b),
            "ratio": "-" if one.ratio is None else f"{one.ratio:.2f}",
            "verdict": str(one.verdict.value),
        }
        for one in compare(before, after)
        if one.of_a != one.of_b
    ]


def _value(one: Coefficient | None) -> str:
    return "-" if one is None else f"{text.value_with_unit(one)} ({text.limits(one.low, one.high)})"
