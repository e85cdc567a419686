"""memprobe as a neighbour: writers that press on memory while something else is measured beside them.

Each writer has an intensity of its own; its speed in each window tells how much it suffers meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import NamedTuple, Self

from probes.memory.plan import Spot
from probes.memory.pool import WriterPool
from probes.memory.writer import Written
from probes.order_process import PATIENCE_S

WINDOW_S = 0.2
AHEAD = 2  # windows ordered in advance, so that a writer never waits for us
LEAD_S = 0.02
WARM_S = 0.1  # written before the first window, uncounted: a writer that has just rested is slower


class WriterWindow(NamedTuple):
    """A writer in one window."""

    spot: Spot
    written: Written


class Stream:
    """A context in which the writers write; on leaving, the windows under way are waited for.

    Args:
        intensities: of each spot, above 0 up to 1: share of the time spent writing.
        most: number of windows; None: until the context is left.

    Raises:
        WriterLost: a writer is gone, or found no memory.
    """

    def __init__(
        self,
        pool: WriterPool,
        intensities: Mapping[Spot, float],
        window_s: float = WINDOW_S,
        most: int | None = None,
    ) -> None:
        self._pool, self._intensities = pool, dict(intensities)
        self._window_s, self._most = window_s, most
        self._ordered = self._answered = 0

    def __enter__(self) -> Self:
        self._pool.prepare(self._intensities)
        self._begin_s = time.monotonic() + LEAD_S + WARM_S
        for _ in range(AHEAD):
            self._order()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:  # the windows under way are of no use
            self._pool.discard()
        while kind is None and self._answered < self._ordered:
            self._collect()

    def step(self) -> list[WriterWindow]:
        """Wait for the end of the oldest window, with the next one under way."""
        rows = self._collect()
        self._order()
        return rows

    def _order(self) -> None:
        if self._ordered == self._most:
            return
        start_s = self._begin_s + self._ordered * self._window_s
        warm_s = 0.0 if self._ordered else WARM_S
        for spot, intensity in self._intensities.items():
            self._pool.order(
                spot, start_s=start_s, warm_s=warm_s, seconds=self._window_s, intensity=intensity
            )
        self._ordered += 1

    def _collect(self) -> list[WriterWindow]:
        within_s = PATIENCE_S + AHEAD * self._window_s
        rows = [WriterWindow(spot, self._pool.answer(spot, within_s)) for spot in self._intensities]
        self._answered += 1
        return rows
