"""A worker: a process on one core that computes for a window of time.

    python -P -m probes.compute_worker --core 1 --library kernels.so --clock

takes orders on stdin, one JSON object a line, and answers each on stdout (see ``probes.order_process``). The
environment must limit BLAS to one thread.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import signal
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from probes import c_library
from profiles.errors import Unavailable

# -- the compiled loops: multiply-adds in vector registers, and a chain of additions -----------------------


SOURCE = Path(__file__).with_name("compute_kernels.c")
WHAT = "the loops of arithmetic"
NATIVE = {"aarch64": "-mcpu=native", "ppc64le": "-mcpu=native"}  # elsewhere -march=native
ADD_TAKES_A_CYCLE = ("x86_64", "aarch64")
SHORT, LONG, PAIRS = 1_000, 50_000, 101  # of chains that tell what reading the time takes
TYPES = {"double": np.float64, "single": np.float32}


def build(folder: Path) -> Path:
    """Compile the loops into ``folder``, for the processor of this machine.

    Raises:
        Unavailable: there is no C compiler, the compiler fails, or the library cannot be loaded.
    """
    options = ["-O3", "-ffp-contract=fast"]
    native = NATIVE.get(platform.machine(), "-march=native")
    try:
        library = c_library.build(SOURCE, folder, [*options, native], what=WHAT, remedy=c_library.REMEDY)
    except Unavailable:  # a compiler that does not know this processor
        library = c_library.build(SOURCE, folder, options, what=WHAT, remedy=c_library.REMEDY)
    try:
        Kernels(library)
    except OSError as error:
        remedy = "set TMPDIR to a folder from which programs may run"
        raise Unavailable(f"{WHAT} cannot be loaded: {error}", remedy) from error
    return library


class Kernels:
    """The loops, loaded from ``library``.

    Attributes:
        vector_bits: width of the vectors.
        fused: whether a multiply-add is one instruction.

    Raises:
        OSError: the library cannot be loaded.
    """

    def __init__(self, library: Path) -> None:
        loaded = ctypes.CDLL(str(library))
        count, pointer = ctypes.c_uint64, ctypes.c_void_p
        self._loops = {"double": loaded.multiply_add_double, "single": loaded.multiply_add_single}
        for precision, number in (("double", ctypes.c_double), ("single", ctypes.c_float)):
            self._loops[precision].argtypes = (count, number, number, pointer)
            self._loops[precision].restype = None
        self._add_chain = loaded.add_chain
        self._add_chain.argtypes = (count, count, count, ctypes.POINTER(ctypes.c_double))
        self._add_chain.restype = count
        self._bytes = ctypes.c_int.in_dll(loaded, "vector_bytes").value
        self._accumulators = ctypes.c_int.in_dll(loaded, "accumulators").value
        self._adds_a_round = ctypes.c_int.in_dll(loaded, "adds_a_round").value
        self.vector_bits = 8 * self._bytes
        self.fused = bool(ctypes.c_int.in_dll(loaded, "fused").value)
        self._reading_s = 0.0
        self._reading_s = self._time_readings()

    def _time_readings(self) -> float:
        """Measure the time by which reading the time lengthens a short chain, beside long ones.

        Reading by itself would take longer, because a core reads the time while it still adds.
        """
        pairs = [(self.add_chain(SHORT), self.add_chain(LONG)) for _ in range(PAIRS)]
        short_s, long_s = (statistics.median(pair[i][2] for pair in pairs) for i in (0, 1))
        return max(short_s - long_s * pairs[0][0][1] / pairs[0][1][1], 0.0)

    def lanes(self, precision: str) -> int:
        """Count the numbers that a vector loop works on."""
        return self._accumulators * self._bytes // np.dtype(TYPES[precision]).itemsize

    def multiply_add(self, lanes: NDArray[np.floating], rounds: int, *, factor: float, term: float) -> int:
        """Compute ``x = x * factor + term`` for each x of ``lanes``, ``rounds`` times.

        Args:
            lanes: as many as ``lanes`` counts, float64 or float32; changed in place.

        Returns:
            The number of floating point operations: two for each x and round.
        """
        precision = next(name for name, kind in TYPES.items() if lanes.dtype == kind)
        assert lanes.flags.c_contiguous and lanes.size == self.lanes(precision)
        self._loops[precision](rounds, factor, term, lanes.ctypes.data)
        return 2 * rounds * lanes.size

    def add_chain(self, least: int, start: int = 0, step: int = 1) -> tuple[int, int, float]:
        """Add ``step`` to ``start`` at least ``least`` times, each addition after the one before.

        Returns:
            The sum modulo 2**64, the number of additions, and the seconds that they took, without the reading
            of the time.
        """
        rounds = -(-least // self._adds_a_round)
        seconds = ctypes.c_double()
        total = int(self._add_chain(rounds, start, step, ctypes.byref(seconds)))
        return total, rounds * self._adds_a_round, seconds.value - self._reading_s


# -- the worker: blocks of one kind, each followed by a chain, for a window of time ------------------------


ORDER = 512  # of the matrices: three take 6 MB in double precision, and a product some milliseconds
ROUNDS = 200_000  # of a vector loop: about a millisecond
ADDS = 100_000  # of a chain by itself: 30 microseconds
ADDS_AFTER = 5_000  # under 2 microseconds: within 10 the clock of some cores rises, as their vectors rest
FACTOR, TERM = -0.99999, 0.7071067811865476  # neither overflow nor denormals, in however many rounds

Block = Callable[[], int]  # computes, and returns the number of floating point operations


@dataclass(frozen=True)
class Computed:
    """A window of one worker (monotonic clock, the same for all processes).

    Attributes:
        start_s, wall_s: the window: whole blocks, so that those of several workers do not quite agree.
        from_s, until_s: the time in which the worker really computed, uncounted blocks before and after too.
        flops, busy_s: floating point operations, and the time that they took; None: a window of chains only.
        adds, adds_s: additions of a chain, and the median time of such chains; None: no chain was run.
    """

    start_s: float
    wall_s: float
    thread_cpu_s: float
    from_s: float
    until_s: float
    flops: int | None
    busy_s: float | None
    adds: int | None
    adds_s: float | None


def products(precision: str, order: int = ORDER) -> Block:
    """Make a block that multiplies two matrices of random numbers by BLAS."""
    rng = np.random.default_rng(1)
    kind = TYPES[precision]
    a, b = (rng.random((order, order)).astype(kind) for _ in range(2))
    product = np.empty_like(a)

    def block() -> int:
        np.matmul(a, b, out=product)
        return 2 * order**3

    return block


def vector_loop(kernels: Kernels, precision: str) -> Block:
    """Make a block of multiply-adds in vector registers."""
    start = np.random.default_rng(1).random(kernels.lanes(precision)).astype(TYPES[precision])
    lanes = start.copy()

    def block() -> int:
        lanes[:] = start  # else they would all become the same number
        return kernels.multiply_add(lanes, ROUNDS, factor=FACTOR, term=TERM)

    return block


class Worker:
    """Orders carried out; without ``clock`` no chains, without ``kernels`` matrix products only."""

    def __init__(self, kernels: Kernels | None, clock: bool) -> None:
        self._kernels = kernels
        self._clock = kernels if clock else None
        self._blocks: dict[tuple[str, str], Block] = {}

    def compute(
        self, *, kind: str, precision: str, start_s: float, warm_s: float, seconds: float
    ) -> Computed:
        """Compute from ``start_s`` on for ``seconds``, after ``warm_s`` seconds that do not count.

        Each block is followed by a chain of additions, which tells the clock that the block had. A block that
        does not count follows, because other workers may still be in their last.
        """
        block = None if kind == "chain" else self._block(kind, precision)
        time.sleep(max(start_s - warm_s - time.monotonic(), 0.0))
        before = self.compute_now(block, start_s)
        done = self.compute_now(block, start_s + seconds)
        after = self.compute_now(block, 0.0)
        return replace(done, from_s=before.from_s, until_s=after.until_s)

    def compute_now(self, block: Block | None, end_s: float) -> Computed:
        """Compute until ``end_s`` (monotonic), one block at least."""
        flops, busy_s = 0, 0.0
        chains: list[float] = []
        adds = 0
        start, cpu = time.monotonic(), time.thread_time()
        now = start
        while True:
            if block is not None:
                flops += block()
                busy_s += time.monotonic() - now
            if self._clock is not None:
                _, adds, seconds = self._clock.add_chain(ADDS if block is None else ADDS_AFTER)
                chains.append(seconds)
            now = time.monotonic()
            if now >= end_s:
                break
        return Computed(
            start_s=start,
            wall_s=now - start,
            thread_cpu_s=time.thread_time() - cpu,
            from_s=start,
            until_s=now,
            flops=flops if block is not None else None,
            busy_s=busy_s if block is not None else None,
            adds=adds if chains else None,
            adds_s=statistics.median(chains) if chains else None,
        )

    def _block(self, kind: str, precision: str) -> Block:
        if (kind, precision) not in self._blocks:
            if kind == "blas":
                made = products(precision)
            else:
                assert self._kernels is not None
                made = vector_loop(self._kernels, precision)
            made()  # the first product of a process allocates
            self._blocks[kind, precision] = made
        return self._blocks[kind, precision]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -P -m probes.compute_worker", description=__doc__)
    parser.add_argument("--core", type=int, required=True, help="CPU to compute on")
    parser.add_argument("--library", type=Path, help="the compiled kernels (default: matrix products only)")
    parser.add_argument("--clock", action="store_true", help="run a chain of additions after each block")
    args = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which ends us by our stdin
    try:
        os.sched_setaffinity(0, {args.core})
        kernels = Kernels(args.library) if args.library else None
    except OSError as error:
        parser.error(f"--core {args.core} --library {args.library}: {error}")
    worker = Worker(kernels, args.clock)
    print(json.dumps({"ready": args.core}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        order.pop("do")
        try:
            answer = asdict(worker.compute(**order))
        except (OSError, MemoryError) as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
