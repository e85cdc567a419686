"""Workers that compute together, one process a core, measured in the same window of time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from probes.compute.worker import Computed
from probes.order_process import PATIENCE_S, ProcessPool

WARM_S = 0.008  # the clock changes within milliseconds once wide vectors are at work
FIRST_S = 0.02  # for the first block of a process, which makes its matrices


class WorkerPool(ProcessPool):
    """Workers that compute together.

    Args:
        library: the compiled kernels; None: matrix products only.
        clock: whether each block is followed by a chain of additions.
    """

    def __init__(self, library: Path | None, clock: bool) -> None:
        arguments = [f"--library={library}", *(["--clock"] if clock else [])] if library else []
        super().__init__("probes.compute.worker", arguments, "worker")
        self._known: set[tuple[int, str, str]] = set()

    def compute(
        self, cores: Sequence[int], kind: str, precision: str, *, seconds: float, halfway: Callable[[], Any]
    ) -> tuple[list[Computed], float]:
        """Have all ``cores`` compute in one window of ``seconds``; call ``halfway`` in its middle.

        Returns:
            A row of each core, in their order, and the share of the window in which all of them computed.

        Raises:
            ProcessLost: a worker is gone; all workers are started anew when needed again.
        """
        self.start(cores)
        keys = {(core, kind, precision) for core in cores}
        lead = 0.003 + 0.0002 * len(cores) + WARM_S + (0.0 if keys <= self._known else FIRST_S)
        start = time.monotonic() + lead
        order = {"kind": kind, "precision": precision, "start_s": start, "warm_s": WARM_S, "seconds": seconds}
        with self.all_or_none():
            for core in cores:
                self._processes[core].order("compute", **order)
            time.sleep(max(start + seconds / 2 - time.monotonic(), 0.0))
            halfway()
            rows = [Computed(**self._processes[core].answer(PATIENCE_S + seconds)) for core in cores]
        self._known |= keys
        return rows, overlap(rows)

    def discard(self) -> None:
        super().discard()
        self._known.clear()


def overlap(rows: Sequence[Computed]) -> float:
    """Compute the share of the time from the first begin to the last end in which all computed (0-1)."""
    begin, end = min(row.start_s for row in rows), max(row.start_s + row.wall_s for row in rows)
    together = min(end, *(row.until_s for row in rows)) - max(begin, *(row.from_s for row in rows))
    return max(together, 0.0) / (end - begin) if end > begin else 0.0
