"""EP, embarrassingly parallel: Gaussian pairs by the polar method, tallied in rings (RNR-94-007, 2.4.1).

The load is pure arithmetic; ranks talk once, at the end.
"""

from __future__ import annotations

import math

import numpy as np

from probes.loads.common import Comm, Floats, Work, uniform

SIZES = {"20": 20, "22": 22, "S": 24, "W": 25, "26": 26, "A": 28}  # log2 of the pairs
SEED = 271828183
RINGS = 10
# Two numbers: scaled and shifted (6), squared and added (3). Of pi/4 of them: factor, deviates, two sums (8).
PAIR_OPERATIONS = 9 + 8 * math.pi / 4
BLOCK = 1 << 14  # pairs at a time: the arrays stay in the cache

# Sums of the x and y deviates (NPB 3.4, ep.f90).
PUBLISHED = {
    24: (-3.247834652034740e3, -6.958407078382297e3),
    25: (-2.863319731645753e3, -6.320053679109499e3),
    28: (-4.295875165629892e3, -1.580732573678431e4),
}


class Ep:
    """The pairs of one rank: every block belongs to the rank ``block mod size``, so all have equal work."""

    def __init__(self, log2_pairs: int, comm: Comm) -> None:
        self.pairs = 2**log2_pairs
        self.operations = float(self.pairs)
        self.comm = comm
        self.published = PUBLISHED.get(log2_pairs)
        self.verification = "npb" if self.published else "own"
        self.sums = np.zeros(2)
        self.counts = np.zeros(RINGS)

    def run(self) -> None:
        tally = np.zeros(2 + RINGS)
        for block in range(self.comm.rank, self.pairs // BLOCK, self.comm.size):
            x, y = gaussian_pairs(block)
            tally[:2] += x.sum(), y.sum()
            ring = np.maximum(np.abs(x), np.abs(y)).astype(np.int64)
            tally[2:] += np.bincount(ring, minlength=RINGS)
        tally = self.comm.total(tally)
        self.sums, self.counts = tally[:2], tally[2:]

    def verified(self) -> bool:
        if self.published:
            return bool(np.allclose(self.sums, self.published, rtol=1e-8, atol=0))
        return gaussian(self.pairs, self.sums, self.counts)


def gaussian_pairs(block: int) -> tuple[Floats, Floats]:
    """Compute the deviates x and y from block number ``block`` of ``BLOCK`` pairs of uniform numbers."""
    numbers = 2.0 * uniform(SEED, 2 * BLOCK, skip=2 * BLOCK * block) - 1.0
    x, y = numbers[0::2], numbers[1::2]
    t = x * x + y * y
    inside = t <= 1.0
    x, y, t = x[inside], y[inside], t[inside]
    factor = np.sqrt(-2.0 * np.log(t) / t)
    return x * factor, y * factor


def gaussian(pairs: int, sums: Floats, counts: Floats) -> bool:
    """Test the tallies against a normal distribution, within six standard deviations each.

    A pair is accepted with probability pi/4, and lies in ring l with probability
    P(max(|x|, |y|) < l + 1) - P(max(|x|, |y|) < l), where P(max < a) = erf(a / sqrt 2)^2.
    """
    accepted = float(counts.sum())
    within = np.array([math.erf(ring / math.sqrt(2)) for ring in range(RINGS + 1)]) ** 2
    expected = accepted * np.diff(within)
    return bool(
        abs(accepted - pairs * math.pi / 4) <= 6 * math.sqrt(pairs * math.pi / 4 * (1 - math.pi / 4))
        and np.all(np.abs(sums) <= 6 * math.sqrt(accepted))
        and np.all(np.abs(counts - expected) <= 6 * np.sqrt(expected + 1))
    )


def work(log2_pairs: int) -> Work:
    """Count logarithm and root as one operation each; the blocks stay in the caches."""
    return Work(PAIR_OPERATIONS * 2**log2_pairs, 0.0)


def most_ranks(size: str) -> int:
    return (1 << SIZES[size]) // BLOCK
