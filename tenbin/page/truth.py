"""Predictions beside what then happened: errors, how often intervals held, and the last refit."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from profiles.compare import compare
from profiles.errors import BadInput
from profiles.files.store import Store, load
from profiles.records import Coefficient, Profile
from scheduler.coordinator.journal.journal import predictions_of
from scheduler.prediction.predictions import RUN_TIMES, UNITS, TrackedPrediction, error_of, summary
from tenbin import text
from tenbin.page.explainer import Explainer
from tenbin.page.mirror import Mirror, Row

# -- the last refit ----------------------------------------------------------------------------------------


MOST_READ = 50  # profiles, the newest


def last_refit(store: Store) -> dict[str, Any] | None:
    """Describe the newest refitted profile beside the one that it comes from; None: there is none."""
    for path in store.paths()[:MOST_READ]:
        profile = _read(path)
        if profile is None or not profile.refit_of:
            continue
        before = _read(path.parents[1] / profile.refit_of / path.name)
        return {
            "node": profile.node,
            "profile": profile.id,
            "made_s": profile.created.timestamp(),
            "origin": profile.origin,
            "emulated": profile.emulated,
            "changes": None if before is None else _changes(before, profile),
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
            "quantity": difference.model,
            "coefficient": difference.coefficient,
            "before": _value(difference.of_a),
            "after": _value(difference.of_b),
            "ratio": "-" if difference.ratio is None else f"{difference.ratio:.2f}",
            "verdict": str(difference.verdict.value),
        }
        for difference in compare(before, after)
        if difference.of_a != difference.of_b
    ]


def _value(coefficient: Coefficient | None) -> str:
    if coefficient is None:
        return "-"
    return f"{text.value_with_unit(coefficient)} ({text.interval(coefficient)})"


# -- the view ----------------------------------------------------------------------------------------------


MOST, MOST_POINTS, MOST_JOBS = 20_000, 400, 2000  # the last predictions; of a chart; jobs for the coverage
FRESH_S = 5.0
MEANT = 0.8  # share of the run times that should lie between the 10 and 90 % quantiles


class Truth:
    """The Truth view of a mirror; an answer is kept until jobs change, and for some seconds.

    Args:
        store: the stored profiles; None: the default place.
    """

    def __init__(self, mirror: Mirror, explainer: Explainer, store: Store | None = None) -> None:
        self._mirror, self._explainer = mirror, explainer
        self._store = store or Store()
        self._kept: tuple[int, float, dict[str, Any]] | None = None
        self._refit: tuple[list[Path], dict[str, Any] | None] | None = None

    def find(self) -> dict[str, Any]:
        """Return the account.

        Raises:
            BadInput: the journal cannot be read.
        """
        kept, version, now = self._kept, self._mirror.version, time.monotonic()
        if kept is not None and (kept[0] == version or now - kept[1] < FRESH_S):
            return kept[2]
        predictions = predictions_of(self._mirror.store, last=MOST)
        points: dict[str, list[tuple[float, float, int]]] = defaultdict(list)
        for prediction in predictions:
            if (error := error_of(prediction)) is not None and not prediction.is_stated:
                points[prediction.kind].append((prediction.at_s, error, prediction.job))
        account = {
            "rows": [row.as_json() for row in summary(predictions)],
            "points": {kind: points[kind][-MOST_POINTS:] for kind in UNITS if kind in points},
            "coverage": coverage(predictions, self._mirror.rows),
            "starts": self._explainer.starts,
            "last": MOST,
            "refit": self._last_refit(),
        }
        self._kept = version, now, account
        return account

    def _last_refit(self) -> dict[str, Any] | None:
        newest = self._store.paths()[:1]
        if self._refit is None or self._refit[0] != newest:
            self._refit = newest, last_refit(self._store)
        return self._refit[1]


def coverage(predictions: Iterable[TrackedPrediction], rows: Mapping[int, Row]) -> dict[str, Any]:
    """Count how many of the last jobs ran between the 10 and 90 % quantiles that were predicted of them.

    The outcomes are those of the errors: attempts' own run times, in which no pause and no start-up counts.
    """
    ran = []
    for prediction in predictions:
        row = rows.get(prediction.job)
        if row is None or row.expected is None or row.expected.low_s is None or row.expected.high_s is None:
            continue
        if prediction.kind not in RUN_TIMES or prediction.is_stated or prediction.attempt != 1:
            continue
        if prediction.measured is not None:  # under a cap it takes longer than stands in the row
            share = prediction.predicted / row.expected.run_s
            ran.append((prediction.measured, share * row.expected.low_s, share * row.expected.high_s))
    ran = ran[-MOST_JOBS:]
    below = sum(run_s < low_s for run_s, low_s, _ in ran)
    above = sum(run_s > high_s for run_s, _, high_s in ran)
    return {
        "jobs": len(ran),
        "below": below,
        "inside": len(ran) - below - above,
        "above": above,
        "meant": MEANT,
    }
