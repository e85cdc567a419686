"""Bounds and sizes of regions (Takayama et al. 2021), as pure functions.

Bounds: with k regions for jobs of ``lo`` to ``hi`` units, the i-th takes jobs up to the largest whole b with
b^k <= lo^(k-i) * hi^i. So the ratio of the smallest to the largest job is about the same in each region.
Sizes: in proportion to the unit-seconds of each region's jobs. A region that would get no more than twice its
largest job gets twice its largest job plus one. The others share the rest, until none is too small.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import NamedTuple


class PastWork(NamedTuple):
    """Work of an earlier job: its units, and its unit-seconds (or the believed ones)."""

    units: int
    unit_s: float


class RegionLayout(NamedTuple):
    """Upper bound on a job's units (inclusive) and number of units of each region, smallest jobs first."""

    bounds: tuple[int, ...]
    sizes: tuple[int, ...]


def region_name(cut: int, number: int) -> str:
    """Name region ``number`` (from 1 on) of the ``cut``-th layout: "3.1"."""
    return f"{cut}.{number}"


def number_of(region: str) -> int:
    """Return the number of a region in its layout, from 1 on; 0 for no region ("")."""
    return int(region.partition(".")[2] or 0)


def cut_of(region: str) -> int:
    """Return the number of a region's layout, from 1 on."""
    return int(region.partition(".")[0])


def region_bounds(hi: int, k: int, lo: int = 1) -> tuple[int, ...]:
    """Compute upper bounds of the k regions for jobs of ``lo`` to ``hi`` units; equal ones are merged."""
    if not 1 <= lo <= hi or k < 1:
        raise ValueError(f"{k} regions for jobs of {lo} to {hi} units")
    powers: list[int] = [lo ** (k - i) * hi**i for i in range(1, k + 1)]
    bounds = [_root(power, k) for power in powers]
    return tuple(sorted(set(bounds)))


def _root(value: int, k: int) -> int:
    """Return the largest b with b^k <= value."""
    b = int(value ** (1.0 / k))
    while b**k > value:
        b -= 1
    while (b + 1) ** k <= value:
        b += 1
    return b


def region_sizes(unit_s: Sequence[float], bounds: Sequence[int], units: int) -> tuple[int, ...] | None:
    """Compute the units of each region by the work of its jobs; None if the machine is too small.

    Whole units by largest remainder (ties: the smaller jobs' region). One region has the whole machine.
    Without any work all weigh the same.
    """
    k = len(bounds)
    if k == 1:
        return (units,)
    least = [2 * bound + 1 for bound in bounds]
    if sum(least) > units:
        return None
    weights = [Fraction(work) for work in unit_s]
    if not any(weights):
        weights = [Fraction(1)] * k
    sizes: dict[int, int] = {}
    while True:  # ends, because the rest is always enough for all remaining regions, so one of them stays
        open_ = [i for i in range(k) if i not in sizes]
        rest, total = units - sum(sizes.values()), sum(weights[i] for i in open_)
        shares = {i: weights[i] * rest / total if total else Fraction(rest, len(open_)) for i in open_}
        small = [i for i in open_ if shares[i] < least[i]]
        if not small:
            break
        sizes.update((i, least[i]) for i in small)
    sizes.update((i, int(share)) for i, share in shares.items())
    by_remainder = sorted(shares, key=lambda i: (int(shares[i]) - shares[i], i))
    for i in by_remainder[: units - sum(sizes.values())]:
        sizes[i] += 1
    return tuple(sizes[i] for i in range(k))


def region_of(units: int, bounds: Sequence[int]) -> int:
    """Return the index of the region for jobs of so many units; the last also takes larger ones."""
    return min(bisect_left(bounds, units), len(bounds) - 1)


def layout(jobs: Iterable[PastWork], hi: int, k: int, units: int) -> RegionLayout:
    """Cut the machine into k regions, or as many as fit; jobs have up to ``hi`` units."""
    work = list(jobs)
    for count in range(k, 1, -1):
        bounds = region_bounds(hi, count)
        sums = [0.0] * len(bounds)
        for job in work:
            sums[region_of(job.units, bounds)] += job.unit_s
        sizes = region_sizes(sums, bounds, units)
        if sizes is not None:
            return RegionLayout(bounds, sizes)
    return RegionLayout((hi,), (units,))
