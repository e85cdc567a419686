"""The truth about a simulated job in the system: its progress, speed and costs."""

from __future__ import annotations

import math

from scheduler.model.jobs import EstimateKind, Placement, Pool, instant
from scheduler.model.state import RUNNING, STOPPING, JobState
from scheduler.simulator.trace import Arrival, Outcome, Segment

LIMIT = EstimateKind.LIMIT
made = tuple.__new__  # a NamedTuple's own constructor takes twice as long


class SimulatedJob:
    """One job in the system.

    Attributes:
        alone_s, alone_on_s, speed: the true run time, that of each class, and the true speed (``Arrival``).
        progress: share of the work done by ``works_from_s``.
        works_from_s: begin of progress at the present speed.
        full_s: run time of the whole job at its present speed.
        saved, saved_service_s: progress and service that the last checkpoint holds.
        version: of the planned end; earlier planned ends are void.
        announced_s: when the policy is told that it makes progress; other such times are void.
        moving_to: destination of the current migration.
    """

    __slots__ = (
        "alone_on_s",
        "alone_s",
        "announced_s",
        "began_s",
        "energy_j",
        "full_s",
        "job",
        "killed",
        "moving_to",
        "overhead_s",
        "progress",
        "run_s",
        "saved",
        "saved_service_s",
        "segments",
        "speed",
        "state",
        "version",
        "work_began_s",
        "works_from_s",
    )

    def __init__(self, arrival: Arrival, state: JobState) -> None:
        self.job, self.alone_s, self.alone_on_s, speed = arrival
        self.speed = speed or self.job.speed
        self.state = state
        self.segments: list[Segment] = []
        self.progress = self.saved = self.saved_service_s = 0.0
        self.run_s = self.overhead_s = self.energy_j = 0.0
        self.version = 0  # the rest is set by set_out and plan
        self.announced_s = math.inf
        self.moving_to: Placement | None = None

    def void(self) -> None:
        """Drop what was planned: the job does not run on."""
        self.version += 1
        self.announced_s = math.inf

    def set_out(self, now: float, cost_s: float) -> None:
        """Begin a segment: ``cost_s`` of restart or change, then work."""
        self.began_s = now
        self.work_began_s = self.works_from_s = instant(now + cost_s) if cost_s else now

    def plan(self, kill_at_limit: bool, factor: float) -> float:
        """Compute when the job ends as things are; neighbours multiply its run time by ``factor``."""
        state, full = self.state, self.alone_s
        placement = state.placement
        assert placement is not None
        if self.alone_on_s:
            full = self.alone_on_s[placement.pool]
        if self.speed is not None:
            full /= self.speed(placement.units, placement.cap_w)
        full *= factor
        self.killed = full > state.whole_s and kill_at_limit and self.job.estimate_kind is LIMIT
        if self.killed:
            full = state.whole_s
        self.full_s = full
        self.version += 1
        return instant(self.works_from_s + (1.0 - self.progress) * full)

    def progress_at(self, now: float) -> float:
        """Return the share of its work that is done."""
        if self.state.stage is not RUNNING or now <= self.works_from_s:
            return self.progress
        return self.progress + (now - self.works_from_s) / self.full_s if self.full_s > 0 else 1.0

    def advance(self, now: float) -> None:
        """Add the work done up to now."""
        worked = now - self.works_from_s
        if worked > 0:
            progress = self.progress + worked / self.full_s if self.full_s > 0 else 1.0
            self.progress = progress if progress < 1.0 else 1.0
            self.run_s += worked
            self.works_from_s = now

    def close(self, now: float, powered: Pool | None) -> None:
        """End the current segment, and enter its work and its costs.

        ``powered`` is the pool it ran on, if anything is known of its power.
        """
        state, turn, began = self.state, self.work_began_s, self.began_s
        placement = state.placement
        assert placement is not None
        if powered:
            self.energy_j += powered.power_w(placement.units, placement.cap_w) * (now - began)
        if state.stage is STOPPING:
            self._pay("checkpoint", placement, began, now)
            return
        if turn > began:
            turn = turn if turn < now else now
            if turn > began:
                self._pay("restart", placement, began, turn)
        if now > self.works_from_s:
            self.advance(now)
        if now > turn or not self.segments:
            self.segments.append(made(Segment, ("run", placement, turn, now)))
        state.works_from_s = self.work_began_s  # the believed restart time may be another

    def _pay(self, kind: str, placement: Placement, begin: float, end: float) -> None:
        """Enter a segment without progress."""
        self.segments.append(made(Segment, (kind, placement, begin, end)))
        self.overhead_s += end - begin

    def keep(self) -> None:
        """Note that all that was done is safe, because the job was checkpointed."""
        self.saved, self.saved_service_s = self.progress, self.state.served_s

    def fall_back(self) -> float:
        """Drop the work since the last checkpoint; return the share that policies may see as done."""
        self.void()
        self.moving_to = None
        self.progress = self.saved
        known = self.job.estimate_s is not None or self.job.estimates_s
        return self.saved if known else 0.0

    def outcome(self, now: float) -> Outcome:
        """Return the outcome of a job that has just ended; closed, or it just ran on from its start."""
        state = self.state
        assert state.start_s is not None
        if not self.segments:
            how, began, placement = "killed" if self.killed else "done", self.began_s, state.placement
            segments = (made(Segment, ("run", placement, began, now)),)
            row = (self.job, began, now, how, now - began, 0.0, 0.0, 0, 0, 0, 0.0, segments)
            return made(Outcome, row)
        return made(
            Outcome,
            (
                self.job,
                state.start_s,
                now,
                "killed" if self.killed else "done",
                self.run_s,
                self.overhead_s,
                max(0.0, self.run_s - state.served_s) if state.failures else 0.0,
                state.preemptions,
                state.migrations,
                state.failures,
                self.energy_j,
                tuple(self.segments),
            ),
        )
