"""Jobs that a coordinator has run to their ends, as ``tenbin history --csv`` writes them."""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from profiles.errors import BadInput
from scheduler.model.jobs import Job, instant
from scheduler.simulator.trace import Arrival
from scheduler.workloads import Workload
from scheduler.workloads.arrivals import Taken, TakenResources
from scheduler.workloads.logs.files import blocks_of

COLUMNS = {"id", "name", "user", "submit_s", "end_s", "running_s", "cores", "peak_memory_mb", "time_limit_s"}


@dataclass(frozen=True)
class History:
    """The reader; it has no options. A job with GPUs has one task, which takes them on one node."""

    def read(self, path: Path) -> Workload:
        """Read the file; the first submission is at 0 s.

        Raises:
            BadInput: a column is missing, or has something else than numbers.
        """
        rows = list(csv.DictReader(chain.from_iterable(blocks_of(path))))
        if lacking := COLUMNS - set(rows[0] if rows else ()):
            what = f"{path}: no {', '.join(sorted(lacking))}" if rows else f"{path}: no job"
            raise BadInput(what, "write it with: tenbin history --csv --limit 100000")
        ended = [row for row in rows if row["end_s"] and row["running_s"]]
        try:
            ended.sort(key=lambda row: float(row["submit_s"]))
            first_s = float(ended[0]["submit_s"]) if ended else 0.0
            arrivals = [_arrival(number, row, first_s) for number, row in enumerate(ended, 1)]
        except ValueError as error:
            raise BadInput(f"{path}: {error}", "write it with: tenbin history --csv") from error
        left_out = Counter({"has not run and ended": len(rows) - len(ended)})
        gpus = {number: row.get("gpus_asked") or "0" for number, row in enumerate(ended, 1)}
        ways = {number: (Taken({"gpu": float(count)}, 1),) for number, count in gpus.items() if count != "0"}
        taken = TakenResources(("gpu",), path.name, ways, needed=False) if ways else None
        return Workload(arrivals, path.name, +left_out, taken=taken)


def _arrival(number: int, row: dict[str, str], first_s: float) -> Arrival:
    limit_s, memory_mb = (
        float(row[name]) if row[name] else None for name in ("time_limit_s", "peak_memory_mb")
    )
    job = Job(
        number,
        instant(float(row["submit_s"]) - first_s),
        int(row["cores"]),
        limit_s,
        user=row["user"],
        memory_mb=memory_mb,
        program=row["name"],
        label=row["id"],
    )
    return Arrival(job, float(row["running_s"]))
