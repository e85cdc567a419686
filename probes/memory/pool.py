"""Writers at work together, one process a core, measured in the same window of time.

``Stream`` has them press on memory while something else is measured beside them. Each writer then has an
intensity of its own; its speed in each window tells how much it suffers meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Self

from probes.memory.plan import Spot
from probes.memory.writer import Written
from probes.order_process import PATIENCE_S, OrderProcess, ProcessLost

TOUCHED_MBS = 20.0  # slowest first touch of an area, on a machine that is taken
MOST_TOUCH_S = 600.0
WARM_S = 0.005


class WriterLost(ProcessLost):
    """A writer that ended, or could not carry out its order."""

    title = "writer"


class Writer(OrderProcess):
    """The parent's end of one writer process; each order gets one answer.

    Raises:
        WriterLost: the system starts no more processes.
    """

    lost = WriterLost

    def __init__(self, core: int, line_bytes: int) -> None:
        arguments = ["--serve", f"--core={core}", f"--line-bytes={line_bytes}"]
        super().__init__(core, "probes.memory.writer", arguments)


class WriterPool:
    """Writers that are started when first needed; a context that leaves no process behind."""

    def __init__(self, area_mb: float, line_bytes: int = 64) -> None:
        self.area_mb = area_mb
        self._line_bytes = line_bytes
        self._writers: dict[int, Writer] = {}
        self._ready: set[Spot] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._discard(list(self._writers))

    @property
    def pids(self) -> dict[int, int]:
        """Ids of the writers' processes, by CPU."""
        return {core: writer.pid for core, writer in self._writers.items()}

    def prepare(self, spots: Iterable[Spot]) -> None:
        """Have a writer with its area ready at every spot, all at once.

        Raises:
            WriterLost: a writer could not start, or found no memory.
        """
        wanted = [spot for spot in spots if spot not in self._ready]
        cores = sorted({spot.core for spot in wanted})
        with self._all_or_none(cores):
            new = [core for core in cores if core not in self._writers]
            for core in new:
                self._writers[core] = Writer(core, self._line_bytes)
            for core in new:
                self._writers[core].answer()
            for spot in wanted:
                self._writers[spot.core].order(
                    "place", node=spot.node, touch_core=spot.touch_core, size_mb=self.area_mb
                )
            for spot in wanted:
                self._writers[spot.core].answer(PATIENCE_S + min(self.area_mb / TOUCHED_MBS, MOST_TOUCH_S))
        self._ready.update(wanted)

    def write(
        self, spots: Sequence[Spot], seconds: float, *, beside: Spot | None = None
    ) -> tuple[list[Written], float]:
        """Have all ``spots`` write in one window of ``seconds``, with ``beside`` writing all the while.

        Returns what each spot wrote, and the share of the window in which really all of them wrote.

        Raises:
            WriterLost: a writer is gone; all writers are started anew when needed again.
        """
        everyone = [*spots, *([beside] if beside else [])]
        self.prepare(everyone)
        start = time.monotonic() + 0.003 + 0.0002 * len(everyone) + 2 * WARM_S
        with self._all_or_none([spot.core for spot in everyone]):
            for spot in everyone:
                margin = WARM_S if spot is beside else 0.0
                self._writers[spot.core].order(
                    "write",
                    node=spot.node,
                    start_s=start - margin,
                    warm_s=WARM_S,
                    seconds=seconds + 2 * margin,
                    check=spot.check,
                )
            done = [Written(**self._writers[spot.core].answer(PATIENCE_S + seconds)) for spot in everyone]
        return done[: len(spots)], overlap(done[: len(spots)], done)

    def order(self, spot: Spot, **arguments: Any) -> None:
        """Tell a writer to write at a spot that is prepared; ``answer`` must follow.

        Raises:
            WriterLost: the writer is gone; all writers are started anew when needed again.
        """
        with self._all_or_none(list(self._writers)):
            self._writers[spot.core].order("write", node=spot.node, check=spot.check, **arguments)

    def answer(self, spot: Spot, within_s: float) -> Written:
        """Wait for the answer to the oldest order of that writer; WriterLost as for ``order``."""
        with self._all_or_none(list(self._writers)):
            return Written(**self._writers[spot.core].answer(within_s))

    def discard(self) -> None:
        """End all writers at once; they are started anew when needed again."""
        for writer in self._writers.values():
            writer.kill()
        self._discard(list(self._writers))

    @contextmanager
    def _all_or_none(self, cores: Sequence[int]) -> Iterator[None]:
        """End all writers if one fails, because orders of the others would stay unanswered."""
        try:
            yield
        except BaseException:
            self._discard(cores)
            raise

    def _discard(self, cores: Sequence[int]) -> None:
        self._ready = {spot for spot in self._ready if spot.core not in cores}
        for core in cores:
            if writer := self._writers.pop(core, None):
                writer.close()


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
