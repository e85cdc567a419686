"""Which jobs of a list should share a node, by their job profiles: the paper's rule, and the best matching.

A job alone has the node for its run time; two that share it have it until both have ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, combinations

from profiles.jobs import JobProfile
from profiles.models import Prediction
from profiles.models.curve import slowdown_beside
from scheduler.interference import Pressure
from scheduler.pairing import by_probes, partition
from scheduler.profiled import pressure_of


@dataclass(frozen=True)
class Direction:
    """What one job is predicted to suffer beside another; None: not measured."""

    job: str
    beside: str
    predicted: Prediction | None


@dataclass(frozen=True)
class Suggestion:
    """Pairs of jobs, by name, and what they gain.

    Attributes:
        groups: two names each, or one that is better alone.
        alone_s, paired_s: how long they have the node: one after the other; in these groups.
    """

    rule: str
    groups: tuple[tuple[str, ...], ...]
    alone_s: float
    paired_s: float

    @property
    def gain_percent(self) -> float:
        """Share of the time alone that is saved."""
        return 100 * (1 - self.paired_s / self.alone_s) if self.alone_s > 0 else 0.0


def directions(jobs: Sequence[JobProfile]) -> list[Direction]:
    """Every job beside every one, itself included."""
    return [Direction(a.name, b.name, slowdown_beside(a, [b])) for a in jobs for b in jobs]


def suggestions(jobs: Sequence[JobProfile]) -> list[Suggestion]:
    """What the paper's rule (D: least with most pressure) and minimum-weight matching would pair."""
    sizes = (combinations(range(len(jobs)), size) for size in (1, 2))
    costs = {group: node_s([jobs[member] for member in group]) for group in chain.from_iterable(sizes)}
    choices = {
        "rule": [
            group.members
            for group in by_probes([pressure_of(job) or Pressure(memory_percent=0.0) for job in jobs])
        ],
        "matching": partition(len(jobs), costs),
    }
    alone_s = sum(costs[member,] for member in range(len(jobs)))
    return [
        Suggestion(
            rule,
            tuple(tuple(jobs[member].name for member in group) for group in groups),
            alone_s,
            sum(costs[tuple(sorted(group))] for group in groups),
        )
        for rule, groups in choices.items()
    ]


def node_s(jobs: Sequence[JobProfile]) -> float:
    """How long one job, or two that begin together, have the node; the longer one ends undisturbed."""
    alone = [run.value if (run := job.need("run_s")) else 0.0 for job in jobs]
    if len(jobs) == 1:
        return alone[0]
    found = [slowdown_beside(jobs[0], [jobs[1]]), slowdown_beside(jobs[1], [jobs[0]])]
    if None in found:
        return sum(alone)  # nothing is known: no gain is promised
    factors = [max(one.value, 1.0) for one in found if one is not None]
    (short, f_short), (long, f_long) = sorted(
        zip(alone, factors, strict=True), key=lambda pair: pair[0] * pair[1]
    )
    first_s = short * f_short
    return first_s + long - first_s / f_long
