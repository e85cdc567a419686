"""Memory as a resource of every policy on this machine: who is refused, who waits, who may pass."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.errors import BadInput
from scheduler.jobs.gpus import GpuKind
from scheduler.jobs.machine_memory import Claim, MachineMemory
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
    "weigh": (Cluster((CORES,)), CORE),
    "match": (Cluster((NODE,)), Unit(node=True, cores=2)),
    "las": (Cluster((NODE,)), Unit(node=True, cores=2)),
    "parm": (Cluster((PACKAGES,), budget_w=400.0), Unit(node=True, package=True, emulated="intel-2s")),
}


@settings(max_examples=examples(200))
@given(
    total=st.integers(1, 20),
    jobs=st.lists(st.tuples(st.integers(-1, 1), st.integers(1, 20)), min_size=1, max_size=30),
    seed=st.integers(0, 10**6),
)
def test_never_more_than_there_is_and_nobody_waits_for_ever(
    total: int, jobs: list[tuple[int, int]], seed: int
) -> None:
    """Jobs are started and end in any order. Beside it: the rule word by word, from sets alone."""
    chance, memory = random.Random(seed), MachineMemory(float(total))
    claims = {n: Claim(-priority, n, float(min(mb, total))) for n, (priority, mb) in enumerate(jobs, 1)}
    queue, running, short = list(claims), set[int](), set[int]()
    while queue or running:
        if queue and (not running or chance.random() < 0.6):
            number = queue.pop(chance.randrange(len(queue)))
            lacking = memory.lacking([claims[number]])
            assert bool(lacking) != _may_start(claims, running, short, number, total=total)
            if lacking:
                memory.wait(*lacking)
                short.add(number)
            else:
                assert memory.hold(claims[number]) == (number in short)
                running.add(number)
                short.discard(number)
        else:
            number = chance.choice(sorted(running))
            running.remove(number)
            assert memory.release(number)
        away = [number for number in short if memory.waits(number)]
        assert all("waits for" in memory.why(number) for number in away)
        back = memory.admit()
        assert back == sorted(back, key=claims.__getitem__) and set(back) <= set(away)
        queue += back
        assert memory.free_mb == total - sum(claims[number].mb for number in running) >= 0
    assert not short and not memory.contended([]) and not memory.release(1)


def _may_start(
    claims: dict[int, Claim], running: set[int], short: set[int], number: int, *, total: int
) -> bool:
    """Rules 1 and 3 of ``scheduler.jobs.machine_memory``."""
    claim, held = claims[number], [claims[other] for other in running]
    if sum(other.mb for other in held) + claim.mb > total:
        return False
    first = min((claims[other] for other in short), default=claim)
    passed = sum(other.mb for other in held if other > first)
    return claim <= first or first.mb + passed + claim.mb <= total


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
        if cluster.pools[0].counted:  # else the policy plans with the memory of nodes, and says so
            assert LEFT in why(coordinator, second)
        held_mb = 800.0 if policy == "match" else 900.0
        assert memory(coordinator) == {"total_mb": 1000.0, "set_aside_mb": held_mb}
    with engine.coordinator(tmp_path, policy, unit=unit) as coordinator:
        assert shown(coordinator, first, second, small) == stages
        engine.end(first)
        coordinator.turn()
        assert shown(coordinator, first, second) == ["done", "running"]


def test_a_paused_job_keeps_its_memory_and_who_has_not_begun_has_none(tmp_path: Path) -> None:
    engine = engine_with(1000.0)
    with engine.coordinator(tmp_path, "easy") as coordinator:
        paused = submit(coordinator, memory_mb=300.0)
        coordinator.suspend([paused])
        blocker = submit(coordinator)
        low = submit(coordinator, memory_mb=600.0)
        high = submit(coordinator, memory_mb=700.0, priority=1)
        tall = submit(coordinator, memory_mb=800.0, priority=-1)
        assert "first in the queue" in why(coordinator, high)
        assert f"behind job {high}" in why(coordinator, low)
        coordinator.resume([paused])
        engine.end_all(coordinator)
        assert engine.begun == [(job, 1) for job in (paused, blocker, high, low, tall)]
        assert not coordinator.job_table.entries


def test_easy_plans_with_the_memory_of_a_node_and_knows_nothing_of_what_paused_jobs_keep(
    tmp_path: Path,
) -> None:
    """Whoever ends before the first job can begin passes it, also if that leaves no room for it now."""
    pool = Pool("node", 1, resources=("cores", "memory_mb", "gpu"), capacity=(4.0, 1000.0, 1.0))
    unit = Unit(node=True, cores=4, gpus=(GpuKind("gpu", "a", 1e4, 1),))
    engine = engine_with(1000.0, Cluster((pool,)))
    with engine.coordinator(tmp_path, "easy", unit=unit) as coordinator:
        large, next_large, passes, too_long = (
            submit(coordinator, memory_mb=mb, time_s=limit_s)
            for mb, limit_s in ((800.0, 100.0), (900.0, 100.0), (150.0, 50.0), (150.0, 200.0))
        )
        stages = ["running", "waiting", "running", "waiting"]
        assert shown(coordinator, large, next_large, passes, too_long) == stages
        coordinator.suspend([passes])
        engine.end(large)
        coordinator.turn()
        assert "waits for 900 MB of memory; 850 MB of 1 GB are free" in why(coordinator, next_large)
        assert shown(coordinator, too_long) == ["waiting"]  # it would leave no room for the first one
        assert f"job {next_large} has the first turn" in why(coordinator, too_long)
        coordinator.resume([passes])
        engine.end_all(coordinator)
        assert not coordinator.job_table.entries


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
