"""A worker: a process on one core that computes for a window of time.

    python -P -m probes.compute.worker --core 1 --library kernels.so --clock

takes orders on stdin, one JSON object a line, and answers each on stdout (see ``probes.order_process``). The
environment must limit BLAS to one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from probes.compute.kernels import TYPES, Kernels

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
    parser = argparse.ArgumentParser(prog="python -P -m probes.compute.worker", description=__doc__)
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
