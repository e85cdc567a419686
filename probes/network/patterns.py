"""Patterns of messages between ranks, each timed and checked in the same way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from mpi4py import MPI

Pattern = Literal["alltoall", "latency", "bandwidth"]
WINDOW = 64  # messages on their way at once, as in OSU's osu_bw

Bytes = npt.NDArray[np.uint8]
Times = npt.NDArray[np.float64]


class Exchange(Protocol):
    """A pattern, ready on every rank of a communicator."""

    def __init__(self, comm: MPI.Comm, largest: int) -> None: ...

    def timed(self, size: int, iterations: int, batch: int = 1) -> Times:
        """Time exchanges of ``size`` bytes: seconds of one, for each iteration, the same on every rank."""

    def check(self, size: int) -> None:
        """Exchange once and verify what arrived; RuntimeError if that is wrong."""


class AllToAll:
    """Equal blocks from every rank to every rank, with contents that tell their origin."""

    def __init__(self, comm: MPI.Comm, largest: int) -> None:
        self.comm = comm
        self.send: Bytes = np.zeros(comm.size * largest, np.uint8)
        self.receive: Bytes = np.zeros(comm.size * largest, np.uint8)

    def timed(self, size: int, iterations: int, batch: int = 1) -> Times:
        """Time all-to-alls of ``size`` bytes a pair: seconds on the slowest rank, for each iteration."""
        from mpi4py import MPI

        count = self.comm.size * size
        send, receive = (self.send[:count], size, MPI.BYTE), (self.receive[:count], size, MPI.BYTE)
        own = np.empty(iterations)
        for i in range(iterations):
            self.comm.Barrier()
            start = MPI.Wtime()
            for _ in range(batch):
                self.comm.Alltoall(send, receive)
            own[i] = MPI.Wtime() - start
        slowest = np.empty(iterations)
        self.comm.Allreduce(own, slowest, op=MPI.MAX)
        return slowest / batch

    def check(self, size: int) -> None:
        """Exchange once and verify that every block arrived where it belongs."""
        ranks, me = self.comm.size, self.comm.rank
        marks = (np.arange(ranks)[:, None] * 16 + np.arange(ranks)[None, :]) % 251
        self.send[: ranks * size] = np.repeat(marks[me], size)
        self.receive[: ranks * size] = 255
        self.timed(size, 1)
        if not np.array_equal(self.receive[: ranks * size], np.repeat(marks[:, me], size)):
            raise RuntimeError(f"all-to-all of {size} bytes delivered wrong data on rank {me}")


class RoundTrip:
    """One message to rank 1 and back, over and over: OSU's osu_latency. Its time is half a round trip."""

    def __init__(self, comm: MPI.Comm, largest: int) -> None:
        self.comm = comm
        self.buffer: Bytes = np.zeros(largest, np.uint8)

    def timed(self, size: int, iterations: int, batch: int = 1) -> Times:
        """Time half a round trip of ``size`` bytes on rank 0: seconds, for each iteration."""
        from mpi4py import MPI

        message, comm = (self.buffer, size, MPI.BYTE), self.comm
        # Persistent requests cost Python half as much as Send and Recv.
        both = comm.Send_init(message, 1 - comm.rank), comm.Recv_init(message, 1 - comm.rank)
        first, second = both if comm.rank == 0 else both[::-1]
        own = np.empty(iterations)
        for i in range(iterations):
            comm.Barrier()
            start = MPI.Wtime()
            for _ in range(batch):
                first.Start()
                first.Wait()
                second.Start()
                second.Wait()
            own[i] = MPI.Wtime() - start
        for request in both:
            request.Free()
        comm.Bcast(own, root=0)
        return own / (2 * batch)

    def check(self, size: int) -> None:
        """Send a pattern there and back, and verify it."""
        there = np.arange(size, dtype=np.uint8) if self.comm.rank == 0 else np.zeros(size, np.uint8)
        self.buffer[:size] = there
        self.timed(size, 1)
        _verify(self.comm, self.buffer[:size])


class Windows:
    """Messages to rank 1, 64 on their way at once, then an answer: OSU's osu_bw. Its time is a message's."""

    def __init__(self, comm: MPI.Comm, largest: int) -> None:
        self.comm = comm
        self.buffer: Bytes = np.zeros(largest, np.uint8)
        self.answer: Bytes = np.zeros(4, np.uint8)

    def timed(self, size: int, iterations: int, batch: int = 1) -> Times:
        """Time windows of messages of ``size`` bytes on rank 0: seconds of a message, for each iteration."""
        from mpi4py import MPI

        comm, message = self.comm, (self.buffer, size, MPI.BYTE)
        sends = comm.rank == 0
        prepare, peer = (comm.Send_init, 1) if sends else (comm.Recv_init, 0)
        window = [prepare(message, peer) for _ in range(WINDOW)]
        finish = comm.Recv if sends else comm.Send
        own = np.empty(iterations)
        for i in range(iterations):
            comm.Barrier()
            start = MPI.Wtime()
            for _ in range(batch):
                MPI.Prequest.Startall(window)
                MPI.Request.Waitall(window)
                finish(self.answer, peer)
            own[i] = MPI.Wtime() - start
        for request in window:
            request.Free()
        comm.Bcast(own, root=0)
        return own / (WINDOW * batch)

    def check(self, size: int) -> None:
        """Send a pattern, and verify it on rank 1."""
        sent = np.arange(size, dtype=np.uint8)
        self.buffer[:size] = sent if self.comm.rank == 0 else 0
        self.timed(size, 1)
        _verify(self.comm, self.buffer[:size])


def _verify(comm: MPI.Comm, found: Bytes) -> None:
    if not np.array_equal(found, np.arange(found.size, dtype=np.uint8)):
        raise RuntimeError(f"a message of {found.size} bytes arrived wrong on rank {comm.rank}")


PATTERNS: dict[Pattern, type[Exchange]] = {"alltoall": AllToAll, "latency": RoundTrip, "bandwidth": Windows}
