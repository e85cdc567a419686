"""A rank that exchanges messages: ``mpiexec -n N python -P -m mpi4py -m probes.network_rank PLAN``.

Rank 0 writes one JSON object a line to standard output: ``preflight``, ``skipped``, ``visit``, ``wide``,
``done``. An iteration is a barrier, then ``batch`` exchanges of a pattern between two readings of MPI_Wtime,
divided by ``batch``. A batch is larger than one only if a single exchange would take less than 50 steps of
the clock. A batch hides jitter, so its size is stated in every row.

``stream PLAN`` is comprobe as a neighbour: all-to-alls over and over, at an intensity, until the ranks are
ended. Rank 0 writes ``preflight``, ``ready`` (the first exchanges are over), then a ``window`` now and then.
``hello`` tells the identity of this process, without starting MPI.
"""

from __future__ import annotations

import json
import math
import os
import platform
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol

import numpy as np
import numpy.typing as npt

from probes.mpi.runner import library_name
from probes.topology import usable_cores
from probes.visits import Point, Visits

if TYPE_CHECKING:
    from mpi4py import MPI


# -- patterns of messages between ranks, each timed and checked in the same way ----------------------------


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


def _verify(comm: MPI.Comm, message: Bytes) -> None:
    if not np.array_equal(message, np.arange(message.size, dtype=np.uint8)):
        raise RuntimeError(f"a message of {message.size} bytes arrived wrong on rank {comm.rank}")


PATTERNS: dict[Pattern, type[Exchange]] = {"alltoall": AllToAll, "latency": RoundTrip, "bandwidth": Windows}


# -- ranks of the probe: who they are, whether messages leave their hosts, sizes in turns ------------------


PREFLIGHT_BYTES = 8 << 20
COUNTERS_SETTLE_S = 3.0  # some network drivers refresh their counters every two seconds only
WARM_UP = 3
NARROW = 0.03  # half-width of a median's interval, relative, that needs no more repetitions
CLOCK_STEPS = 50  # that a timed batch lasts at least


@dataclass(frozen=True)
class MessagePlan:
    """Orders for the ranks."""

    ranks: int
    sizes: tuple[int, ...]  # bytes from each rank to each other
    budget_s: float
    limit_s: int  # a rank that still runs then is ended by the kernel, also if all others are gone
    seed: int
    rows: int = 400  # iterations kept of each size
    visits: int = 20  # repetitions of each size; up to three times that while its median is uncertain
    preflight: bool = False  # see first that the messages leave their hosts
    patterns: tuple[Pattern, ...] = ("alltoall",)

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def identity() -> dict[str, str]:
    """Tell where this process runs and with what; boot and network namespace tell hosts of one name apart.

    ``cores``: the CPUs that it may use, one of each core, with commas.
    """
    import mpi4py

    mpi4py.rc.initialize = False
    from mpi4py import MPI

    return {
        "hostname": platform.node(),
        "boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "namespace": str(Path("/proc/self/ns/net").readlink()),
        "tenbin": version("tenbin"),
        "library": library_name(MPI.Get_library_version()),
        "cores": ",".join(map(str, usable_cores())),
    }


def bytes_sent(sysfs: Path = Path("/sys")) -> dict[str, int]:
    """Read the bytes sent so far by every interface but loopback, and by InfiniBand's ports."""
    sent = {}
    for counter in sysfs.glob("class/net/*/statistics/tx_bytes"):
        if (name := counter.parts[-3]) != "lo":
            sent[name] = int(counter.read_text())
    for counter in sysfs.glob("class/infiniband/*/ports/*/counters/port_xmit_data"):
        sent[f"{counter.parts[-5]}/{counter.parts[-3]}"] = 4 * int(counter.read_text())  # in 4-byte words
    return sent


def say(**event: Any) -> None:
    """Print a line in one write, so that lines of several ranks do not mix."""
    os.write(1, (json.dumps(event) + "\n").encode())


def clock_step() -> float:
    """Measure the smallest step of MPI_Wtime, in s."""
    from mpi4py import MPI

    readings = np.array([MPI.Wtime() for _ in range(1000)])
    steps = np.diff(readings)
    return max(float(steps[steps > 0].min(initial=1.0)), MPI.Wtick())


def preflight(comm: MPI.Comm) -> None:
    """Report the place of every rank, and the bytes that its interfaces sent in one large all-to-all."""
    exchange = AllToAll(comm, PREFLIGHT_BYTES)
    expected = (comm.size - 1) * PREFLIGHT_BYTES
    exchange.timed(8, 1)  # connections are made at the first message
    before = bytes_sent()
    exchange.check(PREFLIGHT_BYTES)
    deadline = time.monotonic() + COUNTERS_SETTLE_S
    while True:
        after = bytes_sent()
        sent = {name: after[name] - before.get(name, 0) for name in after}
        if sum(sent.values()) >= expected or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    everyone = comm.gather(identity() | {"sent": sent}, root=0)
    if comm.rank == 0:
        say(event="preflight", ranks=everyone, expected=expected)


def warm_up(
    exchanges: Mapping[Pattern, Exchange], plan: MessagePlan, comm: MPI.Comm
) -> dict[tuple[Pattern, int], float]:
    """Time every size of each pattern once, smallest first; leave out sizes that would eat up the budget."""
    first: dict[tuple[Pattern, int], float] = {}
    deadline = time.monotonic() + plan.budget_s / 2
    for pattern, exchange in exchanges.items():
        for i, size in enumerate(plan.sizes):
            exchange.check(size)
            took = first[pattern, size] = float(np.median(exchange.timed(size, WARM_UP)))
            rest = plan.sizes[i + 1 :]
            # The next size takes longer in proportion to its bytes, at most.
            too_long = rest and (WARM_UP + 1) * took * rest[0] / size > deadline - time.monotonic()
            if comm.bcast(too_long, root=0):
                if comm.rank == 0:
                    say(event="skipped", sizes=rest, last=size, last_s=took)
                break
    return first


def measure(comm: MPI.Comm, plan: MessagePlan) -> None:
    """Visit patterns and sizes until all medians are narrow or the time is up."""
    started = time.monotonic()
    exchanges = {pattern: PATTERNS[pattern](comm, max(plan.sizes)) for pattern in plan.patterns}
    typical = warm_up(exchanges, plan, comm)
    step = clock_step()
    left_s = plan.budget_s - (time.monotonic() - started)
    slice_s = left_s / (plan.visits * len(typical))
    shape: dict[tuple[Pattern, int], tuple[int, int]] = {}
    for point, seconds in typical.items():
        batch = max(1, math.ceil(CLOCK_STEPS * step / seconds))
        iterations = min(max(int(slice_s / (seconds * batch)), 1), plan.rows // plan.visits)
        shape[point] = (iterations, batch)
    shape = comm.bcast(shape, root=0)  # every rank has read its own clock
    # Every rank knows the same times, so all decide alike.
    visits = Visits(
        [
            Point(
                point,
                most=min(plan.rows // iterations, 3 * plan.visits),
                cost_s=iterations * batch * typical[point],
            )
            for point, (iterations, batch) in shape.items()
        ],
        np.random.default_rng(plan.seed),
        lambda: float(comm.bcast(plan.budget_s - (time.monotonic() - started), root=0)),
        target=NARROW,
        least_values=plan.visits,
    )
    for visit in visits:
        pattern, size = visit.key
        iterations, batch = shape[visit.key]
        exchanges[pattern].timed(size, 1)
        times = exchanges[pattern].timed(size, iterations, batch)
        visit.values.append(float(np.median(times)))
        if comm.rank == 0:
            say(
                event="visit",
                pattern=pattern,
                size=size,
                batch=batch,
                repetition=visit.count - 1,
                times=times.tolist(),
            )
    if comm.rank == 0 and (wide := visits.describe_wide(lambda point: f"{point[0]} of {point[1]} B")):
        say(event="wide", medians=wide)


def world(ranks: int, limit_s: int) -> MPI.Comm | None:
    """Join MPI's world, for ``limit_s`` at most; None, and reported, where it has not that many ranks."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # a Python handler would wait for the blocked MPI call
    signal.alarm(limit_s)
    from mpi4py import MPI

    if MPI.COMM_WORLD.size == ranks:
        return MPI.COMM_WORLD
    say(event="world", size=MPI.COMM_WORLD.size)
    return None


# -- ranks of comprobe as a neighbour: all-to-alls until they are ended ------------------------------------


@dataclass(frozen=True)
class StreamPlan:
    """Orders for the ranks of a comprobe that is a neighbour.

    Attributes:
        message_bytes: from each rank to each other.
        intensity: share of the time in all-to-alls, above 0 up to 1.
        window_s: least time between two reports.
        limit_s: a rank that still runs then is ended by the kernel.
        preflight: see first that the messages leave their hosts.
    """

    ranks: int
    message_bytes: int
    intensity: float
    window_s: float
    limit_s: int
    preflight: bool = False

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def stream(comm: MPI.Comm, plan: StreamPlan) -> NoReturn:
    """Exchange for ever; each pause follows from the slowest rank's last exchange."""
    exchange = AllToAll(comm, plan.message_bytes)
    exchange.check(plan.message_bytes)
    exchange.timed(plan.message_bytes, WARM_UP)
    if comm.rank == 0:
        say(event="ready")
    while True:
        begin, inside_s, exchanges = time.monotonic(), 0.0, 0
        while exchanges == 0 or comm.bcast(time.monotonic() - begin < plan.window_s, root=0):
            took_s = float(exchange.timed(plan.message_bytes, 1)[0])
            inside_s, exchanges = inside_s + took_s, exchanges + 1
            time.sleep(took_s * (1 / plan.intensity - 1))
        if comm.rank == 0:
            wall_s = time.monotonic() - begin
            say(event="window", wall_s=wall_s, inside_s=inside_s, exchanges=exchanges)


# -- the process -------------------------------------------------------------------------------------------


def main() -> int:
    if sys.argv[1] == "hello":
        say(event="hello", **identity())
        return 0
    orders = json.loads(sys.argv[-1])
    plan = (StreamPlan if sys.argv[1] == "stream" else MessagePlan)(**orders)
    if comm := world(plan.ranks, plan.limit_s):
        if plan.preflight:
            preflight(comm)
        if isinstance(plan, StreamPlan):
            stream(comm, plan)
        measure(comm, plan)
        comm.Barrier()
        if comm.rank == 0:
            say(event="done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
