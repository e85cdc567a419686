"""The jobs that have not ended, as journal and policy see them, and what is to be journalled next."""

from __future__ import annotations

import getpass
import math
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from profiles.errors import BadInput, UserError
from scheduler.coordinator.journal import Journal
from scheduler.jobs.entry import Entry, Stage
from scheduler.jobs.policy_view import as_job
from scheduler.jobs.sizes import CORE, Unit, memory_mb, tasks_on
from scheduler.jobs.specs import JobSpec
from scheduler.model.jobs import Cluster, Job, Placement, Region
from scheduler.model.state import JobPhase, JobState
from scheduler.prediction.predictions import OpenPredictions

PHASES = {
    Stage.WAITING: JobPhase.WAITING,
    Stage.RUNNING: JobPhase.RUNNING,
    Stage.STOPPING: JobPhase.STOPPING,
    Stage.SUSPENDED: JobPhase.SUSPENDED,
}
REMARKS_S = 1.0  # so long what nothing rests on may wait for something else to be journalled


class NoRoom(UserError):
    """The journal cannot be written."""


class JobTable:
    """Entries in memory, written to the journal by ``commit``: all changes since the last one, or none.

    Attributes:
        entries: all jobs that have not ended, by number.
        predictions: what is predicted of them; journalled with the decision that rests on it.
    """

    def __init__(self, journal: Journal, cluster: Cluster, unit: Unit = CORE) -> None:
        self.journal, self.cluster, self.unit = journal, cluster, unit
        self.user = getpass.getuser()
        self.entries = {entry.id: entry for entry in journal.open_jobs()}
        self.predictions = OpenPredictions(journal.last_prediction(), journal.predictions(open=True))
        self._jobs: dict[int, Job] = {}
        self._followers: dict[int, set[int]] = {}  # job -> jobs that are held until it ends
        self._added: dict[int, Entry] = {}
        self._changed: dict[int, Entry] = {}
        self._history: list[tuple[float, int, str, str]] = []
        self._remarks: list[tuple[float, int, str, str]] = []

    def add(
        self,
        specs: Sequence[JobSpec],
        environment: dict[str, str],
        now: float,
        waits_for: Mapping[int, Sequence[int]] | None = None,
        *,
        predicted: Sequence[dict[str, Any] | None] = (),
        blocked: Sequence[str] = (),
    ) -> list[Entry]:
        """Add new jobs, which are durable when this returns.

        A crash lets no job pass that waits for others, because such jobs are journalled as held.

        Args:
            waits_for: the jobs that each waits for, by places; they become ``after``, by numbers.
            predicted: prediction for each job; (): nothing is known of any.
            blocked: why each job may not start; (): all may.

        Raises:
            NoRoom: the journal cannot be written; nothing was taken in.
        """
        added: list[Entry] = []
        try:
            key = self.journal.keep_environment(environment)
            ids = [self.journal.next_id() for _ in specs]
            for place, (job_id, spec) in enumerate(zip(ids, specs, strict=True)):
                after = (*spec.after, *(ids[other] for other in (waits_for or {}).get(place, ())))
                why = blocked[place] if blocked else ""
                stage = Stage.HELD if after or why else Stage.WAITING
                whole = spec if after == spec.after else spec.model_copy(update={"after": after})
                told = predicted[place] if predicted else None
                came = min(now, spec.external.submitted_s) if spec.external else now
                entry = Entry(job_id, whole, key, came, stage, since_s=now, predicted=told, blocked=why)
                added.append(entry)
            self._added.update((entry.id, entry) for entry in added)
            self._history += [(now, entry.id, "submitted", "") for entry in added]
            self.commit()
        except sqlite3.Error as error:
            gone = {entry.id for entry in added}
            self._added = {i: entry for i, entry in self._added.items() if i not in gone}
            self._history = [line for line in self._history if line[1] not in gone]
            raise NoRoom(
                f"the journal cannot be written: {error}", "free some space, then submit again"
            ) from error
        self.entries.update((entry.id, entry) for entry in added)
        return added

    def drop(self, entry: Entry) -> None:
        """Forget a job that has ended."""
        del self.entries[entry.id]
        self._jobs.pop(entry.id, None)
        self.predictions.void(entry.id, "the job has ended")

    def wait_for_others(self, entry: Entry) -> None:
        """Let a job wait until those before it have ended."""
        for other in entry.spec.after:
            self._followers.setdefault(other, set()).add(entry.id)

    def followers(self, ended: Entry) -> list[Entry]:
        """Return the jobs that waited for the ended one and are not held by their owner as well."""
        ids = sorted(self._followers.pop(ended.id, ()))
        held = [self.entries[i] for i in ids if i in self.entries]
        return [entry for entry in held if entry.stage is Stage.HELD and not entry.held_by_user]

    def choose(
        self,
        job_ids: Iterable[int],
        where_possible: Iterable[int] = (),
        check: Callable[[Entry], object] = lambda entry: None,
    ) -> tuple[list[Entry], dict[int, str]]:
        """Return the jobs that a request applies to, each once, and why others are left out.

        Args:
            job_ids: jobs that must not be left out. where_possible: jobs that may be.
            check: raises BadInput if the request does not apply to a job that has not ended.

        Raises:
            BadInput: one of ``job_ids`` has ended, or does not exist, or the request does not apply to it.
        """
        chosen = {job_id: self.open(job_id) for job_id in dict.fromkeys(job_ids)}
        for entry in chosen.values():
            check(entry)
        left_out = {}
        for job_id in dict.fromkeys(where_possible):
            if job_id not in chosen:
                try:
                    entry = self.open(job_id)
                    check(entry)
                    chosen[job_id] = entry
                except BadInput as error:
                    left_out[job_id] = error.what
        return list(chosen.values()), left_out

    def open(self, job_id: int) -> Entry:
        """Return a job that has not ended.

        Raises:
            BadInput: it has, or there is none of that number.
        """
        entry = self.entries.get(job_id)
        if entry is not None:
            return entry
        stage = self.stage(job_id)
        raise BadInput(
            f"there is no job {job_id}" if stage is None else f"job {job_id} has ended ({stage})",
            "see: tenbin jobs",
        )

    def stage(self, job_id: int) -> Stage | None:
        """Return the stage of a job, ended or not; None if there is none of that number."""
        entry = self.entry(job_id)
        return None if entry is None else entry.stage

    def entry(self, job_id: int) -> Entry | None:
        """Return a job, ended or not; None if there is none of that number."""
        if not 0 < job_id <= self.journal.last_id():  # a client may send any integer, SQLite knows 64 bits
            return None
        return self.entries.get(job_id) or self._changed.get(job_id) or self.journal.entry(job_id)

    def settled(self, job_id: int) -> bool:
        """Return true if a job has ended and the journal has it."""
        return job_id not in self.entries and job_id not in self._changed

    def job(self, entry: Entry) -> Job:
        """Return the job as the policy sees it."""
        if entry.id not in self._jobs:
            self._jobs[entry.id] = as_job(
                entry.id,
                entry.submit_s,
                entry.spec,
                self.cluster,
                user=self.user,
                unit=self.unit,
                predicted=entry.predicted,
                limit_s=entry.limit_s,
            )
        return self._jobs[entry.id]

    def expect(self, entry: Entry, predicted: dict[str, Any]) -> Job:
        """Take a new prediction for a job that waits; return the job as the policy sees it now."""
        entry.predicted = predicted
        self._jobs.pop(entry.id, None)
        self._changed[entry.id] = entry
        return self.job(entry)

    def limit(self, entry: Entry, limit_s: float) -> Job:
        """Change a job's limit of run time; return the job as the policy sees it now."""
        entry.limit_s = limit_s
        self._jobs.pop(entry.id, None)
        self._changed[entry.id] = entry
        return self.job(entry)

    def place(self, entry: Entry, placement: Placement, hosts: list[str]) -> None:
        """Note what a placement means on this cluster: the next one may be divided otherwise."""
        of_devices = bool(self.cluster[placement.pool].kind)
        entry.tasks = entry.spec.tasks if of_devices else tasks_on(entry.spec, placement.units, self.unit)
        entry.hosts = hosts

    def tasks(self, entry: Entry) -> int:
        """Count the job's tasks where it runs or ran last; before that, the fewest."""
        if entry.tasks is not None:
            return entry.tasks
        placement, cores = entry.placement, len(entry.cores)
        if placement is None or not cores:
            return entry.spec.tasks
        each = cores // placement.units  # journalled before version 5: what a unit was, its cores tell
        return tasks_on(entry.spec, placement.units, Unit(each > 1, each))

    def memory_mb(self, entry: Entry) -> float:
        """Return the memory that the job asks for on the most units it can have, in MB; 0: no limit."""
        pool = self.cluster.pools[0]
        if entry.spec.memory_mb is None or math.isinf(self.cluster.memory_mb):
            return 0.0
        return memory_mb(entry.spec, pool, self.unit)

    def as_state(self, entry: Entry) -> JobState:
        """Return what the cluster state is to know of a job."""
        return JobState(
            self.job(entry),
            entry.since_s,
            PHASES[entry.stage],
            entry.placement,
            entry.start_s,
            entry.since_s,
            entry.served_s,
            entry.done,
            preemptions=entry.preemptions,
            migrations=entry.migrations,
            failures=entry.failures,
        )

    def copy_state(self, entry: Entry, state: JobState) -> None:
        """Copy what the cluster state knows of a job into its entry."""
        entry.placement, entry.since_s = state.placement, state.since_s
        entry.start_s, entry.served_s, entry.done = state.start_s, state.served_s, state.done
        entry.preemptions, entry.migrations = state.preemptions, state.migrations
        entry.failures = state.failures
        self._changed[entry.id] = entry

    def mark_changed(self, entry: Entry) -> None:
        """Mark an entry to be journalled."""
        self._changed[entry.id] = entry

    def record(self, entry: Entry, now: float, kind: str, detail: str = "") -> None:
        """Record what happened to a job."""
        self._history.append((now, entry.id, kind, detail))
        self._changed[entry.id] = entry

    def record_later(self, entry: Entry, now: float, kind: str, detail: str = "") -> None:
        """Record what nothing rests on; it is durable with the next commit, or a second later."""
        self._remarks.append((now, entry.id, kind, detail))

    def history(self, job_id: int) -> list[tuple[float, str, str]]:
        """Return (time, kind, detail) of what happened to a job."""
        recent = [(at, kind, detail) for at, job, kind, detail in self._remarks if job == job_id]
        return self.journal.history(job_id) + recent

    def commit(
        self,
        timers: list[tuple[float, object]] | None = None,
        regions: Mapping[str, Sequence[Region]] | None = None,
        now: float = math.inf,
    ) -> None:
        """Make all of it durable; all pending timers and all regions, None if they have not changed."""
        predictions = self.predictions.changed()
        nothing = not (self._changed or self._added or self._history or predictions)
        young = not self._remarks or now < self._remarks[0][0] + REMARKS_S
        if nothing and young and timers is None and regions is None:
            return
        changed = [entry for entry in self._changed.values() if entry.id not in self._added]
        told = sorted(self._remarks + self._history, key=itemgetter(0))
        self.journal.commit(
            changed, told, self._added.values(), timers, regions=regions, predictions=predictions
        )
        self._added, self._changed, self._history, self._remarks = {}, {}, [], []
        self.predictions.committed()
