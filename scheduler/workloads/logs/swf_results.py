"""Results of a simulation in the Standard Workload Format, version 2.2, as of a real machine's log.

One line a job with 18 fields, in the order of submission, -1 where unknown. The wait is until the first
start, the run time that of progress. A job killed at its limit has status 0 (failed). Users and programs are
numbers in the standard; others are numbered from 1 in the order of submission, as the header's notes say.
The partition is the class where the job ended, 1 the best.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from scheduler.model.jobs import Cluster, Job
from scheduler.simulator.trace import Outcome
from scheduler.workloads.logs.swf import LARGEST_NUMBER, MB_PER_KB, write_number

FORMAT = "2.2"


def lines(outcomes: Sequence[Outcome], cluster: Cluster, about: str) -> Iterator[str]:
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
    memory = -1 if job.memory_mb is None else round(job.memory_mb / job.units / MB_PER_KB)
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
        memory,
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
