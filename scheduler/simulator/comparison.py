"""Differences of metrics between policies, with intervals from resampled workloads.

Policies are simulated on the same workload, and on the same resampled ones (weeks drawn with replacement;
Zakay and Feitelson, "Workload resampling for performance evaluation of parallel job schedulers", Concurrency
and Computation 26(12), 2014). Differences are paired: a busy week is busy for all policies.

The interval is the difference on the workload itself, plus and minus t times the standard deviation of the
differences on the resampled ones. A bootstrap of few weeks is too narrow by sqrt((n - 1) / n), which is put
right. Both estimates vary: the degrees of freedom f of t are 1 / f = 1 / (n - 1) + 1 / (m - 1) for n weeks
and m resampled workloads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

CONFIDENCE = 0.95
# Metric, and whether less of it is better
COMPARED = {
    "mean_wait_s": True,
    "p95_wait_s": True,
    "max_wait_s": True,
    "mean_turnaround_s": True,
    "bsld_mean": True,
    "p95_slowdown": True,
    "makespan_s": True,
    "utilisation_ratio": False,
    "energy_j": True,
}
Figures = Mapping[str, float | None]


@dataclass(frozen=True)
class PolicyDifference:
    """A metric of a policy less that of another, with a 95 % interval.

    Attributes:
        verdict: "better" or "worse" where the interval lies on one side of 0, "same" where the difference is
            0 on every workload, else "not sure".
    """

    metric: str
    difference: float
    low: float
    high: float
    verdict: str

    def to_dict(self) -> dict[str, str | float]:
        """Return the fields by name."""
        return asdict(self)


def differences(
    figures: tuple[Figures, Figures], resampled: Sequence[tuple[Figures, Figures]], blocks: int
) -> list[PolicyDifference]:
    """Compare a policy with another in all metrics that both have.

    Args:
        figures: metrics of (policy, the other) on the workload itself.
        resampled: the same on each resampled workload, at least 2.
        blocks: weeks (or other blocks) that were drawn from, at least 2.
    """
    found = []
    for metric, less in COMPARED.items():
        difference = _less(figures, metric)
        others = [_less(pair, metric) for pair in resampled]
        spread = [value for value in others if value is not None]
        if difference is not None and len(spread) == len(others):
            found.append(_difference(metric, difference, half_width(spread, blocks), less_is_better=less))
    return found


def half_width(spread: Sequence[float], blocks: int) -> float:
    """Return half the 95 % interval of a mean-like figure from its bootstrap values; inf of too few."""
    from scipy.stats import t

    if min(len(spread), blocks) < 2:
        return math.inf
    freedom = 1 / (1 / (blocks - 1) + 1 / (len(spread) - 1))
    middle = math.fsum(spread) / len(spread)
    variance = math.fsum((value - middle) ** 2 for value in spread) / (len(spread) - 1)
    quantile = float(t.ppf(0.5 + CONFIDENCE / 2, freedom))
    return quantile * math.sqrt(variance * blocks / (blocks - 1))


def _less(pair: tuple[Figures, Figures], metric: str) -> float | None:
    mine, other = (figures[metric] for figures in pair)
    return None if mine is None or other is None else mine - other


def _difference(metric: str, difference: float, half: float, *, less_is_better: bool) -> PolicyDifference:
    low, high = difference - half, difference + half
    verdict = "not sure"
    if difference == half == 0:
        verdict = "same"
    elif low > 0 or high < 0:
        verdict = "better" if (high < 0) == less_is_better else "worse"
    return PolicyDifference(metric, difference, low, high, verdict)
