"""Conjugate gradients over MPI: neighbours' rows, and two sums over all ranks, in each iteration.

    tenbin submit -n 2 --mpi -- python3 examples/cg.py --cells 1000

Solves Poisson's equation on a square whose rows are divided among the ranks. Prints the residual, and the
error against the solution that was put in.
"""

import argparse
import sys

import numpy as np
from mpi4py import MPI

WORLD = MPI.COMM_WORLD


def apply(x: np.ndarray) -> np.ndarray:
    """Apply the 5-point operator to this rank's rows; the rows beside them come from the neighbours."""
    above, below = np.zeros(x.shape[1]), np.zeros(x.shape[1])
    up = WORLD.rank - 1 if WORLD.rank else MPI.PROC_NULL
    down = WORLD.rank + 1 if WORLD.rank + 1 < WORLD.size else MPI.PROC_NULL
    WORLD.Sendrecv(x[-1].copy(), down, recvbuf=above, source=up)
    WORLD.Sendrecv(x[0].copy(), up, recvbuf=below, source=down)
    y = 4.0 * x
    y[1:] -= x[:-1]
    y[:-1] -= x[1:]
    y[0] -= above
    y[-1] -= below
    y[:, 1:] -= x[:, :-1]
    y[:, :-1] -= x[:, 1:]
    return y


def dot(a: np.ndarray, b: np.ndarray) -> float:
    return float(WORLD.allreduce(float(np.vdot(a, b))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=int, default=500, help="cells of a side of the square")
    parser.add_argument("--tolerance", type=float, default=1e-10, help="of the residual, relative")
    options = parser.parse_args()
    n = options.cells
    if n < WORLD.size:
        sys.exit(f"--cells {n}: fewer rows than ranks ({WORLD.size})")
    rows = np.array_split(np.arange(n), WORLD.size)[WORLD.rank]
    truth = np.sin(0.1 * rows)[:, None] * np.cos(0.2 * np.arange(n))[None, :]

    right = apply(truth)
    x, r = np.zeros_like(right), right.copy()
    p, rr = r.copy(), dot(r, r)
    first, count = rr, 0
    while rr > options.tolerance**2 * first and count < 10 * n:
        q = apply(p)
        alpha = rr / dot(p, q)
        x += alpha * p
        r -= alpha * q
        before, rr = rr, dot(r, r)
        p = r + rr / before * p
        count += 1

    true = right - apply(x)
    residual = (dot(true, true) / first) ** 0.5
    error = WORLD.allreduce(float(np.abs(x - truth).max()), MPI.MAX)
    if WORLD.rank == 0:
        print(f"{count} iterations on {WORLD.size} ranks, residual {residual:.1e}, error {error:.1e}")
    sys.exit(0 if residual < 10 * options.tolerance else 1)


if __name__ == "__main__":
    main()
