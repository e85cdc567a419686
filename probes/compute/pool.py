"""Workers that compute together, one process a core, measured in the same window of time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from probes.compute.worker import Computed
from probes.order_process import PATIENCE_S, OrderProcess, ProcessLost

WARM_S = 0.008  # the clock changes within milliseconds once wide vectors are at work
FIRST_S = 0.02  # for the first block of a process, which makes its matrices


class WorkerLost(ProcessLost):
    """A worker that ended, or could not carry out its order."""

    title = "worker"


class WorkerProcess(OrderProcess):
    """The parent's end of one worker process.

    Raises:
        WorkerLost: the system starts no more processes.
    """

    lost = WorkerLost


class WorkerPool:
    """Workers that are started when first needed; a context that leaves no process behind.

    Args:
        library: the compiled kernels; None: matrix products only.
        clock: whether each block is followed by a chain of additions.
    """

    def __init__(self, library: Path | None, clock: bool) -> None:
        self._arguments = [f"--library={library}"] if library else []
        self._arguments += ["--clock"] if library and clock else []
        self._workers: dict[int, WorkerProcess] = {}
        self._known: set[tuple[int, str, str]] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    @property
    def pids(self) -> dict[int, int]:
        """Ids of the workers' processes, by CPU."""
        return {core: worker.pid for core, worker in self._workers.items()}

    def prepare(self, cores: Sequence[int]) -> None:
        """Have a worker ready on each of ``cores``.

        Raises:
            WorkerLost: a worker could not start.
        """
        new = [core for core in cores if core not in self._workers]
        try:
            for core in new:
                arguments = [f"--core={core}", *self._arguments]
                self._workers[core] = WorkerProcess(core, "probes.compute.worker", arguments)
            for core in new:
                self._workers[core].answer()
        except BaseException:
            self._end()
            raise

    def compute(
        self, cores: Sequence[int], kind: str, precision: str, *, seconds: float, halfway: Callable[[], Any]
    ) -> tuple[list[Computed], float]:
        """Have all ``cores`` compute in one window of ``seconds``; call ``halfway`` in its middle.

        Returns:
            A row of each core, in their order, and the share of the window in which all of them computed.

        Raises:
            WorkerLost: a worker is gone; all workers are started anew when needed again.
        """
        self.prepare(cores)
        keys = {(core, kind, precision) for core in cores}
        lead = 0.003 + 0.0002 * len(cores) + WARM_S + (0.0 if keys <= self._known else FIRST_S)
        start = time.monotonic() + lead
        order = {"kind": kind, "precision": precision, "start_s": start, "warm_s": WARM_S, "seconds": seconds}
        try:
            for core in cores:
                self._workers[core].order("compute", **order)
            time.sleep(max(start + seconds / 2 - time.monotonic(), 0.0))
            halfway()
            rows = [Computed(**self._workers[core].answer(PATIENCE_S + seconds)) for core in cores]
        except BaseException:
            self._end()  # orders of the others would stay unanswered
            raise
        self._known |= keys
        return rows, overlap(rows)

    def _end(self) -> None:
        """End all workers, at once."""
        for worker in self._workers.values():
            worker.kill()
        for worker in self._workers.values():
            worker.close()
        self._workers.clear()
        self._known.clear()


def overlap(rows: Sequence[Computed]) -> float:
    """Compute the share of the time from the first begin to the last end in which all computed (0-1)."""
    begin, end = min(row.start_s for row in rows), max(row.start_s + row.wall_s for row in rows)
    together = min(end, *(row.until_s for row in rows)) - max(begin, *(row.from_s for row in rows))
    return max(together, 0.0) / (end - begin) if end > begin else 0.0
