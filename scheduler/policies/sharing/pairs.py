"""Suggestions of jobs that should share a node, by their job profiles.

A job alone holds the node for its run time; sharing jobs hold it until all have ended. Jobs that were
measured over hosts share the hosts and the network between them, and the time is that of all hosts
together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, combinations

from profiles.jobs import JobProfile
from profiles.models import Prediction
from profiles.models.contention import slowdown_beside
from scheduler.model.interference import Pressure
from scheduler.policies.sharing.pairing import by_probes, excluded, partition, rule_bindings
from scheduler.prediction.profiles import pressure_of


@dataclass(frozen=True)
class Direction:
    """Predicted slow-down of one job beside another; None: not measured."""

    job: str
    beside: str
    predicted: Prediction | None


@dataclass(frozen=True)
class Suggestion:
    """Groups of jobs, by name, and their gain.

    Attributes:
        groups: several names each, or one name of a job that is better alone.
        alone_s, paired_s: how long they hold the node one after the other, and in these groups.
        excluded: pairs that the paper's rule skipped because of the network.
        bindings: placement of the jobs of each group by the paper's rule.
    """

    rule: str
    groups: tuple[tuple[str, ...], ...]
    alone_s: float
    paired_s: float
    excluded: tuple[tuple[str, str], ...] = ()
    bindings: tuple[tuple[str, ...], ...] = ()

    @property
    def gain_percent(self) -> float:
        """Share of the time alone that is saved."""
        return 100 * (1 - self.paired_s / self.alone_s) if self.alone_s > 0 else 0.0


def over_network(jobs: Sequence[JobProfile]) -> bool:
    """Tell if all were measured over hosts, because only then their effect on each other is known there."""
    return bool(jobs) and all(job.network is not None for job in jobs)


def directions(jobs: Sequence[JobProfile]) -> list[Direction]:
    """Predict every job beside every one, itself included."""
    network = over_network(jobs)
    return [Direction(a.name, b.name, slowdown_beside(a, [b], network)) for a in jobs for b in jobs]


def suggestions(jobs: Sequence[JobProfile], per_node: int = 2, cores: int | None = None) -> list[Suggestion]:
    """Group jobs by the paper's rule (D) and by minimum-weight matching.

    Args:
        per_node: most jobs on a node; the rule makes pairs.
        cores: of a node; groups that need more are not made. None: not known.
    """
    network = over_network(jobs)
    sizes = (combinations(range(len(jobs)), size) for size in range(1, per_node + 1))
    groups = [
        group
        for group in chain.from_iterable(sizes)
        if len(group) == 1 or cores is None or sum(jobs[member].cores for member in group) <= cores
    ]
    costs = _costs(jobs, groups, network)
    pressures = [pressure_of(job) or Pressure(memory_percent=0.0) for job in jobs]
    ruled = [tuple(sorted(group.members)) for group in by_probes(pressures)]
    # A pair that has no room stays two jobs alone.
    ruled = [part for group in ruled for part in ([group] if group in costs else [(m,) for m in group])]
    passed_over = tuple(
        (jobs[a].name, jobs[b].name)
        for a, b in combinations(range(len(jobs)), 2)
        if excluded(pressures[a], pressures[b])
    )
    alone_s = sum(costs[member,] for member in range(len(jobs)))
    return [
        Suggestion(
            rule,
            tuple(tuple(jobs[member].name for member in group) for group in chosen),
            alone_s,
            sum(costs[group] for group in chosen),
            passed_over if rule == "rule" else (),
            tuple(rule_bindings([pressures[member] for member in group]) for group in chosen),
        )
        for rule, chosen in (("rule", ruled), ("matching", partition(len(jobs), costs)))
    ]


def _costs(
    jobs: Sequence[JobProfile], groups: Sequence[tuple[int, ...]], network: bool
) -> dict[tuple[int, ...], float]:
    """Compute the node seconds of each group."""

    @cache
    def factor(member: int, others: tuple[int, ...]) -> float | None:
        slowdown = slowdown_beside(jobs[member], [jobs[other] for other in others], network)
        return None if slowdown is None else max(slowdown.value, 1.0)

    runs = [job.need("run_s") for job in jobs]
    alone_s = [run.value if run else 0.0 for run in runs]
    return {group: together_s({member: alone_s[member] for member in group}, factor) for group in groups}


def node_s(jobs: Sequence[JobProfile]) -> float:
    """Predict how long jobs that begin together have the node; those left go on less disturbed."""
    whole = tuple(range(len(jobs)))
    return _costs(jobs, [whole], over_network(jobs))[whole]


def together_s(alone_s: Mapping[int, float], factor: Callable[[int, tuple[int, ...]], float | None]) -> float:
    """Predict how long jobs that begin together have the node.

    Args:
        alone_s: run time of each.
        factor: slow-down of one beside others; None: not known, no gain is promised.
    """
    left, total = dict(alone_s), 0.0
    while len(left) > 1:
        factors = {m: factor(m, tuple(other for other in left if other != m)) for m in left}
        known = {m: f for m, f in factors.items() if f is not None}
        if len(known) < len(left):
            return sum(alone_s.values())
        first = min(left, key=lambda m: left[m] * known[m])
        step = left[first] * known[first]
        total += step
        left = {m: max(rest - step / known[m], 0.0) for m, rest in left.items() if m != first}
    return total + sum(left.values())
