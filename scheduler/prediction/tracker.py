"""Predictions of running jobs beside their outcomes, from which migration costs are learned."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Protocol

from agent.attempts.checked import Phase
from agent.attempts.records import Result, RunState
from scheduler.jobs.entry import Entry
from scheduler.model.interference import PACKED
from scheduler.model.jobs import EstimateKind, Job, Stop
from scheduler.model.state import ClusterState, JobState, estimate_under
from scheduler.prediction.measured_parts import restart_parts, stop_parts
from scheduler.prediction.migration_costs import LearnedMigrationCosts
from scheduler.prediction.predictions import (
    ELSEWHERE,
    RUN_TIMES,
    STATED,
    TRIED,
    Kind,
    OpenPredictions,
    TrackedPrediction,
)
from scheduler.prediction.profiles import ProfiledSlowdowns

REMEMBERED = 1000  # outcomes that a new coordinator learns from
LEAST_PAUSE_S = 0.5  # between its supervisor's time and its own
WHOLE: tuple[Kind, ...] = ("migration", "suspension")  # a checkpoint and a restart


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
            told = entry.predicted["run_s"] if entry.predicted else {}
            rests_on = STATED if entry.spec.expect_s else "as on the best device that it ran on"
            if (found := told.get(placement.pool) or told.get("")) is not None:
                rests_on = found["rule"]
                left *= found["middle"] / found["high"] if "" in told else 1.0  # plans use the high end
            about: dict[str, Any] = {"pool": placement.pool, "rests_on": rests_on}
            kind: Kind = "run-time"
            if found is not None and found["basis"] in (ELSEWHERE, TRIED):
                kind, share = "trial" if found["basis"] == TRIED else "device-ratio", left / found["middle"]
                about |= {"low_s": share * found["low"], "high_s": share * found["high"]}
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
            self.predictions.void(entry.id, f"{moved.detail['to']} was taken meanwhile", "migration")
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
        for one in (moved, paused):
            if one is not None and "stop_s" in one.detail:
                one.detail["resumed_s"] = now
                self.predictions.touch(one)
        if paused is not None and "stop_s" not in paused.detail:
            self.predictions.void(entry.id, "it went on before it had paused", "suspension")

    def recaps(self, entry: Entry) -> None:
        """Drop the prediction for a power cap that is changed."""
        self.predictions.void(entry.id, "its cap was changed", "cap")

    # -- outcomes -------------------------------------------------------------------------------------

    def began(self, entry: Entry, began_s: float) -> None:
        """Learn how long a launch took; programs without phases tell no more of a restart."""
        one = self.predictions.of(entry.id, "restart")
        if one is not None and entry.placement is not None:
            launch_s = max(0.0, began_s - one.at_s)
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
        one, job = self.predictions.of(entry.id, "checkpoint"), self.job_table.job(entry)
        pool = entry.place.pool
        self.learned.introduce(job, job.program, mb)
        if one is None:
            return
        took, about = max(0.0, now - one.at_s), self._about(job)
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
        one = self.predictions.of(entry.id, "checkpoint")
        if one is None:
            return
        parts = stop_parts(self.folders.phases(entry), one.at_s, now)
        if ended_s < self.since_s:
            self.learned.learn(job, pool, {p: parts[p] for p in ("drain", "save") if p in parts})
            self.predictions.void(entry.id, "it left while no coordinator was there", "checkpoint", *WHOLE)
            return
        took, about = max(0.0, now - one.at_s), self._about(job)
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
        one = self.predictions.of(entry.id, "restart")
        parts = restart_parts(phases, began if one is None else one.at_s, began, ready)
        if one is None:
            self.learned.learn(job, pool, {part: parts[part] for part in ("start", "context", "compile")})
            return
        self.learned.learn(job, pool, {part: took for part, took in parts.items() if part != "launch"})
        took, about = max(0.0, ready - one.at_s), self._about(job)
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
            one = self.job_table.predictions.of(running.job.id, "pairing")
            if one is not None and one.detail["company"][-1]["beside"] == beside:
                continue
            factor = self.profiles.factor(running.job.program, placement.binding, beside)
            met = {"since_s": state.now, "beside": beside, "factor": factor}
            if one is not None:
                one.detail["company"].append(met)
                self.job_table.predictions.touch(one)
            elif placement.binding != PACKED:
                entry = self.job_table.entries[running.job.id]
                self.job_table.predictions.predict(
                    entry.id, entry.attempt, state.now, "pairing", value=factor, company=[met]
                )

    def ended(self, entry: Entry, result: Result) -> None:
        """Measure the slow-down of an attempt that has ended with success."""
        one = self.job_table.predictions.of(entry.id, "pairing")
        alone_s = self.profiles.alone_s(entry.spec.job_profile)
        if one is None:
            return
        paused = result.usage.wall_s - result.usage.running_s > LEAST_PAUSE_S
        if alone_s is None or result.how != "exited" or result.code or paused or entry.failures:
            self.job_table.predictions.void(
                entry.id, "it did not run from beginning to end at once", "pairing"
            )
            return
        one.predicted = overall(one, result.ended_s)
        self.job_table.predictions.measure(
            entry.id, "pairing", result.usage.running_s / alone_s, alone_s=alone_s
        )


def overall(one: TrackedPrediction, end_s: float) -> float:
    """Compute the predicted slow-down over all co-locations until ``end_s``."""
    met = one.detail["company"]
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
