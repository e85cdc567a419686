"""Memory as a resource of every policy on this machine: who is refused, who waits, who may pass."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.errors import BadInput
from scheduler.jobs.memory_admission import MemoryAdmission
from scheduler.jobs.sizes import CORE, Unit
from scheduler.model.jobs import Cluster, Pool
from tenbin.server.descriptions import memory
from tests.support.amounts import examples
from tests.support.coordinator import Up
from tests.support.scheduling.manual_engine import ManualEngine, shown, submit, why

LEFT = "waits for 700 MB of memory; 100 MB of 1 GB are free"
CORES, NODE = Pool("core", 2), Pool("node", 1, resources=("cores", "memory_mb"), capacity=(2.0, 1000.0))
PACKAGES = Pool("node", 2, peak_w=200.0, caps_w=(100.0, 200.0))
MACHINES = {  # the world has the memory of other policies
    "easy": (Cluster((CORES,)), CORE),
    "match": (Cluster((NODE,)), Unit(node=True, cores=2)),
    "las": (Cluster((NODE,)), Unit(node=True, cores=2)),
    "parm": (Cluster((PACKAGES,), budget_w=400.0), Unit(node=True, package=True, emulated="intel-2s")),
}


@settings(deadline=None, max_examples=examples(200))
@given(
    total=st.integers(1, 20),
    jobs=st.lists(st.tuples(st.integers(-1, 1), st.integers(1, 20)), min_size=1, max_size=30),
    seed=st.integers(0, 10**6),
)
def test_never_more_than_there_is_and_nobody_waits_for_ever(
    total: int, jobs: list[tuple[int, int]], seed: int
) -> None:
    """Jobs come and end in any order. Beside it: the rule word by word, from sets alone."""
    chance, memory = random.Random(seed), MemoryAdmission(float(total))
    sizes = {number: (priority, min(mb, total)) for number, (priority, mb) in enumerate(jobs, 1)}
    coming, running, waiting = list(sizes), set[int](), set[int]()
    while coming or running:
        if coming and (not running or chance.random() < 0.6):
            number = coming.pop(0)
            memory.wait(number, sizes[number][0], float(sizes[number][1]))
            waiting.add(number)
        else:
            number = chance.choice(sorted(running))
            running.remove(number)
            assert memory.release(number)
        expected = _admitted(total, sizes, running, waiting)
        assert memory.admit() == expected
        running.update(expected)
        waiting.difference_update(expected)
        assert memory.free_mb == total - sum(sizes[number][1] for number in running) >= 0
        assert all(memory.waits(number) and "waits for" in memory.why(number) for number in waiting)
    assert not waiting and not memory.release(1)


def _admitted(
    total: int, sizes: dict[int, tuple[int, int]], running: set[int], waiting: set[int]
) -> list[int]:
    """Rules 2 and 3 of ``scheduler.jobs.memory_admission``."""

    def turn(number: int) -> tuple[int, int]:
        return -sizes[number][0], number

    found: list[int] = []
    there, left = set(running), sorted(waiting, key=turn)
    while left:
        free = total - sum(sizes[number][1] for number in there)
        first = left[0]
        passed = sum(sizes[number][1] for number in there if turn(number) > turn(first))
        may = [
            number
            for number in left
            if sizes[number][1] <= free
            and (sizes[first][1] <= free or passed + sizes[number][1] + sizes[first][1] <= total)
        ]
        if not may:
            break
        found.append(may[0])
        there.add(may[0])
        left.remove(may[0])
    return found


def engine_with(memory_mb: float, cluster: Cluster = Cluster((Pool("core", 1),))) -> ManualEngine:  # noqa: B008
    return ManualEngine(cluster=replace(cluster, memory_mb=memory_mb))


@pytest.mark.parametrize("policy", MACHINES)
def test_jobs_whose_memory_is_not_there_together_run_one_after_the_other(tmp_path: Path, policy: str) -> None:
    cluster, unit = MACHINES[policy]
    engine = engine_with(1000.0, cluster)
    with engine.coordinator(tmp_path, policy, unit=unit) as coordinator:
        with pytest.raises(BadInput, match="never run here"):
            submit(coordinator, memory_mb=2000.0)
        first, second, small = (submit(coordinator, memory_mb=mb) for mb in (800.0, 700.0, 100.0))
        # under match a job without a job profile has its node to itself
        stages = ["running", "waiting", "waiting" if policy == "match" else "running"]
        assert shown(coordinator, first, second, small) == stages
        assert LEFT in why(coordinator, second)
        assert memory(coordinator) == {"total_mb": 1000.0, "set_aside_mb": 900.0}
    with engine.coordinator(tmp_path, policy, unit=unit) as coordinator:
        assert shown(coordinator, first, second, small) == stages and LEFT in why(coordinator, second)
        engine.end(first)
        coordinator.turn()
        assert shown(coordinator, first, second) == ["done", "running"]


def test_a_paused_job_keeps_its_memory_and_a_priority_takes_that_of_who_has_not_begun(
    tmp_path: Path,
) -> None:
    engine = engine_with(1000.0)
    with engine.coordinator(tmp_path, "easy") as coordinator:
        paused = submit(coordinator, memory_mb=300.0)
        coordinator.suspend([paused])
        blocker = submit(coordinator)
        low = submit(coordinator, memory_mb=600.0)
        high = submit(coordinator, memory_mb=700.0, priority=1)
        tall = submit(coordinator, memory_mb=800.0, priority=-1)
        assert "first in the queue" in why(coordinator, high)
        assert "waits for 600 MB" in why(coordinator, low)
        assert f"job {low} has the first turn" in why(coordinator, tall)
        coordinator.resume([paused])
        engine.end_all(coordinator)
        assert engine.begun == [(job, 1) for job in (paused, blocker, high, low, tall)]
        assert not coordinator.job_table.entries


def test_a_job_of_plain_priority_takes_the_memory_of_one_below_it() -> None:
    memory = MemoryAdmission(10.0)
    memory.wait(1, -1, 6.0)
    memory.wait(2, -1, 3.0)
    assert memory.admit() == [1, 2]
    memory.wait(3, 0, 6.0)
    assert memory.admit() == []
    assert memory.in_the_way(lambda job: job == 2) == []  # it would not make room
    assert memory.in_the_way(lambda job: True) == [2, 1]
    memory.release(1)
    assert memory.admit() == [3] and memory.in_the_way(lambda job: True) == []


def test_a_paused_job_whose_device_is_gone_stops_no_other(tmp_path: Path) -> None:
    """Its memory is known without its place."""
    engine = engine_with(1000.0, Cluster((Pool("pocl-0", 1, kind="cpu"),)))
    with engine.coordinator(tmp_path, "mctbm") as coordinator:
        paused = submit(coordinator, memory_mb=100.0, device="pocl-0")
        coordinator.suspend([paused])
        assert shown(coordinator, paused) == ["suspended"] and engine.asks == [(paused, "pause")]
    engine.cluster = Cluster((Pool("core", 1),), memory_mb=1000.0)
    with engine.coordinator(tmp_path) as coordinator:
        assert memory(coordinator) == {"total_mb": 1000.0, "set_aside_mb": 100.0}
        assert shown(coordinator, submit(coordinator, memory_mb=900.0)) == ["running"]


def test_memory_on_the_command_line(up: Up) -> None:
    """A range of tasks is cut to it; what is set aside is said."""
    up.start("--memory", "1000M", "--cores", "1")
    assert up.client.submit(["true"], folder="/", memory_mb=600, max_tasks=2).wait(30)["stage"] == "done"
    done = up.run("submit", "--memory", "600M", "-n", "2", "--", "true")
    assert done.returncode == 2 and "asks for 1.2 GB of memory, jobs may have 1 GB" in done.stderr
    job = up.client.submit(["sleep", "60"], memory_mb=900)
    up.until(job.running)
    assert "0.9 of 1 GB memory" in up.run("status").stdout


def test_a_machine_with_less_memory_than_before_holds_who_asks_for_more_and_runs_the_others(
    tmp_path: Path,
) -> None:
    engine = engine_with(1000.0)
    with engine.coordinator(tmp_path) as coordinator:
        blocker = submit(coordinator)
        large, small = (submit(coordinator, memory_mb=mb) for mb in (900.0, 400.0))
    engine.cluster = replace(engine.cluster, memory_mb=500.0)
    with engine.coordinator(tmp_path) as coordinator:
        engine.end(blocker)
        coordinator.turn()
        assert shown(coordinator, large, small) == ["held", "running"]
        assert "it asks for 900 MB of memory, jobs may have 500 MB" in why(coordinator, large)
        engine.end(small)
        coordinator.turn()
    engine.cluster = replace(engine.cluster, memory_mb=1000.0)
    with engine.coordinator(tmp_path) as coordinator:
        coordinator.turn()
        assert shown(coordinator, large, small) == ["running", "done"]


def test_memory_that_is_not_there(up: Up) -> None:
    done = up.run("up", "--memory", "900000G")
    assert done.returncode == 2 and "--memory: 9e+05 TB" not in done.stderr
    assert "asked for" in done.stderr and "are there; ask for less" in done.stderr
    assert up.run("up", "--engine", "slurm", "--memory", "1G").returncode == 2
