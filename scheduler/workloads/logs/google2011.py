"""Task events of Google's cluster trace of 2011 (ClusterData2011_2): a part file, or a folder of them.

Columns: time (microseconds), missing info, job, task index, machine, event, user, scheduling class, priority,
CPU request, memory request, disk request, constraint. Requests are shares of the largest machine's; the
demand is (CPU, memory) as at the submission. Priorities are not kept: a job has none.

A task counts if it was submitted within the trace and finished within it. Its time of submission is that of
its first one; its run time is that of the run that finished it, from the last time that it was scheduled
(Google's tasks start anew when they were evicted, failed or were killed; the runs before are not counted).
With ``ends=any`` tasks whose last event is a failure, a kill, an eviction or a loss count as well, with the
run before that event.

Counted as skipped: tasks that were there when the trace began (time 0; their start is unknown) or still there
when it ends, tasks that came to another end or were never scheduled, requests of no CPU or no memory, and
lines with a wrong number of fields, fields that are no numbers, or times that are negative or beyond the
trace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from profiles.errors import BadInput
from scheduler.simulator.trace import Arrival
from scheduler.workloads import Workload
from scheduler.workloads.logs.files import whole
from scheduler.workloads.logs.tasks import (
    TaskParameters,
    TraceTable,
    TraceTask,
    arrivals,
    chosen,
    number,
    share,
)

COLUMNS = 13
SUBMIT, SCHEDULE, FINISH = 0, 1, 4
ENDS = {2: "evicted", 3: "failed", FINISH: "finished", 5: "killed", 6: "lost"}
UPDATES = (7, 8)
BEYOND_TRACE = 2**63 - 1
PARTS = "part-*.csv*"


@dataclass(frozen=True)
class Google2011(TaskParameters):
    """Options for the trace, besides ``TaskParameters``.

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
            _arrivals(files, self, skipped),
            f"{path.name}, Google cluster trace 2011",
            skipped,
            note=f"{share('task', self.every)} that was submitted and ended within the trace",
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


def _arrivals(files: list[Path], parameters: Google2011, skipped: Counter[str]) -> Iterator[Arrival]:
    tasks_by_key: dict[tuple[str, str], _TaskEvents] = {}
    for path in files:
        _read(TraceTable(path, parameters.strict, skipped), tasks_by_key, parameters.every)
    tasks = []
    for events in tasks_by_key.values():
        task = _task(events, parameters)
        if isinstance(task, str):
            skipped[task] += 1
        else:
            tasks.append(task)
    tasks_by_key.clear()
    yield from arrivals(tasks, parameters)


def _read(table: TraceTable, tasks_by_key: dict[tuple[str, str], _TaskEvents], every: int) -> None:
    """Follow the events of one file."""
    for fields in table.rows(COLUMNS):
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


def _task(events: _TaskEvents, parameters: Google2011) -> TraceTask | str:  # noqa: PLR0911 (one line a rule)
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
