"""Three-dimensional Fourier transforms over MPI: everybody sends to everybody, over and over.

    tenbin submit -n 2 --mpi -- python3 examples/ft.py --cells 128

Solves the heat equation on a cube in Fourier space, as the NAS benchmark FT does: each step is an inverse
transform, and each transform turns the cube, whose slices are divided among the ranks. Prints a sum of each
step, and how well the transform back returns the input.
"""

import argparse
import sys

import numpy as np
from mpi4py import MPI

WORLD = MPI.COMM_WORLD


def turn(slices: np.ndarray) -> np.ndarray:
    """From slices [z, y, x] divided along z to slices [x, y, z] divided along x; and back."""
    parts = WORLD.size
    mine, n = slices.shape[0], slices.shape[1]
    out = np.ascontiguousarray(slices.reshape(mine, n, parts, n // parts).transpose(2, 3, 1, 0))
    back = np.empty_like(out)
    WORLD.Alltoall(out, back)  # back[r]: x, y of this rank, z of rank r
    return np.ascontiguousarray(back.transpose(1, 2, 0, 3).reshape(n // parts, n, n))


def forward(slices: np.ndarray) -> np.ndarray:
    """Transform [z, y, x], as [x, y, z]."""
    return np.fft.fft(turn(np.fft.fft2(slices)), axis=2)


def backward(spectrum: np.ndarray) -> np.ndarray:
    return np.fft.ifft2(turn(np.fft.ifft(spectrum, axis=2)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=int, default=64, help="cells of a side of the cube")
    parser.add_argument("--steps", type=int, default=6)
    options = parser.parse_args()
    n = options.cells
    if n % WORLD.size:
        sys.exit(f"--cells {n}: no multiple of the number of ranks ({WORLD.size})")
    mine = range(WORLD.rank * n // WORLD.size, (WORLD.rank + 1) * n // WORLD.size)
    start = np.stack([np.random.default_rng(z).random((n, n)) for z in mine]).astype(complex)

    spectrum = forward(start)
    waves = np.fft.fftfreq(n, 1 / n) ** 2
    square = waves[mine.start : mine.stop, None, None] + waves[None, :, None] + waves[None, None, :]
    for step in range(1, options.steps + 1):
        field = backward(spectrum * np.exp(-4e-6 * np.pi**2 * step * square))
        total, largest = WORLD.allreduce(field.sum()).real, WORLD.allreduce(np.abs(field).max(), MPI.MAX)
        if WORLD.rank == 0:
            print(f"step {step}: mean {total / n**3:.12f}, largest {largest:.12f}")
    error = WORLD.allreduce(float(np.abs(backward(spectrum) - start).max()), MPI.MAX)
    if WORLD.rank == 0:
        print(f"{options.steps} steps on {WORLD.size} ranks, back again: error {error:.1e}")
    sys.exit(0 if error < 1e-12 else 1)


if __name__ == "__main__":
    main()
