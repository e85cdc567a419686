"""Answers to the question what would start a job sooner, one at a time and beside the event loop."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from scheduler.coordinator.coordinator import Coordinator
from scheduler.coordinator.earlier_starts import earlier_starts, question

PAUSE = 100  # an answer is good for so many times as long as it took
LONGEST_S = 10.0
KEPT = 1000  # answers


class EarlierStarts:
    """The one place where the question is asked; an answer is given again for a while."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._lock = asyncio.Lock()
        self._kept: dict[int, tuple[float, list[dict[str, Any]]]] = {}

    async def of(self, job_id: int) -> list[dict[str, Any]]:
        """Return the changes that would let a waiting job start sooner."""
        async with self._lock:
            asked = question(self._coordinator, job_id)
            if asked is None:
                return []
            until_s, found = self._kept.get(job_id, (0.0, []))
            began_s = time.monotonic()
            if began_s >= until_s:
                told = await asyncio.to_thread(earlier_starts, asked)
                found = [one._asdict() for one in told]
                took_s = time.monotonic() - began_s
                if len(self._kept) >= KEPT:
                    self._kept.clear()
                self._kept[job_id] = time.monotonic() + min(PAUSE * took_s, LONGEST_S), found
            return [one for one in found if one["expected_start_s"] < asked.expected_start_s]
