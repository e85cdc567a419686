"""The Standard Workload Format (Feitelson's archive), read and written: 18 numbers a line, -1 where unknown.

Which fields count: number 1 (job), 2 (submission), 4 (run time), 8 or else 5 (processors: requested, else
allocated), 9 (requested time: the limit), 10 or else 7 (memory, KB per processor), 11 (status), 12 (user),
14 (program). A whole number may be written as ``1.0``, as pandas does.

The archive's oddities, and what becomes of them (each is counted): a line with fewer than the first 9 fields,
or fields that are no numbers, is skipped, as is a job without a run time, without processors, submitted at a
negative time, cancelled before it began (status 5, run time 0, nothing allocated), or bearing a number that
came before; missing trailing fields are unknown; a job without a requested time, or with one of 0, has an
unknown run time; lines out of order are sorted within a window.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from profiles.errors import BadInput
from scheduler.model.jobs import Cluster, EstimateKind, Job, instant
from scheduler.simulator.trace import Arrival, Outcome
from scheduler.workloads import Workload
from scheduler.workloads.arrivals import read_taken
from scheduler.workloads.logs.files import blocks_of, in_order, whole

NEEDED = 9
USED = 14  # the others are left as one string
CANCELLED = 5  # status
UNKNOWN = ["-1"] * (USED + 1 - NEEDED)
LARGEST_NUMBER = 2**31  # of a job
ZERO = "a requested time of 0, which counts as none"
LIMIT, EXACT, INF = EstimateKind.LIMIT, EstimateKind.EXACT, math.inf
MB_PER_KB = 1024 / 1e6  # SWF's kilobytes are 1024 bytes, tenbin's megabytes 10^6


@dataclass(frozen=True)
class Swf:
    """Options for a log.

    Attributes:
        estimate: "requested" (the user's limit), "exact" (the run time itself) or "none".
        strict: stop at the first line that cannot be used instead of skipping it.
        limit: read so many jobs; None: all.
        takes: a CSV file with the GPUs that jobs take, and other resources of nodes (see ``read_taken``).
    """

    estimate: Literal["requested", "exact", "none"] = "requested"
    strict: bool = False
    limit: int | None = None
    takes: str = ""

    def read(self, path: Path) -> Workload:
        """Read the log at ``path`` (plain or gzip) as a stream."""
        skipped: Counter[str] = Counter()
        remarks: Counter[str] = Counter()
        log = _Log(path, self, skipped, remarks)
        taken = read_taken(Path(self.takes)) if self.takes else None
        jobs = in_order(log.blocks(), skipped)
        return Workload(jobs, path.name, skipped, remarks=remarks, taken=taken)


def write(arrivals: Iterable[Arrival], lines: IO[str]) -> None:
    """Write jobs as SWF; fields that SWF does not have are lost, times are rounded to whole microseconds."""
    for job, run_s, *_ in arrivals:
        limit = -1 if job.estimate_s is None else job.estimate_s
        user = job.user if job.user.isdecimal() else -1
        program = job.program if job.program.isdecimal() else -1
        lines.write(
            f"{job.id} {write_number(job.submit_s)} -1 {write_number(run_s)} {job.units} -1 -1 {job.units} "
            f"{write_number(limit)} {_kb_a_unit(job)} 1 {user} -1 {program} -1 -1 -1 -1\n"
        )


class _Unusable(ValueError):
    """The reason why a line has no job."""


class _Log:
    """A log that is read many lines at a time."""

    def __init__(self, path: Path, parameters: Swf, skipped: Counter[str], remarks: Counter[str]) -> None:
        self._path = path
        self._parameters = parameters
        self._skipped = skipped
        self._remarks = remarks
        self._numbers = _JobNumbers()
        self._lines = self._taken = 0  # so many so far

    def blocks(self) -> Iterator[list[Arrival]]:
        """Read the jobs in the order of the lines."""
        for lines in blocks_of(self._path):
            yield self._jobs(lines)
            if self._taken == self._parameters.limit:
                return

    def _jobs(self, lines: Sequence[str]) -> list[Arrival]:
        """Read the jobs on these lines."""
        limit = self._parameters.limit
        room = INF if limit is None else limit - self._taken
        jobs: list[Arrival] = []
        for place, line in enumerate(lines, self._lines + 1):
            fields = line.split(None, USED)
            if not fields or fields[0][0] == ";":
                continue
            if len(jobs) == room:
                break
            try:
                jobs.append(self._arrival(fields))
            except ValueError as error:
                self._skip(place, error)
        self._lines += len(lines)
        self._taken += len(jobs)
        return jobs

    def _arrival(self, fields: list[str]) -> Arrival:
        """Read the job on a line; ValueError if there is none."""
        if len(fields) <= USED:
            if len(fields) < NEEDED:
                raise _Unusable(f"fewer than {NEEDED} fields")
            fields = [*fields, *UNKNOWN][: USED + 1]
        number, submitted, _, ran, given, _, used, requested, stated, memory, status, user, _, program, _ = (
            fields
        )
        job_id, submit, run, limit = whole(number), instant(float(submitted)), float(ran), float(stated)
        processors = float(requested)
        if processors <= 0.0:
            processors = float(given)
        kb = -1.0 if memory == "-1" else float(memory)
        if kb <= 0.0 and used != "-1":
            kb = float(used)
        if not (0 <= job_id < LARGEST_NUMBER and 0.0 <= submit < INF and 0.0 <= run < INF):
            raise _Unusable(_unusable(job_id, submit, run))
        if run == 0.0 and float(given) <= 0.0 and whole(status) == CANCELLED:
            raise _Unusable("cancelled before it began")
        if not 1.0 <= processors < INF:
            raise _Unusable("no processors")
        if not self._numbers.is_new(job_id):
            raise _Unusable("a job number that came before")
        units = int(processors)
        memory_mb = kb * units * MB_PER_KB if 0.0 < kb < INF else None
        known, estimate = LIMIT, limit if 0.0 < limit < INF else None
        if limit == 0.0:
            self._remarks[ZERO] += 1
        if self._parameters.estimate != "requested":
            known, estimate = (EXACT, run) if self._parameters.estimate == "exact" else (known, None)
        user, program = _name(user), _name(program)
        job = Job(
            job_id, submit, units, estimate, user, memory_mb=memory_mb, estimate_kind=known, program=program
        )
        return Arrival(job, run)

    def _skip(self, place: int, error: ValueError) -> None:
        """Count a line that cannot be used; with ``strict`` raise BadInput."""
        reason = str(error) if isinstance(error, _Unusable) else "a field that is no number"
        if self._parameters.strict:
            raise BadInput(f"{self._path}, line {place}: {reason}", "mend the line, or read without strict")
        self._skipped[reason] += 1


class _JobNumbers:
    """The job numbers so far: all below ``_next`` but those in the gaps (first, one past the last)."""

    def __init__(self) -> None:
        self._next = 0
        self._gaps: list[tuple[int, int]] = []  # ascending

    def is_new(self, number: int) -> bool:
        """Return True at the first time for each number."""
        if number >= self._next:
            if number > self._next:
                self._gaps.append((self._next, number))
            self._next = number + 1
            return True
        at = bisect_right(self._gaps, (number, LARGEST_NUMBER)) - 1
        if at < 0 or self._gaps[at][1] <= number:
            return False
        first, end = self._gaps[at]
        rest = (first, number), (number + 1, end)
        self._gaps[at : at + 1] = [gap for gap in rest if gap[0] < gap[1]]
        return True


def _name(text: str) -> str:
    """Return the number of a user or program as it is written without a fraction; "": unknown."""
    if not text.isdecimal():
        with suppress(ValueError):
            text = str(whole(text))
    return "" if text == "-1" else text


def _unusable(job_id: int, submit: float, run: float) -> str:
    if not 0 <= job_id < LARGEST_NUMBER or not math.isfinite(submit + run):
        return "a number out of range"
    return "a negative time of submission" if submit < 0 else "no run time"


def _kb_a_unit(job: Job) -> int:
    """Return the memory per processor in KB; -1: unknown."""
    return -1 if job.memory_mb is None else round(job.memory_mb / job.units / MB_PER_KB)


def write_number(value: float) -> str:
    """Write a number to six decimals, without a fraction where it has none."""
    return str(int(value)) if value == int(value) else f"{value:.6f}".rstrip("0").rstrip(".")


# -- results of a simulation -------------------------------------------------------------------------------
#
# One line a job with 18 fields, in the order of submission, -1 where unknown. The wait is until the first
# start, the run time that of progress. A job killed at its limit has status 0 (failed). Users and programs
# are numbers in the standard; others are numbered from 1 in the order of submission, as the header's notes
# say. The partition is the class where the job ended, 1 the best.


FORMAT = "2.2"


def result_lines(outcomes: Sequence[Outcome], cluster: Cluster, about: str) -> Iterator[str]:
    """Yield header and jobs, each line with its end. ``about``: workload and policy, for the header."""
    ordered = sorted(outcomes, key=lambda outcome: (outcome.job.submit_s, outcome.job.id))
    users = _numbers(outcome.job.user for outcome in ordered)
    programs = _numbers(outcome.job.program for outcome in ordered)
    pools = {pool.name: place for place, pool in enumerate(cluster.pools, 1)}
    for label, value in _header(ordered, cluster, about):
        yield f"; {label}: {value}\n"
    for what, numbers in (("User", users), ("Executable", programs)):
        for name, number in numbers.items():
            if name != str(number):
                yield f"; Note: {what} {number} is {_one_line(name)}\n"
    anew = any(not 1 <= outcome.job.id < LARGEST_NUMBER for outcome in ordered)
    for place, outcome in enumerate(ordered, 1):
        job = outcome.job
        number = place if anew else job.id
        group = (users.get(job.user, -1), -1, programs.get(job.program, -1), -1)
        yield _line(number, outcome, group, pools[outcome.segments[-1].placement.pool])


def _line(number: int, outcome: Outcome, group: tuple[int, int, int, int], partition: int) -> str:
    """Write a job; ``group`` has user, group, executable and queue."""
    job, segments = outcome.job, outcome.segments
    fields = (
        number,
        write_number(job.submit_s),
        write_number(max(0.0, outcome.start_s - job.submit_s)),
        write_number(outcome.run_s - outcome.lost_s),
        segments[-1].placement.units,
        -1,
        -1,
        job.units,
        write_number(_limit_s(job, segments[-1].placement.pool)),
        _kb_a_unit(job),
        int(outcome.how == "done"),
        *group,
        partition,
        -1,
        -1,
    )
    return " ".join(map(str, fields)) + "\n"


def _limit_s(job: Job, pool: str) -> float:
    """Return the believed run time where the job ended, in seconds; -1 if unknown."""
    believed = job.reference_s(pool)
    return believed if believed < float("inf") else -1.0


def _header(ordered: Sequence[Outcome], cluster: Cluster, about: str) -> Iterator[tuple[str, object]]:
    yield "Version", FORMAT
    yield "Computer", "simulated by tenbin"
    yield "Note", _one_line(about)
    yield "MaxJobs", len(ordered)
    yield "MaxRecords", len(ordered)
    yield "Preemption", "Yes" if any(o.preemptions or o.migrations for o in ordered) else "No"
    yield "MaxNodes", cluster.units
    if all(pool.counted for pool in cluster.pools):
        yield "MaxProcs", cluster.units
    if ordered:
        yield "MaxRuntime", write_number(max(o.run_s - o.lost_s for o in ordered))
    yield "MaxPartitions", len(cluster.pools)
    for place, pool in enumerate(cluster.pools, 1):
        yield "Partition", f"{place} {_one_line(pool.name)}, {pool.units} units"


def _numbers(names: Iterable[str]) -> dict[str, int]:
    """Give the names numbers: by themselves if all are natural numbers, else from 1 in their order."""
    ordered = [name for name in dict.fromkeys(names) if name]
    if all(name.isascii() and name.isdecimal() and name == str(int(name)) != "0" for name in ordered):
        return {name: int(name) for name in ordered}
    return {name: number for number, name in enumerate(ordered, 1)}


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text).encode("ascii", "replace").decode()
