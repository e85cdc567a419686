"""The classic policies written down a second time, second by second, for whole numbers and few jobs."""

from __future__ import annotations

from scheduler.simulator.trace import Arrival

HORIZON = 400


def run_time(arrival: Arrival) -> int:
    """Until the job ends or is killed."""
    limit = arrival.job.estimate_s
    return int(arrival.run_s if limit is None else min(arrival.run_s, limit))


def fcfs(units: int, arrivals: tuple[Arrival, ...]) -> dict[int, int]:
    """Each job at the first second, not before its predecessor, at which its units are free."""
    started: dict[int, int] = {}
    before = 0
    for arrival in arrivals:
        second = max(before, int(arrival.job.submit_s))
        while units - _held(arrivals, started, second) < arrival.job.units:
            second += 1
        started[arrival.job.id] = before = second
    return started


def first_fit(units: int, arrivals: tuple[Arrival, ...]) -> dict[int, int]:
    """Every second: whoever fits."""
    started: dict[int, int] = {}
    for second in range(HORIZON):
        for arrival in arrivals:
            job = arrival.job
            free = units - _held(arrivals, started, second)
            if job.submit_s <= second and job.id not in started and job.units <= free:
                started[job.id] = second
    return started


def _held(arrivals: tuple[Arrival, ...], started: dict[int, int], second: int) -> int:
    return sum(
        a.job.units
        for a in arrivals
        if a.job.id in started and started[a.job.id] <= second < started[a.job.id] + run_time(a)
    )


def easy(units: int, arrivals: tuple[Arrival, ...]) -> dict[int, int]:
    """Every second: the queue's head while it fits, then whoever does not delay the first that does not."""
    started: dict[int, int] = {}
    for second in range(HORIZON):
        queue = [a for a in arrivals if a.job.submit_s <= second and a.job.id not in started]
        free = units - _held(arrivals, started, second)
        while queue and queue[0].job.units <= free:
            head = queue.pop(0)
            started[head.job.id] = second
            free -= head.job.units
        if not queue:
            continue
        reserved, spare = _reservation(units, arrivals, started, second, needed=queue[0].job.units)
        for candidate in queue[1:]:
            job = candidate.job
            assert job.estimate_s is not None
            in_time = second + job.estimate_s <= reserved
            if job.units <= free and (in_time or job.units <= spare):
                started[job.id] = second
                free -= job.units
                spare -= 0 if in_time else job.units
    return started


def _reservation(
    units: int, arrivals: tuple[Arrival, ...], started: dict[int, int], second: int, *, needed: int
) -> tuple[int, int]:
    """When the last of the running jobs that have to end should end, and what is spare when it has."""
    running = [a for a in arrivals if a.job.id in started and started[a.job.id] + run_time(a) > second]
    ends = sorted((started[a.job.id] + int(a.job.estimate_s or 0), a.job.id, a.job.units) for a in running)
    for count in range(len(ends) + 1):
        free = units - sum(held for _, _, held in ends[count:])
        if free >= needed:
            return ends[count - 1][0], free - needed
    raise AssertionError("never enough units")


class Conservative:
    """A table of free units for every second, with the reservations of the first ``depth`` waiting jobs.

    When a job ends early the reservations are moved up in order. The other jobs start where they delay no
    reservation and should end before the last one begins.
    """

    def __init__(self, units: int, arrivals: tuple[Arrival, ...], depth: int = 1000) -> None:
        self.free = [units] * (3 * HORIZON)
        self.of = {a.job.id: a for a in arrivals}
        self.depth = depth
        self.starts: dict[int, int] = {}
        self.promised: dict[int, int] = {}

    def run(self) -> dict[int, int]:
        ended: set[int] = set()
        behind: list[int] = []
        for second in range(HORIZON):
            early = False
            for job_id, start in self.starts.items():
                if start < second and job_id not in ended and start + run_time(self.of[job_id]) <= second:
                    ended.add(job_id)
                    early |= self._book(job_id, 1, second) > 0
            if early:
                for job_id in self._reserved(second):
                    self._book(job_id, 1, second)
                    self._reserve(job_id, second)
            behind += [job_id for job_id, a in self.of.items() if a.job.submit_s == second]
            while behind and len(self._reserved(second)) < self.depth:
                job_id = behind.pop(0)
                self._reserve(job_id, second)
                self.promised[job_id] = self.starts[job_id]
            for job_id in list(behind):
                last = max(self.starts[first] for first in self._reserved(second))
                if self._earliest(job_id, second) == second and second + self._length(job_id) <= last:
                    behind.remove(job_id)
                    self._reserve(job_id, second)
        return self.starts

    def _reserved(self, second: int) -> list[int]:
        """Return the waiting jobs with reservations, in the order of the queue."""
        return sorted(job_id for job_id, start in self.starts.items() if start > second)

    def _length(self, job_id: int) -> int:
        return int(self.of[job_id].job.estimate_s or 0)

    def _book(self, job_id: int, units: int, second: int) -> int:
        """Give back (1) or take (-1) the job's interval from ``second`` on; how many seconds of it."""
        start = self.starts[job_id]
        seconds = range(max(start, second), start + self._length(job_id))
        for s in seconds:
            self.free[s] += units * self.of[job_id].job.units
        return len(seconds)

    def _earliest(self, job_id: int, second: int) -> int:
        while any(f < self.of[job_id].job.units for f in self.free[second : second + self._length(job_id)]):
            second += 1
        return second

    def _reserve(self, job_id: int, second: int) -> None:
        self.starts[job_id] = self._earliest(job_id, second)
        self._book(job_id, -1, second)
