"""Availability and queue against tables and lists; metrics and parsing against hand-worked figures."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.errors import BadInput
from scheduler.model.clusters import parse_cluster
from scheduler.model.jobs import Cluster, Job, Placement, Pool, instant
from scheduler.model.parameters import fill, split
from scheduler.policies.backfill.availability import Availability
from scheduler.policies.backfill.queue import IndexedQueue
from scheduler.policies.registry import create
from scheduler.simulator.metrics import Accumulator
from scheduler.simulator.trace import Outcome, Segment

UNITS, SECONDS = 8, 60


@given(st.floats(0, 1e18) | st.floats(0, 1e6), st.integers(0, 10**15))
def test_instants_are_what_round_gives(time_s: float, half_steps: int) -> None:
    tie = half_steps / 2e6  # on the grid, or as far as can be from it
    for at in (time_s, tie, math.nextafter(tie, 0), math.nextafter(tie, math.inf), -tie, math.inf):
        assert instant(at) == round(at, 6)


@st.composite
def reservations(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """(start, end, units), which may over-commit."""
    rows = []
    for _ in range(draw(st.integers(0, 15))):
        start = draw(st.integers(0, 40))
        rows.append((start, start + draw(st.integers(0, 15)), draw(st.integers(1, UNITS))))
    return rows


def both(rows: list[tuple[int, int, int]]) -> tuple[Availability, list[int]]:
    plan, table = Availability(UNITS), [UNITS] * SECONDS
    for start, end, units in rows:
        plan.reserve(start, end, units)
        for second in range(start, end):
            table[second] -= units
    return plan, table


def fits(table: list[int], units: int, start: int, duration: int) -> bool:
    return all(free >= units for free in table[start : start + max(1, duration)])


@given(reservations(), st.integers(1, UNITS), st.integers(0, 20), st.integers(0, 30))
def test_earliest(rows: list[tuple[int, int, int]], units: int, duration: int, after: int) -> None:
    plan, table = both(rows)
    table += [UNITS] * 40
    expected = next(start for start in range(after, SECONDS) if fits(table, units, start, duration))
    assert plan.earliest(units, duration, after) == expected
    assert plan.earliest(UNITS + 1, duration, after) == math.inf


@given(reservations(), st.integers(1, UNITS), st.integers(0, 30))
def test_regions_and_least(rows: list[tuple[int, int, int]], units: int, after: int) -> None:
    plan, table = both(rows)
    regions = plan.regions(units, after)
    inside = {s for s in range(after, SECONDS) for start, end in regions if start <= s < end}
    assert inside == {s for s in range(after, SECONDS) if table[s] >= units}
    assert all(a[1] < b[0] for a, b in pairwise(regions))
    assert plan.least(after, after + 7) == min(table[after : after + 7])
    assert [plan.at(s) for s in range(SECONDS)] == table


@given(reservations())
def test_peaks(rows: list[tuple[int, int, int]]) -> None:
    plan, table = both(rows)
    times, most = plan.peaks()
    assert times == sorted(times) and most == sorted(set(most))
    for second in range(SECONDS):
        assert max(m for t, m in zip(times, most, strict=True) if t <= second) == max(table[: second + 1])


@given(reservations())
def test_steps_are_minimal_and_release_undoes_reserve(rows: list[tuple[int, int, int]]) -> None:
    plan, _ = both(rows)
    levels = [free for _, _, free in plan.steps()]
    assert all(a != b for a, b in pairwise(levels))
    for start, end, units in reversed(rows):
        plan.release(start, end, units)
    assert list(plan.steps()) == [(0.0, math.inf, UNITS)]


@given(reservations(), st.integers(1, UNITS), st.integers(1, 12), st.integers(0, 20))
def test_move_up_is_release_earliest_reserve(
    rows: list[tuple[int, int, int]], units: int, duration: int, now: int
) -> None:
    plan, _ = both(rows)
    start = plan.earliest(units, duration, 25)
    plan.reserve(start, start + duration, units)
    other, _ = both(rows)
    found = min(other.earliest(units, duration, now), start)
    other.reserve(found, found + duration, units)
    assert plan.move_up(start, start + duration, units, now) == found
    assert list(plan.steps()) == list(other.steps())


@given(st.lists(st.tuples(st.sampled_from((0, 1, 2, 5, math.inf)), st.integers(1, UNITS))))
def test_beside_is_a_reservation_each(held: list[tuple[float, int]]) -> None:
    plan = Availability(UNITS, 1.0)
    for end, units in held:
        plan.reserve(1.0, end, units)
    assert list(Availability.beside(held, UNITS, 1.0).steps()) == list(plan.steps())


@given(reservations(), st.integers(0, 30))
def test_trim_forgets_only_the_past(rows: list[tuple[int, int, int]], now: int) -> None:
    plan, table = both(rows)
    plan.trim(now)
    assert [plan.at(s) for s in range(now, SECONDS)] == table[now:]


def test_a_plan_grows() -> None:
    plan = Availability(10)
    for i in range(1000):
        plan.reserve(3 * i, 3 * i + 2, 4)
    assert len(plan) == 2000 and plan.earliest(7, 2.0, 0.5) == 2999


@pytest.mark.parametrize("longest", [5, 200, 4000])
def test_long_plans_are_their_tables(longest: int) -> None:
    """Some of a thousand steps and more, where an operation goes by vectors."""
    rng = random.Random(longest)
    plan, table = Availability(100), np.full(20_000, 100)
    for _ in range(1500):
        start, units, sign = rng.randrange(10_000), rng.randint(1, 9), rng.choice((-1, 1))
        end = start + rng.randint(1, longest)
        (plan.release if sign > 0 else plan.reserve)(start, end, units)
        table[start:end] += sign * units
    assert len(plan) > 700
    for _ in range(300):
        after, units, duration = rng.randrange(10_000), rng.randint(70, 100), rng.choice((0, 1, 30, 900))
        length = max(1, duration)
        assert plan.least(after, after + duration) == table[after : after + length].min()
        blocked = [after - 1, *(np.flatnonzero(table[after:] < units) + after), math.inf]
        expected = next(a + 1 for a, b in pairwise(blocked) if b - a > length)
        assert plan.earliest(units, duration, after) == expected


@given(
    st.lists(
        st.tuples(
            st.sampled_from(("add", "add", "add", "first", "front", "remove")),
            st.integers(1, 40),
            st.sampled_from((0.0, 1.0, 5.0, 9.0, math.inf)),
            st.integers(0, 40),
            st.sampled_from((-math.inf, 0.0, 3.0, 7.0, math.inf)),
        ),
        max_size=60,
    )
)
def test_queue_finds_what_a_list_finds(steps: list[tuple[str, int, float, int, float]]) -> None:
    queue, plain = IndexedQueue(), list[tuple[int, int, float]]()
    for job_id, (what, units, length, most, longest) in enumerate(steps):
        if what == "add":
            queue.add(job_id, units, length)
            plain.append((job_id, units, length))
        elif what == "front":
            queue.add_first(job_id, units, length)
            plain.insert(0, (job_id, units, length))
        elif what == "remove" and plain:
            removed = plain.pop(most % len(plain))
            queue.remove(removed[0])
        stairs = ((most // 2, math.inf), (most, longest))
        expected = next((i for i, u, d in plain if any(u <= m and d <= w for m, w in stairs)), None)
        assert queue.first(stairs) == expected
        assert len(queue) == len(plain)


def outcome(
    job_id: int, submit: float, start: float, run: float, *, units: int = 1, overhead: float = 0.0
) -> Outcome:
    end = start + run + overhead
    segments = (Segment("run", Placement("node", units), start, end),)
    return Outcome(
        Job(job_id, submit, units), start, end, "done", run, overhead, 0.0, 0, 0, 0, 100.0, segments
    )


def test_metrics_by_hand() -> None:
    cluster = Cluster((Pool("node", 4, idle_w=1.0),))
    metrics = Accumulator(cluster)
    # waits 0, 10, 30; turnarounds 10, 15, 130 (10 of it overhead); slowdowns 1, 3, 130/90
    for one in (
        outcome(1, 0, 0, 10),
        outcome(2, 5, 15, 5, units=2),
        outcome(3, 10, 40, 90, units=1, overhead=10.0),
    ):
        metrics.add(one)
    found = metrics.metrics()
    assert found.jobs == 3 and found.makespan_s == 140
    assert found.mean_wait_s == pytest.approx(40 / 3) and found.max_wait_s == 30 and found.p50_wait_s == 10
    assert found.mean_turnaround_s == pytest.approx(155 / 3)
    assert found.bsld_mean == pytest.approx((1 + 1.5 + 130 / 90) / 3)
    assert found.max_slowdown == pytest.approx(3) and found.p99_slowdown == pytest.approx(130 / 90)
    assert found.utilisation_ratio == pytest.approx((10 + 10 + 100) / (4 * 140))
    assert found.energy_j == 300 and found.machine_energy_j == 300 + (560 - 120)
    assert Accumulator(cluster).metrics().mean_wait_s is None


def test_clusters() -> None:
    assert parse_cluster("100").pools == (Pool("node", 100),)
    assert [(p.name, p.units, p.rank) for p in parse_cluster("512xgpu+500xcpu").pools] == [
        ("gpu", 512, 0),
        ("cpu", 500, 1),
    ]
    pool = parse_cluster("256xnode[cpu=1,memory=0.5]").pools[0]
    assert pool.resources == ("cpu", "memory") and pool.capacity == (1.0, 0.5) and not pool.counted


TOML = """
budget_w = 3850
[[pool]]
name = "slow"
units = 4
rank = 1
[[pool]]
name = "node"
nodes = 2
rank = 0
capacities = [{ cores = 16, memory_mb = 64e3 }, { cores = 8, memory_mb = 32e3 }]
base_w = 10
caps_w = [30, 50, 90]
"""


def test_cluster_files(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(TOML)
    cluster = parse_cluster(str(path))
    assert cluster.budget_w == 3850 and [p.name for p in cluster.pools] == ["node", "slow"]
    node = cluster["node"]
    assert node.capacity_of(1) == (8.0, 32e3) and node.peak_w == 90 and node.power_w(2, 30.0) == 80
    json = tmp_path / "cluster.json"
    path.write_text("\ufeff" + TOML)
    assert parse_cluster(str(path)) == cluster
    json.write_text('{"pool": [{"name": "a", "units": 3}]}')
    assert parse_cluster(str(json)) == Cluster((Pool("a", 3),))
    path.write_text(f'{TOML}[[pool]]\nname = "gpus"\nnodes = 1\ncapacity = {{ gpu = 4 }}\n')
    assert parse_cluster(str(path))["node"].capacities == ((16.0, 64e3, 0.0), (8.0, 32e3, 0.0))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not understood; write a count"),
        ("0", "a pool without units"),
        ("12xgpu+3xgpu", "gpu is described twice"),
        ("12*gpu", "is not understood"),
        ("2xnode[cpu]", "not of the form resource=number"),
        ("2xnode[=3]", "not of the form resource=number"),
        ("2xnode[cpu=1,cpu=2]", "cpu is given twice"),
        ("2xnode[cpu=0]", "no node has any cpu"),
        ("missing.toml", "No such file"),
    ],
)
def test_bad_clusters_are_one_line(text: str, message: str) -> None:
    with pytest.raises(BadInput, match=message) as error:
        parse_cluster(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there is no list of pools"),
        ("pool = 3", "there is no list of pools"),
        ("[[pool]]\nname = ", "write valid TOML"),
        ('[[pool]]\nname = "a"', "needs either units or nodes"),
        ('[[pool]]\nname = "a"\nunits = 1\nnodes = 1', "needs either units or nodes"),
        ('[[pool]]\nname = "a"\nnodes = 1', "nodes without a capacity"),
        ('[[pool]]\nname = "a"\nunits = -1', "pool a: units = -1; give a whole number"),
        ("[[pool]]\nunits = 1", "pool 1 has no name; add name"),
        ("pool = [3]", "pool 1 is not a table"),
        ('[[pool]]\nname = "a"\nunits = true', "units = True"),
        ('[[pool]]\nname = "a"\nnodes = 1\ncapacity = { cpu = "x" }', "capacity.cpu = 'x'; write { cores"),
        ('[[pool]]\nname = "a"\nunits = 1\ncaps_w = 3', "caps_w = 3; write caps_w"),
        ('budget_w = nan\n[[pool]]\nname = "a"\nunits = 1', "budget_w = nan; give a number"),
        ('[[pool]]\nname = "a"\nunits = 1\ncolour = 2', "unknown field"),
        ('[[pool]]\nname = "a"\nunits = 1\ncaps_w = [50, 30]', "caps_w is not ascending"),
        ('[[pool]]\nname = "a"\nnodes = 2\ncapacities = [{ cpu = 1 }]', "1 capacities for 2 nodes"),
        ('[[pool]]\nname = "a"\nnodes = 2\ncapacities = [{ cpu = 1 }, { gpu = 1 }]', "the same resources"),
        ('budget_w = 5\n[[pool]]\nname = "a"\nunits = 2\nbase_w = 10', "5 W is not enough for one unit"),
        ('[[pool]]\nname = "a"\nunits = 2\npeak_w = 10\nidle_w = 20', "idle unit draws more"),
        ('[[pool]]\nname = "a"\nunits = 2\nbase_w = -1', "base_w = -1"),
        ('bugdet_w = 5\n[[pool]]\nname = "a"\nunits = 2', "did you mean budget_w"),
    ],
)
def test_bad_cluster_files_are_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(text)
    with pytest.raises(BadInput, match=message) as error:
        parse_cluster(str(path))
    assert "\n" not in str(error.value) and str(path) in str(error.value)


@dataclass(frozen=True)
class Example:
    count: int = 3
    share: float = 0.5
    literal: bool = False
    mode: Literal["fast", "slow"] = "fast"
    most: int | None = None


def test_parameters() -> None:
    name, given_ = split("mine, count=4,share=1e-3,literal=true,mode=slow,most=7")
    assert name == "mine" and fill(Example, given_, "x") == Example(4, 0.001, True, "slow", 7)
    assert fill(Example, {"most": "none"}, "x").most is None
    for bad in ({"cuont": "1"}, {"count": "1.5"}, {"literal": "perhaps"}, {"mode": "medium"}, {"share": "x"}):
        with pytest.raises(BadInput, match="x"):
            fill(Example, bad, "policy x")


def test_unknown_policies_and_parameters_name_the_near_ones() -> None:
    with pytest.raises(BadInput, match="did you mean easy"):
        create("esay")
    with pytest.raises(BadInput, match="did you mean depth"):
        create("conservative,dept=3")
    with pytest.raises(BadInput, match="depth must be at least 1"):
        create("conservative,depth=0")
    with pytest.raises(BadInput, match="unknown parameter of policy fcfs 'depth'; there are: none"):
        create("fcfs,depth=1")
