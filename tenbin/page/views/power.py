"""Power over the time that the Gantt view shows: allotted to jobs, drawn by them, and the budget."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scheduler.engines.common.job_folders import JobFolders
from tenbin.page.mirror import Mirror
from tenbin.page.rows import BEGUN
from tenbin.page.views.explainer import Explainer

STEPS = 200  # of a window
MOST_JOBS, MOST_READ = 5000, 200  # of a window; whose samples are read for it


class Held(NamedTuple):
    """A job at its place for a time, under a cap of all its units; ``cap_w`` None: uncapped."""

    job: int
    attempt: int
    start_s: float
    end_s: float
    cap_w: float | None


class Meter(NamedTuple):
    """Readings of a job's meter: when, and the energy so far."""

    at_s: NDArray[Any]
    energy_j: NDArray[Any]
    emulated: bool


class Power:
    """Power of the jobs of a mirror; nothing where the coordinator schedules none."""

    def __init__(self, mirror: Mirror, explainer: Explainer) -> None:
        self._mirror, self._explainer = mirror, explainer
        self._folders = JobFolders(mirror.store)

    def find(self, from_s: float, until_s: float, jobs: Sequence[int]) -> dict[str, Any] | None:
        """Return the mean power of each step of a window, in W; None: no power is scheduled.

        ``allotted_w`` is the sum of the caps, with what idle packages may draw now; ``drawn_w`` is what the
        packages of jobs have drawn. Either is None where there are too many jobs; ``drawn_w`` also where no
        job has a meter.

        Args:
            jobs: those that the window shows.
        """
        power = (self._explainer.status or {}).get("power")
        if power is None or until_s <= from_s:
            return None
        edges = np.linspace(from_s, until_s, STEPS + 1)
        few = len(jobs) <= MOST_JOBS
        held = [one for job in jobs for one in self._held(job)] if few else []
        held = [one for one in held if one.start_s < until_s and one.end_s > from_s]
        metered = [found for one in held if (found := self._metered(one))] if len(held) <= MOST_READ else []
        rest_w = power["allotted_w"] - sum(one.cap_w or 0.0 for one in self._running())
        drawn = sum((drawn_of(edges, meter) for meter in metered), np.zeros(STEPS))
        return {
            "budget_w": power["budget_w"],
            "edges_s": edges.tolist(),
            "allotted_w": (rest_w + allotted(edges, held)).round(2).tolist() if few else None,
            "drawn_w": drawn.round(2).tolist() if metered else None,
            "emulated": any(meter.emulated for meter in metered),
            "too_many": not few or len(held) > MOST_READ,
        }

    def _running(self) -> list[Held]:
        rows = list(self._mirror.rows.values())
        held = [one for row in rows if row.stage in BEGUN for one in self._held(row.id)[-1:]]
        return [one for one in held if math.isinf(one.end_s)]  # a paused job has given its power back

    def _held(self, job: int) -> list[Held]:
        row = self._mirror.rows.get(job)
        if row is None:
            return []
        return [
            Held(
                job,
                span.attempt,
                span.start_s,
                math.inf if span.end_s is None else span.end_s,
                row.cap_w if span.attempt == row.attempt else earlier_cap(self._folders, job, span.attempt),
            )
            for span in self._mirror.spans.get(job, ())
        ]

    def _metered(self, held: Held) -> Meter | None:
        """Return what an attempt's meter has shown; None: it has none."""
        samples = self._folders.samples(held.job, held.attempt)
        rows = [row for row in samples if row.energy_j is not None]
        if len(rows) < 2:
            return None
        times, energies = np.array([(row.at_s, row.energy_j) for row in rows], float).T
        return Meter(times, energies, bool(self._folders.order(held.job, held.attempt).get("emulated")))


def allotted(edges: NDArray[Any], held: Sequence[Held]) -> NDArray[Any]:
    """Return the mean of the sum of the caps in each step between two edges."""
    energy = np.zeros(len(edges))
    for one in held:
        energy += (one.cap_w or 0.0) * np.clip(edges - one.start_s, 0.0, one.end_s - one.start_s)
    found: NDArray[Any] = np.diff(energy) / np.diff(edges)
    return found


def drawn_of(edges: NDArray[Any], meter: Meter) -> NDArray[Any]:
    """Return the mean power of one meter in each step; 0 before its first reading and after its last."""
    found: NDArray[Any] = np.diff(np.interp(edges, meter.at_s, meter.energy_j)) / np.diff(edges)
    return found


@lru_cache(maxsize=4096)
def earlier_cap(folders: JobFolders, job: int, attempt: int) -> float | None:
    """Return the cap of all units of an earlier attempt by its order; None: uncapped, or not known."""
    try:
        _, units, _, cap_w, *_ = json.loads(folders.order(job, attempt)["journalled"]["placement"])
        return None if cap_w is None else cap_w * units
    except (ValueError, KeyError, TypeError):
        return None
