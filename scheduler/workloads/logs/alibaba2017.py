"""Alibaba's cluster trace of 2017, table batch_task (12 hours).

Columns: time of creation and of end (s), job, task, number of instances, status, CPU requested by an instance
(in hundredths of a core), memory requested by an instance (as a share of a machine's). The demand is (cores,
memory). The table knows no run times of single instances: each runs as long as its task.

A task counts if it terminated. Counted as skipped: tasks of another status (failed ones count with
``ends=any``), tasks created before the trace began, without a request of CPU and memory, or that end
before they begin, and lines with a wrong number of fields or fields that are no numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

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

COLUMNS = 8
COUNTED = {"finished": ("Terminated",), "any": ("Terminated", "Failed")}
PER_CORE = 100.0


@dataclass(frozen=True)
class Alibaba2017(TaskParameters):
    """Options for the table, besides ``TaskParameters``.

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
            arrivals(_tasks(table, self), self),
            f"{path.name}, Alibaba cluster trace 2017",
            skipped,
            note=f"{share(thing, self.every)}; an instance runs as long as its task",
        )


def _tasks(table: TraceTable, parameters: Alibaba2017) -> Iterator[TraceTask]:
    for fields in table.rows(COLUMNS):
        created, ended, job, task, count, status, cpu, memory = (field.strip() for field in fields)
        if table.line == 1 and created[:1].isalpha():
            continue  # a heading
        if status not in COUNTED[parameters.ends]:
            table.leave_out(f"status {status.lower() or 'unknown'}")
            continue
        found = _task(created, ended, count=count, cpu=cpu, memory=memory)
        if isinstance(found, str):
            table.skip(found)
        elif parameters.instances == "units":
            if chosen(f"{job}-{task}", parameters.every):
                yield found
        else:
            for _ in range(chosen(f"{job}-{task}", parameters.every, found.units)):
                yield found._replace(units=1)


def _task(  # noqa: PLR0911 (one line a rule)
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
