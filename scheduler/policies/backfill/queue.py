"""A queue that finds the first small and short enough job among very many.

Jobs are kept by the binary order of their size (1, 2-3, 4-7, ... units). Each order has a tree of minima over
its jobs in queue order. A search costs O(log n) in every order that is wholly small enough. In the order that
the limit cuts through it costs more if jobs are small enough or short enough, but not both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

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
        found = None
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
                        best, found = order.sequences[slot], order.jobs[slot]
        return found

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
