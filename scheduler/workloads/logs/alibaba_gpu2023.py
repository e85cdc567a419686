"""Alibaba's GPU cluster trace of 2023: the list of pods; ``clusters.parse_cluster`` reads that of the nodes.

The columns are found by their names: cpu_milli, memory_mib, num_gpu, gpu_milli (of each GPU), creation_time,
scheduled_time and deletion_time (s). The demand of a pod is (cores, memory in MB of 10^6 bytes, GPUs). A
shared GPU counts by its share; that a share must lie on one GPU is not modelled, nor is a wish for a model.
The run time is that from scheduling to deletion, whatever the pod's phase; a pod that was still there when
the trace ended is taken to end there.

Counted as skipped: pods that were never scheduled, that request no CPU or no memory, whose times are negative
or not in order, and lines with a wrong number of fields or fields that are no numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from profiles.errors import BadInput
from scheduler.workloads import Workload
from scheduler.workloads.logs.files import lines_of
from scheduler.workloads.logs.tasks import (
    TaskParameters,
    TraceTable,
    TraceTask,
    arrivals,
    chosen,
    number,
    share,
)

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
    """Options for the list: ``TaskParameters``."""

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
    if cores <= 0 or memory_mb <= 0 or shares < 0:
        return "a request of no CPU" if cores <= 0 else "a request of no memory"
    return TraceTask(submit, end - start, (cores, memory_mb, shares), memory_mb=memory_mb)
