"""LU-like: symmetric Gauss-Seidel sweeps whose wavefront runs through the ranks as a pipeline.

This is the pattern of NPB's LU (lower, then upper triangular sweeps over a grid cut in strips, with many
small messages between neighbours) on a problem of our own. On an n by n grid with zero borders, ``DEPTH``
independent equations

    (4 + sigma_k) u[i, j] - u[i-1, j] - u[i+1, j] - u[i, j-1] - u[i, j+1] = f_k[i, j]

are solved by ``SWEEPS`` forward and backward sweeps. The right-hand side is a sine wave, so the solution is
known. The load is bound by latency between ranks and by short vectors.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from probes.loads.common import Comm, Floats, Work, bounds

SIZES = {"32": 32, "S": 64, "128": 128, "W": 256, "A": 512}
DEPTH = 32
SIGMA = np.linspace(2.0, 4.0, DEPTH)
SWEEPS = 10
BLOCKS = 16  # of rows; the unit that passes through the pipeline


class Lu:
    """A rank's strip of columns, (row, column, equation), with a border of zeros or of ghosts."""

    def __init__(self, n: int, comm: Comm) -> None:
        self.n, self.comm = n, comm
        self.operations = work(n).operations
        self.verification = "own"
        edges = bounds(n, comm.size)
        self.columns = slice(edges[comm.rank], edges[comm.rank + 1])
        self.rows = bounds(n, min(BLOCKS, n))
        self.inverse = 1.0 / (4.0 + SIGMA)
        self.exact = self._wave()
        self.f = self.exact * (SIGMA + 8.0 * np.sin(np.pi / (2 * (n + 1))) ** 2)
        self.u = np.zeros_like(self.exact)

    def _wave(self) -> Floats:
        """Compute sin(pi x) sin(pi y) on the strip and its borders, for every equation."""
        y = np.arange(self.n + 2) / (self.n + 1)
        x = np.arange(self.columns.start, self.columns.stop + 2) / (self.n + 1)
        wave = np.sin(np.pi * y)[:, None, None] * np.sin(np.pi * x)[None, :, None]
        return np.ascontiguousarray(np.broadcast_to(wave, (*wave.shape[:2], DEPTH)))

    def run(self) -> None:
        self.u[...] = 0.0
        blocks = list(pairwise(self.rows))
        below, above = self.comm.rank - 1, self.comm.rank + 1
        for _ in range(SWEEPS):
            for begin, end in blocks:
                self._pass(begin, end, ghosts=0, source=below, edge=-2, to=above)
            for begin, end in reversed(blocks):
                self._pass(begin, end, ghosts=-1, source=above, edge=1, to=below)

    def _pass(self, begin: int, end: int, *, ghosts: int, source: int, edge: int, to: int) -> None:
        """Sweep one block of rows between the rank before (``source``) and the rank after (``to``)."""
        rows = slice(begin + 1, end + 1)
        if 0 <= source < self.comm.size:
            self.comm.receive(self.u[rows, ghosts], source)
        self._sweep(begin, end, forward=ghosts == 0)
        if 0 <= to < self.comm.size:
            self.comm.send(self.u[rows, edge], to)

    def _sweep(self, begin: int, end: int, forward: bool) -> None:
        """Sweep rows begin to end, one anti-diagonal at a time.

        Points of an anti-diagonal do not depend on each other, and lie ``width - 1`` apart in memory.
        """
        width = self.u.shape[1]
        columns, rows = width - 2, end - begin
        u, f = self.u.reshape(-1, DEPTH), self.f.reshape(-1, DEPTH)
        diagonals = range(rows + columns - 1)
        for d in diagonals if forward else reversed(diagonals):
            top = max(0, d - columns + 1)  # the first row of the block that the diagonal meets
            count = min(d, rows - 1) - top + 1
            first = (begin + 1 + top) * width + 1 + d - top
            last = first + (count - 1) * (width - 1) + 1
            total = f[first : last : width - 1] + u[first - 1 : last - 1 : width - 1]
            for offset in (1, width, -width):
                total += u[first + offset : last + offset : width - 1]
            total *= self.inverse
            u[first : last : width - 1] = total

    def verified(self) -> bool:
        """Test that the error is as small as theory promises.

        A Gauss-Seidel sweep contracts the largest error by at least q = U / (D - L) (row sums of the upper
        part, the diagonal and the lower part), here 2 / (2 + sigma).
        """
        q = 2.0 / (2.0 + SIGMA)
        inner = (slice(1, -1), slice(1, -1))
        error = np.abs(self.u - self.exact)[inner].max(axis=(0, 1))
        excess = float((error - (q ** (2 * SWEEPS) + 1e-13)).max())  # the exact solution is at most 1
        return self.comm.largest(excess) <= 0.0


def work(n: int) -> Work:
    """Count six operations a point and pass, which reads f and u and writes u."""
    points = 2.0 * SWEEPS * n * n * DEPTH
    return Work(6 * points, 3 * 8 * points)


def most_ranks(size: str) -> int:
    return SIZES[size]
