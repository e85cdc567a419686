"""Writers at work together, one process a core, measured in the same window of time.

``Stream`` has them press on memory while something else is measured beside them. Each writer then has an
intensity of its own; its speed in each window tells how much it suffers meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

from probes.memory.plan import Spot
from probes.memory.writer import Written
from probes.order_process import PATIENCE_S, ProcessPool

TOUCHED_MBS = 20.0  # slowest first touch of an area, on a machine that is taken
MOST_TOUCH_S = 600.0
WARM_S = 0.005


class WriterPool(ProcessPool):
    """Writers, each with areas to write to."""

    def __init__(self, area_mb: float, line_bytes: int = 64) -> None:
        super().__init__("probes.memory.writer", ["--serve", f"--line-bytes={line_bytes}"], "writer")
        self.area_mb = area_mb
        self._ready: set[Spot] = set()

    def prepare(self, spots: Iterable[Spot]) -> None:
        """Have a writer with its area ready at every spot, all at once.

        Raises:
            ProcessLost: a writer could not start, or found no memory.
        """
        wanted = [spot for spot in spots if spot not in self._ready]
        self.start(sorted({spot.core for spot in wanted}))
        with self.all_or_none():
            for spot in wanted:
                self._processes[spot.core].order(
                    "place", node=spot.node, touch_core=spot.touch_core, size_mb=self.area_mb
                )
            for spot in wanted:
                self._processes[spot.core].answer(PATIENCE_S + min(self.area_mb / TOUCHED_MBS, MOST_TOUCH_S))
        self._ready.update(wanted)

    def write(
        self, spots: Sequence[Spot], seconds: float, *, beside: Spot | None = None
    ) -> tuple[list[Written], float]:
        """Have all ``spots`` write in one window of ``seconds``, with ``beside`` writing all the while.

        Returns what each spot wrote, and the share of the window in which really all of them wrote.

        Raises:
            ProcessLost: a writer is gone; all writers are started anew when needed again.
        """
        everyone = [*spots, *([beside] if beside else [])]
        self.prepare(everyone)
        start = time.monotonic() + 0.003 + 0.0002 * len(everyone) + 2 * WARM_S
        with self.all_or_none():
            for spot in everyone:
                margin = WARM_S if spot is beside else 0.0
                self._processes[spot.core].order(
                    "write",
                    node=spot.node,
                    start_s=start - margin,
                    warm_s=WARM_S,
                    seconds=seconds + 2 * margin,
                    check=spot.check,
                )
            done = [Written(**self._processes[spot.core].answer(PATIENCE_S + seconds)) for spot in everyone]
        return done[: len(spots)], overlap(done[: len(spots)], done)

    def order(self, spot: Spot, **arguments: Any) -> None:
        """Tell a writer to write at a spot that is prepared; ``answer`` must follow.

        Raises:
            ProcessLost: the writer is gone; all writers are started anew when needed again.
        """
        with self.all_or_none():
            self._processes[spot.core].order("write", node=spot.node, check=spot.check, **arguments)

    def answer(self, spot: Spot, within_s: float) -> Written:
        """Wait for the answer to the oldest order of that writer; ProcessLost as for ``order``."""
        with self.all_or_none():
            return Written(**self._processes[spot.core].answer(within_s))

    def discard(self) -> None:
        super().discard()
        self._ready.clear()


def overlap(measured: Sequence[Written], everyone: Sequence[Written]) -> float:
    """Compute the share of the longest ``measured`` window in which ``everyone`` was writing (0-1)."""
    begin = max(w.start_s for w in everyone)
    end = min(w.start_s + w.wall_s for w in everyone)
    longest = max(w.wall_s for w in measured)
    return max(end - begin, 0.0) / longest if longest > 0 else 0.0


WINDOW_S = 0.2
AHEAD = 2  # windows ordered in advance, so that a writer never waits for us
LEAD_S = 0.02
FIRST_WARM_S = 0.1  # written before the first window, uncounted: a writer that has just rested is slower


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
        ProcessLost: a writer is gone, or found no memory.
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
        self._begin_s = time.monotonic() + LEAD_S + FIRST_WARM_S
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
        warm_s = 0.0 if self._ordered else FIRST_WARM_S
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
