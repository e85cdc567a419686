"""fcfs, first-fit, easy and conservative on several classes, written down second by second for whole numbers.

A machine is the units of each class, best first; a schedule says for each job on which class and when.
"""

from __future__ import annotations

from scheduler.model.jobs import Job
from scheduler.simulator.trace import Arrival

HORIZON = 200

Machine = dict[str, int]
Schedule = dict[int, tuple[str, int]]


def limit(job: Job, pool: str) -> int:
    return int(job.estimates_s.get(pool, job.estimate_s or 0))


def run_time(arrival: Arrival, pool: str) -> int:
    """Until the job ends or is killed."""
    return int(min(arrival.runs_s.get(pool, arrival.run_s), limit(arrival.job, pool)))


def may_use(job: Job, pool: str) -> bool:
    return not job.estimates_s or pool in job.estimates_s


def held(arrivals: tuple[Arrival, ...], schedule: Schedule, pool: str, second: int) -> list[Job]:
    """Return the jobs that hold units of the class in that second."""
    jobs = []
    for arrival in arrivals:
        where, start = schedule.get(arrival.job.id, ("", 0))
        if where == pool and start <= second < start + run_time(arrival, pool):
            jobs.append(arrival.job)
    return jobs


def free(machine: Machine, arrivals: tuple[Arrival, ...], schedule: Schedule, second: int) -> Machine:
    return {
        pool: units - sum(job.units for job in held(arrivals, schedule, pool, second))
        for pool, units in machine.items()
    }


def fcfs(machine: Machine, arrivals: tuple[Arrival, ...]) -> Schedule:
    """Every second: in the order of submission, on the best class on which it fits; nobody passes."""
    schedule: Schedule = {}
    for second in range(HORIZON):
        for job in (a.job for a in arrivals if a.job.submit_s <= second and a.job.id not in schedule):
            left = free(machine, arrivals, schedule, second)
            fits = [pool for pool in machine if may_use(job, pool) and job.units <= left[pool]]
            if not fits:
                break
            schedule[job.id] = fits[0], second
    return schedule


def first_fit(machine: Machine, arrivals: tuple[Arrival, ...]) -> Schedule:
    """Every second: whoever fits, on the best class on which it does."""
    schedule: Schedule = {}
    for second in range(HORIZON):
        for arrival in arrivals:
            job = arrival.job
            left = free(machine, arrivals, schedule, second)
            fits = [pool for pool in machine if may_use(job, pool) and job.units <= left[pool]]
            if job.submit_s <= second and job.id not in schedule and fits:
                schedule[job.id] = fits[0], second
    return schedule


def easy(machine: Machine, arrivals: tuple[Arrival, ...]) -> Schedule:
    """Every second: the queue's head while it fits, then whoever does not delay the first that does not."""
    schedule: Schedule = {}
    reserved: list = []  # class, second, spare units there
    for second in range(HORIZON):
        queue = [a.job for a in arrivals if a.job.submit_s <= second and a.job.id not in schedule]
        if free(machine, arrivals, schedule, second) != free(machine, arrivals, schedule, second - 1):
            reserved = []
        passing = False
        for job in queue:
            left = free(machine, arrivals, schedule, second)
            may = [pool for pool in machine if may_use(job, pool) and job.units <= left[pool]]
            if passing:
                where, at, spare = reserved
                may = [p for p in may if p != where or second + limit(job, p) <= at or job.units <= spare]
            elif not may:
                reserved = reserved or reservation(machine, arrivals, schedule, job, second=second)
                passing = True
            if may:
                pool = min(may, key=lambda p: limit(job, p))
                schedule[job.id] = pool, second
                if passing and pool == reserved[0] and second + limit(job, pool) > reserved[1]:
                    reserved[2] -= job.units
    return schedule


def reservation(
    machine: Machine, arrivals: tuple[Arrival, ...], schedule: Schedule, job: Job, *, second: int
) -> list:
    """Find the class on which the job would end first at all limits, the time, and what is spare then."""
    found = []
    for rank, (pool, units) in enumerate(machine.items()):
        if not may_use(job, pool) or job.units > units:
            continue
        running = held(arrivals, schedule, pool, second)
        left = units - sum(other.units for other in running)
        for at, _, more in sorted((schedule[o.id][1] + limit(o, pool), o.id, o.units) for o in running):
            left += more
            if left >= job.units:
                found.append((at + limit(job, pool), at, rank, pool, left - job.units))
                break
    _, at, _, pool, spare = min(found)
    return [pool, at, spare]


class Conservative:
    """Tables of free units for every second, with the reservations of the first ``depth`` waiting jobs.

    The rules are those of ``brute.Conservative``, on several classes.
    """

    def __init__(self, machine: Machine, arrivals: tuple[Arrival, ...], depth: int = 1000) -> None:
        self.free = {pool: [units] * (3 * HORIZON) for pool, units in machine.items()}
        self.of = {a.job.id: a for a in arrivals}
        self.depth = depth
        self.schedule: Schedule = {}
        self.promised: dict[int, int] = {}  # ends

    def run(self) -> Schedule:
        running: set[int] = set()
        behind: list[int] = []
        for second in range(HORIZON):
            early = False
            for job_id in sorted(running):
                pool, start = self.schedule[job_id]
                if start + run_time(self.of[job_id], pool) == second:
                    running.remove(job_id)
                    early |= self.book(job_id, 1, second) > 0
            if early:
                for job_id in self.reserved(second):
                    self.book(job_id, 1, second)
                    self.reserve(job_id, second)
            behind += [job_id for job_id, a in self.of.items() if a.job.submit_s == second]
            while behind and len(self.reserved(second + 1)) < self.depth:
                job_id = behind.pop(0)
                self.reserve(job_id, second)
                self.promised[job_id] = self.end(job_id)
            for job_id in list(behind):
                self.try_to_pass(job_id, second, behind)
            running |= {job_id for job_id, (_, start) in self.schedule.items() if start == second}
        return self.schedule

    def reserved(self, second: int) -> list[int]:
        """Return the jobs that start then or later, in the order of the queue."""
        return sorted(job_id for job_id, (_, start) in self.schedule.items() if start >= second)

    def try_to_pass(self, job_id: int, second: int, behind: list[int]) -> None:
        """On the class where it ends first of those on which it delays nobody."""
        job = self.of[job_id].job
        last = max(self.schedule[first][1] for first in self.reserved(second + 1))
        fits = [
            pool
            for pool, left in self.free.items()
            if may_use(job, pool)
            and min(left[second : second + limit(job, pool)]) >= job.units
            and second + limit(job, pool) <= last
        ]
        if fits:
            behind.remove(job_id)
            self.schedule[job_id] = min(fits, key=lambda pool: limit(job, pool)), second
            self.book(job_id, -1, second)

    def end(self, job_id: int) -> int:
        """By its limit."""
        pool, start = self.schedule[job_id]
        return start + limit(self.of[job_id].job, pool)

    def book(self, job_id: int, units: int, second: int) -> int:
        """Give back (1) or take (-1) the job's interval from ``second`` on; how many seconds of it."""
        pool, start = self.schedule[job_id]
        seconds = range(max(start, second), self.end(job_id))
        for s in seconds:
            self.free[pool][s] += units * self.of[job_id].job.units
        return len(seconds)

    def reserve(self, job_id: int, second: int) -> None:
        job = self.of[job_id].job
        found = []
        for rank, (pool, left) in enumerate(self.free.items()):
            if not may_use(job, pool) or job.units > max(left):
                continue
            at = second
            while min(left[at : at + limit(job, pool)]) < job.units:
                at += 1
            found.append((at + limit(job, pool), at, rank, pool))
        _, at, _, pool = min(found)
        self.schedule[job_id] = pool, at
        self.book(job_id, -1, second)
