"""Memory as a resource of every policy on this machine: who is refused, who waits, who may pass."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.jobs.memory_admission import MemoryAdmission
from tests.support.amounts import examples, sweep
from tests.support.coordinator import Up

GATE = ["sh", "-c", "touch begun-$TENBIN_JOB_ID; while ! [ -e go ]; do sleep 0.02; done"]
MACHINES = [  # the world has the memory of other policies
    ("--cores", "2", "--policy", "easy"),
    ("--cores", "2", "--policy", "match"),
    ("--cores", "2", "--policy", "las"),
    ("--power-budget", "400", "--emulate", "intel-2s", "--policy", "parm"),
]


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


@pytest.mark.parametrize("options", sweep(MACHINES, MACHINES[:2]), ids=lambda options: options[-1])
def test_jobs_whose_memory_is_not_there_together_run_one_after_the_other(
    up: Up, options: tuple[str, ...]
) -> None:
    up.start(*options, "--memory", "1000M")
    done = up.run("submit", "--memory", "2G", "--", "true")
    assert done.returncode == 2 and "never run here" in done.stderr
    first, second, small = (
        up.client.submit(GATE, folder=str(up.home), memory_mb=mb, time_s=60) for mb in (800, 700, 100)
    )
    up.until(lambda: first.info()["stage"] == "running")
    if options[-1] != "match":  # there a job without a job profile has its node to itself
        up.until(lambda: small.info()["stage"] == "running")
    assert "waits for 700 MB of memory; 100 MB of 1 GB are free" in second.info()["why"]
    assert "900 MB of 1 GB of memory set aside" in up.run("status").stdout
    begun = [first] if options[-1] == "match" else [first, small]
    up.until(lambda: all((up.home / f"begun-{job.id}").exists() for job in begun))
    up.kill()  # what is emulated goes with it; a program that has begun no longer needs it
    up.start(*options, "--memory", "1000M")
    assert "waits for 700 MB of memory; 100 MB of 1 GB are free" in second.info()["why"]
    assert second.info()["start_s"] is None
    (up.home / "go").touch()
    a, b, _ = (job.wait(30) for job in (first, second, small))
    assert (a["stage"], b["stage"]) == ("done", "done") and a["end_s"] <= b["start_s"]


def test_a_paused_job_keeps_its_memory_and_a_priority_takes_that_of_who_has_not_begun(up: Up) -> None:
    up.start("--cores", "1", "--memory", "1000M")
    paused = up.client.submit(GATE, folder=str(up.home), memory_mb=300)
    up.until(lambda: paused.info()["stage"] == "running")
    up.run("suspend", str(paused.id))
    blocker = up.client.submit(GATE, folder=str(up.home))
    low = up.client.submit(["true"], folder="/", memory_mb=600)
    high = up.client.submit(["true"], folder="/", memory_mb=700, priority=1)
    tall = up.client.submit(["true"], folder="/", memory_mb=800, priority=-1)
    assert "is first in the queue" in high.info()["why"] and "waits for 600 MB" in low.info()["why"]
    assert "job 3 has the first turn" in tall.info()["why"]
    up.run("resume", str(paused.id))
    (up.home / "go").touch()
    ends = [job.wait(30) for job in (blocker, high, low, tall)]
    assert [one["stage"] for one in ends] == ["done"] * 4
    starts = [one["start_s"] for one in ends]
    assert starts == sorted(starts)


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


def test_a_paused_job_whose_device_is_gone_stops_no_other(up: Up) -> None:
    """Its memory is known without its place."""
    up.start("--devices", "--policy", "mctbm")
    paused = up.client.submit(GATE, folder=str(up.home), memory_mb=100, device="pocl-0")
    up.until(lambda: paused.info()["stage"] == "running")
    paused.suspend()
    up.until(lambda: paused.info()["stage"] in ("held", "suspended"))
    up.kill()
    up.start("--cores", "1")
    assert "100 MB of" in up.run("status").stdout
    assert up.client.submit(["true"], folder="/", memory_mb=100).wait(30)["stage"] == "done"
    (up.home / "go").touch()
    paused.cancel()


def test_a_range_of_tasks_is_cut_to_the_memory(up: Up) -> None:
    up.start("--memory", "1000M")
    assert up.client.submit(["true"], folder="/", memory_mb=600, max_tasks=2).wait(30)["stage"] == "done"
    done = up.run("submit", "--memory", "600M", "-n", "2", "--", "true")
    assert done.returncode == 2 and "asks for 1.2 GB of memory, jobs may have 1 GB" in done.stderr


def test_a_machine_with_less_memory_than_before_holds_who_asks_for_more_and_runs_the_others(up: Up) -> None:
    up.start("--memory", "1000M", "--cores", "1")
    blocker = up.client.submit(GATE, folder=str(up.home))
    large, small = (up.client.submit(["true"], folder="/", memory_mb=mb) for mb in (900, 400))
    up.until(lambda: blocker.info()["stage"] == "running")
    up.kill()
    up.start("--memory", "500M", "--cores", "1")
    (up.home / "go").touch()
    assert small.wait(30)["stage"] == "done"
    assert "it asks for 900 MB of memory, jobs may have 500 MB" in large.info()["why"]
    up.kill()
    up.start("--memory", "1000M", "--cores", "1")
    assert large.wait(30)["stage"] == "done"


def test_memory_that_is_not_there(up: Up) -> None:
    done = up.run("up", "--memory", "900000G")
    assert done.returncode == 2 and "--memory: 9e+05 TB" not in done.stderr
    assert "asked for" in done.stderr and "are there; ask for less" in done.stderr
    assert up.run("up", "--engine", "slurm", "--memory", "1G").returncode == 2
