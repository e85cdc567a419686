"""Predictions beside what then happened: errors by kind and over time, and how often intervals held."""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from profiles.files.store import Store
from scheduler.coordinator.journal.journal import predictions_of
from scheduler.prediction.predictions import UNITS, error_of, summary
from tenbin.page.mirror import Mirror
from tenbin.page.rows import Row
from tenbin.page.views.explainer import Explainer
from tenbin.page.views.refit import last_refit

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
        for one in predictions:
            if (error := error_of(one)) is not None and not one.is_stated:
                points[one.kind].append((one.at_s, error, one.job))
        found = {
            "rows": [row.told() for row in summary(predictions)],
            "points": {kind: points[kind][-MOST_POINTS:] for kind in UNITS if kind in points},
            "coverage": coverage(list(self._mirror.rows.values())),
            "starts": self._explainer.starts.account(),
            "last": MOST,
            "refit": self._last_refit(),
        }
        self._kept = version, now, found
        return found

    def _last_refit(self) -> dict[str, Any] | None:
        newest = self._store.paths()[:1]
        if self._refit is None or self._refit[0] != newest:
            self._refit = newest, last_refit(self._store)
        return self._refit[1]


def coverage(rows: list[Row]) -> dict[str, Any]:
    """Count how many of the last jobs ran between the 10 and 90 % quantiles that were predicted of them."""
    ran = [
        (row.end_s - row.start_s, row.expected)
        for row in rows
        if row.stage == "done" and row.attempt == 1 and row.expected and row.expected.low_s is not None
        if row.end_s is not None and row.start_s is not None
    ][-MOST_JOBS:]
    below = sum(run_s < (expected.low_s or 0.0) for run_s, expected in ran)
    above = sum(run_s > (expected.high_s or 0.0) for run_s, expected in ran)
    return {
        "jobs": len(ran),
        "below": below,
        "inside": len(ran) - below - above,
        "above": above,
        "meant": MEANT,
    }
