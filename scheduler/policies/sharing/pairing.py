"""Groups of jobs that share nodes: by the paper's rule, all pairings, the best partition; suggestions.

All are pure functions over a list of programs (one entry a job), or of job profiles, in which the index
names the job. A ``Grouping`` holds each job in exactly one ``JobGroup``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, combinations, combinations_with_replacement
from typing import NamedTuple

import numpy as np

from profiles.jobs import JobProfile
from profiles.models import Prediction
from profiles.models.contention import slowdown_beside
from scheduler.model.interference import FAR, NEAR, PACKED, SPREAD, Pressure, Slowdowns
from scheduler.prediction.profiles import pressure_of

HIGH_PERCENT = 10.0  # a program with that much pressure on the network (near core) harms those that
TALKS_PERCENT = 5.0  # spend so much of their time communicating
Grouping = list["JobGroup"]


class JobGroup(NamedTuple):
    """Jobs on the same nodes, by index, and the binding of each; a single job is alone."""

    members: tuple[int, ...]
    bindings: tuple[str, ...]


def excluded(a: Pressure, b: Pressure, high: float = HIGH_PERCENT, talks: float = TALKS_PERCENT) -> bool:
    """Tell if one presses on the network and the other communicates much (step 2 of the paper's rule)."""
    return (a.near_percent >= high and b.communication_percent >= talks) or (
        b.near_percent >= high and a.communication_percent >= talks
    )


def by_probes(pressures: Sequence[Pressure]) -> Grouping:
    """Pair least with most pressure on memory, unless communication excludes them (the paper's rule).

    If all candidates are excluded, the first is taken nevertheless, one near and one far. Of an odd number
    the middle one is alone.
    """
    groups = ends_inwards(
        [p.memory_percent for p in pressures], lambda a, b: excluded(pressures[a], pressures[b])
    )
    return [JobGroup(group, rule_bindings([pressures[job] for job in group])) for group in groups]


def by_counters(pressures: Sequence[Pressure]) -> Grouping:
    """Pair least with most mean memory accesses by the processor's counters (the paper's comparison)."""
    groups = ends_inwards([p.dram_per_ms for p in pressures], lambda a, b: False)
    return [JobGroup(group, (SPREAD, SPREAD) if len(group) == 2 else (PACKED,)) for group in groups]


def ends_inwards(keys: Sequence[float], forbidden: Callable[[int, int], bool]) -> list[tuple[int, ...]]:
    """Pair jobs from both ends of the order of ``keys`` inwards; of an odd number the middle is alone.

    Forbidden partners are skipped; if all are forbidden, the first is taken.
    """
    left = sorted(range(len(keys)), key=lambda job: keys[job])
    groups: list[tuple[int, ...]] = []
    while len(left) > 1:
        low = left.pop(0)
        high = next((job for job in reversed(left) if not forbidden(low, job)), left[-1])
        left.remove(high)
        groups.append((low, high))
    return groups + [(job,) for job in left]


def rule_bindings(pressures: Sequence[Pressure]) -> tuple[str, ...]:
    """Bind jobs of the same nodes by the paper's rule: alone packed, excluded pairs apart, else spread."""
    if len(pressures) == 1:
        return (PACKED,)
    if len(pressures) == 2 and excluded(pressures[0], pressures[1]):
        return apart(pressures[0], pressures[1])
    return (SPREAD,) * len(pressures)


def apart(a: Pressure, b: Pressure) -> tuple[str, str]:
    """Put the job that communicates more (or the first) near to the network card, the other far."""
    return (NEAR, FAR) if a.communication_percent >= b.communication_percent else (FAR, NEAR)


def bindings_of(size: int) -> tuple[tuple[str, ...], ...]:
    """List how many jobs can lie on the same nodes: alone packed; else all spread; two also near and far."""
    if size == 1:
        return ((PACKED,),)
    spread = (SPREAD,) * size
    return (spread, (NEAR, FAR), (FAR, NEAR)) if size == 2 else (spread,)


def others(programs: Sequence[str], member: int) -> tuple[str, ...]:
    """Return all programs but that one."""
    return (*programs[:member], *programs[member + 1 :])


def factors(programs: Sequence[str], bindings: Sequence[str], slowdowns: Slowdowns) -> list[float]:
    """Return run time on the same nodes / run time on whole nodes of each program."""
    return [
        slowdowns.factor(program, binding, others(programs, member))
        for member, (program, binding) in enumerate(zip(programs, bindings, strict=True))
    ]


def best_bindings(programs: Sequence[str], slowdowns: Slowdowns) -> tuple[tuple[str, ...], float]:
    """Choose the bindings of least total loss; return them and the loss, sum of (factor - 1)."""
    return min(
        ((b, sum(factors(programs, b, slowdowns)) - len(programs)) for b in bindings_of(len(programs))),
        key=lambda option: option[1],
    )


def placed(choice: Grouping, programs: Sequence[str], slowdowns: Slowdowns) -> Grouping:
    """Put the same groups under the best bindings."""
    return [
        JobGroup(g.members, best_bindings([programs[m] for m in g.members], slowdowns)[0]) for g in choice
    ]


def gain_percent(choice: Grouping, programs: Sequence[str], slowdowns: Slowdowns) -> float:
    """Average over the jobs what they save of their run times on whole nodes, in percent."""
    lost = sum(
        sum(factors([programs[m] for m in g.members], g.bindings, slowdowns)) - len(g.members) for g in choice
    )
    return -100.0 * lost / len(programs)


def pairings(programs: Sequence[str]) -> Iterator[tuple[tuple[str, str], ...]]:
    """List each different way to pair an even number of jobs; jobs of one program are alike."""
    if len(programs) % 2:
        raise ValueError("an odd number of jobs cannot be paired")
    return iter(sorted(_pairings(tuple(sorted(programs)))))


def _pairings(programs: tuple[str, ...]) -> set[tuple[tuple[str, str], ...]]:
    if not programs:
        return {()}
    first, rest = programs[0], programs[1:]
    pairings = set()
    for place in {rest.index(other) for other in rest}:
        for more in _pairings(rest[:place] + rest[place + 1 :]):
            pairings.add(tuple(sorted(((first, rest[place]), *more))))
    return pairings


def best_choice(programs: Sequence[str], slowdowns: Slowdowns, most: int = 2) -> Grouping:
    """Choose groups of at most ``most`` jobs and their bindings with the least total loss.

    No job shares at a predicted loss, because being alone is among the choices.
    """
    options = {
        members: best_bindings([programs[m] for m in members], slowdowns)
        for size in range(1, most + 1)
        for members in combinations(range(len(programs)), size)
    }
    costs = {members: loss for members, (_, loss) in options.items()}
    return [JobGroup(members, options[members][0]) for members in partition(len(programs), costs)]


def partition(count: int, costs: Mapping[tuple[int, ...], float]) -> list[tuple[int, ...]]:
    """Choose the groups of least total cost that hold each of ``count`` jobs exactly once.

    With groups of two at most this is minimum-weight perfect matching; beyond, set partitioning. Solved
    exactly by HiGHS: about 5 ms for pairs of 16 jobs, 40 ms for groups of up to 3.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csc_array

    groups = list(costs)
    if all(len(group) == 1 for group in groups):
        return groups
    sizes = [len(group) for group in groups]
    columns = np.repeat(np.arange(len(groups)), sizes)
    rows = np.fromiter((member for group in groups for member in group), dtype=np.int64, count=sum(sizes))
    holds = csc_array((np.ones(len(rows)), (rows, columns)), shape=(count, len(groups)))
    result = milp(
        np.fromiter(costs.values(), dtype=np.float64),
        integrality=np.ones(len(groups)),
        bounds=Bounds(0, 1),
        constraints=LinearConstraint(holds, 1, 1),
        options={"mip_rel_gap": 0.0},
    )
    if result.x is None:
        raise ValueError(f"no choice of these groups holds each of {count} jobs once")
    return [group for group, taken in zip(groups, result.x, strict=True) if taken > 0.5]


def least_time(
    work_s: Mapping[str, float],
    slowdowns: Slowdowns,
    most: int = 2,
    alone: Mapping[str, float] | None = None,
) -> tuple[float, dict[str, float]]:
    """Compute the least seconds of a set of nodes for the work, and the worth of each program's second.

    The work is run time on whole nodes, by program; a set is ``most`` times as many nodes as a job alone
    needs, unless ``alone`` says what part of a set that is (a job too small for whole nodes takes all of
    it). A linear program over how long each group of programs runs side by side: no schedule of jobs in
    plenty is shorter, as partners may change at any time here. The dual prices say what part of the set a
    second of a program's work deserves: 1 / ``most`` where being alone is no loss, less for a program that
    others like to have beside them.
    """
    from scipy.optimize import linprog

    names = [program for program, seconds in work_s.items() if seconds > 0]
    if not names:
        return 0.0, {}
    columns, costs = [], []
    for size in range(1, most + 1):
        for group in combinations_with_replacement(range(len(names)), size):
            programs = [names[member] for member in group]
            for bindings in bindings_of(size):
                column = np.zeros(len(names))
                for member, factor in zip(group, factors(programs, bindings, slowdowns), strict=True):
                    column[member] += 1.0 / factor
                columns.append(column)
                costs.append(1.0 if size > 1 else (alone or {}).get(programs[0], 1.0 / most))
    result = linprog(costs, A_eq=np.array(columns).T, b_eq=[work_s[name] for name in names])
    return float(result.fun), dict(zip(names, result.eqlin.marginals.tolist(), strict=True))


# -- suggestions of jobs that should share a node, by their job profiles -----------------------------------
#
# A job alone holds the node for its run time; sharing jobs hold it until all have ended. Jobs that were
# measured over hosts share the hosts and the network between them, and the time is that of all hosts
# together.


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
    def factor(member: int, beside: tuple[int, ...]) -> float | None:
        slowdown = slowdown_beside(jobs[member], [jobs[other] for other in beside], network)
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
        slowdowns = {m: factor(m, tuple(other for other in left if other != m)) for m in left}
        known = {m: f for m, f in slowdowns.items() if f is not None}
        if len(known) < len(left):
            return sum(alone_s.values())
        first = min(left, key=lambda m: left[m] * known[m])
        step = left[first] * known[first]
        total += step
        left = {m: max(rest - step / known[m], 0.0) for m, rest in left.items() if m != first}
    return total + sum(left.values())
