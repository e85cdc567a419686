"""Jobs that state no run time, or none on some classes: what policies take in its place."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from scheduler.model.jobs import EstimateKind
from scheduler.model.speeds import SpeedRatios, estimates_on_all
from scheduler.simulator.trace import Arrival


def estimated_on_all(arrivals: Iterable[Arrival], ratios: SpeedRatios) -> Iterator[Arrival]:
    """Yield the arrivals, with finite run times on all classes that a job can run on, where one is finite."""
    for arrival in arrivals:
        job = arrival.job
        if math.inf in job.estimates_s.values():
            job = replace(job, estimates_s=estimates_on_all(job.estimates_s, ratios))
            yield arrival._replace(job=job)
        else:
            yield arrival


@dataclass
class Unstated:
    """A substitute for run times that jobs do not state.

    Attributes:
        actual: the job's own run time. time_s: the same for all; jobs may take longer. Neither: unknown.
        jobs: how many states no run time, of those that were read so far.
    """

    actual: bool = False
    time_s: float | None = None
    jobs: int = 0

    def filled(self, arrivals: Iterable[Arrival]) -> Iterator[Arrival]:
        """Yield the arrivals, with the substitute where a job states no run time."""
        for arrival in arrivals:
            job = arrival.job
            if job.estimate_s is not None or job.estimates_s:
                yield arrival
                continue
            self.jobs += 1
            if self.actual:
                run_s = None if arrival.runs_s else arrival.run_s
                job = replace(
                    job, estimate_s=run_s, estimates_s=arrival.runs_s, estimate_kind=EstimateKind.EXACT
                )
            elif self.time_s is not None:
                job = replace(job, estimate_s=self.time_s, estimate_kind=EstimateKind.PREDICTED)
            yield arrival._replace(job=job)
