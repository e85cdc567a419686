"""The jobs that have not ended, as journal and policy see them, and what is to be journalled next."""

from __future__ import annotations

import math
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from agent.users import user_name
from profiles.errors import BadInput, UserError
from scheduler.coordinator.journal.journal import Journal
from scheduler.jobs.arrays import Arrays, array_stage
from scheduler.jobs.dependencies import Standing, WaitsByPlace, by_kind, named
from scheduler.jobs.entry import UNKNOWN, Entry, Stage
from scheduler.jobs.policy_view import as_job, is_together, moves, outgrown, stays_at, stays_on
from scheduler.jobs.selectors import LeftOut, Selector, Span, read_selector
from scheduler.jobs.sizes import CORE, Unit, memory_mb, tasks_on
from scheduler.jobs.specs import JobSpec
from scheduler.model.jobs import Cluster, Job, Placement, Pool, Region
from scheduler.prediction.predictions import OpenPredictions

REMARKS_S = 1.0  # so long what nothing rests on may wait for something else to be journalled
NO_JOB = 0  # number of an event that is of the coordinator itself


class NoRoom(UserError):
    """The journal cannot be written."""


class JobTable:
    """Entries in memory, written to the journal by ``commit``: all changes since the last one, or none.

    Attributes:
        entries: all jobs that have not ended, by number.
        arrays: how far each array is.
        why_not_moved: says of a new attempt why the engine cannot park and move it; None: it never can.
        predictions: what is predicted of them; journalled with the decision that rests on it.
    """

    def __init__(self, journal: Journal, cluster: Cluster, unit: Unit = CORE) -> None:
        self.journal, self.cluster, self.unit = journal, cluster, unit
        self.user = user_name()
        self.entries = {entry.id: entry for entry in journal.open_jobs()}
        pool = cluster.pools[0]
        for entry in self.entries.values():
            if entry.placement is None:
                continue
            if not unit.gpus:
                _place_on_cores(entry, entry.placement, pool, unit)
            elif not entry.placement.nodes or not pool.names:
                _place_on_nodes(entry, entry.placement, pool, unit)
        self.arrays = Arrays(journal.count_members())
        self.predictions = OpenPredictions(journal.last_prediction(), journal.predictions(open=True))
        self.why_not_moved: Callable[[JobSpec], str] | None = None
        self._numbers: tuple[int, dict[int, int]] = 0, {}  # of an array, its members by index
        self._added: dict[int, Entry] = {}
        self._changed: dict[int, Entry] = {}
        self._history: list[tuple[float, int, str, str]] = []
        self._remarks: list[tuple[float, int, str, str]] = []

    def add(
        self,
        specs: Sequence[JobSpec],
        environment: dict[str, str],
        now: float,
        waits_for: WaitsByPlace | None = None,
        *,
        arrays: Mapping[int, Sequence[int]] | None = None,
        predicted: Sequence[dict[str, Any] | None] = (),
        blocked: Sequence[str] = (),
    ) -> list[Entry]:
        """Add new jobs, which are durable when this returns.

        A crash lets no job pass that waits for others, because such jobs are journalled as held.

        Args:
            waits_for: the specs that each spec waits for, by places; they become ``after`` and the like, by
                numbers.
            arrays: indices of the members of each spec that is an array; the others are one job.
            predicted: prediction for each spec; (): nothing is known of any.
            blocked: why the job of each spec may not start; (): all may.

        Raises:
            NoRoom: the journal cannot be written; nothing was taken in.
        """
        added: list[Entry] = []
        try:
            key = self.journal.keep_environment(environment)
            numbers, members = self._number(len(specs), arrays or {})
            for place, spec in enumerate(_with_numbers(specs, waits_for or {}, numbers)):
                why = blocked[place] if blocked else ""
                later = spec.begin_s is not None and spec.begin_s > now
                common: dict[str, Any] = {
                    "spec": spec,
                    "environment": key,
                    "submit_s": min(now, spec.external.submitted_s) if spec.external else now,
                    "stage": Stage.HELD if named(spec) or why or later else Stage.WAITING,
                    "since_s": now,
                    "predicted": predicted[place] if predicted else None,
                    "blocked": why,
                }
                if place in members:
                    added += [
                        Entry(member, array=numbers[place], array_index=index, **common)
                        for member, index in members[place]
                    ]
                else:
                    added.append(Entry(numbers[place], array_index=spec.array_index, **common))
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
        for place, pairs in members.items():
            self.arrays.add(numbers[place], len(pairs))
        return added

    def _number(
        self, specs: int, arrays: Mapping[int, Sequence[int]]
    ) -> tuple[list[int], dict[int, list[tuple[int, int]]]]:
        """Give each spec its number, and each member of an array its own, returned with its index."""
        numbers: list[int] = []
        members: dict[int, list[tuple[int, int]]] = {}
        for place in range(specs):
            numbers.append(self.journal.next_id())
            if place in arrays:
                members[place] = [(self.journal.next_id(), index) for index in arrays[place]]
        return numbers, members

    def drop(self, entry: Entry) -> None:
        """Forget a job that has ended."""
        del self.entries[entry.id]
        if entry.array is not None:
            self.arrays.end(entry.array, entry.stage)
        self.predictions.void(entry.id, "the job has ended")

    def bring_back(self, entries: Iterable[Entry]) -> None:
        """Take jobs that have ended among those that have not, still with their final stage."""
        for entry in entries:
            self.entries[entry.id] = entry
            if entry.array is not None:
                self.arrays.run_again(entry.array, entry.stage)
        in_order = sorted(self.entries.items())
        self.entries.clear()
        self.entries.update(in_order)

    def choose(
        self,
        job_ids: Iterable[int],
        where_possible: Iterable[int] = (),
        check: Callable[[Entry], object] = lambda entry: None,
    ) -> tuple[list[Entry], dict[int, LeftOut]]:
        """Return the jobs that a request applies to, each once, and why others are left out.

        Args:
            job_ids: jobs that must not be left out. where_possible: jobs that may be. An array stands for
                its members that have not ended, each of which may be left out.
            check: raises BadInput if the request does not apply to a job that has not ended.

        Raises:
            BadInput: one of ``job_ids`` has ended, or does not exist, or the request does not apply to it.
        """
        named, among, ended = self._with_members(list(job_ids), list(where_possible))
        left_out = {number: self.omit(number, error) for number, error in ended.items()}
        chosen = {job_id: self.open(job_id) for job_id in dict.fromkeys(named)}
        for entry in chosen.values():
            check(entry)
        for job_id in dict.fromkeys(among):
            if job_id not in chosen:
                try:
                    entry = self.open(job_id)
                    check(entry)
                    chosen[job_id] = entry
                except BadInput as error:
                    left_out[job_id] = self.omit(job_id, error)
        return list(chosen.values()), left_out

    def choose_ended(
        self, job_ids: Iterable[int], where_possible: Iterable[int], now: float
    ) -> tuple[list[Entry], dict[int, LeftOut]]:
        """Return the jobs that can run again, by number, and why others are left out.

        Args:
            job_ids: jobs that must not be left out. where_possible: jobs that may be. An array stands for
                its members that did not succeed.

        Raises:
            BadInput: one of ``job_ids`` has succeeded, has not ended, is too late, or does not exist.
        """
        chosen: dict[int, Entry] = {}
        left_out: dict[int, LeftOut] = {}
        for number in dict.fromkeys(job_ids):
            chosen.update((entry.id, entry) for entry in self._without_success(number, now))
        for number in dict.fromkeys(where_possible):
            if number not in chosen:
                try:
                    chosen.update((entry.id, entry) for entry in self._without_success(number, now))
                except BadInput as error:
                    left_out[number] = self.omit(number, error)
        return [chosen[number] for number in sorted(chosen)], left_out

    def _without_success(self, number: int, now: float) -> list[Entry]:
        """Return the job, or the members of the array, that ended without success."""
        if number in self.arrays:
            saved = self.journal.unsuccessful_members(number)
            newest = (self._changed.get(entry.id, entry) for entry in saved)
            members = [entry for entry in newest if entry.stage.final and entry.stage is not Stage.DONE]
            if not members:
                what = f"array {number} has no job that ended without success"
                raise BadInput(what, f"tenbin info {number}")
            _before_deadline(f"array {number}", members[0], now)
            return members
        entry = self.entry(number)
        if entry is None:
            raise BadInput(f"there is no job {number}", "see: tenbin jobs --all")
        if not entry.stage.final:
            raise BadInput(f"job {entry.label} is {entry.shown} and has not ended", "see: tenbin jobs")
        if entry.stage is Stage.DONE:
            raise BadInput(f"job {entry.label} has succeeded", "to run it once more, submit it")
        if entry.spec.external:
            what = f"job {entry.label} is of the cluster's own scheduler"
            raise BadInput(what, "submit it there once more")
        if entry.spec.terminal:
            raise BadInput(f"job {entry.label} had a terminal, which is gone", "tenbin run it once more")
        _before_deadline(f"job {entry.label}", entry, now)
        return [entry]

    def omit(self, number: int, error: BadInput) -> LeftOut:
        """Say why a change leaves out a job or an array, or that there is none of that number."""
        entry = self.entry(number)
        if entry is None and number not in self.arrays:
            return LeftOut(str(number), "there is no such job", error.what)
        label = str(number) if entry is None else entry.label
        noun = "array" if entry is None else "job"
        return LeftOut(label, error.what.removeprefix(f"{noun} {label} "), error.what)

    def _with_members(
        self, named: list[int], among: list[int]
    ) -> tuple[list[int], list[int], dict[int, BadInput]]:
        """Put the members that have not ended in the place of each array; they may be left out."""
        arrays = {number for number in (*named, *among) if number in self.arrays}
        if not arrays:
            return named, among, {}
        members: dict[int, list[int]] = {number: [] for number in arrays}
        for entry in self.entries.values():
            if entry.array in arrays:
                members[entry.array].append(entry.id)
        ended = {
            number: BadInput(
                f"array {number} has ended ({array_stage(self.arrays.ended(number))})",
                f"see: tenbin info {number}",
            )
            for number in sorted(arrays)
            if not members[number]
        }
        for number in named:
            if number in ended:
                raise ended[number]
        spread = [job_id for number in (*among, *named) for job_id in members.get(number, ())]
        return (
            [job_id for job_id in named if job_id not in arrays],
            [job_id for job_id in among if job_id not in arrays] + spread,
            ended,
        )

    def open(self, job_id: int) -> Entry:
        """Return a job that has not ended.

        Raises:
            BadInput: it has, or there is none of that number.
        """
        entry = self.entries.get(job_id)
        if entry is not None:
            return entry
        ended = self.entry(job_id)
        raise BadInput(
            f"there is no job {job_id}" if ended is None else f"job {ended.label} has ended ({ended.stage})",
            "see: tenbin jobs",
        )

    def stage(self, job_id: int) -> Stage | None:
        """Return the stage of a job, ended or not; None if there is none of that number."""
        if not 0 < job_id <= self.journal.last_id():
            return None
        entry = self.entries.get(job_id) or self._changed.get(job_id)
        return self.journal.stage(job_id) if entry is None else entry.stage

    def standing(self, number: int) -> Standing | None:
        """Return how far a job or an array is; None if there is none of that number."""
        if number in self.arrays:
            return self.arrays.standing(number)
        stage = self.stage(number)
        return None if stage is None else Standing(stage.final, stage.final and stage is not Stage.DONE)

    def members(self, array: int) -> dict[int, int]:
        """Return the number of each member of an array, by its index; empty: there is no such array."""
        if array not in self.arrays:
            return {}
        if self._numbers[0] != array:
            self._numbers = array, self.journal.numbers(array)
        return self._numbers[1]

    def entry(self, job_id: int) -> Entry | None:
        """Return a job, ended or not; None if there is none of that number."""
        if not 0 < job_id <= self.journal.last_id():  # a client may send any integer, SQLite knows 64 bits
            return None
        return self.entries.get(job_id) or self._changed.get(job_id) or self.journal.entry(job_id)

    def name(self, number: int) -> str:
        """Return what users call a job or an array."""
        entry = self.entry(number)
        return str(number) if entry is None else entry.label

    def settled(self, job_id: int) -> bool:
        """Return true if a job, or all of an array, has ended and the journal has it."""
        if job_id in self.arrays:
            unsaved = any(entry.array == job_id for entry in self._changed.values())
            return not self.arrays.open(job_id) and not unsaved
        return job_id not in self.entries and job_id not in self._changed

    def job(self, entry: Entry) -> Job:
        """Return the job as the policy sees it."""
        if entry.job is UNKNOWN:
            entry.job = self._view(entry)
        return entry.job

    def renewed(self, entry: Entry) -> Job:
        """Return the job as the policy sees it now that its entry has changed.

        One that is held, and that this machine cannot run, no policy sees.
        """
        self._changed[entry.id] = entry
        try:
            entry.job = self._view(entry)
        except BadInput:
            if entry.stage is not Stage.HELD:
                raise
            entry.job = UNKNOWN
        return entry.job

    def _view(self, entry: Entry) -> Job:
        if not entry.stage.placed:
            return self._as_job(entry)
        with suppress(BadInput):
            job = self._as_job(entry)
            if not outgrown(job, entry.place, self.cluster):
                return job
        return self._as_job(entry, runs_at=entry.place)

    def _as_job(self, entry: Entry, runs_at: Placement | None = None) -> Job:
        return as_job(
            entry.id,
            entry.submit_s,
            entry.spec.limited(entry.limit_s),
            self.cluster,
            user=self.user,
            unit=self.unit,
            predicted=entry.predicted,
            priority=entry.new_priority,
            label=entry.label,
            moves=moves(entry, self.why_not_moved),
            only=stays_on(entry, self.cluster),
            stays=stays_at(entry),
            together=is_together(entry),
            runs_at=runs_at,
            way=entry.placement.alternative if entry.alive and entry.placement else None,
        )

    def expect(self, entry: Entry, predicted: dict[str, Any]) -> Job:
        """Take a new prediction for a job that waits; return the job as the policy sees it now."""
        entry.predicted = predicted
        return self.renewed(entry)

    def limit(self, entry: Entry, limit_s: float) -> Job:
        """Change a job's limit of run time; return the job as the policy sees it now."""
        entry.limit_s = limit_s
        return self.renewed(entry)

    def prioritize(self, entry: Entry, priority: int) -> Job:
        """Change a job's priority; return the job as the policy sees it now."""
        entry.new_priority = priority
        return self.renewed(entry)

    def place(self, entry: Entry, placement: Placement, hosts: list[str]) -> None:
        """Note what a placement means on this cluster: the next one may be divided otherwise."""
        of_devices = bool(self.cluster[placement.pool].kind)
        entry.tasks = placement.units if of_devices else tasks_on(entry.way, placement.units, self.unit)
        entry.hosts = hosts

    def tasks(self, entry: Entry) -> int:
        """Count the job's tasks where it runs or ran last; before that, the fewest."""
        if entry.tasks is not None:
            return entry.tasks
        placement, cores = entry.placement, len(entry.cores)
        if placement is None or not cores:
            return entry.spec.tasks
        # Journalled before version 5: what a unit was, its cores tell.
        cores_of_unit = cores // placement.units
        return tasks_on(entry.spec, placement.units, Unit(cores_of_unit > 1, cores_of_unit))

    def memory_mb(self, entry: Entry) -> float:
        """Return the memory that the job asks for on the most units it can have, in MB; 0: no limit."""
        if math.isinf(self.cluster.memory_mb):
            return 0.0
        return max(memory_mb(way, self.cluster.pools[0], self.unit) for way in entry.spec.ways)

    def gpus_requested(self) -> Counter[str]:
        """Count how many GPUs of each kind the jobs ask for that have not ended."""
        requested: Counter[str] = Counter()
        for entry in self.entries.values() if self.unit.gpus else ():
            for kind, number in zip(self.unit.gpus, entry.job.demand[2:], strict=False):
                requested[kind.resource] += int(number)
        return requested

    def shift(self, step_s: float, now: float) -> None:
        """Move what durations are counted from with a clock that was set; ``now``: by that clock.

        That is noted as an event of no job, because the next coordinator goes by the last one.
        """
        for entry in self.entries.values():
            entry.shift(step_s)
            self._changed[entry.id] = entry
        for lines in (self._remarks, self._history):
            lines[:] = [(at + step_s, job, kind, detail) for at, job, kind, detail in lines]
        self._history.append((now, NO_JOB, "clock", f"set by {step_s:+.1f} s"))
        self.predictions.shift(step_s)

    @property
    def is_durable(self) -> bool:
        """Tell whether the journal has all that changed of jobs."""
        return not (self._changed or self._added or self._history)

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
        young = not self._remarks or abs(now - self._remarks[0][0]) < REMARKS_S
        if nothing and young and timers is None and regions is None:
            return
        changed = [entry for entry in self._changed.values() if entry.id not in self._added]
        history = sorted(self._remarks + self._history, key=itemgetter(0))
        self.journal.commit(
            changed, history, self._added.values(), timers, regions=regions, predictions=predictions
        )
        self._added, self._changed, self._history, self._remarks = {}, {}, [], []
        self.predictions.committed()


def _place_on_nodes(entry: Entry, before: Placement, pool: Pool, unit: Unit) -> None:
    """Place a job that has begun where GPUs were not scheduled: it had cores, tasks, or whole nodes."""
    if not pool.names:
        entry.placement = Placement(pool.name, 1, ((0, 1),), alternative=before.alternative)
        return
    spec, cores, nodes, first = entry.spec, list[int](), list[tuple[int, int]](), 0
    of_unit = unit.cores if spec.nodes else spec.cores
    for node in range(pool.units):
        last = first + int(pool.capacity_of(node)[0])
        own = [core for core in entry.cores if first <= core < last]
        left = (spec.nodes or spec.tasks) - sum(units for _, units in nodes)
        if units := min(left, len(own) // of_unit):
            nodes.append((node, units))
            cores += own[: units * of_unit]
        first = last
    if nodes:
        entry.cores = tuple(cores)
        entry.placement = Placement(pool.name, sum(units for _, units in nodes), tuple(nodes))


def _place_on_cores(entry: Entry, before: Placement, pool: Pool, unit: Unit) -> None:
    """Place a job that runs on cores of this machine in its one pool of these, if that is another now."""
    as_before = before.pool == pool.name and bool(before.nodes) != pool.counted
    runs = entry.alive and entry.stage.placed and entry.cores and not entry.hosts
    if as_before or not runs or pool.kind or unit.package:
        return
    if pool.counted and not unit.node:
        entry.placement = Placement(pool.name, len(entry.cores), alternative=before.alternative)
    elif pool.units == 1 and not pool.counted:
        tasks = max(1, len(entry.cores) // entry.way.cores)
        entry.placement = Placement(pool.name, tasks, ((0, tasks),), alternative=before.alternative)


def _before_deadline(name: str, entry: Entry, now: float) -> None:
    """Raise BadInput if a job would be ended as soon as it began."""
    if entry.spec.deadline_s is not None and entry.spec.deadline_s <= now:
        raise BadInput(f"{name} is past its deadline", "submit it anew, with a later one")


def _with_numbers(
    specs: Sequence[JobSpec], waits_for: WaitsByPlace, numbers: Sequence[int]
) -> Iterator[JobSpec]:
    """Yield each spec with the numbers of those that it waits for by their places."""
    waits = by_kind(waits_for)
    for place, spec in enumerate(specs):
        more: dict[str, tuple[int, ...]] = {
            kind: (*getattr(spec, kind), *(numbers[other] for other in others))
            for kind, others in waits.get(place, {}).items()
        }
        yield spec.model_copy(update=more) if more else spec


# -- the jobs that selectors mean --------------------------------------------------------------------------


@dataclass
class Selection:
    """The numbers of jobs, and of arrays as a whole.

    Attributes:
        named: by a number, an index or ``last``: a change of them is refused if one has ended.
        among: by a range or ``all``: a change leaves out those that have ended.
        notes: sentences for the user.
    """

    named: list[int] = field(default_factory=list)
    among: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def select(table: JobTable, words: Iterable[str], *, members: bool) -> Selection:
    """Find the jobs that the words mean.

    Args:
        members: give the members of an array, in the order of their indices, in place of its number.

    Raises:
        BadInput: a word selects nothing.
    """
    selection = Selection()
    for word in words:
        selector = read_selector(word)
        if selector.word == "all":
            selection.among += sorted(table.entries)
        elif selector.word == "last":
            selection.named += _last_submission(table)
        elif selector.array is not None:
            for span in selector.spans:
                _add_members(table, selector.array, span, selection)
        else:
            _add_numbers(table, selector, selection)
    if members:
        selection.named = _members_in_place(table, selection.named)
        selection.among = _members_in_place(table, selection.among)
    return selection


def _last_submission(table: JobTable) -> list[int]:
    """Return the last job, or the array that it belongs to; empty before the first."""
    return [entry.array or entry.id for entry in table.journal.entries(1)]


def _add_members(table: JobTable, array: int, span: Span, selection: Selection) -> None:
    if array not in table.arrays:
        what = "there is no array" if table.stage(array) is None else "a job and no array has the number"
        raise BadInput(f"{what} {array}", "see: tenbin jobs --all")
    ids = table.journal.members(array, span.low, span.high)
    if not ids:
        which = str(span.low) if span.single else f"{span.low}-{span.high}"
        least, most = table.journal.index_range(array)
        raise BadInput(f"array {array} has no index {which}", f"its indices lie from {least} to {most}")
    (selection.named if span.single else selection.among).extend(ids)


def _add_numbers(table: JobTable, selector: Selector, selection: Selection) -> None:
    (span,) = selector.spans
    if span.single:
        selection.named.append(span.low)
        return
    last = max((entry.id for entry in table.journal.entries(1)), default=0)
    if span.low > last or span.high < 1:
        raise BadInput(f"there are no jobs {span.low}-{span.high}", "see: tenbin jobs --all")
    if span.high > last:
        selection.notes.append(f"the last job is {last}")
    numbers = range(max(span.low, 1), min(span.high, last) + 1)
    arrays = [array for array in table.arrays if array in numbers]
    of_arrays = {array + place for array in arrays for place in range(1, table.arrays.members(array) + 1)}
    selection.among += [number for number in numbers if number not in of_arrays]


def _members_in_place(table: JobTable, numbers: list[int]) -> list[int]:
    """Put the members of each array in its place; each job once."""
    ids: list[int] = []
    for number in numbers:
        ids += table.journal.members(number) if number in table.arrays else [number]
    return list(dict.fromkeys(ids))
