"""Jobs that can take a range of tasks or nodes: what policies see of them, and what really starts."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from pydantic import ValidationError

from agent.attempts.folder import Attempt
from profiles.errors import BadInput
from scheduler.coordinator.coordinator import Coordinator
from scheduler.engines.common.supervisor_orders import Files, Orders
from scheduler.jobs.policy_view import as_job
from scheduler.jobs.sizes import SERIAL, Unit, tasks_on, within_memory
from scheduler.jobs.specs import JobSpec
from scheduler.model.jobs import Cluster, Job, Placement, Pool
from scheduler.model.speeds import CapLine, CappedSpeed
from tests.support.coordinator import Up
from tests.support.scheduling.manual_engine import ManualEngine, a_job, submit

CORES = Cluster((Pool("core", 16),))
NODE = Unit(node=True, cores=8)
CAPPED = Cluster((Pool("node", 4, base_w=10.0, caps_w=(30.0, 40.0, 50.0)),), 200.0)


def spec(**fields: object) -> JobSpec:
    return JobSpec(command=("true",), **fields)  # type: ignore[arg-type]


def job(one: JobSpec, cluster: Cluster = CORES, unit: Unit | None = None) -> Job:
    return as_job(1, 0.0, one, cluster, user="me", unit=unit or Unit())


@pytest.mark.parametrize(
    ("fields", "unit", "units", "tasks"),
    [
        ({"tasks": 3}, Unit(), (3, None), {3: 3}),
        ({"tasks": 1, "max_tasks": 4, "cores": 2}, Unit(), (2, 8), {2: 1, 3: 1, 4: 2, 8: 4}),
        ({"tasks": 1, "max_tasks": 99}, Unit(), (1, 16), {1: 1, 16: 16}),
        ({"tasks": 3, "max_tasks": 12, "cores": 3}, NODE, (2, 4), {2: 4, 3: 6, 4: 8}),
        ({"tasks": 10}, NODE, (2, None), {2: 10}),
        ({"nodes": 1, "max_nodes": 3, "cores": 4}, NODE, (1, 3), {1: 2, 2: 4, 3: 6}),
    ],
)
def test_units_hold_tasks(
    fields: dict[str, int], unit: Unit, units: tuple[int, int | None], tasks: dict[int, int]
) -> None:
    one = spec(**fields)
    found = job(one, CAPPED if unit is NODE else CORES, unit)
    assert (found.units, found.max_units) == units
    for count, expected in tasks.items():
        assert tasks_on(one, count, unit) == expected
        # The same by trying: tasks are put on units one after the other.
        placed, left = 0, [unit.cores] * count if unit.node else [count]
        most = math.inf if one.nodes else one.max_tasks or one.tasks
        for place in range(len(left)):
            while left[place] >= one.cores and placed < most:
                left[place] -= one.cores
                placed += 1
        assert placed == expected


@pytest.mark.parametrize("hosts", [((1, 16.0),), ((1, 8.0), (1, 64.0)), ((4, 20.0),), ((2, 9.0), (5, 30.0))])
@pytest.mark.parametrize("size", [{"tasks": 1}, {"tasks": 5}, {"tasks": 1, "max_tasks": 30}, {"nodes": 2}])
@pytest.mark.parametrize("memory_mb", [1.0, 2.0, 4.0, 9.0, 100.0])
def test_no_size_of_an_accepted_job_is_beyond_the_memory_of_a_node(
    hosts: tuple[tuple[int, float], ...], size: dict[str, int], memory_mb: float
) -> None:
    """However its units lie on nodes: tasks are put on one node after the other, and their memory added."""
    unit, asked = Unit(node=True, cores=2, hosts=hosts), spec(memory_mb=memory_mb, **size)

    def fits(units: int, tasks: int) -> bool:
        return all(
            min(tasks, min(units, there) * unit.cores) * memory_mb <= there_mb for there, there_mb in hosts
        )

    def sizes(one: JobSpec) -> list[tuple[int, int]]:
        if one.nodes:
            return [(one.nodes, tasks_on(one, one.nodes, unit))]
        return [(-(-tasks // 2), tasks) for tasks in range(one.tasks, (one.max_tasks or one.tasks) + 1)]

    expected = [one for one in sizes(asked) if fits(*one)]
    if expected:
        assert sizes(within_memory(asked, unit, math.inf)) == expected
    else:
        with pytest.raises(BadInput, match="on one node, jobs may have"):
            within_memory(asked, unit, math.inf)


def test_speed_without_knowledge_is_amdahls_law_and_proportional_to_the_cap() -> None:
    speed = job(spec(tasks=2, max_tasks=8)).speed
    assert speed is not None
    for tasks in range(2, 9):
        run_s = {n: SERIAL + (1 - SERIAL) / n for n in (2, tasks)}
        assert speed(tasks, None) == pytest.approx(run_s[2] / run_s[tasks])
    capped = job(spec(), CAPPED, NODE)
    assert capped.speed is not None and capped.speed(1, 30.0) == 1.0
    assert capped.speed(1, 45.0) == pytest.approx(1.5) and capped.speed(1, None) == pytest.approx(5 / 3)
    assert capped.malleable and not job(spec(tasks=1, max_tasks=9), CAPPED, NODE).malleable
    assert job(spec(tasks=3)).speed is None


@pytest.mark.parametrize("moves", [False, True])
def test_size_and_speed_on_devices_are_as_the_owner_says(moves: bool) -> None:
    """A program that can be parked keeps the devices that it has begun on."""
    one = spec(tasks=2, max_tasks=4, speedup={1: 1.0, 2: 2.0, 4: 3.0}, expect_s={"gpu": 60.0})
    devices = Cluster((Pool("gpu", 8, kind="gpu"), Pool("cpu", 8, 1, kind="cpu")))
    seen = as_job(1, 0.0, one, devices, user="me", moves=moves)
    assert (seen.units, seen.max_units, seen.estimates_s["gpu"]) == (2, None if moves else 4, 60.0)
    assert seen.estimate_on("gpu", 2) == 60.0
    if not moves:
        assert seen.estimate_on("gpu", 3) == 48.0 and seen.estimate_on("gpu", 4) == 40.0
    assert as_job(1, 0.0, spec(tasks=2, max_tasks=4), devices, user="me").speed is None


def test_speed_as_the_owner_says_or_as_measured() -> None:
    said = job(spec(tasks=2, max_tasks=6, speedup={1: 1.0, 2: 1.5, 4: 2.5, 6: 2.0})).speed
    assert said is not None
    assert [said(n, None) for n in (2, 3, 4, 5, 6)] == pytest.approx(
        [1, 2 / 1.5, 2.5 / 1.5, 2.25 / 1.5, 2 / 1.5]
    )
    line = CapLine(0.05, 30.0, 45.0)
    unit = Unit(True, 8, {"compute": (20.0, 0.4)}, {"compute": line})
    measured = job(spec(nodes=1, max_nodes=4), CAPPED, unit).speed
    truth = CappedSpeed(20.0, 0.4, 0.05, 30.0, 45.0, least_units=8)
    assert measured is not None
    for nodes in (1, 2, 3, 4):
        for cap in (30.0, 40.0, 50.0, None):
            assert measured(nodes, cap) == pytest.approx(truth(8 * nodes, cap))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tasks": 4, "max_tasks": 1}, "max_tasks: 1 is less than 4"),
        ({"nodes": 2, "max_nodes": 1}, "max_nodes: 1 is less than 2"),
        ({"nodes": 2, "tasks": 2}, "nodes with tasks"),
        ({"max_nodes": 2}, "max_nodes without nodes"),
        ({"tasks": 2, "speedup": {1: 1.0}}, "the size of the job is fixed"),
        ({"tasks": 1, "max_tasks": 2, "speedup": {0: 1.0}}, "greater than or equal to 1"),
        ({"tasks": 1, "max_tasks": 2, "speedup": {1: 0.0}}, "greater than or equal to 0.000001"),
    ],
)
def test_what_makes_no_sense_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        spec(**fields)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(BadInput, match=r"needs 20 cores \(10 x 2\), there are 16"):
        job(spec(tasks=10, cores=2, max_tasks=20))
    with pytest.raises(BadInput, match=r"needs 2 cores \(1 x 2\), there is 1 core;"):
        job(spec(cores=2), Cluster((Pool("core", 1),)))
    with pytest.raises(BadInput, match=r"2 nodes: this coordinator schedules cores"):
        job(spec(nodes=2))
    with pytest.raises(BadInput, match=r"a task of 9 cores: a node has 8"):
        job(spec(cores=9), CAPPED, NODE)
    with pytest.raises(BadInput, match=r"needs 5 nodes, there are 4"):
        job(spec(nodes=5), CAPPED, NODE)


def tasks_of(coordinator: Coordinator, *jobs: int) -> list[int]:
    entries = [coordinator.job_table.open(job) for job in jobs]
    return [coordinator.job_table.tasks(entry) for entry in entries]


def test_the_policy_chooses_and_the_job_gets_it(tmp_path: Path) -> None:
    """fifo-max gives as many tasks as fit, easy the fewest; a restarted coordinator knows what was chosen."""
    engine = ManualEngine(2)
    with engine.coordinator(tmp_path, "fifo-max") as coordinator:
        large = submit(coordinator, tasks=1, max_tasks=4)
        assert tasks_of(coordinator, large) == [2] and coordinator.job_table.open(large).place.units == 2
    with engine.coordinator(tmp_path, "easy") as coordinator:
        assert tasks_of(coordinator, large) == [2]
        engine.end(large)
        coordinator.turn()
        assert tasks_of(coordinator, submit(coordinator, tasks=1, max_tasks=4)) == [1]


def test_a_job_restarts_on_another_class_and_size(tmp_path: Path) -> None:
    """It begins on two cores, and goes on on three GPUs when they are free, also after a restart."""
    devices = Cluster((Pool("gpu", 4, kind="gpu"), Pool("cpu", 2, 1, kind="cpu")))
    engine = ManualEngine(cluster=devices)
    sized = {"tasks": 1, "max_tasks": 3, "speedup": {1: 1.0, 2: 2.0, 3: 2.5}, "checkpoint_signal": 10}
    with engine.coordinator(tmp_path, "weigh,price=0") as coordinator:
        first = submit(coordinator, tasks=4, device="gpu", expect_s={"": 100.0})
        second = submit(coordinator, expect_s={"gpu": 60.0, "cpu": 6000.0}, **sized)
        entry = coordinator.job_table.open(second)
        assert entry.place == Placement("cpu", 2) and tasks_of(coordinator, second) == [2]
        engine.wait(90.0)
        engine.end(first)
        coordinator.turn()
        assert engine.asks == [(second, "checkpoint")] and entry.moves_to == Placement("gpu", 3)
    with engine.coordinator(tmp_path, "weigh,price=0") as coordinator:
        assert coordinator.cluster.free == {"gpu": 1, "cpu": 0}
        engine.end(second, "checkpointed", 85)
        coordinator.turn()
        entry = coordinator.job_table.open(second)
        assert entry.place == Placement("gpu", 3) and tasks_of(coordinator, second) == [3]
        entry.devices = (0, 1, 2)
        files = Files(tmp_path, tmp_path / "out", tmp_path / "err")
        order = Orders(tmp_path, Unit(), {}).order(entry, {}, Attempt(tmp_path), "", files=files)
        assert (order.attempt, order.environment["TENBIN_TASKS"]) == (2, "3")
        assert coordinator.cluster.free == {"gpu": 1, "cpu": 2}


def test_parm_sizes_mpi_jobs(tmp_path: Path) -> None:
    """Two at once are worth more on one core each (1 + 1 against 1.9); one alone gets both cores."""
    engine, asks = ManualEngine(2), {"mpi": True, "tasks": 1, "max_tasks": 2}
    with engine.coordinator(tmp_path, "parm") as coordinator:
        both = [entry.id for entry in coordinator.submit([a_job(**asks)] * 2, {})]
        assert tasks_of(coordinator, *both) == [1, 1]
        engine.end_all(coordinator)
        assert tasks_of(coordinator, submit(coordinator, **asks)) == [2]


def test_sizes_on_the_command_line(up: Up) -> None:
    up.start("--cores", "2", "--policy", "fifo-max")
    done = up.run(
        "submit", "-n", "1-2", "--speedup", "1=1,2=1.9", "--wait", "--", "sh", "-c", "exit $TENBIN_TASKS"
    )
    assert done.returncode == 2 and done.stdout == "1\n", done.stderr
    for arguments, message in (
        (("-n", "4-1"), "--tasks '4-1' is no number or range"),
        (("-n", "0"), "--tasks '0' is no number"),
        (("-n", "many"), "write for instance 4 or 1-4"),
        (("--nodes", "2-"), "--nodes '2-' is no number or range"),
        (("--nodes", "1"), "schedules cores, not nodes"),
        (("-n", "1-2", "--speedup", "1:1"), "--speedup '1:1' is no list of speeds"),
        (("-n", "2", "--speedup", "1=1"), "the size of the job is fixed"),
        (("-n", "3-4"), "needs 3 cores"),
        (("--load", "luck"), "'compute' or 'memory'"),
    ):
        done = up.run("submit", *arguments, "--", "true")
        assert done.returncode == 2 and message in done.stderr, (arguments, done.stderr)
        assert "Traceback" not in done.stderr
