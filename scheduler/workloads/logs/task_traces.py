"""Traces of tasks: comma-separated tables of data centres.

The tasks that count are gathered (a few hundred bytes each), sorted by their submission and numbered from 1.
Run times are not known to a scheduler unless ``estimate=exact``; the tasks may be paused and resumed
unless ``stop`` says otherwise (the traces' own systems kill and start anew).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple
from zlib import crc32

from profiles.errors import BadInput
from scheduler.model.jobs import EstimateKind, Job, Stop, instant
from scheduler.simulator.trace import Arrival
from scheduler.workloads import Workload
from scheduler.workloads.logs.files import lines_of, whole


@dataclass(frozen=True)
class TaskParameters:
    """Options for a trace of tasks.

    Attributes:
        every: about one task in so many, chosen by a hash of the task's name: the same ones however the trace
            is cut, and no table of all tasks is needed.
        limit: the first so many of these; None: all.
        estimate: what a scheduler knows of the run time: "none", or "exact".
        stop: what may be done to a running task: "pause", "checkpoint" or "never".
        strict: stop at the first line that cannot be used instead of skipping it.
    """

    every: int = 1
    limit: int | None = None
    estimate: Literal["none", "exact"] = "none"
    stop: Literal["pause", "checkpoint", "never"] = "pause"
    strict: bool = False

    def __post_init__(self) -> None:
        if self.every < 1 or (self.limit is not None and self.limit < 1):
            raise ValueError("every and limit must be at least 1")


class TraceTask(NamedTuple):
    """A task that counts; ``demand`` is that of each of its ``units``."""

    submit_s: float
    run_s: float
    demand: tuple[float, ...]
    units: int = 1
    user: str = ""
    memory_mb: float | None = None


class TraceTable:
    """The lines of a comma-separated file as fields; those that cannot be used are counted, or an error.

    Attributes:
        line: number of the line that is being looked at.
    """

    def __init__(self, path: Path, strict: bool, skipped: Counter[str]) -> None:
        self.path = path
        self.line = 0
        self._strict = strict
        self._skipped = skipped

    def rows(self, columns: int) -> Iterator[list[str]]:
        """Yield the fields of lines that have as many as they should; empty lines do not count."""
        for line, text in enumerate(lines_of(self.path), 1):
            self.line = line
            fields = text.rstrip("\r\n").split(",")
            if len(fields) == columns:
                yield fields
            elif text.strip():
                self.skip(f"{len(fields)} fields instead of {columns}")

    def skip(self, reason: str) -> None:
        """Count the line at hand as one that cannot be used; with ``strict`` raise BadInput."""
        if self._strict:
            raise BadInput(
                f"{self.path}, line {self.line}: {reason}", "mend the line, or read without strict"
            )
        self.leave_out(reason)

    def leave_out(self, reason: str) -> None:
        """Count the line at hand as one that is in order, but gives no job."""
        self._skipped[reason] += 1


def number(text: str) -> float:
    """Read a finite number; ValueError for anything else."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def chosen(name: str, every: int, count: int = 1) -> int:
    """Return how many of ``count`` things of that name are taken, one in ``every`` on average."""
    return (count + crc32(name.encode()) % every) // every


def share(thing: str, every: int) -> str:
    """Write ``"each task"``, ``"about one task in 16"``."""
    return f"each {thing}" if every == 1 else f"about one {thing} in {every}"


def arrivals(tasks: Iterable[TraceTask], parameters: TaskParameters) -> Iterator[Arrival]:
    """Yield the tasks as jobs, in the order of their submission."""
    ordered = sorted(tasks, key=lambda task: task.submit_s)
    exact, stop = parameters.estimate == "exact", Stop(parameters.stop)
    for position, task in enumerate(islice(ordered, parameters.limit), 1):
        job = Job(
            id=position,
            submit_s=instant(task.submit_s),
            units=task.units,
            estimate_s=task.run_s if exact else None,
            user=task.user,
            memory_mb=task.memory_mb,
            estimate_kind=EstimateKind.EXACT if exact else EstimateKind.LIMIT,
            stop=stop,
            demand=task.demand,
        )
        yield Arrival(job, task.run_s)


# -- Google 2011 -------------------------------------------------------------------------------------------


EVENT_COLUMNS = 13
SUBMIT, SCHEDULE, FINISH = 0, 1, 4
ENDS = {2: "evicted", 3: "failed", FINISH: "finished", 5: "killed", 6: "lost"}
UPDATES = (7, 8)
BEYOND_TRACE = 2**63 - 1
PARTS = "part-*.csv*"


@dataclass(frozen=True)
class Google2011(TaskParameters):
    """Task events of Google's cluster trace of 2011 (ClusterData2011_2): a part file, or a folder of them.

    Columns: time (microseconds), missing info, job, task index, machine, event, user, scheduling class,
    priority, CPU request, memory request, disk request, constraint. Requests are shares of the largest
    machine's; the demand is (CPU, memory) as at the submission. Priorities are not kept: a job has none.

    A task counts if it was submitted within the trace and finished within it. Its time of submission is that
    of its first one; its run time is that of the run that finished it, from the last time that it was
    scheduled (Google's tasks start anew when they were evicted, failed or were killed; the runs before are
    not counted). With ``ends=any`` tasks whose last event is a failure, a kill, an eviction or a loss count
    as well, with the run before that event.

    Counted as skipped: tasks that were there when the trace began (time 0; their start is unknown) or still
    there when it ends, tasks that came to another end or were never scheduled, requests of no CPU or no
    memory, and lines with a wrong number of fields, fields that are no numbers, or times that are negative or
    beyond the trace.

    Attributes:
        ends: which tasks count: those that finished, or any that ended.
    """

    ends: Literal["finished", "any"] = "finished"

    def read(self, path: Path) -> Workload:
        """Read the tasks of a part file, or of all part files of a folder."""
        files = sorted(path.glob(PARTS)) if path.is_dir() else [path]
        if not files:
            raise BadInput(f"workload {path}: no part files", f"name a folder that holds {PARTS}")
        skipped: Counter[str] = Counter()
        return Workload(
            _google_tasks(files, self, skipped),
            f"{path.name}, Google cluster trace 2011",
            skipped,
            note=f"{share('task', self.every)} that was submitted and ended within the trace",
            demanded=("cpu", "memory"),
        )


@dataclass(slots=True)
class _TaskEvents:
    """A task as far as it has been read."""

    submit_us: int | None
    user: str
    cpu: str
    memory: str
    scheduled_us: int | None = None
    run_us: int | None = None
    end: int | None = None


def _google_tasks(files: list[Path], parameters: Google2011, skipped: Counter[str]) -> Iterator[Arrival]:
    tasks_by_key: dict[tuple[str, str], _TaskEvents] = {}
    for path in files:
        _follow(TraceTable(path, parameters.strict, skipped), tasks_by_key, parameters.every)
    tasks = []
    for events in tasks_by_key.values():
        task = _google_task(events, parameters)
        if isinstance(task, str):
            skipped[task] += 1
        else:
            tasks.append(task)
    tasks_by_key.clear()
    yield from arrivals(tasks, parameters)


def _follow(table: TraceTable, tasks_by_key: dict[tuple[str, str], _TaskEvents], every: int) -> None:
    """Follow the events of one file."""
    for fields in table.rows(EVENT_COLUMNS):
        key = (fields[2], fields[3])
        if every > 1 and not chosen("-".join(key), every):
            continue
        try:
            time_us, event = whole(fields[0]), whole(fields[5])
            if fields[9]:
                _ = number(fields[9]), number(fields[10])
        except ValueError:
            table.skip("a field that is no number")
            continue
        if not 0 <= time_us < BEYOND_TRACE:
            table.skip("a negative time" if time_us < 0 else "a time beyond the trace")
        elif event not in (SUBMIT, SCHEDULE, *ENDS, *UPDATES):
            table.skip("an unknown event")
        else:
            events = tasks_by_key.get(key)
            if events is None:
                submit_us = time_us if event == SUBMIT else None
                events = tasks_by_key[key] = _TaskEvents(submit_us, fields[6], fields[9], fields[10])
            _apply(events, event, time_us)


def _apply(events: _TaskEvents, event: int, time_us: int) -> None:
    if event == SUBMIT:
        events.scheduled_us = events.end = None
    elif event == SCHEDULE:
        events.scheduled_us, events.end = time_us, None
    elif event in ENDS:
        events.run_us = None if events.scheduled_us is None else time_us - events.scheduled_us
        events.scheduled_us, events.end = None, event


def _google_task(events: _TaskEvents, parameters: Google2011) -> TraceTask | str:  # noqa: PLR0911 (one line a rule)
    """Return the task, or why it does not count."""
    if events.submit_us is None:
        return "no submission in the trace"
    if events.submit_us == 0:
        return "already there when the trace begins"
    if events.end is None:
        return "still there when the trace ends"
    if events.end != FINISH and parameters.ends == "finished":
        return f"it {'was ' if events.end != 3 else ''}{ENDS[events.end]}"
    if events.run_us is None:
        return "never scheduled"
    if events.run_us < 0:
        return "a negative run time"
    if not events.cpu or not events.memory:
        return "no request in the trace"
    demand = (float(events.cpu), float(events.memory))
    if min(demand) <= 0:
        return f"a request of {'no CPU' if demand[0] <= 0 else 'no memory'}"
    return TraceTask(events.submit_us / 1e6, events.run_us / 1e6, demand, user=events.user)


# -- Alibaba 2017 ------------------------------------------------------------------------------------------


BATCH_COLUMNS = 8
COUNTED = {"finished": ("Terminated",), "any": ("Terminated", "Failed")}
PER_CORE = 100.0


@dataclass(frozen=True)
class Alibaba2017(TaskParameters):
    """Alibaba's cluster trace of 2017, table batch_task (12 hours).

    Columns: time of creation and of end (s), job, task, number of instances, status, CPU requested by an
    instance (in hundredths of a core), memory requested by an instance (as a share of a machine's). The
    demand is (cores, memory). The table knows no run times of single instances: each runs as long as its
    task.

    A task counts if it terminated. Counted as skipped: tasks of another status (failed ones count with
    ``ends=any``), tasks created before the trace began, without a request of CPU and memory, or that end
    before they begin, and lines with a wrong number of fields or fields that are no numbers.

    Attributes:
        ends: which tasks count: those that terminated, or failed ones as well.
        instances: what the instances of a task are: the "units" of one job, which run together, or "jobs" of
            one unit each (``every`` then counts instances).
    """

    ends: Literal["finished", "any"] = "finished"
    instances: Literal["units", "jobs"] = "units"

    def read(self, path: Path) -> Workload:
        """Read the tasks of the table at ``path``."""
        skipped: Counter[str] = Counter()
        table = TraceTable(path, self.strict, skipped)
        thing = "task" if self.instances == "units" else "instance"
        return Workload(
            arrivals(_batch_tasks(table, self), self),
            f"{path.name}, Alibaba cluster trace 2017",
            skipped,
            note=f"{share(thing, self.every)}; an instance runs as long as its task",
            demanded=("cores", "memory"),
        )


def _batch_tasks(table: TraceTable, parameters: Alibaba2017) -> Iterator[TraceTask]:
    for fields in table.rows(BATCH_COLUMNS):
        created, ended, job, task, count, status, cpu, memory = (field.strip() for field in fields)
        if table.line == 1 and created[:1].isalpha():
            continue  # a heading
        if status not in COUNTED[parameters.ends]:
            table.leave_out(f"status {status.lower() or 'unknown'}")
            continue
        batch = _batch_task(created, ended, count=count, cpu=cpu, memory=memory)
        if isinstance(batch, str):
            table.skip(batch)
        elif parameters.instances == "units":
            if chosen(f"{job}-{task}", parameters.every):
                yield batch
        else:
            for _ in range(chosen(f"{job}-{task}", parameters.every, batch.units)):
                yield batch._replace(units=1)


def _batch_task(  # noqa: PLR0911 (one line a rule)
    created: str, ended: str, *, count: str, cpu: str, memory: str
) -> TraceTask | str:
    """Return the task, or why its line cannot be used."""
    if not cpu or not memory:
        return "no request in the trace"
    try:
        submit, end, units = whole(created), whole(ended), whole(count)
        demand = (number(cpu) / PER_CORE, number(memory))
    except ValueError:
        return "a field that is no number"
    if submit < 0:
        return "created before the trace begins"
    if end < submit:
        return "a negative run time"
    if units < 1:
        return "no instances"
    if min(demand) <= 0:
        return f"a request of {'no CPU' if demand[0] <= 0 else 'no memory'}"
    return TraceTask(float(submit), float(end - submit), demand, units)


# -- Alibaba's GPUs 2023 -----------------------------------------------------------------------------------


MB_PER_MIB = 2**20 / 1e6
NEEDED = (
    "name",
    "cpu_milli",
    "memory_mib",
    "num_gpu",
    "gpu_milli",
    "creation_time",
    "scheduled_time",
    "deletion_time",
)


@dataclass(frozen=True)
class AlibabaGpu2023(TaskParameters):
    """Alibaba's GPU cluster trace of 2023: the list of pods.

    ``clusters.parse_cluster`` reads that of the nodes. The columns are found by their names: cpu_milli,
    memory_mib, num_gpu, gpu_milli (of each GPU), creation_time, scheduled_time and deletion_time (s). The
    demand of a pod is (cores, memory in MB of 10^6 bytes, GPUs). A shared GPU counts by its share; that a
    share must lie on one GPU is not modelled, nor is a wish for a model. The run time is that from scheduling
    to deletion, whatever the pod's phase; a pod that was still there when the trace ended is taken to end
    there.

    Counted as skipped: pods that were never scheduled, whose run time is unknown, that request no CPU, whose
    times are negative or not in order, and lines with a wrong number of fields or fields that are no numbers.
    """

    def read(self, path: Path) -> Workload:
        """Read the pods of the list at ``path``; BadInput if a column is missing."""
        heading = next(lines_of(path), "").strip().split(",")
        for name in NEEDED:
            if name not in heading:
                raise BadInput(
                    f"workload {path}, line 1: no column {name}", "name a list of pods with its heading"
                )
        skipped: Counter[str] = Counter()
        pods = _pods(TraceTable(path, self.strict, skipped), heading, self.every)
        return Workload(
            arrivals(pods, self),
            f"{path.name}, Alibaba GPU trace 2023",
            skipped,
            note=f"{share('pod', self.every)} that was scheduled; demand in cores, MB and GPUs",
            demanded=("cores", "memory_mb", "gpu"),
        )


def _pods(table: TraceTable, heading: list[str], every: int) -> Iterator[TraceTask]:
    places = [heading.index(name) for name in NEEDED]
    for fields in table.rows(len(heading)):
        if table.line == 1:
            continue
        name, *values = (fields[place] for place in places)
        if not chosen(name, every):
            continue
        if not values[-2]:
            table.leave_out("never scheduled")
            continue
        pod = _pod(values)
        if isinstance(pod, str):
            table.skip(pod)
        else:
            yield pod


def _pod(values: Sequence[str]) -> TraceTask | str:
    """Return the pod, or why its line cannot be used."""
    milli, mib, gpus, gpu_milli, created, scheduled, deleted = values
    try:
        cores, memory_mb = number(milli) / 1000.0, number(mib) * MB_PER_MIB
        shares = number(gpus) * number(gpu_milli) / 1000.0
        submit, start, end = number(created), number(scheduled), number(deleted)
    except ValueError:
        return "a field that is no number"
    if submit < 0 or start < submit or end < start:
        return "a negative time" if submit < 0 else "times that are not in order"
    if cores <= 0 or memory_mb < 0 or shares < 0:
        return "a request of no CPU" if cores <= 0 else "a negative request"
    return TraceTask(submit, end - start, (cores, memory_mb, shares), memory_mb=memory_mb or None)
