"""Queues of jobs for the same units, a whole class or one region of it: fcfs, first fit and EASY.

A queue is told of its jobs and units, and chooses the jobs that start. Its order is that of ``add``.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from scheduler.model.jobs import Job, instant

# -- fcfs, first fit and EASY ------------------------------------------------------------------------------


MOST_LATE = 32  # jobs without an index
HALF_STEP_S = 5e-7  # half the grid of time, so that rounding makes no job late that ends just in time


Held = tuple[float, int, int]  # expected end, job, units
Late = tuple[int, float, Job]  # units, expected run time


class FcfsQueue:
    """First come, first served: a job that does not fit holds up all behind it.

    Args:
        pool: class of resource of the units.
    """

    def __init__(self, pool: str) -> None:
        self.pool = pool
        self.waiting: OrderedDict[int, Job] = OrderedDict()

    def add(self, job: Job) -> None:
        """Append a job."""
        self.waiting[job.id] = job

    def add_first(self, job: Job) -> None:
        """Put a job that lost its units before all others."""
        self.waiting[job.id] = job
        self.waiting.move_to_end(job.id, last=False)

    def hold(self, job_id: int, units: int, expected_end_s: float) -> None:
        """Note that a job that already runs holds so many of these units."""

    def ended(self, job_id: int) -> None:
        """Note that a started or holding job holds no units any more."""

    def changed(self) -> None:
        """Note that who fits may have changed otherwise than by a new job."""

    def choose(self, now: float, free: int, in_service: int) -> list[Job]:
        """Choose the jobs that start now in ``free`` units; they leave the queue and hold the units."""
        chosen = []
        while self.waiting:
            job = next(iter(self.waiting.values()))
            if job.units > free:
                break
            del self.waiting[job.id]
            free -= job.units
            chosen.append(job)
        return chosen


class FirstFitQueue(FcfsQueue):
    """First fit, in the order of the queue: small jobs pass large ones without limit."""

    def __init__(self, pool: str) -> None:
        super().__init__(pool)
        self._queue = IndexedQueue()

    def add(self, job: Job) -> None:
        super().add(job)
        self._queue.add(job.id, job.units, 0.0)

    def add_first(self, job: Job) -> None:
        super().add_first(job)
        self._queue.add_first(job.id, job.units, 0.0)

    def choose(self, now: float, free: int, in_service: int) -> list[Job]:
        chosen = []
        while free > 0 and (job_id := self._queue.first(((free, 0.0),))) is not None:
            self._queue.remove(job_id)
            job = self.waiting.pop(job_id)
            free -= job.units
            chosen.append(job)
        return chosen


class EasyQueue(FcfsQueue):
    """EASY backfilling (see ``easy``).

    The latest jobs stand in a short list, because most leave it soon; the others have an index.
    """

    def __init__(self, pool: str) -> None:
        super().__init__(pool)
        self._queue = IndexedQueue()
        self._late: list[Late] = []  # behind all of the queue
        self._seen = 0  # of these, as many may not pass under the present reservation
        # of the running jobs: by job, and sorted
        self._end_of: dict[int, Held] = {}
        self._ends: list[Held] = []
        self._reserved: tuple[float, int] | None = None  # time for the first job, spare units

    def add(self, job: Job) -> None:
        self.waiting[job.id] = job
        self._late.append((job.units, job.estimate_on(self.pool), job))

    def add_first(self, job: Job) -> None:
        super().add_first(job)
        self._queue.add_first(job.id, job.units, job.estimate_on(self.pool))

    def hold(self, job_id: int, units: int, expected_end_s: float) -> None:
        entry = self._end_of[job_id] = (expected_end_s, job_id, units)
        insort(self._ends, entry)

    def ended(self, job_id: int) -> None:
        self._reserved = None
        entry = self._end_of.pop(job_id)
        del self._ends[bisect_left(self._ends, entry)]

    def changed(self) -> None:
        self._reserved = None

    def revise(self, jobs: Sequence[Job]) -> None:
        """Replace what is known of these jobs; they keep their places."""
        self._reserved = None
        late = {late[2].id: place for place, late in enumerate(self._late)}
        for job in jobs:
            self.waiting[job.id], length = job, job.estimate_on(self.pool)
            if job.id in late:
                self._late[late[job.id]] = job.units, length, job
            else:
                self._queue.revise(job.id, job.units, length)

    def choose(self, now: float, free: int, in_service: int) -> list[Job]:
        chosen: list[Job] = []
        unseen = self._late
        if self._reserved is None:
            free = self._heads(now, free, chosen)
            if free and self.waiting:  # without free units no job passes
                needed = next(iter(self.waiting.values())).units
                self._reserved = (
                    when_free(self._ends, needed, free, now) if needed <= in_service else (math.inf, free)
                )
                if len(self.waiting) > len(unseen):
                    free = self._queue_passes(now, free, chosen)
        else:
            unseen = unseen[self._seen :]
        # Units first, because most jobs fail this quick test.
        if free and (room := [late for late in unseen if late[0] <= free]):
            self._late_pass(room, now, free, chosen)
        self._seen = len(self._late)
        if self._seen > MOST_LATE:
            for units, length, job in self._late:
                self._queue.add(job.id, units, length)
            self._late.clear()
            self._seen = 0
        return chosen

    def _heads(self, now: float, free: int, chosen: list[Job]) -> int:
        """Start the first job while it fits; return what is free then."""
        waiting, late = self.waiting, self._late
        while len(waiting) > len(late):
            job = next(iter(waiting.values()))
            if job.units > free:
                return free
            self._queue.remove(job.id)
            free -= job.units
            self._start(job, job.estimate_on(self.pool), now, chosen)
        while late and late[0][0] <= free:
            units, length, job = late.pop(0)
            free -= units
            self._start(job, length, now, chosen)
        return free

    def _queue_passes(self, now: float, free: int, chosen: list[Job]) -> int:
        """Start jobs of the index that do not delay the first job; return what is free then."""
        assert self._reserved is not None
        at, spare = self._reserved
        window = at - now + HALF_STEP_S if at < math.inf else -math.inf
        queue = self._queue
        while free and len(self.waiting) > len(self._late):
            job_id = queue.first(((min(spare, free), math.inf), (free, window)))
            if job_id is None:
                break
            queue.remove(job_id)
            job = self.waiting[job_id]
            length = job.estimate_on(self.pool)
            free -= job.units
            spare -= job.units if length > window else 0
            self._start(job, length, now, chosen)
        self._reserved = (at, spare)
        return free

    def _late_pass(self, room: list[Late], now: float, free: int, chosen: list[Job]) -> None:
        """Start jobs of the short list that do not delay the first job."""
        assert self._reserved is not None
        at, spare = self._reserved
        window = at - now + HALF_STEP_S if at < math.inf else -math.inf
        for late in room:
            units, length, job = late
            if units <= free and (length <= window or units <= spare):
                free -= units
                spare -= units if length > window else 0
                self._late.remove(late)
                self._start(job, length, now, chosen)
        self._reserved = (at, spare)

    def _start(self, job: Job, length_s: float, now: float, chosen: list[Job]) -> None:
        job_id = job.id
        del self.waiting[job_id]
        chosen.append(job)
        entry = self._end_of[job_id] = (instant(now + length_s), job_id, job.units)
        insort(self._ends, entry)


def when_free(ends: Iterable[Held], needed: int, free: int, now: float) -> tuple[float, int]:
    """Return when ``needed`` units are free, and how many are spare then; infinite and 0: not known.

    ``ends`` are those of the running jobs, in their order; ``free`` units are free now.
    """
    for end, _, freed in ends:
        free += freed
        if free >= needed:
            return (max(now, end), free - needed) if end < math.inf else (end, 0)
    return math.inf, 0


QUEUES = {"fcfs": FcfsQueue, "easy": EasyQueue, "first-fit": FirstFitQueue}


# -- the indexed queue -------------------------------------------------------------------------------------
#
# It finds the first small and short enough job among very many. Jobs are kept by the binary order of their
# size (1, 2-3, 4-7, ... units). Each order has a tree of minima over its jobs in queue order. A search costs
# O(log n) in every order that is wholly small enough. In the order that the limit cuts through it costs more
# if jobs are small enough or short enough, but not both.


Stair = tuple[int, float]  # at most so many units, at most so long


class IndexedQueue:
    """Jobs in order, each with a size (units, at least 1) and a length (seconds)."""

    def __init__(self) -> None:
        self._orders: dict[int, _Order] = {}
        self._place: dict[int, tuple[int, int]] = {}  # job -> its size order and sequence number
        self._next = 0
        self._front = -1

    def __len__(self) -> int:
        return len(self._place)

    def add(self, job_id: int, units: int, length_s: float) -> None:
        """Append a job."""
        order = self._order(units)
        self._place[job_id] = (units.bit_length(), self._next)
        order.append(self._next, job_id, units, length_s)
        self._next += 1

    def add_first(self, job_id: int, units: int, length_s: float) -> None:
        """Put a job before all others (takes time in proportion to the queue)."""
        order = self._order(units)
        self._place[job_id] = (units.bit_length(), self._front)
        order.prepend(self._front, job_id, units, length_s)
        self._front -= 1

    def revise(self, job_id: int, units: int, length_s: float) -> None:
        """Change the length of a job of the same size; it keeps its place."""
        size_order, sequence = self._place[job_id]
        self._orders[size_order].revise(sequence, units, length_s)

    def remove(self, job_id: int) -> None:
        """Take a job out; KeyError if it is not there."""
        size_order, sequence = self._place.pop(job_id)
        self._orders[size_order].remove(sequence)

    def first(self, stairs: Sequence[Stair]) -> int | None:
        """Find the first job with at most the units and at most the length of one of the ``stairs``.

        The stairs go from few units to many.
        """
        best = math.inf
        job_id = None
        most = stairs[-1][0]
        for order in self._orders.values():
            smallest = order.units[1]
            if smallest > most:
                continue
            shortest = order.lengths[1]
            for units, length in stairs:
                if smallest <= units and shortest <= length:
                    slot = order.first(units, length)
                    if slot >= 0 and order.sequences[slot] < best:
                        best, job_id = order.sequences[slot], order.jobs[slot]
        return job_id

    def _order(self, units: int) -> _Order:
        size_order = units.bit_length()
        if size_order not in self._orders:
            self._orders[size_order] = _Order((1 << size_order) - 1)
        return self._orders[size_order]


class _Order:
    """Jobs of one size order: two trees of minima (units, length) over slots in queue order.

    An empty slot has infinite units, because lengths of jobs may be infinite.
    """

    def __init__(self, largest: int) -> None:
        self.largest = largest
        self._build([], 16)

    def _build(self, entries: list[tuple[int, int, float, float]], capacity: int) -> None:
        """Lay the (sequence, job, units, length) out anew, in slots 0, 1, ..."""
        self.capacity = capacity
        self.used = len(entries)
        self.sequences = [entry[0] for entry in entries]
        self.jobs = [entry[1] for entry in entries]
        self.place_of = {entry[0]: slot for slot, entry in enumerate(entries)}
        rest = [math.inf] * (capacity - len(entries))
        self.units = [math.inf] * capacity + [entry[2] for entry in entries] + rest
        self.lengths = [math.inf] * capacity + [entry[3] for entry in entries] + rest
        for node in range(capacity - 1, 0, -1):
            self.units[node] = min(self.units[2 * node], self.units[2 * node + 1])
            self.lengths[node] = min(self.lengths[2 * node], self.lengths[2 * node + 1])

    def _entries(self) -> list[tuple[int, int, float, float]]:
        base = self.capacity
        slots = self.place_of.values()
        return [
            (self.sequences[s], self.jobs[s], self.units[base + s], self.lengths[base + s]) for s in slots
        ]

    def append(self, sequence: int, job: int, units: int, length: float) -> None:
        if self.used == self.capacity:
            live = len(self.place_of)
            self._build(self._entries(), self.capacity * (2 if 2 * live > self.capacity else 1))
        slot = self.used
        self.used += 1
        self.sequences.append(sequence)
        self.jobs.append(job)
        self.place_of[sequence] = slot
        self._set(slot, units, length)

    def prepend(self, sequence: int, job: int, units: int, length: float) -> None:
        entries = [(sequence, job, float(units), length), *self._entries()]
        capacity = self.capacity
        while capacity < 2 * len(entries):
            capacity *= 2
        self._build(entries, capacity)

    def revise(self, sequence: int, units: int, length: float) -> None:
        self._set(self.place_of[sequence], units, length)

    def remove(self, sequence: int) -> None:
        self._set(self.place_of.pop(sequence), math.inf, math.inf)

    def _set(self, slot: int, units: float, length: float) -> None:
        """Fill or empty a slot, and mend the minima above it as far as they change."""
        sizes, lengths = self.units, self.lengths
        node = self.capacity + slot
        sizes[node], lengths[node] = units, length
        while node > 1:
            other = node ^ 1
            units = sizes[node] if sizes[node] < sizes[other] else sizes[other]
            length = lengths[node] if lengths[node] < lengths[other] else lengths[other]
            node >>= 1
            if sizes[node] == units and lengths[node] == length:
                return
            sizes[node], lengths[node] = units, length

    def first(self, units: float, length: float) -> int:
        """Find the first slot with at most so many units and at most that length; -1 if there is none.

        Call it only when the least units and the least length of all are within the limits.
        """
        sizes, lengths, base = self.units, self.lengths, self.capacity
        if units >= self.largest:  # every job is small enough: the first short one is straight down
            node = 1
            while node < base:
                node *= 2
                if sizes[node] > units or lengths[node] > length:
                    node += 1
            return node - base
        stack = [1]
        while stack:
            node = stack.pop()
            if sizes[node] > units or lengths[node] > length:
                continue
            if node >= base:
                return node - base
            stack.append(2 * node + 1)
            stack.append(2 * node)
        return -1
