"""Expected starts beside the real ones; how wrong they were lately gives the next ones their interval."""

from __future__ import annotations

from collections import deque
from statistics import quantiles
from typing import Any

LEAST = 8  # outcomes before an expected start has an interval
KEPT = 200  # outcomes
AWAITED = 10_000  # jobs whose start is still to come
SHORTEST_S = 1.0  # of a wait that is compared


class StartTimes:
    """The waits that were expected, and the ratios of real to expected wait; all in memory."""

    def __init__(self) -> None:
        self._awaited: dict[int, tuple[float, float]] = {}  # when it was first said, and the wait
        self._ratios: deque[float] = deque(maxlen=KEPT)

    def expect(self, job_id: int, now_s: float, wait_s: float) -> tuple[float, float] | None:
        """Note the first expectation of a job; return the 8 of 10 interval of the wait, None: not known."""
        if wait_s > SHORTEST_S and job_id not in self._awaited:
            if len(self._awaited) >= AWAITED:
                del self._awaited[next(iter(self._awaited))]
            self._awaited[job_id] = now_s, wait_s
        spread = self._spread()
        return None if spread is None else (wait_s * spread[0], wait_s * spread[2])

    def started(self, job_id: int, now_s: float) -> None:
        """Compare what was expected with what has come."""
        if job_id in self._awaited:
            said_s, wait_s = self._awaited.pop(job_id)
            self._ratios.append(max(now_s - said_s, 0.0) / wait_s)

    def account(self) -> dict[str, Any]:
        """Return how many outcomes there are, and the quantiles of real / expected wait if they suffice."""
        low, middle, high = self._spread() or (None, None, None)
        return {"outcomes": len(self._ratios), "needed": LEAST, "low": low, "middle": middle, "high": high}

    def _spread(self) -> tuple[float, float, float] | None:
        """Return the 10, 50 and 90 % quantiles of real / expected wait; None: of too few outcomes."""
        if len(self._ratios) < LEAST:
            return None
        low, *_, middle, _, _, _, high = quantiles(self._ratios, n=10)
        return max(low, 0.0), middle, high
