"""Region placement: what the counts allow finds places, jobs stay inside, few places change hands."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.engines.common.region_placement import RegionPlacement
from scheduler.model.events import Action, Event, Finished, Repartition, Start
from scheduler.model.jobs import Cluster, Job, Pool, Region
from scheduler.policies.base import View
from scheduler.policies.regions.regions import Regions, RegionsParameters
from scheduler.simulator.trace import Arrival
from tests.support.amounts import examples
from tests.support.scheduling.worlds import World, run

LINES = ("fcfs", "easy", "first-fit")


def layout(cut: int, sizes: Sequence[int]) -> tuple[Region, ...]:
    """Regions of these sizes; jobs of one unit belong to the first, those of two to the second, ..."""
    return tuple(Region(f"{cut}.{i}", size, i) for i, size in enumerate(sizes, 1))


class Books:
    """A coordinator's counts beside the jobs' places; the placement must agree."""

    def __init__(self, capacity: Sequence[int]) -> None:
        self.capacity, self.zones = list(capacity), RegionPlacement(capacity)
        self.regions: tuple[Region, ...] = ()
        self.cuts = 0
        self.jobs: dict[int, tuple[str, dict[int, int]]] = {}
        self.away: set[int] = set()

    def free(self, node: int) -> int:
        return self.capacity[node] - sum(where.get(node, 0) for _, where in self.jobs.values())

    def in_service(self) -> int:
        return sum(self.free(node) for node in range(len(self.capacity)) if node not in self.away)

    def used(self, region: str) -> int:
        return sum(sum(where.values()) for name, where in self.jobs.values() if name == region)

    def cut(self, sizes: Sequence[int]) -> None:
        self.cuts += 1
        self.regions = layout(self.cuts, sizes)
        self.zones.cut(self.regions)

    def start(self, job: int, region: str, units: int) -> None:
        """Start the job if the counts allow."""
        where = self.zones.place(region, units, self.away)
        assert sum(where.values()) == units, (where, self.zones.shares)
        assert all(node not in self.away and 0 < n <= self.free(node) for node, n in where.items())
        self.enter(job, region, where)

    def enter(self, job: int, region: str, where: dict[int, int]) -> None:
        self.jobs[job] = region, where
        self.zones.hold(job, region, where)

    def end(self, job: int) -> None:
        del self.jobs[job]
        self.zones.release(job)

    def restart(self, order: Sequence[int]) -> None:
        """Restart: the journal has regions and jobs; a file has the places of the regions."""
        self.zones = RegionPlacement(self.capacity, self.zones.rows())
        self.zones.cut(self.regions)
        for job in order:
            self.zones.hold(job, *self.jobs[job])

    def check(self) -> None:
        """Regions have the places that are theirs, and their jobs are on those."""
        for region in self.regions:
            assert (
                sum(self.zones.of(n).get(region.name, 0) for n in range(len(self.capacity))) == region.units
            )
        for node, capacity in enumerate(self.capacity):
            shares = self.zones.of(node)
            assert all(share > 0 for share in shares.values()) and sum(shares.values()) <= capacity
            assert self.zones.free[node] == self.free(node)
            for region in self.regions:
                there = sum(where.get(node, 0) for name, where in self.jobs.values() if name == region.name)
                assert there <= shares.get(region.name, 0), (node, region, shares)


@st.composite
def sizes_of(draw: st.DrawFn, total: int) -> list[int]:
    """One to three regions that have all, or some units less."""
    count = draw(st.integers(1, min(3, total)))
    inner = st.integers(1, max(1, total - 1))
    bars = sorted(draw(st.sets(inner, min_size=count - 1, max_size=count - 1)))
    sizes = [b - a for a, b in itertools.pairwise((0, *bars, total))]
    largest = sizes.index(max(sizes))
    sizes[largest] -= draw(st.integers(0, min(2, sizes[largest] - 1)))
    return sizes


@given(st.data())
def test_what_the_books_allow_is_placed_inside(data: st.DataObject) -> None:
    """Whatever came before: moves, jobs from before them, such as name no region, lost nodes, restarts."""
    draw = data.draw
    books = Books(draw(st.lists(st.integers(1, 4), min_size=1, max_size=5)))
    nodes = range(len(books.capacity))
    books.cut(draw(sizes_of(sum(books.capacity))))
    for number in range(draw(st.integers(1, 40))):
        what = draw(
            st.sampled_from(("start", "start", "start", "end", "cut", "away", "any", "paused", "restart"))
        )
        if what == "start":
            region = draw(st.sampled_from(books.regions))
            most = min(region.units - books.used(region.name), books.in_service())
            if most > 0:
                books.start(number, region.name, draw(st.integers(1, most)))
        elif what == "end" and books.jobs:
            books.end(draw(st.sampled_from(sorted(books.jobs))))
        elif what == "cut":
            books.cut(draw(sizes_of(sum(books.capacity))))
        elif what == "away":
            books.away ^= {draw(st.sampled_from(nodes))}
        elif what == "any":
            where = {node: draw(st.integers(0, books.free(node))) for node in nodes}
            books.enter(number, "", {node: units for node, units in where.items() if units})
        elif what == "paused":  # it goes on where it was, whoever has that now
            region = draw(st.sampled_from(books.regions))
            left, where = region.units - books.used(region.name), {}
            for node in nodes:
                where[node] = draw(st.integers(0, min(left, books.free(node))))
                left -= where[node]
            books.enter(number, region.name, {node: units for node, units in where.items() if units})
        elif what == "restart":
            books.restart(draw(st.permutations(sorted(books.jobs))))
        books.check()


def moved(before: Sequence[Sequence[int]], after: Sequence[Sequence[int]], capacity: Sequence[int]) -> int:
    """Count the places that have another owner ("none" counts as an owner)."""
    count = 0
    for old, new, units in zip(before, after, capacity, strict=True):
        width = max(len(old), len(new))
        was, now = ([*row, *[0] * (width - len(row))] for row in (old, new))
        was.append(units - sum(was))
        now.append(units - sum(now))
        count += sum(max(0, b - a) for a, b in zip(was, now, strict=True))
    return count


@settings(max_examples=examples(200))
@given(st.data())
def test_no_more_places_change_hands_than_in_the_best_of_all_layouts(data: st.DataObject) -> None:
    capacity = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    books = Books(capacity)
    books.cut(data.draw(sizes_of(sum(capacity))))
    for job in range(data.draw(st.integers(0, 3))):
        free = [node for node in range(len(capacity)) if books.free(node)]
        if free:
            books.enter(job, "", {data.draw(st.sampled_from(free)): 1})
    for _ in range(2):
        before, sizes = books.zones.rows(), data.draw(sizes_of(sum(capacity)))
        books.cut(sizes)
        rows = [
            [row for row in itertools.product(range(units + 1), repeat=len(sizes)) if sum(row) <= units]
            for units in capacity
        ]
        best = min(
            moved(before, one, capacity)
            for one in itertools.product(*rows)
            if [sum(column) for column in zip(*one, strict=True)] == sizes
        )
        assert moved(before, books.zones.rows(), capacity) == best


@given(st.integers(1, 4), st.integers(3, 8), st.data())
def test_nodes_stay_whole_where_they_can(units: int, count: int, data: st.DataObject) -> None:
    books = Books([units] * count)
    for _ in range(4):
        books.cut([units * size for size in data.draw(sizes_of(count))])
        assert all(len(books.zones.of(node)) <= 1 for node in range(count))


def test_regions_lie_one_after_the_other() -> None:
    books = Books([4, 4, 4])
    books.cut([7, 5])
    assert books.zones.rows() == [[4, 0], [3, 1], [0, 4]]
    books.cut([3, 9])
    assert books.zones.rows() == [[3, 1], [0, 4], [0, 4]]


def test_a_job_from_before_gives_its_places_to_the_new_owner_when_it_ends() -> None:
    """Four nodes, two of them region 1's; it shrinks to one while both are busy."""
    books = Books([1, 1, 1, 1])
    books.cut([2, 2])
    books.start(1, "1.1", 1)
    books.start(2, "1.1", 1)
    books.cut([1, 3])
    (given,) = [node for node in (0, 1) if "2.2" in books.zones.of(node)]
    books.start(3, "2.2", 2)
    assert set(books.jobs[3][1]) == {2, 3}
    books.end(1 + given)
    books.start(4, "2.2", 1)
    assert books.jobs[4][1] == {given: 1}
    books.check()


@st.composite
def crowds(draw: st.DrawFn) -> World:
    """Many small jobs on a machine that has room for two or three regions, and waits."""
    units, now, arrivals = draw(st.integers(8, 24)), 0, []
    for number in range(1, draw(st.integers(5, 25)) + 1):
        now += draw(st.sampled_from((0, 0, 1, 3)))
        run_s = draw(st.integers(1, 15))
        size = draw(st.sampled_from((1, 1, 2, 3)))
        arrivals.append(Arrival(Job(number, now, size, run_s + draw(st.sampled_from((0, 5)))), run_s))
    return World(Cluster((Pool("node", units),)), tuple(arrivals))


class Fenced(Regions):
    """The policy, with each of its starts placed."""

    books: Books
    moves = 0  # from several regions to others

    def decide(self, view: View, event: Event) -> Sequence[Action]:
        if isinstance(event, Finished):
            self.books.end(event.job.id)
        actions = super().decide(view, event)
        for action in actions:
            if isinstance(action, Repartition):
                self.moves += len(self.books.regions) > 1
                self.books.regions = action.regions
                self.books.zones.cut(action.regions)
            elif isinstance(action, Start):
                self.books.start(action.job_id, action.placement.region, action.placement.units)
        self.books.check()
        return actions


@pytest.mark.slow
def test_every_start_of_the_policy_finds_its_places() -> None:
    """While regions move, and when it begins anew from the cluster state alone."""
    seen: Counter[str] = Counter()

    @settings(max_examples=150)
    @given(
        world=crowds(),
        interval=st.integers(2, 9),
        target=st.integers(0, 4),
        inside=st.sampled_from(LINES),
        data=st.data(),
    )
    def check(world: World, *, interval: int, target: int, inside: str, data: st.DataObject) -> None:
        policy = Fenced(RegionsParameters(interval_s=interval, target_s=target, inside=inside))  # type: ignore[arg-type]
        capacity, left = [], world.cluster.units
        while left:
            capacity.append(data.draw(st.integers(1, min(4, left))))
            left -= capacity[-1]
        policy.books = Books(capacity)
        again = data.draw(st.sampled_from((2, 3, 999)))

        def look(view: View) -> None:
            if view.upcoming is None and int(view.now) % again == 0:
                policy.begin(view)
                policy.books.restart(list(view.running))
                policy.books.check()

        outcomes, _ = run(policy, world, look)
        seen["jobs"] += len(outcomes)
        seen["moves"] += policy.moves
        seen["moves where restarted"] += policy.moves * (again < 5)

    check()
    assert seen["jobs"] > 500 and seen["moves"] > 50 and seen["moves where restarted"] > 10, seen
