"""Common ground of the loads: messages between ranks, NPB's random numbers, and the split of a range."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from profiles.errors import BadInput

Floats = NDArray[np.float64]
Complexes = NDArray[np.complex128]

MULTIPLIER = 5**13
MODULUS = 2**46
_BLOCK = 1 << 15


class Work(NamedTuple):
    """Floating-point operations of one run on one core, and the least bytes that pass between it and memory.

    The bytes are those of arrays too large for the caches, once for each pass over them.
    """

    operations: float
    traffic_bytes: float


class Kernel(Protocol):
    """A load with its data in place."""

    operations: float  # NPB's count of the operations of one run (pairs of random numbers for EP)
    verification: str  # npb: against published values; own: by independent mathematics

    def run(self) -> None:
        """Do the work once; the same work and the same answer every time."""

    def verified(self) -> bool:
        """Check the last run's answer; collective, not part of the timed work."""


class Comm:
    """The ranks among which a load is split: this process alone. ``Ranks`` are those of MPI."""

    rank = 0
    size = 1

    def barrier(self) -> None:
        """Wait for all ranks."""

    def total(self, values: Floats) -> Floats:
        """Sum over the ranks, for every rank."""
        return values.copy()

    def largest(self, value: float) -> float:
        """Take the maximum over the ranks, for every rank."""
        return value

    def share(self, value: Any) -> Any:
        """Give rank 0's value to every rank."""
        return value

    def gather(self, part: Floats, counts: Sequence[int]) -> Floats:
        """Put all parts one after the other, for every rank; ``counts[i]`` elements come from rank i."""
        return part.ravel().copy()

    def exchange(self, blocks: Sequence[Complexes]) -> list[Complexes]:
        """Send block i to rank i; get the blocks from every rank, flat, in the order of ranks."""
        return [np.ravel(blocks[0])]

    def neighbours(self, first: Floats, last: Floats) -> tuple[Floats, Floats]:
        """Get the last part of the rank below and the first part of the rank above, on a ring."""
        return last.copy(), first.copy()

    def send(self, part: Floats, to: int) -> None:
        """Hand ``part`` to another rank."""
        raise ValueError("one rank alone sends to no other")

    def receive(self, part: Floats, source: int) -> None:
        """Fill ``part`` with what another rank sent."""
        raise ValueError("one rank alone receives from no other")


class Ranks(Comm):
    """The ranks of MPI's world."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self._world = MPI.COMM_WORLD
        self.rank: int = self._world.rank
        self.size: int = self._world.size

    def barrier(self) -> None:
        self._world.Barrier()

    def total(self, values: Floats) -> Floats:
        out = np.empty_like(values)
        self._world.Allreduce(np.ascontiguousarray(values), out)
        return out

    def largest(self, value: float) -> float:
        return float(self._world.allreduce(value, self._mpi.MAX))

    def share(self, value: Any) -> Any:
        return self._world.bcast(value)

    def gather(self, part: Floats, counts: Sequence[int]) -> Floats:
        out = np.empty(sum(counts))
        self._world.Allgatherv(np.ascontiguousarray(part), (out, counts))
        return out

    def exchange(self, blocks: Sequence[Complexes]) -> list[Complexes]:
        sizes = np.array([block.size for block in blocks])
        incoming = np.empty_like(sizes)
        self._world.Alltoall(sizes, incoming)
        send = np.concatenate([block.ravel() for block in blocks])
        out = np.empty(int(incoming.sum()), complex)
        self._world.Alltoallv((send, sizes), (out, incoming))
        return np.split(out, np.cumsum(incoming)[:-1])

    def neighbours(self, first: Floats, last: Floats) -> tuple[Floats, Floats]:
        below, above = (self.rank - 1) % self.size, (self.rank + 1) % self.size
        from_below, from_above = np.empty_like(last), np.empty_like(first)
        self._world.Sendrecv(np.ascontiguousarray(last), above, 0, from_below, below, 0)
        self._world.Sendrecv(np.ascontiguousarray(first), below, 1, from_above, above, 1)
        return from_below, from_above

    def send(self, part: Floats, to: int) -> None:
        self._world.Send(np.ascontiguousarray(part), to)

    def receive(self, part: Floats, source: int) -> None:
        buffer = np.empty(part.shape)
        self._world.Recv(buffer, source)
        part[...] = buffer


def bounds(count: int, parts: int) -> list[int]:
    """Cut ``range(count)`` into near-equal parts: the beginning of each, and ``count`` at the end.

    Raises:
        BadInput: fewer things than parts.
    """
    if count < parts:
        raise BadInput(f"{count} planes or rows cannot be split over {parts} ranks", "choose a larger size")
    return [count * part // parts for part in range(parts + 1)]


def uniform(seed: int, count: int, skip: int = 0) -> Floats:
    """Compute numbers ``skip + 1 .. skip + count`` of NPB's generator, in (0, 1).

    x[k] = 5^13 x[k-1] mod 2^46, x[0] = seed (RNR-94-007, 2.3). The wrap-around of 64-bit integers gives exact
    residues, because 2^46 divides 2^64.
    """
    powers = _powers()
    out = np.empty(count)
    for begin in range(0, count, _BLOCK):
        length = min(_BLOCK, count - begin)
        start = np.uint64(seed * pow(MULTIPLIER, skip + begin, MODULUS) % MODULUS)
        out[begin : begin + length] = (powers[:length] * start) & np.uint64(MODULUS - 1)
    out *= 1.0 / MODULUS
    return out


@lru_cache
def _powers() -> NDArray[np.uint64]:
    """Compute MULTIPLIER**1 .. MULTIPLIER**_BLOCK modulo 2^46."""
    powers = np.array([MULTIPLIER], np.uint64)
    while len(powers) < _BLOCK:
        powers = np.concatenate([powers, powers * powers[-1] & np.uint64(MODULUS - 1)])
    return powers
