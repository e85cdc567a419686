"""The rule that cuts regions, by hand and from the paper's table 3; the policy against brute forces."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from profiles.errors import BadInput
from scheduler.model.events import Repartition, Start, Timer
from scheduler.model.jobs import Cluster, Job, Placement, Pool, Region, Stage
from scheduler.model.state import ClusterState
from scheduler.policies.base import Policy, View
from scheduler.policies.regions.regions import (
    PastWork,
    RegionLayout,
    Regions,
    RegionsParameters,
    layout,
    region_bounds,
    region_of,
    region_sizes,
)
from scheduler.policies.registry import create
from scheduler.simulator.trace import Arrival
from tests.support.amounts import examples
from tests.support.brute import classic as brute
from tests.support.scheduling.schedule_audit import audit, starts
from tests.support.scheduling.worlds import World, run

MANY = settings(max_examples=examples(150))

# Table 3 of the paper: bounds as printed (30 and 9/99 are rounding, see the digest's reading), sizes.
PRINTED = {
    2: ((30, 1000), (193, 9023)),
    3: ((9, 99, 1000), (19, 1081, 8116)),
    4: ((5, 31, 177, 1000), (11, 190, 1487, 7528)),
    5: ((3, 15, 63, 251, 1000), (7, 66, 636, 1252, 7255)),
}


def test_bounds_of_table_3() -> None:
    assert region_bounds(1000, 1) == (1000,)
    assert region_bounds(1000, 2) == (31, 1000)
    assert region_bounds(1000, 3) == (10, 100, 1000)
    assert region_bounds(1000, 4) == PRINTED[4][0]
    assert region_bounds(1000, 5) == PRINTED[5][0]
    assert region_bounds(10_000, 2) == (100, 10_000)  # the paper's example in words


@given(st.integers(1, 10**6), st.integers(1, 6), st.integers(1, 50))
def test_bounds_are_the_largest_below_the_geometric_ones(hi: int, k: int, lo: int) -> None:
    lo = min(lo, hi)
    bounds = region_bounds(hi, k, lo)
    assert bounds[-1] == hi and list(bounds) == sorted(set(bounds)) and bounds[0] >= lo
    exact = [lo ** (k - i) * hi**i for i in range(1, k + 1)]
    assert set(bounds) == {
        max(b for b in (round(e ** (1 / k)) + d for d in (-1, 0, 1)) if b**k <= e) for e in exact
    }


@pytest.mark.parametrize("k", PRINTED)
def test_sizes_of_table_3(k: int) -> None:
    """Work in proportion to the printed sizes gives them back; one region was raised to its least."""
    bounds, sizes = PRINTED[k]
    raised = [size == 2 * bound + 1 for size, bound in zip(sizes, bounds, strict=True)]
    assert raised == [k > 2] + [False] * (k - 1)
    work = [0.1 if up else float(size) for up, size in zip(raised, sizes, strict=True)]
    assert region_sizes(work, bounds, 9216) == sizes


def test_sizes_by_hand() -> None:
    # 100 units, bounds 2, 10, 20. Shares 1, 19, 80: the first gets 5, then 95 are left for 19 : 80, that is
    # 18.2 and 76.8; 18.2 is less than 21, so the second gets 21 and the third 74.
    assert region_sizes([1.0, 19.0, 80.0], [2, 10, 20], 100) == (5, 21, 74)
    assert region_sizes([1.0, 1.0, 1.0], [2, 10, 20], 67) == (5, 21, 41)  # just large enough
    assert region_sizes([1.0, 1.0, 1.0], [2, 10, 20], 66) is None
    assert region_sizes([1.0, 1.0, 1.0], [1, 2, 3], 100) == (34, 33, 33)  # the odd one goes to the first
    assert region_sizes([0.0, 0.0], [1, 2], 9) == (4, 5)  # no work: halves, but five for the second
    assert region_sizes([0.0], [50], 64) == (64,)
    # The share is exactly twice the largest job: not larger, so one more. A hair above: also one more.
    assert region_sizes([20.0, 80.0], [10, 20], 100) == (21, 79)
    assert region_sizes([20.9, 79.1], [10, 20], 100) == (21, 79)


@given(st.data())
def test_sizes_are_whole_enough_and_in_proportion(data: st.DataObject) -> None:
    bounds = sorted(data.draw(st.sets(st.integers(1, 40), min_size=2, max_size=5)))
    units = data.draw(st.integers(1, 500))
    work = [data.draw(st.integers(0, 1000)) for _ in bounds]
    sizes = region_sizes(work, bounds, units)
    least = [2 * b + 1 for b in bounds]
    if sizes is None:
        assert sum(least) > units
        return
    assert sum(sizes) == units and all(s >= low for s, low in zip(sizes, least, strict=True))
    loose = [i for i in range(len(bounds)) if sizes[i] > least[i] and work[i]]
    shared, weight = sum(sizes[i] for i in loose), sum(work[i] for i in loose)
    if len(loose) == len(bounds):
        assert all(abs(sizes[i] - Fraction(work[i] * shared, weight)) < len(bounds) for i in loose)


def test_too_many_regions_become_fewer() -> None:
    jobs = [PastWork(1, 1.0), PastWork(4, 16.0)]
    assert layout(jobs, 4, 3, 9216).bounds == (1, 2, 4)
    assert layout(jobs, 4, 5, 14) == RegionLayout((2, 4), (5, 9))
    assert layout(jobs, 4, 5, 13) == RegionLayout((4,), (13,))
    assert layout([], 1, 5, 8) == RegionLayout((1,), (8,))  # jobs of one unit only: nothing to tell apart
    assert region_of(99, (2, 4)) == 1


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="3 regions for jobs of 5 to 4"):
        region_bounds(4, 3, 5)
    for text in ("interval_s=0", "most=0", "fixed=0", "inside=sjf", "bounds=3", "bounds=3/2,sizes=4/4"):
        with pytest.raises(BadInput):
            create(f"regions,{text}")
    with pytest.raises(BadInput, match="whole numbers: 31/1000"):
        create("regions,bounds=3/x,sizes=4/4")


@st.composite
def machines(draw: st.DrawFn, most: int = 14, exact: bool = False) -> World:
    """Large enough for two or three regions; jobs of whole seconds with limits that may be too long."""
    units = draw(st.integers(6, 30))
    now, arrivals = draw(st.integers(0, 5)), []
    for number in range(1, draw(st.integers(1, most)) + 1):
        now += draw(st.sampled_from((0, 0, 1, 2, 5)))
        run_s = draw(st.integers(1, 15))
        limit = run_s + (0 if exact else draw(st.sampled_from((0, 1, 10))))
        size = draw(st.one_of(st.integers(1, 3), st.integers(1, units // 3), st.integers(1, units)))
        arrivals.append(Arrival(Job(number, now, size, limit), run_s))
    return World(Cluster((Pool("node", units),)), tuple(arrivals))


@MANY
@given(machines(), st.integers(1, 4), st.integers(0, 9))
def test_regions_that_never_move_are_machines_of_their_own(world: World, bound: int, extra: int) -> None:
    total = world.cluster.units
    assume(total > bound + extra)
    sizes = (bound + extra, total - bound - extra)
    small = tuple(a for a in world.arrivals if a.job.units <= bound)
    large = tuple(a for a in world.arrivals if bound < a.job.units <= sizes[1])
    for inside, alone in (("fcfs", brute.fcfs), ("easy", brute.easy)):
        setting = RegionsParameters(inside=inside, bounds=f"{bound}/{total}", sizes=f"{sizes[0]}/{sizes[1]}")  # type: ignore[arg-type]
        expected = alone(sizes[0], small) | alone(sizes[1], large)
        outcomes, summary = run(Regions(setting), world)
        assert starts(outcomes) == expected, inside
        assert sum(summary.refused.values()) == len(world.arrivals) - len(expected)


class Brute:
    """Fcfs in regions that move, second by second; each running job is a list of (region, units)."""

    def __init__(self, world: World, interval: int, target: int) -> None:
        self.arrivals, self.units = world.arrivals, world.cluster.units
        self.interval, self.target = interval, target
        self.sizes, self.bounds = [self.units], [1]
        self.started: dict[int, int] = {}
        self.running: dict[int, list[tuple[int, int]]] = {}
        self.moves = 0

    def end_of(self, arrival: Arrival) -> int:
        return self.started[arrival.job.id] + brute.run_time(arrival)

    def free(self, region: int) -> int:
        held = sum(n for charges in self.running.values() for r, n in charges if r == region)
        return self.sizes[region] - held

    def region(self, arrival: Arrival) -> int:
        return region_of(arrival.job.units, self.bounds)

    def run(self) -> dict[int, int]:
        first = int(self.arrivals[0].job.submit_s)
        self.since, self.counted = first - first % self.interval, first - 1
        for second in range(first, brute.HORIZON):
            for arrival in self.arrivals:
                if arrival.job.id in self.running and self.end_of(arrival) <= second:
                    del self.running[arrival.job.id]
            if second > first and second % self.interval == 0:
                self.end_period(second)
            self.submit(second)
            for region in range(len(self.sizes)):
                for arrival in self.waiting(second):
                    if self.region(arrival) == region:
                        if arrival.job.units > self.free(region):
                            break
                        self.started[arrival.job.id] = second
                        self.running[arrival.job.id] = [(region, arrival.job.units)]
        return self.started

    def waiting(self, second: int) -> list[Arrival]:
        return [a for a in self.arrivals if a.job.submit_s <= second and a.job.id not in self.started]

    def submit(self, second: int) -> None:
        """Submit a job too large for its region, which cuts the machine before later jobs are here."""
        for arrival in self.arrivals:
            if arrival.job.submit_s == second:
                self.seen = [a for a in self.arrivals if a.job.id <= arrival.job.id]
                if arrival.job.units > self.sizes[self.region(arrival)]:
                    self.counted = second - 1
                    self.cut(len(self.sizes), second)

    def end_period(self, second: int) -> None:
        waits: dict[int, list[int]] = {}
        for a in self.arrivals:
            begun = self.started.get(a.job.id, second)
            if a.job.submit_s < second and (a.job.id not in self.started or begun > self.counted):
                waits.setdefault(self.region(a), []).append(begun - int(a.job.submit_s))
        wide = any(len(w) > 1 and max(w) - min(w) >= self.target for w in waits.values())
        self.seen = [a for a in self.arrivals if a.job.submit_s < second]
        self.cut(min(5, max(1, len(self.sizes) + (1 if wide else -1))), second)
        self.since, self.counted = second, second - 1

    def cut(self, count: int, second: int) -> None:
        work = []
        for a in self.seen:
            if a.job.submit_s >= self.since:
                over = a.job.id in self.started and self.end_of(a) <= second
                work.append(
                    PastWork(
                        a.job.units,
                        a.job.units * (brute.run_time(a) if over else int(a.job.estimate_s or 0)),
                    )
                )
        if not work:
            return
        new = layout(work, max(a.job.units for a in self.seen), count, self.units)
        if new == RegionLayout(tuple(self.bounds), tuple(self.sizes)):
            return
        self.moves += 1
        self.bounds, self.sizes = list(new.bounds), list(new.sizes)
        running = [a for a in self.arrivals if a.job.id in self.running]
        order = list(self.running)
        self.running = {}
        for a in sorted(running, key=lambda a: order.index(a.job.id)):
            home, left, charges = self.region(a), a.job.units, []
            for region in [home] + [r for r in range(len(self.sizes)) if r != home]:
                part = min(left, self.free(region) - sum(n for r, n in charges if r == region))
                left -= part
                charges.append((region, part))
            assert left == 0
            self.running[a.job.id] = charges


@pytest.mark.slow
def test_moving_regions_are_the_brute_force() -> None:
    moves = []

    @settings(MANY, max_examples=150)
    @given(machines(), st.integers(3, 20), st.integers(0, 6))
    def check(world: World, interval: int, target: int) -> None:
        expected = Brute(world, interval, target)
        setting = RegionsParameters(interval_s=interval, target_s=target)
        outcomes, _ = run(Regions(setting), world)
        assert starts(outcomes) == expected.run()
        moves.append(expected.moves)

    check()
    assert sum(moves) > 50


@pytest.mark.parametrize("inside", ["fcfs", "easy", "first-fit"])
def test_no_region_is_over_committed_and_running_jobs_keep_their_units(inside: str) -> None:
    @MANY
    @given(machines(), st.integers(3, 20), st.booleans())
    def check(world: World, interval: int, restarts: bool) -> None:
        policy = Regions(RegionsParameters(interval_s=interval, target_s=1.0, inside=inside))  # type: ignore[arg-type]

        def look(view: View) -> None:
            if view.upcoming is not None:
                return
            held = [0] * len(policy._parts)
            for job_id, charges in policy._held.items():
                assert sum(n for _, n in charges) == view.state(job_id).job.units
                for index, n in charges:
                    held[index] += n
            assert policy._held.keys() == view.running.keys()
            for part, n in zip(policy._parts, held, strict=True):
                assert part.free >= 0 and part.free + n == part.region.units
            assert sum(part.free for part in policy._parts) == view.free["node"]
            assert view.regions["node"] == tuple(part.region for part in policy._parts)
            if restarts and int(view.now) % 3 == 0:
                policy.begin(view)

        outcomes, _ = run(policy, world, look)
        audit(world, outcomes)
        assert all(len(o.segments) == 1 for o in outcomes)

    check()


@MANY
@given(machines(), st.sampled_from(("fcfs", "first-fit")))
def test_a_restart_changes_nothing_where_regions_do_not_move(world: World, inside: str) -> None:
    total = world.cluster.units
    text = f"regions,bounds=2/{total},sizes=5/{total - 5},inside={inside}"
    policy = create(text)

    def begin_again(view: View) -> None:
        if view.upcoming is None:
            policy.begin(view)

    assert run(policy, world, begin_again)[0] == run(create(text), world)[0]


@pytest.mark.parametrize(
    ("units", "text", "layout_now"),
    [
        (20, "regions", ((1,), (20,))),  # as before
        (20, "regions,bounds=2/8,sizes=5/15", ((2, 8), (5, 15))),
        (20, "soft-regions,bounds=2/8,sizes=5/15", ((2, 8), (5, 15))),
        (24, "regions", ((1,), (24,))),  # the machine has grown
        (24, "regions,bounds=2/8,sizes=5/15", ((2, 8), (5, 15))),
    ],
)
def test_after_a_restart_the_machine_is_cut_as_is_said_now(
    units: int, text: str, layout_now: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    """Before the restart there was one region of 20 units."""
    before, after = (ClusterState(Cluster((Pool("node", size),))) for size in (20, units))
    book(before, create("regions"))
    after.repartition("node", before.regions["node"])
    after.submit(Job(1, 0.0, 1, 5.0))
    book(after, create(text))
    regions = after.regions["node"]
    assert (tuple(r.max_units for r in regions), tuple(r.units for r in regions)) == layout_now
    assert after.state(1).stage is Stage.RUNNING
    assert (regions == before.regions["node"]) == (layout_now[1] == (20,))


def book(state: ClusterState, policy: Policy) -> None:
    """Begin the policy and let it decide once."""
    policy.begin(state)
    for action in policy.decide(state, Timer(0.0)):
        if isinstance(action, Repartition):
            state.repartition(action.pool, action.regions)
        elif isinstance(action, Start):
            state.start(action.job_id, action.placement)


@pytest.mark.parametrize("name", ["regions", "soft-regions"])
def test_regions_larger_than_the_machine_are_refused(name: str) -> None:
    world = World(Cluster((Pool("node", 19),)), (Arrival(Job(1, 0.0, 1, 1.0), 1.0),))
    with pytest.raises(BadInput, match="sizes=5/15: regions of 20 units, node has 19"):
        run(create(f"{name},bounds=2/8,sizes=5/15"), world)


def test_a_reason_names_the_region() -> None:
    jobs = ((0.0, 2, 9.0), (0.0, 2, 9.0), (1.0, 2, 9.0), (1.0, 8, 4.0), (2.0, 1, 3.0))
    arrivals = tuple(Arrival(Job(i, at, n, run_s), run_s) for i, (at, n, run_s) in enumerate(jobs, 1))
    policy = create("regions,bounds=2/10,sizes=5/15")
    reasons = []

    def ask(view: View) -> None:
        if view.upcoming is None and view.now == 2.0:
            reasons.extend(policy.why(job, view) for job in view.waiting.values())

    run(policy, World(Cluster((Pool("node", 20),)), arrivals), ask)
    assert [reason.expected_start_s for reason in reasons] == [9.0, 9.0]
    assert reasons[0].sentence == "waits for 2 nodes in the region for 1 to 2 nodes (1 of 5 free); is next"
    assert reasons[1].sentence.endswith("(1 of 5 free); behind 1 job")


@pytest.mark.parametrize("units", [20, 24])
def test_a_job_from_before_the_last_move_is_found_again(units: int) -> None:
    """Its region is no more; it keeps its units. On a machine that has grown it is taken for nobody's own."""
    before, after = (ClusterState(Cluster((Pool("node", size),))) for size in (20, units))
    before.repartition("node", (Region("6.1", 20, 8),))
    before.submit(Job(1, 0.0, 6, 5.0))
    before.start(1, Placement("node", 6, region="6.1"))
    before.repartition("node", (Region("7.1", 5, 2), Region("7.2", 15, 8)))
    if units == 20:
        after.repartition("node", before.regions["node"])
    after.restore(before.state(1))
    policy = create("regions")
    book(after, policy)
    assert {region.name.partition(".")[0] for region in after.regions["node"]} == {"7"}
    assert after.free["node"] == units - 6
    after.submit(Job(2, 0.0, 2, 5.0))
    after.submit(Job(3, 0.0, units - 7, 5.0))  # of the rest one unit is too few
    policy.begin(after)
    book(after, policy)
    assert set(after.running) == {1, 2}
    after.finish(after.state(1))
    assert after.free["node"] == units - 2
