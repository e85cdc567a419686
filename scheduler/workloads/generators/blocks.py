"""Workloads resampled in blocks of time, such as weeks, drawn with replacement.

Days and weeks of users stay as they are within a block, unlike in a draw of single jobs (Zakay and Feitelson,
Concurrency and Computation 26(12), 2014).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from profiles.errors import BadInput
from scheduler.model.jobs import instant
from scheduler.simulator.trace import Arrival

FEWEST = 4  # blocks


class Blocks:
    """The jobs of a workload by blocks of ``length_s`` seconds from the first submission; whole blocks only.

    Attributes:
        count: number of blocks. left_out: jobs after the last whole block.

    Raises:
        BadInput: there are fewer than 4 whole blocks.
    """

    def __init__(self, arrivals: Sequence[Arrival], length_s: float) -> None:
        first = arrivals[0].job.submit_s if arrivals else 0.0
        last = arrivals[-1].job.submit_s if arrivals else 0.0
        gap = (last - first) / max(1, len(arrivals) - 1)  # until the next job, had there been one
        span = last - first + gap
        places = [int((arrival.job.submit_s - first) // length_s) for arrival in arrivals]
        self.count = int(span // length_s)
        if self.count < FEWEST:
            raise BadInput(
                f"--resamples: the workload spans {span / 86400:.3g} days, {self.count} whole blocks of "
                f"{length_s / 86400:g} days",
                f"give a longer workload, or a --block of which it has at least {FEWEST}",
            )
        self.length_s = length_s
        self._blocks: list[list[Arrival]] = [[] for _ in range(self.count)]
        for place, arrival in zip(places, arrivals, strict=True):
            if place < self.count:
                self._blocks[place].append(arrival)
        self.left_out = sum(place >= self.count for place in places)

    def drawn(self, rng: np.random.Generator) -> list[Arrival]:
        """Draw as many blocks as there are, one after the other; jobs are numbered anew from 1."""
        found: list[Arrival] = []
        for place, number in enumerate(rng.integers(self.count, size=self.count).tolist()):
            later_s = (place - number) * self.length_s
            for arrival in self._blocks[number]:
                submit_s = instant(arrival.job.submit_s + later_s)
                job = replace(arrival.job, id=len(found) + 1, submit_s=submit_s)
                found.append(arrival._replace(job=job))
        return found
