"""FT: a diffusion equation solved by three-dimensional Fourier transforms (RNR-94-007, 2.4.4).

Data are slabs of planes in space and slabs of rows in frequency, with an all-to-all between the two. The load
is bound by the network between ranks, and by memory bandwidth.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from probes.loads.common import Comm, Complexes, Floats, Work, bounds, uniform

SEED = 314159265
ALPHA = 1e-6
STEPS = 6


@dataclass(frozen=True)
class FtSize:
    nx: int
    ny: int
    nz: int


SIZES = {
    "32": FtSize(32, 32, 32),
    "S": FtSize(64, 64, 64),
    "W": FtSize(128, 128, 32),
    "128": FtSize(128, 128, 128),
    "A": FtSize(256, 256, 128),
}

# Checksums after each step (NPB 3.4, ft.f90).
PUBLISHED = {
    SIZES["S"]: (
        5.546087004964e02 + 4.845363331978e02j,
        5.546385409189e02 + 4.865304269511e02j,
        5.546148406171e02 + 4.883910722336e02j,
        5.545423607415e02 + 4.901273169046e02j,
        5.544255039624e02 + 4.917475857993e02j,
        5.542683411902e02 + 4.932597244941e02j,
    ),
    SIZES["W"]: (
        5.673612178944e02 + 5.293246849175e02j,
        5.631436885271e02 + 5.282149986629e02j,
        5.594024089970e02 + 5.270996558037e02j,
        5.560698047020e02 + 5.260027904925e02j,
        5.530898991250e02 + 5.249400845633e02j,
        5.504159734538e02 + 5.239212247086e02j,
    ),
    SIZES["A"]: (
        5.046735008193e02 + 5.114047905510e02j,
        5.059412319734e02 + 5.098809666433e02j,
        5.069376896287e02 + 5.098144042213e02j,
        5.077892868474e02 + 5.101336130759e02j,
        5.085233095391e02 + 5.104914655194e02j,
        5.091487099959e02 + 5.107917842803e02j,
    ),
}


class Ft:
    """A rank's planes in space, (z, y, x), and its rows in frequency, (z, y, x) with y split."""

    def __init__(self, size: FtSize, comm: Comm) -> None:
        from scipy import fft  # late, because a report counts the operations only

        self.size, self.comm, self.fft = size, comm, fft
        self.operations = work(size).operations
        self.verification = "npb" if size in PUBLISHED else "own"
        self.z = bounds(size.nz, comm.size)
        self.y = bounds(size.ny, comm.size)
        self.planes = slice(self.z[comm.rank], self.z[comm.rank + 1])
        self.rows = slice(self.y[comm.rank], self.y[comm.rank + 1])
        self.start = initial(size, self.planes)
        self.decay = decay(size, self.rows)
        self.checksums = np.zeros(STEPS, complex)
        self.end = self.start

    def run(self) -> None:
        spectrum = self._to_frequency(self.start)
        for step in range(STEPS):
            spectrum *= self.decay
            self.end = self._to_space(spectrum)
            self.checksums[step] = self._checksum(self.end)

    def _to_frequency(self, field: Complexes) -> Complexes:
        field = self.fft.fft2(field)
        blocks = [field[:, a:b] for a, b in pairwise(self.y)]
        columns = self.rows.stop - self.rows.start
        parts = [p.reshape(-1, columns, self.size.nx) for p in self.comm.exchange(blocks)]
        return np.asarray(self.fft.fft(np.concatenate(parts), axis=0, overwrite_x=True))

    def _to_space(self, spectrum: Complexes) -> Complexes:
        lines = self.fft.ifft(spectrum, axis=0)
        blocks = [lines[a:b] for a, b in pairwise(self.z)]
        planes = self.planes.stop - self.planes.start
        parts = [p.reshape(planes, -1, self.size.nx) for p in self.comm.exchange(blocks)]
        return np.asarray(self.fft.ifft2(np.concatenate(parts, axis=1), overwrite_x=True))

    def _checksum(self, field: Complexes) -> complex:
        """Sum over NPB's 1024 places, a line through the periodic box."""
        j = np.arange(1, 1025)
        z = 5 * j % self.size.nz
        mine = (z >= self.planes.start) & (z < self.planes.stop)
        j, z = j[mine], z[mine] - self.planes.start
        part = field[z, 3 * j % self.size.ny, j % self.size.nx].sum()
        real, imaginary = self.comm.total(np.array([part.real, part.imag]))
        return complex(real, imaginary)

    def verified(self) -> bool:
        """Compare checksums with the published to 1e-12; else test the decay of some modes without an FFT."""
        if self.size in PUBLISHED:
            return bool(np.allclose(self.checksums, PUBLISHED[self.size], rtol=1e-12, atol=0))
        return all(self._decayed(*mode) for mode in ((0, 0, 0), (1, 0, 0), (0, 2, 1), (-3, 1, -2)))

    def _decayed(self, kx: int, ky: int, kz: int) -> bool:
        """Test that the Fourier coefficient fell by exp(-4 pi^2 alpha k^2 t), t = STEPS."""
        z = np.arange(self.planes.start, self.planes.stop) / self.size.nz
        y, x = np.arange(self.size.ny) / self.size.ny, np.arange(self.size.nx) / self.size.nx
        waves = [np.exp(-2j * np.pi * k * place) for k, place in ((kz, z), (ky, y), (kx, x))]
        parts = [np.einsum("zyx,z,y,x->", field, *waves) for field in (self.start, self.end)]
        flat = self.comm.total(np.array([value for part in parts for value in (part.real, part.imag)]))
        start, end = complex(*flat[:2]), complex(*flat[2:])
        factor = np.exp(-4 * np.pi**2 * ALPHA * (kx**2 + ky**2 + kz**2) * STEPS)
        return bool(abs(end - factor * start) <= 1e-10 * max(abs(start), 1.0))


def initial(size: FtSize, planes: slice) -> Complexes:
    """Draw the given planes of the random start: real and imaginary parts alternate in NPB's stream."""
    plane = size.nx * size.ny
    count = planes.stop - planes.start
    numbers = uniform(SEED, 2 * plane * count, skip=2 * plane * planes.start)
    return numbers.view(complex).reshape(count, size.ny, size.nx)


def decay(size: FtSize, rows: slice) -> Floats:
    """Compute the factor of one step for each frequency: exp(-4 pi^2 alpha (kx^2 + ky^2 + kz^2))."""
    kx, ky, kz = (np.fft.fftfreq(n, 1 / n) ** 2 for n in (size.nx, size.ny, size.nz))
    return np.asarray(
        np.exp(-4 * np.pi**2 * ALPHA * (kz[:, None, None] + ky[None, rows, None] + kx[None, None, :]))
    )


def work(size: FtSize) -> Work:
    """Count operations as NPB does.

    Each pass reads and writes 16 bytes a point: one for each axis and one to turn the slabs, in the first
    transform and in each step. Each step also multiplies by the decay (8 bytes).
    """
    n = size.nx * size.ny * size.nz
    operations = n * (14.8157 + 7.19641 * np.log(n) + (5.23518 + 7.21113 * np.log(n)) * STEPS)
    return Work(float(operations), float(n * (4 * 32 + STEPS * (5 * 32 + 8))))


def most_ranks(size: str) -> int:
    return min(SIZES[size].ny, SIZES[size].nz)
