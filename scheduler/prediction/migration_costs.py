"""Learned migration costs: the coefficients of a profile, corrected by measurements of jobs.

The cost is the sum of its parts. A part that moves data follows the profile's line over the job's registered
memory (its limit until that is known), times the median of measured / line of recent jobs on that class. The
other parts are as they were the last times, for this job or else for similar ones, on this class if possible.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import median
from typing import Literal, NamedTuple

from scheduler.model.costs import LinearCost, LinearCosts
from scheduler.model.jobs import Job, Placement, Stop
from scheduler.prediction.predictions import TrackedPrediction

CostPart = Literal[
    "reach",  # from the request to the safe point
    "drain",
    "save",
    "leave",  # until the coordinator knows that the job has left
    "launch",  # until the process has started again
    "start",  # of the program itself, with its imports
    "context",
    "compile",
    "restore",
]
KEPT = 200  # of each part, over all jobs
RECENT = 20
NEAR = 2.0  # largest ratio of the memory of similar jobs


class PartTime(NamedTuple):
    """Duration of a part."""

    job: int
    program: str
    pool: str
    seconds: float
    mb: float


Filter = Callable[[PartTime], bool]


class LearnedMigrationCosts:
    """``Costs`` that learn.

    Args:
        profile: costs of a measured profile; free if there is none.
    """

    def __init__(self, profile: LinearCosts) -> None:
        self.profile = profile
        self._seen: dict[str, deque[PartTime]] = defaultdict(lambda: deque(maxlen=KEPT))
        self._memory_mb: dict[int, float] = {}
        self._programs: dict[int, str] = {}
        self._pauses: deque[float] = deque(maxlen=RECENT)
        self._sums: dict[tuple[int, str, str], float] = {}

    # -- Costs ----------------------------------------------------------------------------------------

    def stop_s(self, job: Job, pool: str) -> float:
        return 0.0 if job.stop is Stop.PAUSE else self._sum(job, pool, self.stop_parts)

    def restart_s(self, job: Job, pool: str) -> float:
        return 0.0 if job.stop is Stop.PAUSE else self._sum(job, pool, self.restart_parts)

    def resize_s(self, job: Job, before: Placement, after: Placement) -> float:
        return self.profile.resize_s(self._as_known(job), before, after)

    def cap_s(self, job: Job, placement: Placement) -> float:
        return self.profile.cap_s(job, placement)

    # -- the parts ------------------------------------------------------------------------------------

    def stop_parts(self, job: Job, pool: str) -> dict[CostPart, float]:
        """Predict the seconds of each part of a checkpoint on that class."""
        line = self.profile.checkpoint.get(pool)
        waiting = self._typical("reach", self._is(job), self._like(job))
        if waiting is None:  # requests come at any instant, on average halfway between two safe points
            waiting = (self._typical("pace", self._is(job), self._like(job)) or 0.0) / 2
        drain = self._typical("drain", self._is(job), self._like(job))
        return {
            "reach": waiting,
            "drain": self.profile.drain_s.get(job.program, 0.0) if drain is None else drain,
            "save": self._moving("save", line, job, pool),
            "leave": self._typical("leave", self._is(job), self._like(job), self._any) or 0.0,
        }

    def restart_parts(self, job: Job, pool: str) -> dict[CostPart, float]:
        """Predict the seconds of each part of a restart on that class."""

        def here(seen: PartTime) -> bool:
            return seen.pool == pool

        own, like = self._is(job), self._like(job)
        own_here, like_here = (lambda s: own(s) and here(s)), (lambda s: like(s) and here(s))
        context = self._typical("context", own_here, here, own)
        # The least of each, because a driver caches what it has compiled.
        kernels = self._typical("compile", own_here, like_here, own, of=min)
        begin = self.profile.begin_s.get(pool, 0.0)
        line = self.profile.restart.get(pool)
        if line is not None:
            line = LinearCost(line.slope, max(line.offset - begin, 0.0))
        return {
            "launch": self._typical("launch", self._any) or 0.0,
            "start": self._typical("start", own, like, self._any) or 0.0,
            "context": context or 0.0,
            "compile": begin if context is None and kernels is None else kernels or 0.0,
            "restore": self._moving("restore", line, job, pool),
        }

    def pause_s(self) -> float:
        """Predict the seconds to stop a job in place and to let it go on, without the time between."""
        return median(self._pauses) if self._pauses else 0.0

    def memory_mb(self, job: Job) -> float | None:
        """Return what the job has registered, or else its limit."""
        return self._memory_mb.get(job.id, job.memory_mb)

    def program(self, job: Job) -> str:
        """Return the name of the job in its checkpoints, or else its command."""
        return self._programs.get(job.id, job.program)

    # -- learning -------------------------------------------------------------------------------------

    def introduce(self, job: Job, program: str, mb: float) -> None:
        """Note the name of a job and the memory that its checkpoints hold."""
        self._programs[job.id], self._memory_mb[job.id] = program, mb
        self._sums.clear()

    def learn(self, job: Job, pool: str, parts: Mapping[str, float]) -> None:
        """Learn how long parts took."""
        self._note(job.id, self.program(job), pool, parts, mb=self.memory_mb(job) or 0.0)

    def _note(self, job_id: int, program: str, pool: str, parts: Mapping[str, float], *, mb: float) -> None:
        for part, seconds in parts.items():
            self._seen[part].append(PartTime(job_id, program, pool, seconds, mb))
        self._sums.clear()

    def learn_pause(self, seconds: float) -> None:
        """Learn how long a job took to be stopped and to go on."""
        self._pauses.append(seconds)

    def recall(self, prediction: TrackedPrediction) -> None:
        """Learn from an outcome that the journal has."""
        detail = prediction.detail
        if (
            prediction.kind == "suspension"
            and detail.get("how") == "pause"
            and prediction.measured is not None
        ):
            self.learn_pause(prediction.measured)
        if prediction.kind in ("checkpoint", "restart") and "measured" in detail:
            program, pool = detail["program"], detail["pool"]
            self._note(prediction.job, program, pool, detail["measured"], mb=detail["mb"])

    def forget(self, job_id: int) -> None:
        """Drop a job that has ended."""
        self._memory_mb.pop(job_id, None)
        self._programs.pop(job_id, None)
        self._sums.clear()

    # -- inside ---------------------------------------------------------------------------------------

    def _sum(self, job: Job, pool: str, parts: Callable[[Job, str], Mapping[CostPart, float]]) -> float:
        key = (job.id, pool, parts.__name__)
        if key not in self._sums:
            self._sums[key] = sum(parts(job, pool).values())
        return self._sums[key]

    def _moving(self, part: CostPart, line: LinearCost | None, job: Job, pool: str) -> float:
        """Predict a part that moves memory, by its line, or in proportion to the memory without a line."""
        base = line or LinearCost(1.0, 0.0)
        here = [(s, base.slope * s.mb + base.offset) for s in self._seen[part] if s.pool == pool]
        mb = self.memory_mb(job) or 0.0
        near = [pair for pair in here if mb / NEAR <= pair[0].mb <= mb * NEAR]
        ratios = [seen.seconds / value for seen, value in near or here if value > 0][-RECENT:]
        factor = median(ratios) if ratios else (self.profile.factor if line else 0.0)
        return factor * (base.slope * mb + base.offset)

    def _typical(
        self, part: str, *tests: Filter, of: Callable[[list[float]], float] = median
    ) -> float | None:
        """Return the median of times that pass the first filter that any passes; None if there are none."""
        for test in tests:
            found = [seen.seconds for seen in self._seen[part] if test(seen)]
            if found:
                return of(found[-RECENT:])
        return None

    def _as_known(self, job: Job) -> Job:
        return replace(job, memory_mb=self.memory_mb(job))

    @staticmethod
    def _is(job: Job) -> Filter:
        return lambda seen: seen.job == job.id

    def _like(self, job: Job) -> Filter:
        program = self.program(job)
        return lambda seen: seen.program == program

    @staticmethod
    def _any(seen: PartTime) -> bool:
        return True
