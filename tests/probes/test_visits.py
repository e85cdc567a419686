"""Visits of points that cost made-up seconds of a virtual clock, with seeded values."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import numpy as np
import pytest

from probes.run import Event, Run
from probes.visits import Point, Visits
from profiles.records import Settings
from profiles.stats import half_width


class Budget:
    """A virtual clock that runs down."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def left_s(self) -> float:
        return self.seconds

    def spend(self, seconds: float) -> None:
        self.seconds -= seconds


def points(*keys: str, least: int = 1, most: float = inf) -> list[Point[str]]:
    return [Point(key, least=least, most=most) for key in keys]


def order(visits: Visits[str], budget: Budget, cost_s: Callable[[str], float] = lambda key: 1.0) -> list[str]:
    """Visit all; the keys in the order of the visits."""
    keys = []
    for visit in visits:
        keys.append(visit.key)
        budget.spend(cost_s(visit.key))
    return keys


def rng(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_each_point_gets_its_least_before_any_gets_more() -> None:
    budget = Budget(0.0)
    needed, other = points("a", "b", "c", least=3), points("d", "e", least=0)
    visits = Visits([*needed, *other], rng(), budget.left_s)
    keys = order(visits, budget)
    assert sorted(keys) == sorted("abc" * 3)  # however late, and nothing else
    budget = Budget(20.0)
    keys = order(
        Visits([*points("a", "b", least=3), *points("d", "e", least=0)], rng(), budget.left_s), budget
    )
    assert sorted(keys[:6]) == sorted("ab" * 3)
    assert all(sorted(keys[6 + i : 8 + i]) == ["d", "e"] for i in (0, 2, 4))
    assert len(keys) == 20 and budget.seconds == 0


def test_turns_are_in_random_order_by_the_seed() -> None:
    def keys(seed: int, *, first_in_order: bool = False) -> list[str]:
        visits = Visits(points(*"abcdefgh", most=4), rng(seed), first_in_order=first_in_order)
        return order(visits, Budget(0.0))

    assert keys(1) == keys(1) != keys(2)
    turns = [keys(1)[begin : begin + 8] for begin in range(0, 32, 8)]
    assert all(sorted(turn) == list("abcdefgh") for turn in turns)
    assert len({tuple(turn) for turn in turns}) == 4
    ordered = keys(1, first_in_order=True)
    assert ordered[:8] == list("abcdefgh") != ordered[8:16]


def test_visits_end_when_all_are_narrow() -> None:
    budget, noise = Budget(1e6), rng(7)
    visits = Visits(points("steady", "wild"), rng(), budget.left_s, target=0.02, least_values=10)
    spread = {"steady": 0.001, "wild": 0.1}
    for visit in visits:
        visit.values.append(float(noise.normal(1.0, spread[visit.key])))
        budget.spend(1.0)
    steady, wild = visits.points
    assert steady.count == 10 < wild.count
    assert half_width(wild.values) <= 0.02 < half_width(wild.values[:-1])
    assert not visits.wide and visits.describe_wide(str) == ""


def test_visits_end_at_the_budget_and_what_stayed_wide_is_named() -> None:
    budget, noise, events = Budget(60.0), rng(7), list[Event]()
    visits = Visits(points(*"abcde", "narrow"), rng(), budget.left_s, target=0.02)
    for visit in visits:
        visit.values.append(1.0 if visit.key == "narrow" else float(noise.normal(1.0, 0.1)))
        budget.spend(1.0)
    assert budget.seconds == 0
    assert {point.key for point in visits.wide} == set("abcde")
    widths = [half_width(point.values) for point in visits.wide]
    assert widths == sorted(widths, reverse=True)
    first = visits.wide[0].key
    assert visits.describe_wide(str).startswith(f"{first} (±{widths[0]:.1%}), ")
    assert visits.describe_wide(str).endswith(", and 2 more")
    for quick, count in ((True, 1), (False, 0)):  # later rounds of a full profile narrow them
        visits.say_wide(Run("memory", Settings(quick=quick), events.append), str)
        assert len(events) == count
        events.clear()
    few = Visits(points("a"), rng(), target=0.02)
    assert few.describe_wide(str) == "a (too few values)"


def test_a_long_visit_is_left_out_and_shorter_ones_fill_the_time() -> None:
    budget = Budget(20.0)
    keys = order(
        Visits(points("long", "short"), rng(), budget.left_s), budget, lambda key: {"long": 8.0}.get(key, 1.0)
    )
    assert keys.count("long") == 2 and keys.count("short") == 4
    estimated, budget = Point("long", least=0, cost_s=30.0), Budget(20.0)
    visits = Visits([estimated, *points("short")], rng(), budget.left_s)
    assert set(order(visits, budget)) == {"short"} and estimated.count == 0


def test_one_interruption_does_not_starve_a_point() -> None:
    budget, costs = Budget(20.0), iter([12.0, *[1.0] * 8])  # 12 s do not fit a second time
    visits = Visits([Point("a", cost_s=1.0)], rng(), budget.left_s)
    assert len(order(visits, budget, lambda _: next(costs))) == 9


def test_the_first_visit_may_be_late_by_so_much() -> None:
    for late_s, count in ((0.0, 0), (3.0, 1)):
        visits = Visits(points("a", "b", least=0), rng(), lambda: -2.0, late_s=late_s)
        assert [point.key for point in visits].count("a") == count


def test_a_point_without_a_value_is_tried_again_however_late() -> None:
    budget, point = Budget(0.0), Point("a", least=2, least_in_vain=4)
    assert len(order(Visits([point], rng(), budget.left_s), budget)) == 4
    point = Point("a", least=2, least_in_vain=4)
    for visit in Visits([point], rng(), lambda: -float(point.count)):
        visit.values.append(1.0)
    assert point.count == 2


def test_whole_turns_end_together() -> None:
    budget = Budget(34.0)
    visits = Visits(points(*"abc", least=2, most=9), rng(), budget.left_s, whole=True)
    keys = order(visits, budget, lambda key: 2.0)
    assert len(keys) == 15 and budget.seconds == 4.0  # a sixth turn of 6 s would end too late
    assert all(sorted(keys[begin : begin + 3]) == list("abc") for begin in range(0, 15, 3))
    budget = Budget(0.0)
    assert len(order(Visits(points("a", "b", least=2), rng(), budget.left_s, whole=True), budget)) == 4
    visits = Visits(points("narrow", "wide", most=8), rng(), target=0.05, whole=True)
    for visit in visits:
        visit.values.append(1.0 if visit.key == "narrow" else float(visit.count))
    assert [point.count for point in visits.points] == [8, 8]


def test_a_point_with_a_visit_before_waits_for_the_others() -> None:
    """Runs under caps: the first of them was without a cap, to choose the caps."""
    early, *rest = points("early", "a", "b", least=2, most=2)
    early.count = 1
    keys = order(Visits([early, *rest], rng(), whole=True), Budget(0.0))
    assert sorted(keys[:2]) == ["a", "b"] and sorted(keys[2:]) == ["a", "b", "early"]


def test_points_that_are_lost_or_impossible_are_left_out() -> None:
    visits = Visits(points(*"abc", most=3), rng(), possible=lambda key: key != "c")
    for visit in visits:
        if visit.key == "a":
            visits.points.remove(visit)
    assert [(point.key, point.count) for point in visits.points] == [("b", 3), ("c", 0)]


def test_an_interrupt_keeps_what_was_measured() -> None:
    visits = Visits(points("a", "b"), rng())
    with pytest.raises(KeyboardInterrupt):
        for visit in visits:
            visit.values.append(1.0)
            if visit.count == 3:
                raise KeyboardInterrupt
    assert sorted(len(point.values) for point in visits.points) in ([2, 3], [3, 3])
