"""Visits of what is measured: in random order, until every interval is narrow or the time is up.

A machine is faster in one second than in the next, so nothing is measured in one go. Points take turns: first
those with the fewest visits, in random order among them, so that a slow second falls on all alike.

- Each point gets its least number of visits however late, because a profile without a number is worth less.
- Then a visit is made only if it should end in time. A long one does not keep shorter ones from theirs.
- A point is done when the interval of its values is narrow, or after its most visits.

::

    for point in Visits(points, run.rng, run.left_s, target=0.02):
        point.values.append(measure(point.key))

The body of the loop is the visit. An error or Ctrl-C there ends the loop, and the points keep what they have.
A point that cannot be measured any more is removed from ``points``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Generic, TypeVar

from profiles.stats import half_width

if TYPE_CHECKING:
    import numpy as np

    from probes.run import Run

K = TypeVar("K")
NAMED = 3  # of the points that stayed wide


@dataclass(eq=False)
class Point(Generic[K]):
    """Something to measure, and what its visits gave so far.

    Attributes:
        key: what it is.
        least: visits however late. most: visits after which it is done.
        least_in_vain: visits however late as long as it has no value.
        cost_s: expected seconds of a visit: as estimated (None: unknown), then the shortest so far, because
            one interruption must not starve it.
        values: one of each visit of use; the interval is theirs.
        count: visits so far, with the one under way.
    """

    key: K
    least: int = 1
    most: float = inf
    least_in_vain: int = 0
    cost_s: float | None = None
    values: list[float] = field(default_factory=list)
    count: int = 0

    @property
    def due(self) -> bool:
        """True if a visit is made however late it is."""
        return self.count < (self.least if self.values else max(self.least, self.least_in_vain))


@dataclass
class Visits(Generic[K]):
    """Points that take turns; iterate over it once.

    Attributes:
        left_s: seconds left. Called once before each visit and after the last, also to time the visits.
        target: half-width of the median's interval, relative to the median, at which a point is done; None:
            its interval does not matter. least_values: values before which none is narrow.
        whole: turns are whole: all points or none, until all are narrow.
        first_in_order: the first turn goes in the order of the points.
        late_s: seconds after the end until which a point without a visit is begun.
        possible: whether a point can be visited now.
    """

    points: list[Point[K]]
    rng: np.random.Generator
    left_s: Callable[[], float] = lambda: 0.0
    target: float | None = None
    least_values: int = 0
    whole: bool = False
    first_in_order: bool = False
    late_s: float = 0.0
    possible: Callable[[K], bool] = lambda key: True
    spent_s: float = field(default=0.0, init=False)

    def __iter__(self) -> Iterator[Point[K]]:
        left_s = self.left_s()
        while (point := self._choose(left_s)) is not None:
            point.count += 1
            yield point
            before_s, left_s = left_s, self.left_s()
            took_s = before_s - left_s
            self.spent_s += took_s
            point.cost_s = took_s if point.cost_s is None else min(took_s, point.cost_s)

    @property
    def wide(self) -> list[Point[K]]:
        """The points whose interval is wider than the target, the widest first."""
        if self.target is None:
            return []
        widths = {point: half_width(point.values) for point in self.points}
        return sorted((p for p in self.points if widths[p] > self.target), key=lambda p: -widths[p])

    def describe_wide(self, title: Callable[[K], str]) -> str:
        """Name the widest points with their half-widths; empty where none is wide."""
        wide = self.wide
        names = [f"{title(p.key)} ({_width(p.values)})" for p in wide[:NAMED]]
        return ", ".join(names) + (f", and {len(wide) - NAMED} more" if len(wide) > NAMED else "")

    def say_wide(self, run: Run, title: Callable[[K], str]) -> None:
        """Report what stayed wide, where no later round narrows it."""
        if run.settings.quick and (words := self.describe_wide(title)):
            what, reason = f"medians within {self.target:.0%}", f"the time was up before: {words}"
            run.absent(what, reason, "measure longer: leave out --quick")

    def _choose(self, left_s: float) -> Point[K] | None:
        points = [point for point in self.points if self.possible(point.key)]
        if self.whole:
            begins = len({point.count for point in points}) == 1
            if begins and not self._goes_on(points, left_s):
                return None
        else:
            points = [p for p in points if not self._done(p) and (p.due or self._in_time(p, left_s))]
        if not points:
            return None
        first = min(points, key=_turn)
        if self.first_in_order and not first.count:
            return first
        turn = [point for point in points if _turn(point) == _turn(first)]
        return turn[int(self.rng.integers(len(turn)))]

    def _goes_on(self, points: Sequence[Point[K]], left_s: float) -> bool:
        """Tell whether another whole turn is due, or of use and in time if as long as those before."""
        if all(map(self._done, points)):
            return False
        return any(point.due for point in points) or self.spent_s / max(points[0].count, 1) <= left_s

    def _in_time(self, point: Point[K], left_s: float) -> bool:
        return (point.cost_s or 0.0) <= left_s + (0.0 if point.count else self.late_s)

    def _done(self, point: Point[K]) -> bool:
        if point.count >= point.most or point.due or self.target is None:
            return point.count >= point.most
        return len(point.values) >= self.least_values and half_width(point.values) <= self.target


def window_s(share_s: float, overhead_s: float, bounds: tuple[float, float]) -> float:
    """Choose the length of a window: the ``share_s`` of a visit without its overhead, within ``bounds``."""
    return min(max(share_s - overhead_s, bounds[0]), bounds[1])


def say_apart(run: Run, title: str, count: int, verb: str = "compute") -> None:
    """Report a point whose cores were never at work at the same time."""
    reason = f"in none of {count} tries did the cores {verb} at the same time: they are taken"
    run.absent(title, reason, "profile while nothing else runs")


def _turn(point: Point[K]) -> tuple[bool, int]:
    return not point.due, point.count


def _width(values: Sequence[float]) -> str:
    width = half_width(values)
    return f"±{width:.1%}" if width < inf else "too few values"
