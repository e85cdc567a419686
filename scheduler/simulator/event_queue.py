"""The event queue of a simulation, in the order of ``events.KINDS``.

The next arrival is kept beside the heap, because half of all events are arrivals. Of the disturbances, whose
number may be infinite, only the next is in the heap.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from itertools import count

from profiles.errors import BadInput
from scheduler.model.events import (
    KINDS,
    ORDER,
    Checkpointed,
    Event,
    Finished,
    NodeDown,
    Started,
    Submitted,
    Timer,
)
from scheduler.model.jobs import Job
from scheduler.simulator.settings import Disturbance
from scheduler.simulator.simulated_job import SimulatedJob
from scheduler.simulator.trace import Arrival

FINISH, STOPPED, STARTED = ORDER[Finished], ORDER[Checkpointed], ORDER[Started]
DISTURBANCE, TIMER, SUBMIT = ORDER[NodeDown], ORDER[Timer], ORDER[Submitted]

QueueEntry = tuple[float, int, int, object, int]  # time, kind, sequence, what, version of a planned end
LEAST_ROOM = 256  # entries, before a search for void ones pays


def _is_void(entry: QueueEntry) -> bool:
    """Tell if what was planned of a simulated job has changed meanwhile."""
    at, order, _, simulated, version = entry
    assert type(simulated) is SimulatedJob
    return simulated.announced_s != at if order == STARTED else simulated.version != version


class EventQueue:
    """Events to come.

    Args:
        arrivals: jobs in the order of their submission.
        disturbances: by time; may be endless.
        refuses: why a job can never run, as a clause; "" if it can. Refused jobs are skipped.

    Attributes:
        arrival: the next arrival; None: none is known.
        submit_s: its time; infinite without an arrival.
        heap: all other events, the next first; some may be void by then.
        refused: number of skipped jobs, by reason.
    """

    def __init__(
        self,
        arrivals: Iterator[Arrival],
        disturbances: Iterator[Disturbance],
        refuses: Callable[[Job], str],
    ) -> None:
        self.heap: list[QueueEntry] = []
        self.arrival: Arrival | None = None
        self.submit_s = math.inf
        self.refused = Counter[str]()
        self._arrivals = arrivals
        self._queued: deque[Arrival] = deque()
        self._disturbances = disturbances
        self._refuses = refuses
        self._sequence = count(1)
        self._room = LEAST_ROOM
        self._timers: set[tuple[float, object]] = set()
        self._last_submit_s = -math.inf
        self._fetch_disturbance()
        self._fetch_arrival()

    def push(self, at: float, order: int, what: object, version: int = 0) -> None:
        """Enter what is to happen; an end of a job is void if its version has changed by then."""
        heappush(self.heap, (at, order, next(self._sequence), what, version))
        if len(self.heap) > self._room:
            self._tidy()

    def _tidy(self) -> None:
        """Throw out void entries, whenever there are twice as many entries as were left the last time."""
        self.heap[:] = [
            entry for entry in self.heap if type(entry[3]) is not SimulatedJob or not _is_void(entry)
        ]
        heapify(self.heap)
        self._room = 2 * len(self.heap) + LEAST_ROOM

    def wake(self, at: float, tag: object) -> None:
        """Enter a timer, unless there is the same already."""
        timer = at, tag
        if timer not in self._timers:
            self._timers.add(timer)
            self.push(at, TIMER, tag, 0)

    def pop(self) -> QueueEntry | None:
        """Take what happens next; None: nothing."""
        heap, submit = self.heap, self.submit_s
        while heap and heap[0][0] <= submit:
            entry = heappop(heap)
            at, order, _, what, _ = entry
            if type(what) is SimulatedJob:
                if _is_void(entry):
                    continue
            elif order == TIMER:
                self._timers.discard((at, what))
            elif order == DISTURBANCE:
                self._fetch_disturbance()
            return entry
        arrival = self.arrival
        if arrival is None:
            return None
        self._fetch_arrival()
        return submit, SUBMIT, 0, arrival, 0

    def upcoming(self, now: float) -> type[Event] | None:
        """Return the kind of what happens next, if that is at this very instant."""
        heap = self.heap
        while heap and heap[0][0] <= now:
            _, order, _, what, _ = heap[0]
            if type(what) is SimulatedJob and _is_void(heap[0]):
                heappop(heap)
            else:
                return KINDS[order] if order != DISTURBANCE else type(what)  # type: ignore[return-value]
        return Submitted if self.submit_s <= now else None

    def add_arrivals(self, now: float, arrivals: Iterable[Arrival]) -> None:
        """Append jobs that a closed loop submits at ``now``."""
        self._last_submit_s = now
        self._queued.extend(arrivals)
        if self.arrival is None:
            self._fetch_arrival()

    def _fetch_arrival(self) -> None:
        """Look one arrival ahead, and skip jobs that can never run.

        Raises:
            BadInput: the jobs are not sorted.
        """
        while True:
            arrival = self._queued.popleft() if self._queued else next(self._arrivals, None)
            self.arrival = arrival
            if arrival is None:
                self.submit_s = math.inf
                return
            job = arrival.job
            submit = job.submit_s
            if submit < self._last_submit_s:
                raise BadInput(
                    f"job {job.id} is submitted at {submit} s, behind {self._last_submit_s} s",
                    "sort the jobs by their time of submission",
                )
            self.submit_s = self._last_submit_s = submit
            why = self._refuses(job)
            if not why:
                return
            self.refused[why] += 1

    def _fetch_disturbance(self) -> None:
        following = next(self._disturbances, None)
        if following is not None:
            at, event = following
            heappush(self.heap, (at, DISTURBANCE, 0, event, 0))
