"""Logs in the Standard Workload Format (Feitelson's archive): 18 numbers a line, -1 where unknown.

Which fields count: number 1 (job), 2 (submission), 4 (run time), 8 or else 5 (processors: requested, else
allocated), 9 (requested time: the limit), 10 or else 7 (memory, KB per processor), 12 (user), 14 (program).

The archive's oddities, and what becomes of them (each is counted): a line with fewer than the first 9 fields,
or fields that are no numbers, is skipped, as is a job without a run time, without processors, submitted at a
negative time, or bearing a number that came before; missing trailing fields are unknown; a job without a
requested time has an unknown run time; lines out of order are sorted within a window.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from profiles.errors import BadInput
from scheduler.model import EMPTY, Job, Known
from scheduler.trace import Arrival
from scheduler.workloads import Workload
from scheduler.workloads.files import in_order, lines_of

NEEDED = 9
USED = 14  # the others are left as one string
UNKNOWN = ["-1"] * (USED + 1 - NEEDED)
LARGEST_NUMBER = 2**31  # of a job
LIMIT, EXACT, INF = Known.LIMIT, Known.EXACT, math.inf
MB_PER_KB = 1024 / 1e6  # SWF's kilobytes are 1024 bytes, tenbin's megabytes 10^6


@dataclass(frozen=True)
class Parameters:
    """How to read a log.

    Attributes:
        estimate: "requested" (the user's limit), "exact" (the run time itself) or "none".
        strict: stop at the first line that cannot be used instead of skipping it.
        limit: read so many jobs; None: all.
    """

    estimate: Literal["requested", "exact", "none"] = "requested"
    strict: bool = False
    limit: int | None = None


def read(path: Path, parameters: Parameters | None = None) -> Workload:
    """The log at ``path`` (plain or gzip) as a stream.

    Raises:
        BadInput: the file cannot be read, or ends within its compressed data; with ``strict`` also a line
            that cannot be used. Raised while the arrivals are read.
    """
    skipped: Counter[str] = Counter()
    jobs = _jobs(path, parameters or Parameters(), skipped)
    return Workload(in_order(jobs, skipped), path.name, skipped)


def write(arrivals: Iterable[Arrival], lines: IO[str]) -> None:
    """Write jobs as SWF; fields that SWF does not have are lost, times are rounded to whole microseconds."""
    for job, run_s, *_ in arrivals:
        memory = -1 if job.memory_mb is None else round(job.memory_mb / job.units / MB_PER_KB)
        limit = -1 if job.estimate_s is None else job.estimate_s
        user = job.user if job.user.isdecimal() else -1
        program = job.program if job.program.isdecimal() else -1
        lines.write(
            f"{job.id} {_number(job.submit_s)} -1 {_number(run_s)} {job.units} -1 -1 {job.units} "
            f"{_number(limit)} {memory} 1 {user} -1 {program} -1 -1 -1 -1\n"
        )


def _jobs(path: Path, parameters: Parameters, skipped: Counter[str]) -> Iterator[Arrival]:
    """The jobs in the order of the lines."""
    seen = bytearray()  # one bit for each job number
    taken = 0
    limit = parameters.limit
    for number, line in enumerate(lines_of(path), 1):
        fields = line.split(None, USED)
        if not fields or fields[0][0] == ";":
            continue
        if taken == limit:
            return
        arrival = _arrival(fields, parameters)
        if type(arrival) is Arrival:
            job_id = arrival.job.id
            place, bit = job_id >> 3, 1 << (job_id & 7)
            if place >= len(seen):
                seen.extend(bytes(place + 1024 - len(seen)))
            if not seen[place] & bit:
                seen[place] |= bit
                taken += 1
                yield arrival
                continue
            arrival = "a job number that came before"
        if parameters.strict:
            raise BadInput(f"{path}, line {number}: {arrival}", "mend the line, or read without strict")
        skipped[str(arrival)] += 1


def _arrival(fields: list[str], parameters: Parameters) -> Arrival | str:
    """The job on a line, or why there is none."""
    if len(fields) <= USED:
        if len(fields) < NEEDED:
            return f"fewer than {NEEDED} fields"
        fields = [*fields, *UNKNOWN][: USED + 1]
    number, submitted, _, ran, allocated, _, used, requested, asked, memory, _, user, _, program, _ = fields
    try:
        job_id, submit, run, limit = int(number), float(submitted), float(ran), float(asked)
        processors = float(requested)
        if processors <= 0.0:
            processors = float(allocated)
        kb = -1.0 if memory == "-1" else float(memory)
        if kb <= 0.0 and used != "-1":
            kb = float(used)
    except ValueError:
        return "a field that is no number"
    if not (0 <= job_id < LARGEST_NUMBER and 0.0 <= submit < INF and 0.0 <= run < INF):
        return _unusable(job_id, submit, run)
    if not 1.0 <= processors < INF:
        return "no processors"
    units = int(processors)
    memory_mb = kb * units * MB_PER_KB if 0.0 < kb < INF else None
    known, estimate = LIMIT, limit if 0.0 < limit < INF else None
    if parameters.estimate != "requested":
        known, estimate = (EXACT, run) if parameters.estimate == "exact" else (known, None)
    user = "" if user == "-1" else user
    program = "" if program == "-1" else program
    job = Job(job_id, submit, units, estimate, user, memory_mb, known, estimates_s=EMPTY, program=program)
    return tuple.__new__(Arrival, (job, run, EMPTY, None))  # in half the time of Arrival(job, run)


def _unusable(job_id: int, submit: float, run: float) -> str:
    if not 0 <= job_id < LARGEST_NUMBER or not math.isfinite(submit + run):
        return "a number out of range"
    return "a negative time of submission" if submit < 0 else "no run time"


def _number(value: float) -> str:
    """Without a fraction where there is none."""
    return str(int(value)) if value == int(value) else repr(round(value, 6))
