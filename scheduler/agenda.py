"""What is still to happen in a simulation, in the order of ``events.KINDS``: ends, timers, failures, jobs.

Ends and timers are a heap; arrivals and disturbances are streams of which one element is known ahead.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush

from profiles.errors import BadInput
from scheduler.events import KINDS, ORDER, Checkpointed, Event, Finished, NodeDown, Started, Submitted, Timer
from scheduler.live import Live
from scheduler.model import Job
from scheduler.trace import Arrival
from scheduler.world import Disturbance

FINISH, STOPPED, STARTED = ORDER[Finished], ORDER[Checkpointed], ORDER[Started]
DISTURBANCE, TIMER, SUBMIT = ORDER[NodeDown], ORDER[Timer], ORDER[Submitted]

Entry = tuple[float, int, int, object, int]  # time, kind, sequence, what, version of a planned end


class Agenda:
    """What is still to happen.

    Args:
        arrivals: jobs in the order of their submission.
        disturbances: by time; may be endless.
        refuses: why a job can never run, as a clause; "" if it can. The others are passed over.

    Attributes:
        arrival: the next one; None: no more are known.
        refused: jobs passed over, by reason.
    """

    def __init__(
        self,
        arrivals: Iterator[Arrival],
        disturbances: Iterator[Disturbance],
        refuses: Callable[[Job], str],
    ) -> None:
        self.refused = Counter[str]()
        self.arrival: Arrival | None = None
        self._arrivals = arrivals
        self._queued: deque[Arrival] = deque()
        self._disturbances = disturbances
        self._refuses = refuses
        self._heap: list[Entry] = []
        self._sequence = 0
        self._timers: set[tuple[float, object]] = set()
        self._last_submit_s = -math.inf
        self._submit_s = self._disturb_s = math.inf  # when the next ones come
        self._disturbance: Disturbance | None = None
        self._fetch_disturbance()
        self.fetch_arrival()

    def push(self, at: float, order: int, what: object, version: int = 0) -> None:
        """Something is to happen; an end of a ``Live`` is void when its version has changed by then."""
        self._sequence += 1
        heappush(self._heap, (at, order, self._sequence, what, version))

    def wake(self, at: float, tag: object) -> None:
        """A timer, unless there is the same already."""
        if (at, tag) not in self._timers:
            self._timers.add((at, tag))
            self.push(at, TIMER, tag)

    def pop(self) -> Entry | None:
        """What happens next; None: nothing."""
        heap, submit, disturb = self._heap, self._submit_s, self._disturb_s
        while heap:
            at, order, _, what, version = heap[0]
            if submit < at and submit < disturb:
                break
            if type(what) is Live and what.version != version:
                heappop(heap)
            elif disturb < at or (disturb == at and order > DISTURBANCE):
                break
            else:
                if order == TIMER:
                    self._timers.discard((at, what))
                return heappop(heap)
        if submit < disturb:
            arrival = self.arrival
            self.fetch_arrival()
            return submit, SUBMIT, 0, arrival, 0
        if self._disturbance is None:
            return None
        at, event = self._disturbance
        self._fetch_disturbance()
        return at, DISTURBANCE, 0, event, 0

    def upcoming(self, now: float) -> type[Event] | None:
        """Kind of what happens next, if that is at this very instant."""
        heap = self._heap
        if self._submit_s > now and self._disturb_s > now and not (heap and heap[0][0] <= now):
            return None
        while heap and heap[0][0] <= now:
            _, order, _, what, version = heap[0]
            if type(what) is Live and what.version != version:
                heappop(heap)
                continue
            if self._disturb_s > now or order < DISTURBANCE:
                return KINDS[order]
            break
        if self._disturb_s <= now and self._disturbance is not None:
            return type(self._disturbance[1])
        return Submitted if self._submit_s <= now else None

    def queue(self, now: float, arrivals: Iterable[Arrival]) -> None:
        """A closed loop submits jobs at ``now``."""
        self._last_submit_s = now
        self._queued.extend(arrivals)
        if self.arrival is None:
            self.fetch_arrival()

    def fetch_arrival(self) -> None:
        """Look one arrival ahead, passing over jobs that can never run.

        Raises:
            BadInput: the jobs are not sorted.
        """
        while True:
            arrival = self._queued.popleft() if self._queued else next(self._arrivals, None)
            self.arrival = arrival
            if arrival is None:
                self._submit_s = math.inf
                return
            job = arrival.job
            submit = job.submit_s
            if submit < self._last_submit_s:
                raise BadInput(
                    f"job {job.id} is submitted at {submit} s, behind {self._last_submit_s} s",
                    "sort the jobs by their time of submission",
                )
            self._submit_s = self._last_submit_s = submit
            why = self._refuses(job)
            if not why:
                return
            self.refused[why] += 1

    def _fetch_disturbance(self) -> None:
        self._disturbance = next(self._disturbances, None)
        self._disturb_s = math.inf if self._disturbance is None else self._disturbance[0]
