"""CG: the smallest eigenvalue of a random sparse matrix by inverse iteration with conjugate gradients.

RNR-94-007, 2.4.3. The matrix is sum_i w_i v_i v_i' + (RCOND - shift) I with sparse random vectors v_i and
weights w_i = RCOND^(i/n); rows are split over the ranks, and every product gathers the whole vector. The load
is bound by memory access without order, and by latency between ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from probes.loads.common import Comm, Floats, Work, bounds, uniform

if TYPE_CHECKING:
    from scipy import sparse

SEED = 314159265
RCOND = 0.1
CG_STEPS = 25


@dataclass(frozen=True)
class CgSize:
    rows: int
    nonzeros: int  # of every random vector
    shift: float
    steps: int
    zeta: float | None = None  # as published (NPB 3.4, cg.f90)


SIZES = {
    "700": CgSize(700, 5, 10.0, 10),
    "S": CgSize(1400, 7, 10.0, 15, 8.5971775078648),
    "W": CgSize(7000, 8, 12.0, 15, 10.362595087124),
    "A": CgSize(14000, 11, 20.0, 15, 17.130235054029),
}


class Cg:
    """A rank's rows of the matrix, and of every vector."""

    def __init__(self, size: CgSize, comm: Comm) -> None:
        self.size, self.comm = size, comm
        self.operations = work(size).operations
        self.verification = "npb" if size.zeta else "own"
        edges = bounds(size.rows, comm.size)
        self.counts = [end - begin for begin, end in pairwise(edges)]
        self.rows = slice(edges[comm.rank], edges[comm.rank + 1])
        self.matrix = matrix(size, self.rows)
        self.zeta = self.residual = np.nan
        self.system = (np.zeros(0), np.zeros(0))  # the last x and z

    def run(self) -> None:
        x = np.ones(self.counts[self.comm.rank])
        for _ in range(self.size.steps):
            z = self._solve(x)
            xz, zz = self.comm.total(np.array([x @ z, z @ z]))
            self.zeta = self.size.shift + 1.0 / xz
            x = z / np.sqrt(zz)

    def _times(self, part: Floats) -> Floats:
        product: Floats = self.matrix @ self.comm.gather(part, self.counts)
        return product

    def _dot(self, a: Floats, b: Floats) -> float:
        return float(self.comm.total(np.array([a @ b]))[0])

    def _solve(self, x: Floats) -> Floats:
        """Solve A z = x by a fixed number of steps from zero; keeps ||x - A z|| / ||x||."""
        z = np.zeros_like(x)
        r, p = x.copy(), x.copy()
        rho = norm = self._dot(r, r)
        for _ in range(CG_STEPS):
            q = self._times(p)
            alpha = rho / self._dot(p, q)
            z += alpha * p
            r -= alpha * q
            rho, before = self._dot(r, r), rho
            p *= rho / before
            p += r
        gap = x - self._times(z)
        self.residual = float(np.sqrt(self._dot(gap, gap) / norm))
        self.system = (x, z)
        return z

    def verified(self) -> bool:
        """Compare zeta with the published to 1e-10; else test the last system without forming the matrix."""
        if self.size.zeta:
            return bool(abs(self.zeta - self.size.zeta) <= 1e-10 * self.size.zeta)
        if np.isnan(self.zeta):
            return False
        x, z = (self.comm.gather(part, self.counts) for part in self.system)
        vectors = random_vectors(self.size)
        gap = x - vectors.T @ (weights(self.size) * (vectors @ z)) - (RCOND - self.size.shift) * z
        eigenvalue = self.size.shift + 1.0 / (x @ z)
        right = abs(self.zeta - eigenvalue) <= 1e-10 * eigenvalue
        return bool(right and self.residual <= 1e-8 and np.linalg.norm(gap) <= 1e-8)


def weights(size: CgSize) -> Floats:
    return np.asarray(RCOND ** (np.arange(size.rows) / size.rows))


def matrix(size: CgSize, rows: slice) -> sparse.csr_array:
    """Compute the given rows of NPB's matrix."""
    from scipy import sparse  # late, because a report counts the operations only

    vectors = random_vectors(size)
    scaled = sparse.diags_array(weights(size)) @ vectors
    identity = sparse.eye_array(size.rows, format="csr")[rows]
    product = vectors.T.tocsr()[rows] @ scaled + (RCOND - size.shift) * identity
    return sparse.csr_array(product)


def random_vectors(size: CgSize) -> sparse.csr_array:
    """Draw the vectors v_i as rows: ``nonzeros`` random elements at distinct places, and 0.5 at place i.

    Values and places come in pairs from one stream. A place beyond the last row, or a place that the vector
    has already, uses up its pair.
    """
    from scipy import sparse

    scale = 1 << (size.rows - 1).bit_length()
    pairs = uniform(SEED, 2 * 3 * size.rows * size.nonzeros, skip=1).reshape(-1, 2)
    pairs = pairs[(scale * pairs[:, 1]).astype(np.int64) < size.rows]
    stream = zip((scale * pairs[:, 1]).astype(np.int64).tolist(), pairs[:, 0].tolist(), strict=True)
    columns: list[int] = []
    values: list[float] = []
    starts = [0]
    for row in range(size.rows):
        vector: dict[int, float] = {}
        while len(vector) < size.nonzeros:
            place, value = next(stream)
            vector.setdefault(place, value)
        vector[row] = 0.5
        columns += vector.keys()
        values += vector.values()
        starts.append(len(columns))
    index: NDArray[np.int64] = np.array(columns)
    return sparse.csr_array((np.array(values), index, np.array(starts)), shape=(size.rows, size.rows))


def work(size: CgSize) -> Work:
    """Count operations as NPB does; each product reads the matrix, 12 bytes an element."""
    z = size.nonzeros * (size.nonzeros + 1)
    operations = 2.0 * size.steps * size.rows * (3 + z + CG_STEPS * (5 + z) + 3)
    return Work(operations, 12.0 * size.steps * (CG_STEPS + 1) * size.rows * z)


def most_ranks(size: str) -> int:
    return SIZES[size].rows
