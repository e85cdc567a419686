"""Cores and devices for jobs: not those of other coordinators, whole cores first, no more than a quota."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from agent.inventory import Roots
from agent.processes import claims
from agent.processes.claims import SUPERVISOR, running_jobs
from probes.topology import read_topology
from profiles.errors import BadInput
from profiles.files.safe_files import user_name
from scheduler.engines.local.cores import Cores, Supply, UsableCpus, usable_cpus, whole_cores_first
from scheduler.jobs.entry import Entry
from scheduler.jobs.specs import JobSpec
from scheduler.model.jobs import Cluster, Placement, Pool
from tests.support.labs.components import require
from tests.support.labs.machines import Tree

SIBLINGS = {0: 0, 4: 0, 1: 1, 5: 1, 2: 2, 6: 2, 3: 3, 7: 3}  # as Linux numbers four cores of two threads
NEIGHBOURS = {0: 0, 1: 0, 2: 2, 3: 2, 4: 4, 5: 4}  # as many virtual machines number three
HOME = Path("/home/me/jobs")
FIRST = next(iter(read_topology(Path("/sys"), os.sched_getaffinity(0)).cpus)).index


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def roots(tree: Tree) -> Roots:
    return Roots(tree.sysfs, tree.procfs, tree.root)


def machine(tree: Tree, core_of: dict[int, int]) -> Roots:
    for cpu, core in core_of.items():
        threads = sorted(other for other, of in core_of.items() if of == core)
        tree.cpu(cpu, siblings=",".join(map(str, threads)), caches=[])
    tree.cpus(len(core_of))
    tree.put("proc/self/status", f"Cpus_allowed_list:\t0-{len(core_of) - 1}")
    return roots(tree)


def nobody(name: str) -> str:
    return ""


# -- whole cores first --------------------------------------------------------------------------------


@pytest.mark.parametrize("core_of", [SIBLINGS, NEIGHBOURS])
@pytest.mark.parametrize("count", range(1, 9))
def test_cores_that_up_gives_out_are_whole_as_long_as_there_are_any(
    core_of: dict[int, int], count: int
) -> None:
    if count <= len(core_of):
        chosen = UsableCpus(core_of).choose(count)
        assert len(chosen) == count
        assert len({core_of[cpu] for cpu in chosen}) == min(count, len(set(core_of.values())))


def test_no_other_choice_of_cpus_loads_fewer_cores_twice() -> None:
    """By trying all choices of two CPUs, whatever is busy."""
    for some in range(len(NEIGHBOURS) - 1):
        for busy in combinations(NEIGHBOURS, some):
            free = [cpu for cpu in NEIGHBOURS if cpu not in busy]

            def twice(cpus: tuple[int, ...], busy: tuple[int, ...] = busy) -> int:
                used = [NEIGHBOURS[cpu] for cpu in (*busy, *cpus)]
                return len(used) - len(set(used))

            chosen = tuple(whole_cores_first(free, NEIGHBOURS, busy)[:2])
            assert twice(chosen) == min(map(twice, combinations(free, 2)))


def test_jobs_of_one_core_have_cores_of_their_own_before_siblings(tmp_path: Path) -> None:
    cluster = Cluster((Pool("core", 6),))
    cores = Cores(tmp_path, cluster, [list(NEIGHBOURS)], {}, whole=False, core_of=NEIGHBOURS)
    jobs = []
    for number in range(6):
        job = Entry(number, JobSpec(command=("true",), folder="/"), "", 0.0)
        job.placement = Placement("core", 1)
        cores.place(job, job.placement)
        jobs.append(job)
    assert [job.cores for job in jobs] == [(0,), (2,), (4,), (1,), (3,), (5,)]
    cores.free(jobs[3])
    cores.free(jobs[1])
    cores.free(jobs[4])
    cores.place(jobs[1], Placement("core", 1))
    assert jobs[1].cores == (2,)  # CPU 1 has job 0 beside it


def test_hardware_threads_are_said() -> None:
    usable = UsableCpus(NEIGHBOURS)
    assert usable.notes(usable.choose(3)) == []
    (note,) = usable.notes(usable.choose(None))
    assert note.startswith("6 hardware threads of 3 cores count as cores")


# -- a CPU quota --------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(("quota", "cores"), [(0.5, 1), (1.0, 1), (2.5, 2), (7.9, 7), (16.0, 8), (None, 8)])
def test_a_quota_limits_the_cores(tree: Tree, version: int, quota: float | None, cores: int) -> None:
    machine(tree, SIBLINGS)
    said = "max" if quota is None else str(int(quota * 100_000))
    if version == 1:
        tree.put("proc/self/cgroup", "5:cpu,cpuacct:/docker/a")
        tree.put("sys/fs/cgroup/cpu/docker/a/cpu.cfs_quota_us", -1 if quota is None else said)
        tree.put("sys/fs/cgroup/cpu/docker/a/cpu.cfs_period_us", 100_000)
    else:
        tree.put("proc/self/cgroup", "0::/")
        tree.put("sys/fs/cgroup/cpu.max", f"{said} 100000")
    usable = usable_cpus(roots(tree), set(SIBLINGS))
    chosen = usable.choose(None)
    assert len(chosen) == cores and len({SIBLINGS[cpu] for cpu in chosen}) == min(cores, 4)
    assert any("CPU quota" in note for note in usable.notes(chosen)) == (cores < 8)
    if cores < 8:
        with pytest.raises(BadInput, match=f"--cores {cores + 1}: the CPU quota is worth"):
            usable.choose(cores + 1)


def test_a_quota_is_ones_own() -> None:
    """Each user of a machine may have one: what others have is not taken off it."""
    usable = UsableCpus(SIBLINGS, 2.0, {0: "somebody"})
    assert usable.choose(None) == usable.choose(2) == [1, 2]


# -- other coordinators -------------------------------------------------------------------------------


def test_the_cores_of_others_are_left_to_them() -> None:
    usable = UsableCpus(SIBLINGS, taken={0: "A", 4: "A", 1: "B"})
    assert usable.choose(2) == [2, 3] and usable.choose(None) == [5, 2, 6, 3, 7]
    assert usable.choose(None, whole=True) == [2, 3]
    assert usable.holders() == "cores 0,4 of A; core 1 of B"
    with pytest.raises(BadInput, match="no core is left"):
        UsableCpus({0: 0}, taken={0: "A"}).choose(None)


def test_jobs_of_a_coordinator_that_is_stopped_are_seen(tree: Tree) -> None:
    """Its supervisors go on. A job's environment shows whose it is only to the same user."""
    where = machine(tree, SIBLINGS)
    supervisor = "\0".join(["python3", "-P", "-m", SUPERVISOR.decode(), "/somewhere/report.sock"])
    jobs = {
        20: (
            "2",
            "TENBIN_MARK=/home/other/jobs:1:1\0CUDA_VISIBLE_DEVICES=GPU-b\0ROCR_VISIBLE_DEVICES=GPU-a,GPU-e",
        ),
        21: ("3", f"TENBIN_MARK={HOME}:1:1\0CUDA_VISIBLE_DEVICES=GPU-c"),
        22: ("5,6", None),  # of another user
        23: ("0-7", "TENBIN_MARK=/home/other/jobs:2:1\0TENBIN_DEVICE=1"),
        24: ("0-7", None),  # nobody can tell
    }
    for pid in (10, 11):
        tree.put(f"proc/{pid}/status", "PPid:\t1\nCpus_allowed_list:\t0-7")
        tree.put(f"proc/{pid}/cmdline", supervisor)
    for pid, (cores, environment) in jobs.items():
        tree.put(f"proc/{pid}/status", f"PPid:\t10\nCpus_allowed_list:\t{cores}")
        tree.put(f"proc/{pid}/cmdline", "sleep")
        if environment is not None:
            tree.put(f"proc/{pid}/environ", f"{environment}\0")
    tree.put("proc/30/status", "PPid:\t1\nCpus_allowed_list:\t7")  # no job of tenbin's
    tree.put("proc/30/cmdline", "sleep")
    seen = {job.pid: (job.cores, job.devices) for job in running_jobs(where.procfs)}
    bound = {20: ((2,), ()), 21: ((3,), ()), 22: ((5, 6), ())}
    assert seen == bound | {23: ((), (1,)), 24: ((), ())}
    usable = usable_cpus(where, set(SIBLINGS), HOME, nobody)
    assert usable.taken.keys() == {2, 5, 6} and usable.own == {3}
    assert usable.choose(1) == [3]
    with Supply(HOME, roots=where) as supply:
        assert supply.take_devices(["GPU-a", "GPU-c", "GPU-d"], by_uuid=True) == [1, 2]
        own = "left to others: GPU-a of another coordinator's job, process 20"
        assert supply.notes()[0] == f"{own}; to use them too: tenbin up --share"


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Start a process that claims a core of this machine and a device; yield its number.

    Names are those of this test only.
    """
    name = f"tests-{os.getpid()}/{{}}"
    monkeypatch.setattr(claims, "NAME", f"\0{name}")
    code = f"import sys; from agent.processes import claims; claims.NAME = '\\0' + {name!r}\n"
    code += f"own = claims.Claims(); assert own.take('core {FIRST}') and own.take('device tests-0')\n"
    code += "print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline()
        yield process.pid
        process.stdin.close()


def supply(folder: Path, name: str, *, share: bool = False) -> Supply:
    """Supply a coordinator of that folder, where no jobs of others are seen."""
    (folder / "proc").mkdir(exist_ok=True)
    return Supply(folder / name, share=share, roots=Roots(Path("/sys"), folder / "proc", Path("/")))


def test_what_another_process_has_claimed_is_left_to_it(other: int, tmp_path: Path) -> None:
    require(len(os.sched_getaffinity(0)) > 1, "two cores")
    whose = f"another coordinator, process {other} of user {user_name(os.getuid())}"
    assert claims.holder(f"core {FIRST}") == whose
    with supply(tmp_path, "a") as mine:
        assert mine.take(1) != [FIRST] and mine.take_devices(["tests-0", "tests-1"]) == [1]
        others = f"left to others: tests-0 of {whose}; core {FIRST} of {whose}"
        assert mine.notes() == [mine.left_to_others()] == [f"{others}; to use them too: tenbin up --share"]
        with supply(tmp_path, "b") as later, pytest.raises(BadInput, match="no device is left"):
            later.take_devices(["tests-0", "tests-1"])
    with supply(tmp_path, "c", share=True) as sharing:
        assert FIRST in sharing.take() and sharing.take_devices(["tests-0"]) == [0]


def test_claims_end_with_their_process_and_who_asks_is_let_go(other: int, tmp_path: Path) -> None:
    with supply(tmp_path, "a") as mine:
        cores = mine.take()
        assert [claims.holder(f"core {core}") != "" for core in cores] == [True] * len(cores)
        for _ in range(3):
            assert claims.holder(f"core {cores[0]}")
        mine.claims.answer()
        assert claims.holder(f"core {cores[0]}")
    assert not any(claims.holder(f"core {core}") for core in cores)


def test_of_two_who_choose_at_once_one_chooses_again(other: int, tmp_path: Path) -> None:
    """The other claim comes between the look and the own claim."""
    require(len(os.sched_getaffinity(0)) > 1, "two cores")
    with supply(tmp_path, "a") as mine:
        mine.usable = replace(mine.usable, taken={})
        assert FIRST not in mine.take(1) and FIRST in mine.usable.taken
