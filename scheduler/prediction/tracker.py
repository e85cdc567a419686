"""Migration costs that are learned from running jobs, whose predictions are kept beside their outcomes.

The cost of a checkpoint or a restart is the sum of its parts, which programs that note their phases tell. A
part that moves data follows the profile's line over the job's registered memory (its limit until that is
known), times the median of measured / line of recent jobs on that class. The other parts are as they were the
last times, for this job or else for similar ones, on this class if possible.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from statistics import median, quantiles
from typing import Any, Literal, NamedTuple, Protocol

from agent.attempts.checked import Phase
from agent.attempts.records import Result, RunState
from scheduler.jobs.entry import Entry
from scheduler.model.costs import LinearCost, LinearCosts
from scheduler.model.interference import PACKED
from scheduler.model.jobs import EstimateKind, Job, JobState, Placement, Stop
from scheduler.model.quantiles import LEVELS, Quantiles, exactly
from scheduler.model.state import ClusterState, estimate_under
from scheduler.prediction.predictions import (
    ELSEWHERE,
    LEAST,
    RUN_TIMES,
    STATED,
    TRIED,
    Kind,
    OpenPredictions,
    TrackedPrediction,
)
from scheduler.prediction.profiles import ProfiledSlowdowns

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
REMEMBERED = 1000  # outcomes that a new coordinator learns from
LEAST_PAUSE_S = 0.5  # between its supervisor's time and its own
WHOLE: tuple[Kind, ...] = ("migration", "suspension")  # a checkpoint and a restart


def stop_parts(phases: Sequence[Phase], requested: float, left_s: float) -> dict[str, float]:
    """Divide a checkpoint into parts, by when it was requested and left; whole if no phases are noted."""
    saves = [phase for phase in phases if phase.phase == "save" and phase.at_s >= requested]
    if not saves:
        return {} if phases else {"leave": max(0.0, left_s - requested)}
    save = saves[-1]
    drains = [p.time_s for p in phases if p.phase == "drain" and requested <= p.at_s <= save.at_s]
    drain = drains[-1] if drains else 0.0
    reach = save.at_s - save.time_s - drain - requested
    parts = {"reach": reach, "drain": drain, "save": save.time_s, "leave": left_s - save.at_s}
    return {part: max(0.0, seconds) for part, seconds in parts.items()}


def restart_parts(phases: Sequence[Phase], decided: float, began: float, ready: float) -> dict[str, float]:
    """Divide a restart into parts, by when it was decided, the process began and it computes."""
    parts = dict.fromkeys(("context", "compile", "restore"), 0.0)
    for phase in phases:
        if phase.phase in parts and phase.at_s <= ready:
            parts[phase.phase] += phase.time_s
    whole = {"launch": began - decided, "start": ready - began - sum(parts.values()), **parts}
    return {part: max(0.0, seconds) for part, seconds in whole.items()}


class PartTime(NamedTuple):
    """Duration of a part."""

    job: int
    program: str
    pool: str
    seconds: float
    mb: float


# What makes two of them alike: the job, its program, and its class of device.
OWN, LIKE, HERE = attrgetter("job"), attrgetter("program"), attrgetter("pool")
OWN_HERE, LIKE_HERE = attrgetter("job", "pool"), attrgetter("program", "pool")
ANY = type  # all are alike


Parts = Callable[[Job, str, float], Mapping[CostPart, float]]
Typical = Callable[[list[float]], float]


def _quantile(values: list[float], level: float) -> float:
    """Return a quantile of the next value; below ``LEAST`` values the median."""
    if level == 0.5 or len(values) < LEAST:
        return median(values)
    return max(quantiles(values, n=10)[0 if level < 0.5 else -1], 0.0)


class LearnedMigrationCosts:
    """``Costs`` of a profile, corrected by measurements of jobs.

    Args:
        profile: costs of a measured profile; free if there is none.
    """

    def __init__(self, profile: LinearCosts) -> None:
        self.profile = profile
        self._rows: dict[str, deque[PartTime]] = defaultdict(lambda: deque(maxlen=KEPT))
        self._memory_mb: dict[int, float] = {}
        self._programs: dict[int, str] = {}
        self._pauses: deque[float] = deque(maxlen=RECENT)
        self._sums: dict[tuple[int, str, str, float], float] = {}

    # -- Costs ----------------------------------------------------------------------------------------

    def stop_s(self, job: Job, pool: str) -> float:
        return 0.0 if job.stop is Stop.PAUSE else self._sum(job, pool, self.stop_parts)

    def restart_s(self, job: Job, pool: str) -> float:
        return 0.0 if job.stop is Stop.PAUSE else self._sum(job, pool, self.restart_parts)

    def move_s(self, job: Job, here: str, there: str) -> Quantiles:
        middle = self.stop_s(job, here) + self.restart_s(job, there)
        if job.stop is Stop.PAUSE:
            return exactly(middle)
        low, high = (
            self._sum(job, here, self.stop_parts, level) + self._sum(job, there, self.restart_parts, level)
            for level in (LEVELS[0], LEVELS[-1])
        )
        line = self.profile.move_s(self._as_known(job), here, there)
        factor = middle / line.middle if line.middle else 0.0
        return Quantiles(min(low, factor * line.low), middle, max(high, factor * line.high))

    def resize_s(self, job: Job, before: Placement, after: Placement) -> float:
        return self.profile.resize_s(self._as_known(job), before, after)

    def cap_s(self, job: Job, placement: Placement) -> float:
        return self.profile.cap_s(job, placement)

    # -- the parts ------------------------------------------------------------------------------------

    def stop_parts(self, job: Job, pool: str, level: float = 0.5) -> dict[CostPart, float]:
        """Predict a quantile of the seconds of each part of a checkpoint on that class."""
        unmeasured, of = self._row(job, pool), partial(_quantile, level=level)
        reach = self._typical("reach", unmeasured, OWN, LIKE, of=of)
        if reach is None:  # requests come at any instant, on average halfway between two safe points
            reach = (self._typical("pace", unmeasured, OWN, LIKE) or 0.0) * level
        drain = self._typical("drain", unmeasured, OWN, LIKE, of=of)
        return {
            "reach": reach,
            "drain": self.profile.drain_s.get(job.program, 0.0) if drain is None else drain,
            "save": self._moving("save", unmeasured, self.profile.checkpoint.get(pool), of),
            "leave": self._typical("leave", unmeasured, OWN, LIKE, ANY, of=of) or 0.0,
        }

    def restart_parts(self, job: Job, pool: str, level: float = 0.5) -> dict[CostPart, float]:
        """Predict a quantile of the seconds of each part of a restart on that class."""
        unmeasured, of = self._row(job, pool), partial(_quantile, level=level)
        context = self._typical("context", unmeasured, OWN_HERE, HERE, OWN, of=of)
        # The least of each, because a driver caches what it has compiled.
        kernels = self._typical("compile", unmeasured, OWN_HERE, LIKE_HERE, OWN, of=min)
        begin = self.profile.begin_s.get(pool, 0.0)
        line = self.profile.restart.get(pool)
        if line is not None:
            line = LinearCost(line.slope, max(line.offset - begin, 0.0))
        return {
            "launch": self._typical("launch", unmeasured, ANY, of=of) or 0.0,
            "start": self._typical("start", unmeasured, OWN, LIKE, ANY, of=of) or 0.0,
            "context": context or 0.0,
            "compile": begin if context is None and kernels is None else kernels or 0.0,
            "restore": self._moving("restore", unmeasured, line, of),
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
        self._note(self._row(job, pool), parts)

    def _note(self, row: PartTime, parts: Mapping[str, float]) -> None:
        for part, seconds in parts.items():
            self._rows[part].append(row._replace(seconds=seconds))
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
            row = PartTime(prediction.job, detail["program"], detail["pool"], 0.0, detail["mb"])
            self._note(row, detail["measured"])

    def forget(self, job_id: int) -> None:
        """Drop a job that has ended."""
        self._memory_mb.pop(job_id, None)
        self._programs.pop(job_id, None)
        self._sums.clear()

    # -- inside ---------------------------------------------------------------------------------------

    def _sum(self, job: Job, pool: str, parts: Parts, level: float = 0.5) -> float:
        key = (job.id, pool, parts.__name__, level)
        if key not in self._sums:
            self._sums[key] = sum(parts(job, pool, level).values())
        return self._sums[key]

    def _row(self, job: Job, pool: str) -> PartTime:
        """Return what is known of a part before it is measured."""
        return PartTime(job.id, self.program(job), pool, 0.0, self.memory_mb(job) or 0.0)

    def _moving(self, part: CostPart, unmeasured: PartTime, line: LinearCost | None, of: Typical) -> float:
        """Predict a part that moves memory, by its line, or in proportion to the memory without a line."""
        base = line or LinearCost(1.0, 0.0)
        here = [
            (row, base.slope * row.mb + base.offset)
            for row in self._rows[part]
            if row.pool == unmeasured.pool
        ]
        near = [pair for pair in here if unmeasured.mb / NEAR <= pair[0].mb <= unmeasured.mb * NEAR]
        ratios = [row.seconds / value for row, value in near or here if value > 0][-RECENT:]
        factor = of(ratios) if ratios else (self.profile.factor if line else 0.0)
        return factor * (base.slope * unmeasured.mb + base.offset)

    def _typical(
        self,
        part: str,
        unmeasured: PartTime,
        *likenesses: Callable[[PartTime], object],
        of: Typical = median,
    ) -> float | None:
        """Return ``of`` the times that are like it, by the first likeness that one has."""
        for likeness in likenesses:
            key = likeness(unmeasured)
            times = [row.seconds for row in self._rows[part] if likeness(row) == key]
            if times:
                return of(times[-RECENT:])
        return None

    def _as_known(self, job: Job) -> Job:
        return replace(job, memory_mb=self.memory_mb(job))


class Jobs(Protocol):
    """The part of a job table that the trackers need."""

    entries: dict[int, Entry]
    predictions: OpenPredictions

    def job(self, entry: Entry) -> Job: ...


class Attempts(Protocol):
    """The part of the folders of jobs that tells the progress of attempts."""

    def phases(self, job: Entry) -> list[Phase]: ...

    def state(self, job: Entry) -> RunState | None: ...


class PredictionTracker:
    """Tracker of decisions and outcomes, which writes to ``job_table.predictions`` and teaches ``learned``.

    Args:
        since_s: begin of this coordinator; earlier ends were seen too late to be measured.
    """

    def __init__(
        self, job_table: Jobs, folders: Attempts, learned: LearnedMigrationCosts, since_s: float
    ) -> None:
        self.job_table, self.folders, self.learned, self.since_s = job_table, folders, learned, since_s
        self.predictions = job_table.predictions
        self._awaited: dict[int, set[str]] = {}  # job -> phases that its attempt has yet to note

    def recover(self, entry: Entry) -> None:
        """Take up after a restart what a job may have noted meanwhile."""
        if entry.spec.checkpoint_signal is None or not entry.attempt:
            return
        job = self.job_table.job(entry)
        for phase in self.folders.phases(entry):
            if phase.phase == "ready":
                self.learned.introduce(job, phase.program or job.program, phase.bytes / 1e6)
        if entry.alive:
            self._awaited[entry.id] = {"ready", "pace"}

    # -- decisions ------------------------------------------------------------------------------------

    def starts(self, entry: Entry, now: float) -> None:
        """Predict a new attempt that is about to start."""
        job, placement = self.job_table.job(entry), entry.place
        if entry.spec.checkpoint_signal is not None:
            self._awaited[entry.id] = {"ready", "pace"}
            if entry.served_s > 0.0 or entry.preemptions:
                self._restarts(entry, job, placement.pool, now)
        whole = estimate_under(job, placement)
        if job.estimate_kind is not EstimateKind.LIMIT and math.isfinite(whole):
            left = (1.0 - entry.done) * whole
            run_s = entry.predicted["run_s"] if entry.predicted else {}
            estimate = run_s.get(placement.pool) or run_s.get("")
            by_owner = estimate is None and bool(entry.spec.expect_s)
            rests_on = STATED if by_owner else "as on the best device that it ran on"
            if estimate is not None:
                rests_on = estimate["rule"]
                left *= (
                    estimate["middle"] / estimate["high"] if "" in run_s else 1.0
                )  # plans use the high end
            about: dict[str, Any] = {"pool": placement.pool, "rests_on": rests_on, "by_owner": by_owner}
            kind: Kind = "run-time"
            if estimate is not None and estimate["basis"] in (ELSEWHERE, TRIED):
                kind, share = (
                    "trial" if estimate["basis"] == TRIED else "device-ratio",
                    left / estimate["middle"],
                )
                about |= {"low_s": share * estimate["low"], "high_s": share * estimate["high"]}
            self.predictions.void(entry.id, "predicted anew", *RUN_TIMES)
            self._predict(entry, now, kind, left, **about)
            free = estimate_under(job, replace(placement, cap_w=None))
            if placement.cap_w is not None and not entry.done:
                self._predict(entry, now, "cap", whole / free, cap_w=placement.cap_w, free_s=free)

    def _restarts(self, entry: Entry, job: Job, pool: str, now: float) -> None:
        parts = self.learned.restart_parts(job, pool)
        self._predict(entry, now, "restart", sum(parts.values()), pool=pool, parts=parts, **self._about(job))
        moved, paused = (
            self.predictions.of(entry.id, "migration"),
            self.predictions.of(entry.id, "suspension"),
        )
        if moved is not None and moved.detail["to"] != pool:
            self.predictions.void(entry.id, f"{moved.detail['to']} was gone by then", "migration")
        if paused is not None and paused.detail["pool"] != pool:
            self.predictions.void(entry.id, "it goes on elsewhere", "suspension")

    def stops(self, entry: Entry, now: float) -> None:
        """Predict a checkpoint, or a pause, that is about to be requested."""
        job, pool = self.job_table.job(entry), entry.place.pool
        if job.stop is Stop.PAUSE:
            self.pauses(entry, pool, now)
            return
        self.look(entry)
        parts, about = self.learned.stop_parts(job, pool), self._about(job)
        stop_s = sum(parts.values())
        self._predict(entry, now, "checkpoint", stop_s, pool=pool, parts=parts, **about)
        to = entry.goals[0].pool if entry.goals else pool
        again = self.learned.restart_parts(job, to)
        about["parts"] = parts | again
        cost = stop_s + sum(again.values())
        if entry.goals:
            self._predict(entry, now, "migration", cost, pool=pool, to=to, **about)
        else:
            self._predict(entry, now, "suspension", cost, pool=pool, how="checkpoint", **about)

    def pauses(self, entry: Entry, pool: str, now: float) -> None:
        """Predict a pause that is about to be requested."""
        self._predict(entry, now, "suspension", self.learned.pause_s(), pool=pool, how="pause")

    def unpauses(self, entry: Entry, now: float) -> None:
        """Note that a paused job is about to go on."""
        moved = self.predictions.of(entry.id, "migration")
        paused = self.predictions.of(entry.id, "suspension")
        for whole in (moved, paused):
            if whole is not None and "stop_s" in whole.detail:
                whole.detail["resumed_s"] = now
                self.predictions.touch(whole)
        if paused is not None and "stop_s" not in paused.detail:
            self.predictions.void(entry.id, "it went on before it had paused", "suspension")

    def recaps(self, entry: Entry) -> None:
        """Drop the prediction for a power cap that is changed."""
        self.predictions.void(entry.id, "its cap was changed", "cap")

    # -- outcomes -------------------------------------------------------------------------------------

    def began(self, entry: Entry, began_s: float) -> None:
        """Learn how long a launch took; programs without phases tell no more of a restart."""
        restart = self.predictions.of(entry.id, "restart")
        if restart is not None and entry.placement is not None:
            launch_s = max(0.0, began_s - restart.at_s)
            self.learned.learn(self.job_table.job(entry), entry.placement.pool, {"launch": launch_s})

    def obeyed(self, entry: Entry, request: int, at_s: float) -> None:
        """Note that the supervisor carried a request out: a job is paused, or goes on."""
        if entry.want == "run" and request == entry.request and entry.spec.checkpoint_signal is None:
            self._unparked(entry, at_s)
        paused = self.predictions.of(entry.id, "suspension")
        if paused is None or request != entry.request or paused.detail["how"] != "pause":
            return
        if entry.want == "pause":
            paused.detail["stop_s"] = max(0.0, at_s - paused.at_s)
            self.predictions.touch(paused)
        elif entry.want == "run" and "resumed_s" in paused.detail:
            took = paused.detail["stop_s"] + max(0.0, at_s - paused.detail["resumed_s"])
            self.predictions.measure(entry.id, "suspension", took)
            self.learned.learn_pause(took)

    def parked(self, entry: Entry, mb: float, now: float) -> None:
        """Measure a job that the engine has parked; its attempt goes on later."""
        checkpoint, job = self.predictions.of(entry.id, "checkpoint"), self.job_table.job(entry)
        pool = entry.place.pool
        self.learned.introduce(job, job.program, mb)
        if checkpoint is None:
            return
        took, about = max(0.0, now - checkpoint.at_s), self._about(job)
        self.learned.learn(job, pool, {"save": took})
        self.predictions.measure(entry.id, "checkpoint", took, measured={"save": took}, **about)
        for kind in WHOLE:
            whole = self.predictions.of(entry.id, kind)
            if whole is not None:
                whole.detail |= {"stop_s": took, "measured": {"save": took}, **about}
                self.predictions.touch(whole)

    def moved(self, entry: Entry, state: RunState, now: float) -> None:
        """Measure a job that the engine has moved while it ran."""
        self.predictions.void(entry.id, "it ran on until it had moved", "checkpoint")
        whole = self.predictions.of(entry.id, "migration")
        if whole is not None:
            took = max(0.0, now - whole.at_s)
            self.predictions.measure(entry.id, "migration", took, measured={"move": took})
        if state.expected_pause_s is not None and state.pause_s is not None:
            self._predict(entry, now, "pause", state.expected_pause_s, to=state.device)
            self.predictions.measure(entry.id, "pause", state.pause_s)

    def _unparked(self, entry: Entry, at_s: float) -> None:
        """Measure how a parked job went on."""
        for kind in WHOLE:
            whole = self.predictions.of(entry.id, kind)
            if whole is not None and whole.detail.get("how") != "pause" and "resumed_s" in whole.detail:
                took = max(0.0, at_s - whole.detail["resumed_s"])
                parts = {**whole.detail["measured"], "restore": took}
                if entry.placement is not None:
                    self.learned.learn(self.job_table.job(entry), entry.placement.pool, {"restore": took})
                self.predictions.measure(entry.id, kind, whole.detail["stop_s"] + took, measured=parts)

    def left(self, entry: Entry, ended_s: float, now: float) -> None:
        """Measure a checkpoint after which the job has left; its process ended at ``ended_s``."""
        job, pool = self.job_table.job(entry), entry.place.pool
        self.look(entry)
        self._awaited.pop(entry.id, None)
        self.predictions.void(entry.id, "it was stopped", *RUN_TIMES, "restart", "pairing", "cap")
        checkpoint = self.predictions.of(entry.id, "checkpoint")
        if checkpoint is None:
            return
        parts = stop_parts(self.folders.phases(entry), checkpoint.at_s, now)
        if ended_s < self.since_s:
            self.learned.learn(job, pool, {p: parts[p] for p in ("drain", "save") if p in parts})
            self.predictions.void(entry.id, "it left while no coordinator was there", "checkpoint", *WHOLE)
            return
        took, about = max(0.0, now - checkpoint.at_s), self._about(job)
        self.learned.learn(job, pool, parts)
        self.predictions.measure(entry.id, "checkpoint", took, measured=parts, **about)
        for kind in WHOLE:
            whole = self.predictions.of(entry.id, kind)
            if whole is not None:
                whole.detail |= {"stop_s": took, "measured": parts, **about}
                self.predictions.touch(whole)

    def look_around(self) -> None:
        """Take up the phases of all started jobs that do not compute yet."""
        for job_id in list(self._awaited):
            entry = self.job_table.entries.get(job_id)
            if entry is None or not entry.alive:
                del self._awaited[job_id]
            else:
                self.look(entry)

    def look(self, entry: Entry) -> None:
        """Take up what an attempt has noted since it was started."""
        awaited = self._awaited.get(entry.id)
        phases = self.folders.phases(entry) if awaited else []
        state = self.folders.state(entry) if phases else None
        if awaited is None or state is None or entry.placement is None:
            return
        began = state.started_s
        phases = [phase for phase in phases if phase.at_s >= began]
        job, pool = self.job_table.job(entry), entry.placement.pool
        for phase in phases:
            if phase.phase not in awaited:
                continue
            awaited.remove(phase.phase)
            if phase.phase == "ready":
                self.learned.introduce(job, phase.program or job.program, phase.bytes / 1e6)
                self._ready(entry, job, pool, phases, began=began, ready=phase.at_s)
            else:
                self.learned.learn(job, pool, {"pace": phase.time_s})
        if not awaited:
            del self._awaited[entry.id]

    def _ready(
        self, entry: Entry, job: Job, pool: str, phases: list[Phase], *, began: float, ready: float
    ) -> None:
        """Measure the start or restart of an attempt that now computes."""
        restart = self.predictions.of(entry.id, "restart")
        parts = restart_parts(phases, began if restart is None else restart.at_s, began, ready)
        if restart is None:
            self.learned.learn(job, pool, {part: parts[part] for part in ("start", "context", "compile")})
            return
        self.learned.learn(job, pool, {part: took for part, took in parts.items() if part != "launch"})
        took, about = max(0.0, ready - restart.at_s), self._about(job)
        self.predictions.measure(entry.id, "restart", took, measured=parts, **about)
        running = self._running(entry)
        if running is not None:
            running.detail["restart_s"] = took - parts["launch"]
            self.predictions.touch(running)
        for kind in WHOLE:
            whole = self.predictions.of(entry.id, kind)
            if whole is not None and "stop_s" in whole.detail:
                parts = whole.detail["measured"] | parts
                self.predictions.measure(
                    entry.id, kind, whole.detail["stop_s"] + took, measured=parts, **about
                )

    def ended(self, entry: Entry, result: Result) -> None:
        """Measure an attempt that ended by itself, and the job with it."""
        self.look(entry)
        self._awaited.pop(entry.id, None)
        self._sum_up(entry, result)
        running = self._running(entry)
        if running is not None and entry.placement and running.detail["pool"] != entry.placement.pool:
            self.predictions.void(entry.id, "it moved meanwhile", running.kind)
        elif running is not None and result.how == "exited" and result.code == 0:
            took = result.usage.running_s - running.detail.get("restart_s", 0.0)
            running.emulated = result.usage.emulated
            self.predictions.measure(entry.id, running.kind, max(0.0, took))
            capped = self.predictions.of(entry.id, "cap")
            if capped is not None:
                capped.emulated = result.usage.emulated
                self.predictions.measure(entry.id, "cap", took / capped.detail["free_s"])
        self.learned.forget(entry.id)

    def _sum_up(self, entry: Entry, result: Result) -> None:
        """Add to what it used what later jobs of its program are predicted by."""
        assert entry.usage is not None
        job, placement = self.job_table.job(entry), entry.placement
        if job.speed is not None and placement is not None:
            faster = job.speed(placement.units, placement.cap_w)
            entry.usage["reference_s"] = result.usage.running_s * faster  # at its fewest units, lowest cap
        phases = self.folders.phases(entry) if entry.spec.checkpoint_signal is not None else []
        if phases:
            entry.usage["registered_mb"] = max(phase.bytes for phase in phases) / 1e6
            entry.usage["compile_s"] = sum(phase.time_s for phase in phases if phase.phase == "compile")

    # -- inside ---------------------------------------------------------------------------------------

    def _predict(self, entry: Entry, now: float, kind: Kind, value: float, **detail: Any) -> None:
        self.predictions.predict(entry.id, entry.attempt, now, kind, value=value, **detail)

    def _running(self, entry: Entry) -> TrackedPrediction | None:
        """Return the open prediction of the run time of the job's attempt."""
        return next(filter(None, (self.predictions.of(entry.id, kind) for kind in RUN_TIMES)), None)

    def _about(self, job: Job) -> dict[str, Any]:
        return {"program": self.learned.program(job), "mb": self.learned.memory_mb(job) or 0.0}


class CoLocationTracker:
    """Predicted slow-downs of jobs that share a node, noted once every turn.

    The co-location of a job can change while it runs. The prediction is then the slow-down over all of it:
    the job's run time over that of the job alone, had it gone on as fast as predicted beside each neighbour.
    """

    def __init__(self, job_table: Jobs, profiles: ProfiledSlowdowns) -> None:
        self.job_table, self.profiles = job_table, profiles

    def look(self, state: ClusterState) -> None:
        """Note the company of each running job, if it has changed."""
        for running in state.running.values():
            placement = running.place
            if self.profiles.pressure(running.job.program) is None:
                continue
            beside = _beside(running, state)
            pairing = self.job_table.predictions.of(running.job.id, "pairing")
            if pairing is not None and pairing.detail["company"][-1]["beside"] == beside:
                continue
            factor = self.profiles.factor(running.job.program, placement.binding, beside)
            met = {"since_s": state.now, "beside": beside, "factor": factor}
            if pairing is not None:
                pairing.detail["company"].append(met)
                self.job_table.predictions.touch(pairing)
            elif placement.binding != PACKED:
                entry = self.job_table.entries[running.job.id]
                self.job_table.predictions.predict(
                    entry.id, entry.attempt, state.now, "pairing", value=factor, company=[met]
                )

    def ended(self, entry: Entry, result: Result) -> None:
        """Measure the slow-down of an attempt that has ended with success."""
        pairing = self.job_table.predictions.of(entry.id, "pairing")
        alone_s = self.profiles.alone_s(entry.spec.job_profile)
        if pairing is None:
            return
        paused = result.usage.wall_s - result.usage.running_s > LEAST_PAUSE_S
        if alone_s is None or result.how != "exited" or result.code or paused or entry.failures:
            self.job_table.predictions.void(
                entry.id, "it did not run from beginning to end at once", "pairing"
            )
            return
        pairing.predicted = overall(pairing, result.ended_s)
        self.job_table.predictions.measure(
            entry.id, "pairing", result.usage.running_s / alone_s, alone_s=alone_s
        )


def overall(pairing: TrackedPrediction, end_s: float) -> float:
    """Compute the predicted slow-down over all co-locations until ``end_s``."""
    met = pairing.detail["company"]
    ends = [*(after["since_s"] for after in met[1:]), max(end_s, met[-1]["since_s"])]
    spent = [max(end - there["since_s"], 0.0) for there, end in zip(met, ends, strict=True)]
    work = sum(seconds / there["factor"] for there, seconds in zip(met, spent, strict=True))
    return float(sum(spent) / work) if work > 0 else float(met[-1]["factor"])


def _beside(running: JobState, state: ClusterState) -> list[str]:
    """List the programs of the jobs on its nodes, in alphabetical order."""
    nodes = {node for node, _ in running.place.nodes}
    return sorted(
        other.job.program
        for other in state.running.values()
        if other is not running and nodes & {node for node, _ in other.place.nodes}
    )
