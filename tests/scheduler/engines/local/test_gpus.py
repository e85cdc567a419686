"""GPUs of this machine, emulated: jobs that get some, and those that get none."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from agent.attempts.folder import Attempt
from agent.emulation.emulated_gpus import emulated_gpus, pci_address, uuid
from agent.gpus import Holder
from agent.processes import tree
from probes import nvml
from profiles.checks.check import Change, Check, CheckedDevice, CheckStore, Verdict
from profiles.errors import BadInput
from scheduler.engines.local import engine as local_engine
from scheduler.engines.local import gpus as local_gpus
from scheduler.engines.local.cores import Cores
from scheduler.engines.local.gpus import (
    LIVED_S,
    UNSEEN_S,
    Gpu,
    GpuNow,
    Gpus,
    GpuWatch,
    JobGpus,
    gpus_behind,
)
from scheduler.engines.registry import IdleRule
from scheduler.jobs.entry import Entry
from scheduler.jobs.gpus import GpuKind, kinds_for, settle_kind
from scheduler.jobs.policy_view import as_job
from scheduler.jobs.sizes import Unit
from scheduler.jobs.specs import JobSpec
from scheduler.model.jobs import Cluster, Job, Placement, Pool
from scheduler.model.state import Nodes
from tenbin.client import client
from tests.support.checks import make_check
from tests.support.coordinator import Up
from tests.support.labs.components import require
from tests.support.programs import tenbin
from tests.support.waiting import until

# It has its cores and GPUs to itself, or fails.
SEES = """
import fcntl, os, pathlib, signal, sys
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(85))
folder, name = pathlib.Path(sys.argv[1]), sys.argv[2]
gpus = [gpu for gpu in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if gpu]
files = [folder / "home/gpus/dev" / f"nvidia{int(gpu[-12:], 16)}" for gpu in gpus]
held = [open(file, "ab") for file in files + [folder / f"core{n}" for n in os.sched_getaffinity(0)]]
for file in held:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
names = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "TENBIN_DEVICE")
print(*(os.environ.get(name) for name in names), flush=True)
(folder / name).read_bytes()  # until somebody has written
"""
A100, V100 = GpuKind("gpu:a100_80gb", "a100_80gb", 80e3, 2), GpuKind("gpu:v100_16gb", "v100_16gb", 16e3, 4)
SLICE = GpuKind("gpu:a100_mig_1g_10gb", "a100_mig_1g_10gb", 10e3, 7)


def spec(**needs: Any) -> JobSpec:
    return JobSpec(command=("true",), folder="/", **needs)


def seen(*gpus: int) -> str:
    """Return what a job with these GPUs prints."""
    return f"{','.join(map(uuid, gpus))} None None"


@pytest.fixture
def gpus(up: Up) -> Up:
    require(shutil.which("cc"), "a C compiler (Debian: gcc)")
    pytest.importorskip("pynvml")
    up.start("--emulate", "gpus-4")
    return up


def test_a_machine_that_comes_up_with_fewer_gpus(gpus: Up) -> None:
    """Who runs keeps its GPUs, also one that is gone; who was lost waits, and can be cancelled."""
    up = gpus
    lives = up.client.submit(["sleep", "600"], gpus=3)
    up.until(lives.running)
    numbers = lives.info()["gpus"]
    up.kill()
    up.start("--emulate", "gpus-2")
    assert lives.info()["stage"] == "running" and lives.info()["gpus"] == numbers
    up.kill()
    up.start("--no-gpus")
    assert f"; GPUs {', '.join(map(str, numbers))}; attempt 1" in up.run("info", str(lives.id)).stdout
    up.kill()
    up.start("--emulate", "gpus-2")
    (node,) = up.client.call("GET", "/nodes")
    assert {gpu["number"]: gpu["job"] for gpu in node["gpus"]} == dict.fromkeys(numbers, lives.id) | {
        number: None for number in (0, 1) if number not in numbers
    }
    up.kill()
    for pid in Attempt(up.home / "jobs" / str(lives.id) / "attempt-1").supervisors():
        os.kill(pid, signal.SIGKILL)
    assert tree.kill_marked(f"{up.home}:{lives.id}:1")
    up.start("--emulate", "gpus-2")
    up.until(lambda: lives.info()["stage"] == "held")
    assert "cannot run the job: --gpus 3: jobs may have 2" in str(lives.info()["why"])
    assert up.client.submit(["true"], gpus=2).result(60) == 0
    assert up.run("cancel", str(lives.id)).returncode == 0 and lives.info()["stage"] == "cancelled"


def test_what_cannot_be_had_is_refused(gpus: Up) -> None:
    for options, words in (
        (("--gpus", "5"), "--gpus 5: jobs may have 4 emulated_gpu_80gb"),
        (("--gpus", "a100:1"), "--gpus a100:1: jobs may have"),
        (("--gpus", "1", "--gpus-memory", "100G"), "--gpus 1 with 100 GB each: jobs may have"),
        (("--gpus", "x:y"), "--gpus 'x:y' is no number"),
        (("--gpus", "0"), "--gpus '0' is no number"),
    ):
        done = gpus.run("submit", *options, "--", "true")
        assert done.returncode == 2 and words in done.stderr, done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_under_las_a_job_of_cores_gives_way_and_one_with_gpus_does_not(up: Up) -> None:
    require(shutil.which("cc"), "a C compiler (Debian: gcc)")
    require(len(os.sched_getaffinity(0)) > 1, "two cores")
    pytest.importorskip("pynvml")
    up.start("--emulate", "gpus-4", "--cores", "2", "--policy", "las-mq")
    trains, computes = up.client.submit(["sleep", "600"], gpus=3), up.client.submit(["sleep", "600"])
    for job in (trains, computes):
        up.until(job.running)
    new = up.client.submit(["sh", "-c", "echo $CUDA_VISIBLE_DEVICES-"])
    assert new.result(60) == 0 and up.client.output(new.id) == b"-\n"
    up.until(computes.running)
    assert [job.info()["preemptions"] for job in (trains, computes)] == [0, 1]
    done = up.run("suspend", str(trains.id))
    assert done.returncode == 2 and "it would keep its memory on its GPUs" in done.stderr


def test_without_gpus_none_can_be_asked_for(up: Up) -> None:
    up.start("--no-gpus")
    (pool,) = up.client.call("GET", "/nodes")
    assert pool["name"] == "core"
    done = up.run("submit", "--gpus", "1", "--", "true")
    assert done.returncode == 2 and "--gpus 1: no GPUs are scheduled" in done.stderr


@pytest.mark.parametrize("options", [("--policy", "regions"), ("--no-gpus",)])
def test_emulated_gpus_that_nobody_would_get_are_refused(tmp_path: Path, options: tuple[str, ...]) -> None:
    require(shutil.which("cc"), "a C compiler (Debian: gcc)")
    done = tenbin("up", "--home", str(tmp_path / "home"), "--emulate", "gpus-1", *options)
    assert done.returncode == 2 and "--emulate gpus-1: no GPUs are scheduled so" in done.stderr, done.stderr
    assert tenbin("up", "--home", str(tmp_path / "home"), "--emulate", "gpus-99").returncode == 2


def test_what_is_withheld_of_a_node_is_not_there_for_jobs_now() -> None:
    resources = ("cores", "memory_mb", "gpu")
    nodes = Nodes(Pool("node", 1, resources=resources, capacity=(4.0, 1000.0, 2.0)))
    assert nodes.withhold(0, {"gpu": 1.0}) and not nodes.withhold(0, {"gpu": 1.0})
    assert nodes.free.tolist() == nodes.capacity.tolist() == [[4.0, 1000.0, 1.0]]
    job = Job(1, 0.0, demand=(1.0, 0.0, 2.0))
    assert nodes.misfit(job) == "" and "has (4, 1000, 1) free" in nodes.refusal(
        job, Placement("node", 1, ((0, 1),))
    )
    nodes.withhold(0, {})
    nodes.take(job, Placement("node", 1, ((0, 1),)))
    assert nodes.free.tolist() == [[3.0, 1000.0, 0.0]]


def test_a_number_is_that_of_the_same_gpu_until_another_has_its_place(tmp_path: Path) -> None:
    from scheduler.engines.local.gpus import _numbers

    assert _numbers(tmp_path, ["a", "b", "c"]) == {"a": 0, "b": 1, "c": 2}
    assert _numbers(tmp_path, ["c"])["c"] == 2 and _numbers(tmp_path, ["b", "c"])["b"] == 1
    assert _numbers(tmp_path, ["c", "d"], {"a"}) == {"a": 0, "d": 1, "c": 2}
    assert _numbers(tmp_path, ["e", "f", "d"], {"a", "c"}) == {"a": 0, "d": 1, "c": 2, "e": 3, "f": 4}
    assert json.loads((tmp_path / "gpus.json").read_text()) == ["a", "d", "c", "e", "f"]
    for damaged in (b'["a", ', b"\xff", b"{}", b"[1]"):
        (tmp_path / "gpus.json").write_bytes(damaged)
        with pytest.raises(BadInput, match=r"gpus\.json: the numbers of GPUs cannot be read"):
            _numbers(tmp_path, ["a"])


def test_a_kind_is_named_by_a_part_of_its_name() -> None:
    kinds = (A100, SLICE, V100)
    assert kinds_for(spec(gpus=1), kinds) == [A100, V100]
    assert kinds_for(spec(gpus=3), kinds) == [V100]
    assert kinds_for(spec(gpus=1, gpu_kind="A100"), kinds) == [A100, SLICE]
    assert kinds_for(spec(gpus=1, gpu_kind="1g.10gb"), kinds) == [SLICE]
    assert kinds_for(spec(gpu_memory_mb=40e3), kinds) == [A100]
    assert kinds_for(spec(gpus=2), (SLICE,)) == [SLICE]
    for needs in ({"gpus": 5}, {"gpus": 1, "gpu_kind": "100"}, {"gpu_kind": "v100", "gpu_memory_mb": 20e3}):
        with pytest.raises(BadInput, match="jobs may have 2 a100_80gb"):
            kinds_for(spec(**needs), kinds)


def test_of_several_kinds_that_of_which_least_is_asked_for() -> None:
    requested: Counter[str] = Counter()
    chosen = [settle_kind(spec(gpus=1), (A100, V100), requested).gpu_kind for _ in range(6)]
    assert Counter(chosen) == {"a100_80gb": 2, "v100_16gb": 4}
    assert settle_kind(spec(), (A100, V100), requested) == spec()


def test_gpus_near_the_job_s_cores_come_first(tmp_path: Path) -> None:
    by_number = {n: Gpu(f"GPU-{n}", "A100", 80e3, f"/dev/nvidia{n}", n // 2) for n in range(4)}
    gpus = Gpus(by_number, {0: 0, 1: 0, 2: 1, 3: 1}, closes=True)
    resources = ("cores", "memory_mb", "gpu")
    cluster = Cluster((Pool("node", 1, resources=resources, capacity=(4.0, 1000.0, 4.0)),))
    unit = Unit(node=True, cores=4, gpus=gpus.kinds)
    cores = Cores(tmp_path, cluster, [[0, 1, 2, 3]], gpus.numbers, whole=False, choose_gpus=gpus.choose)

    def place(number: int, **needs: Any) -> Entry:
        entry = Entry(number, spec(**needs), "", 0.0)
        entry.job = as_job(number, 0.0, entry.spec, cluster, user="x", unit=unit)
        cores.place(entry, Placement("node", 1, ((0, 1),)))
        return entry

    first, second, third = place(1, tasks=2), place(2, gpus=1), place(3, gpus=3)
    assert [(job.cores, job.devices) for job in (first, second, third)] == [
        ((0, 1), ()),
        ((2,), (2,)),
        ((3,), (3, 0, 1)),
    ]
    assert gpus.closed(second.devices) == ("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia3")
    assert gpus.variables(third.devices)["CUDA_VISIBLE_DEVICES"] == "GPU-3,GPU-0,GPU-1"
    cores.free(third)
    assert place(4, gpus=3).devices == (3, 0, 1)


def linked(*pairs: tuple[int, int], number: int = 8) -> Gpus:
    """GPUs of which some pairs are linked by NVLink; each four are in one NUMA node."""
    near: dict[int, dict[str, int]] = {n: {} for n in range(number)}
    for a, b in pairs:
        near[a][f"bus{b}"] = near[b][f"bus{a}"] = nvml.LINKED
    by_number = {
        n: Gpu(f"GPU-{n}", "A100", 80e3, "", n // 4, f"bus{n}", distances) for n, distances in near.items()
    }
    return Gpus(by_number, {0: 0, 1: 1})


@pytest.mark.parametrize(
    ("free", "core", "count", "chosen"),
    [
        ((0, 1, 2, 3), 0, 2, [0, 1]),
        ((0, 2, 3, 4), 0, 2, [2, 3]),  # linked
        ((1, 2, 4, 5), 0, 2, [4, 5]),  # linked, though far from the core
        ((1, 2, 4, 6), 0, 2, [1, 2]),
        ((1, 2, 3), 0, 1, [1]),  # leaves a pair
        ((0, 1, 2, 4, 5), 1, 1, [4]),  # near to the core
        ((0, 1, 3, 4, 5, 6), 0, 3, [0, 1, 3]),
        ((1, 3, 4, 5, 6, 7), 0, 4, [4, 5, 6, 7]),
        ((2, 5), 1, 2, [5, 2]),  # the near one is the first
        ((2, 5), 1, 3, [5, 2]),
    ],
)
def test_gpus_of_a_job_are_near_each_other(
    free: tuple[int, ...], core: int, count: int, chosen: list[int]
) -> None:
    gpus = linked((0, 1), (2, 3), (4, 5), (6, 7))
    assert gpus.choose(free, [core], count) == chosen
    assert set(gpus.choose(free, [core], count, lambda number: number in chosen)).isdisjoint(chosen) or (
        len(free) < len(chosen) + count
    )


def test_many_gpus_are_each_chosen_for_itself() -> None:
    gpus = linked((0, 31), number=32)
    assert gpus.choose(range(32), [1], 8) == [4, 5, 6, 7, 0, 1, 2, 3]
    assert gpus.choose(range(32), [0], 2) == [0, 31]


def test_a_range_of_sizes_that_nobody_chooses_from_is_told(gpus: Up) -> None:
    for words in (("submit",), ("submit", "--dry-run")):
        told = [gpus.run(*words, "-n", size, "--", "true").stderr for size in ("1-2", "2", "1")]
        assert "-n 1-2: the job gets 1 task: " in told[0] and not any(
            "the job gets" in text for text in told[1:]
        )
    assert "-n 1-2: the job gets 1 task: " in gpus.run("run", "-n", "1-2", "--", "true").stderr
    with pytest.warns(UserWarning, match="-n 1-2: the job gets 1 task: ") as warned:
        gpus.client.submit(["true"], folder="/", max_tasks=2)
    assert warned[0].filename == __file__


def test_emulated_gpus_are_linked_in_pairs(gpus: Up) -> None:
    """Links that NVML tells of decide which ones a job gets."""
    first = gpus.client.submit(["sleep", "60"], gpus=1)
    second = gpus.client.submit(["sleep", "60"], gpus=2)
    for job, numbers in ((first, [0]), (second, [2, 3])):
        gpus.until(lambda job=job: job.info()["stage"] == "running")  # type: ignore[misc]
        assert job.info()["gpus"] == numbers
        job.cancel()


@pytest.mark.parametrize(
    ("vendor", "variable", "words"),
    [
        ("amd", "ROCR_VISIBLE_DEVICES", ("", *(f"GPU-e{n:015x}" for n in range(2)))),
        ("intel", "ZE_AFFINITY_MASK", ("255", "0", "1")),
    ],
    ids=["amd", "intel"],
)
def test_gpus_of_other_vendors(
    up: Up, tmp_path: Path, vendor: str, variable: str, *, words: tuple[str, str, str]
) -> None:
    """Jobs see their own by the vendor's variable; who holds one outside of the queue is named."""
    none, first, second = words
    up.start("--emulate", f"gpus-2+{vendor}")
    prints = ["sh", "-c", f"echo $CUDA_VISIBLE_DEVICES-${variable}"]
    jobs = [up.client.submit(prints, gpus=number) for number in (None, 1, 2)]
    assert [job.result(60) for job in jobs] == [0, 0, 0]
    assert [up.client.output(job.id).decode() for job in jobs] == [
        *(f"-{none}\n", f"-{first}\n", f"-{first},{second}\n")
    ]
    assert [job.info()["gpus"] for job in jobs] == [[], [0], [0, 1]]
    file = up.home / "gpus/dev/dri/renderD129"
    stranger = subprocess.Popen([sys.executable, "-c", f"file = open({str(file)!r}); input()"], stdin=-1)
    try:
        up.until(lambda: f"process {stranger.pid} (python" in up.run("nodes").stdout)
        waits = up.client.submit(["true"], gpus=2)
        up.until(lambda: "GPU 1 is held outside of the queue by process" in str(waits.info()["why"]))
        assert up.client.submit(["true"], gpus=1, expect_s={"": 1.0}).id
    finally:
        stranger.kill()
        stranger.communicate()
    assert waits.result(60) == 0
    assert f"2 emulated_{vendor}_gpu_80gb (85.9 GB) EMULATED" in (tmp_path / "coordinator.log").read_text()


def test_a_driver_that_cannot_be_asked_is_told(up: Up, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs run as without GPUs."""
    (up.home.parent / "nothing").mkdir()
    monkeypatch.setenv("TENBIN_EMULATED_GPUS", str(up.home.parent / "nothing"))
    up.start("--cores", "1")
    assert up.client.submit(["true"]).result(60) == 0
    assert "GPUs are not scheduled: TENBIN_EMULATED_GPUS" in (up.home.parent / "coordinator.log").read_text()


HOLDS = "import os, sys; os.open(sys.argv[1], os.O_RDWR); print('holds', flush=True); sys.stdin.read()"


def test_a_day_of_a_machine_with_four_gpus(gpus: Up, tmp_path: Path) -> None:
    """Its coordinator is killed twice; nothing is lost, begun twice, or shared."""
    require(len(os.sched_getaffinity(0)) > 1, "two cores")
    up, jobs = gpus, dict[str, client.Job]()
    up.kill()
    up.start("--emulate", "gpus-4", "--cores", "2")

    def submit(name: str, **needs: Any) -> None:
        os.mkfifo(tmp_path / name)
        command = [sys.executable, "-c", SEES, str(tmp_path), name]
        jobs[name] = up.client.submit(command, **needs)

    def printed(name: str) -> list[str]:
        """Read whole lines: a job may just be writing one."""
        return up.client.output(jobs[name].id).decode().rpartition("\n")[0].splitlines()

    def begin(name: str, *numbers: int) -> None:
        up.until(lambda: printed(name))
        assert printed(name) == [seen(*numbers)] and jobs[name].info()["gpus"] == [*numbers]

    def end(*names: str) -> None:
        for name in names:
            (tmp_path / name).write_bytes(b"")
        assert [jobs[name].result(60) for name in names] == [0] * len(names)

    def stages() -> dict[str, str]:
        return {name: job.info()["stage"] for name, job in jobs.items()}

    def table() -> list[dict[str, Any]]:
        (node,) = up.client.call("GET", "/nodes")
        return list(node["gpus"])

    # Two of four GPUs, beside a job without.
    submit("plain")
    submit("two", gpus=2)
    begin("plain")
    begin("two", 0, 1)
    end("plain")
    submit("four", gpus=4)
    assert jobs["four"].info()["why"].startswith("waits for 4 GPUs (2 of 4 free)")
    assert " GB memory, 2 of 4 GPUs free; jobs: " in up.run("nodes").stdout
    two = jobs["two"].id
    assert [(gpu["job"], gpu["name"]) for gpu in table()] == [
        (job, "Emulated GPU 80GB") for job in (two, two, None, None)
    ]
    # A stranger comes. Who wants all GPUs waits and is told why; who wants fewer passes, and gets another.
    command = [sys.executable, "-c", HOLDS, str(up.home / "gpus/dev/nvidia2")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as stranger:
        try:
            up.until(lambda: table()[2]["strangers"])
            submit("idle", gpus=1, checkpoint_signal=int(signal.SIGUSR1))
            submit("one", gpus=1)
            submit("beside")
            begin("idle", 3)
            assert [bool(gpu["strangers"]) for gpu in table()] == [False, False, True, False]
            (held,) = table()[2]["strangers"]
            assert held.startswith(f"process {stranger.pid} (python") and "MB, 0 %, for" in held
            line = f"GPU 2, Emulated GPU 80GB: not given out; outside of the queue: process {stranger.pid}"
            assert line in up.run("nodes").stdout
            why = jobs["four"].info()["why"]
            assert "GPU 2 is held outside of the queue by process" in why, why
            before = stages()
            # The next coordinator has a rule: who does nothing leaves its GPU, if it makes checkpoints.
            up.kill()
            up.start("--emulate", "gpus-4", "--cores", "2", "--idle-gpu", "1s=park")
            up.until(lambda: stages() == before | {"idle": "suspended", "one": "running"})
            assert jobs["idle"].info()["why"].startswith("suspended; go on with: tenbin resume")
            (news,) = seen_idle(up, jobs["idle"].id)
            assert news.endswith(f"; it writes a checkpoint; go on with: tenbin resume {jobs['idle'].id}")
            up.until(lambda: seen_idle(up, two))
            (news,) = seen_idle(up, two)
            assert news.endswith("; it makes no checkpoints (--checkpoint), so it runs on")
            begin("one", 3)
            assert table()[2]["strangers"] and [gpu["job"] for gpu in table()] == [
                *(two, two, None, jobs["one"].id)
            ]
        finally:
            stranger.kill()
    # It goes: all GPUs for one job, beside one without.
    up.until(lambda: not table()[2]["strangers"])
    end("two", "one")
    begin("four", 0, 1, 2, 3)
    begin("beside")
    before = stages()
    up.kill()
    up.start("--emulate", "gpus-4", "--cores", "2", "--idle-gpu", "1s=park")
    assert stages() == before
    assert (before["idle"], before["four"], before["beside"]) == ("suspended", "running", "running")
    rows = up.client.call("GET", "/queue?details=9")["rows"]
    running = {row["id"]: row["gpus"] for row in rows if row["stage"] == "running"}
    assert running == {jobs["four"].id: ["0", "1", "2", "3"], jobs["beside"].id: []}
    assert up.run("resume", str(jobs["idle"].id)).returncode == 0
    end("four", "beside", "idle")
    assert "GPUs 0, 1, 2, 3" in up.run("info", str(jobs["four"].id)).stdout
    assert set(stages().values()) == {"done"}
    assert {name: len(printed(name)) for name in jobs} == dict.fromkeys(jobs, 1) | {"idle": 2}
    listed = up.client.call("GET", "/jobs?all=true")
    assert sorted(job["id"] for job in listed) == sorted(job.id for job in jobs.values())
    assert "EMULATED" in (tmp_path / "coordinator.log").read_text()


def check_of_gpus(number: int, losses: dict[int, float], failures: dict[int, str], **more: Any) -> Check:
    """Make a check of this node that found these GPUs slower, and results of those wrong."""
    devices = [CheckedDevice(device=uuid(n), name=f"GPU {n}", failure=failures.get(n, "")) for n in range(4)]
    changes = [
        Change(
            quantity="device_product_gflops",
            labels={"device": uuid(n)},
            unit="GFLOP/s",
            was=1.0,
            now=1.0 - losses.get(n, 0.0),
            loss_ratio=losses.get(n, 0.0),
            p=0.0,
            state="worse" if n in losses else "same",
        )
        for n in range(4)
    ]
    about = {"node": socket.gethostname(), "devices": tuple(devices), "changes": tuple(changes), **more}
    return make_check(number, **about)


def test_a_slower_gpu_is_given_last_and_one_that_computes_wrongly_to_nobody(
    gpus: Up, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By their last check. Those that are sound are given although the check of the node failed."""
    up, store = gpus, tmp_path / "checks"
    up.kill()
    monkeypatch.setenv("TENBIN_STORE", str(store))
    failed = {"verdict": Verdict.CHANGED, "only_devices": True, "reason": "slow"}
    CheckStore(store).append(check_of_gpus(0, {0: 0.041, 1: 0.08}, {2: "7 of 9 numbers are wrong"}, **failed))
    up.start("--emulate", "gpus-4", "--drain-unfit")
    lines = up.run("nodes").stdout
    assert "GPU 0, Emulated GPU 80GB: free; 4.1 % slower than it was: given last" in lines
    assert (
        "GPU 2, Emulated GPU 80GB: not given out; failed its check (7 of 9 numbers are wrong), again" in lines
    )
    prints = ["sh", "-c", "echo $CUDA_VISIBLE_DEVICES"]

    def numbers(count: int) -> str:
        job = up.client.submit(prints, gpus=count)
        assert job.result(60) == 0
        return up.client.output(job.id).decode().strip()

    assert [numbers(n) for n in (1, 2, 3)] == [
        ",".join(map(uuid, those)) for those in ((3,), (3, 0), (3, 0, 1))
    ]
    runs = up.client.submit(["sleep", "60"], gpus=2)
    up.until(lambda: up.client.call("GET", f"/jobs/{runs.id}")["stage"] == "running")
    assert "GPU 0 is 4.1 % slower than it was" in up.run("info", str(runs.id)).stdout
    runs.cancel()
    four = up.client.submit(["true"], gpus=4)
    why = up.client.call("GET", f"/jobs/{four.id}")["why"]
    assert why.endswith("; GPU 2 failed its check (7 of 9 numbers are wrong), again: tenbin profile check"), (
        why
    )
    CheckStore(store).append(check_of_gpus(1, {}, {}))
    assert four.result(60) == 0


def test_a_job_is_no_stranger_to_its_own_gpus_but_to_others(gpus: Up) -> None:
    """Whose job it is, is seen by its mark, also if it knows nothing of its variables any more."""
    up, file = gpus, gpus.home / "gpus" / "dev" / "nvidia0"
    holds = [
        "env",
        "-i",
        sys.executable,
        "-c",
        HOLDS.replace("sys.stdin.read()", "__import__('time').sleep(60)"),
    ]
    own = up.client.submit([*holds, str(file)], gpus=1)
    up.until(lambda: up.client.output(own.id))
    others = up.client.submit([*holds, str(file.with_name("nvidia2"))])
    up.until(lambda: up.client.call("GET", "/nodes")[0]["gpus"][2]["strangers"])
    table = up.client.call("GET", "/nodes")[0]
    assert [bool(gpu["strangers"]) for gpu in table["gpus"]] == [False, False, True, False]
    assert (table["gpus"][0]["job"], table["free"]["gpu"]) == (own.id, 2)
    assert f" of job {others.id}, to which it is not given" in table["gpus"][2]["strangers"][0]
    for job in (own, others):
        job.cancel()
        job.wait(60)
    assert up.client.submit(["true"], gpus=4).result(60) == 0


def test_a_gpu_that_has_vanished_is_not_given_out(up: Up, tmp_path: Path) -> None:
    """The others are. Whoever runs the machine is told once."""
    log = tmp_path / "log"
    require(shutil.which("cc"), "a C compiler (Debian: gcc)")
    pytest.importorskip("pynvml")
    up.start("--emulate", "gpus-4", "--on-event", f'echo "$TENBIN_EVENT: $TENBIN_REASON" >> {log}')
    assert up.process is not None
    children = psutil.Process(up.process.pid).children()
    (emulation,) = (child for child in children if "agent.emulation.emulated_gpus" in child.cmdline())
    emulation.suspend()
    try:
        state = up.home / "gpus" / "state"
        left = [line for line in state.read_text().splitlines(True) if uuid(3) not in line]
        (tmp_path / "state").write_text("".join(left))
        (tmp_path / "state").replace(state)
        up.until(lambda: up.client.call("GET", "/nodes")[0]["gpus"][3]["failure"] == "does not answer")
        assert "GPU 3, Emulated GPU 80GB: not given out; does not answer\n" in up.run("nodes").stdout
        four = up.client.submit(["true"], gpus=4)
        assert up.client.submit(["true"], gpus=3).result(60) == 0
        assert str(four.info()["why"]).endswith("(3 of 3 free); GPU 3 does not answer")
        up.until(lambda: log.exists() and "gpu-lost: " in log.read_text())
    finally:
        emulation.resume()
    assert four.result(60) == 0
    assert [line for line in log.read_text().splitlines() if "lost" in line] == [
        "gpu-lost: GPU 3 does not answer"
    ]


def test_a_watch_that_ends_at_once_is_started_again_after_pauses_that_grow(
    watch: Callable[..., GpuWatch],
) -> None:
    gpu_watch = watch()
    gpu_watch._begun_s = time.monotonic()
    assert [gpu_watch.pause_s() for _ in range(8)] == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    gpu_watch._begun_s -= LIVED_S
    assert gpu_watch.pause_s() == 0


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP])
def test_a_watch_that_has_ended_or_hangs_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blow: signal.Signals
) -> None:
    """Meanwhile no GPU is given out."""
    require(shutil.which("cc"), "a C compiler (Debian: gcc)")
    pytest.importorskip("pynvml")
    gpus = Gpus({0: Gpu(uuid(0), "A100", 80e3)}, {})
    resources = ("cores", "memory_mb", "gpu")
    cluster = Cluster((Pool("node", 1, resources=resources, capacity=(1.0, 1000.0, 1.0)),))
    unit = Unit(node=True, cores=1, gpus=gpus.kinds)
    with emulated_gpus("gpus-1") as folder:
        monkeypatch.setenv(nvml.FOLDER, str(folder))
        command = [sys.executable, "-c", HOLDS, str(folder / "dev" / "nvidia0")]
        engine = local_engine.LocalEngine(tmp_path, tmp_path / "r", cluster, [[0]], unit=unit, gpus=gpus)

        def strangers() -> tuple[str, ...]:
            engine.poll()
            return engine.gpus.rows()[0].strangers

        with closing(engine), subprocess.Popen(command, stdin=subprocess.PIPE) as stranger:
            try:
                until(strangers)
                watch = engine._watch_gpus
                assert watch is not None
                before = watch._process
                before.send_signal(blow)
                if blow is signal.SIGSTOP:  # and time passes
                    watch._due_s = time.monotonic()

                def ended() -> bool:
                    assert strangers()
                    return bool(engine.gpus.rows()[0].failure)

                until(ended)
                assert "is not watched" in engine.gpus.rows()[0].failure
                assert engine.gpus.withheld() == {"gpu": 1.0}

                def begun_again() -> bool:
                    assert strangers()
                    return watch._process is not before and not engine.gpus.rows()[0].failure

                until(begun_again)
                # How long it has been there is told as of now.
                (told,) = watch.strangers(0)
                monkeypatch.setattr(watch, "_read_s", watch._read_s - 30.0)
                (now,) = watch.strangers(0)
                assert now.age_s is not None and told.age_s is not None and now.age_s >= told.age_s + 30
                (stands,) = watch._now[0].holders
                assert stands.age_s is not None and stands.age_s < now.age_s
            finally:
                stranger.kill()
            until(lambda: not strangers())


WORKS = """
import os, sys, time
os.open(sys.argv[1], os.O_RDWR); open(sys.argv[2], "w")
while True:
    sum(range(300_000))
    time.sleep(0.01)
"""


def seen_idle(up: Up, job: int) -> list[str]:
    history = up.client.call("GET", f"/jobs/{job}")["history"]
    return [event["detail"] for event in history if event["what"] == "idle"]


def started(up: Up, *options: str) -> Path:
    """Start a coordinator with two GPUs; return the file of the first."""
    require(shutil.which("cc"), "a C compiler (Debian: gcc)")
    pytest.importorskip("pynvml")
    up.start("--emulate", "gpus-2", *options)
    return up.home / "gpus" / "dev" / "nvidia0"


def test_use_energy_and_idleness_are_told(up: Up) -> None:
    file, begun = started(up, "--idle-after", "1s"), up.home.parent / "begun"
    job = up.client.submit([sys.executable, "-c", WORKS, str(file), str(begun)], gpus=2)

    def use() -> dict[str, Any]:
        use: dict[str, Any] = up.client.call("GET", f"/jobs/{job.id}")["gpu_use"]
        return use

    up.until(begun.exists)
    up.until(lambda: (up.client.call("GET", "/nodes")[0]["gpus"][0]["share"] or 0) > 0)
    up.until(lambda: "GPU 1: no work for 1 s" in seen_idle(up, job.id))
    assert ": job 1, " in up.run("nodes").stdout
    live = use()
    assert live["gpus_asked"] == 2 and live["gpus_emulated"] and 0 < live["gpus_used"] < 2, live
    assert live["peak_gpu_memory_mb"] > 500 and live["gpu_energy_j"] > 0
    (row,) = json.loads(up.run("jobs", "--json").stdout)
    assert row["gpus_asked"] == 2 and row["gpus_used"] is not None
    # What it has done before a restart counts.
    up.kill()
    up.start("--emulate", "gpus-2", "--idle-after", "1s")
    up.until(lambda: use()["gpu_energy_j"] is not None)
    assert use()["gpu_energy_j"] >= live["gpu_energy_j"] and use()["gpus_used"] is not None
    job.cancel()
    usage = job.wait(60)["usage"]
    assert 0 < usage["gpus_used"] < 2 and usage["peak_gpu_memory_mb"] > 500
    assert usage["gpu_energy_j"] > live["gpu_energy_j"]
    info = up.run("info", str(job.id)).stdout
    assert " of 2 GPUs on average, 537 MB of GPU memory at most, " in info
    assert " J of 2 GPUs (EMULATED)" in info
    assert "GPUs at work of asked: " in up.run("history", "--efficiency").stdout
    assert "(EMULATED)" in up.run("history", "--columns", "id,gpu_energy_j").stdout
    plain = up.client.submit(["true"])
    plain.wait(60)
    (row,) = json.loads(up.run("history", str(plain.id), "--json").stdout)
    assert "gpus_used" not in row


def test_what_others_do_on_its_gpu_is_not_the_job_s(up: Up, tmp_path: Path) -> None:
    """Neither what ran there before it, nor a process outside of the queue beside it."""
    file = started(up)

    def share() -> float:
        return float(up.client.call("GET", "/nodes")[0]["gpus"][0]["share"] or 0)

    before = up.client.submit([sys.executable, "-c", WORKS, str(file), str(tmp_path / "begun")], gpus=1)
    up.until(lambda: share() > 0)
    before.cancel()
    before.wait(60)
    job = up.client.submit(["sleep", "600"], gpus=1)
    up.until(job.running)
    assert job.info()["gpus"] == [0]
    up.until(lambda: job.info()["gpu_use"]["gpus_used"] is not None)
    outside = subprocess.Popen([sys.executable, "-c", WORKS, str(file), str(tmp_path / "begun")])
    try:
        up.until(lambda: up.client.call("GET", "/nodes")[0]["gpus"][0]["strangers"])
        up.until(lambda: share() > 0)
        use = job.info()["gpu_use"]
        assert (use["gpus_used"], use["peak_gpu_memory_mb"]) == (0.0, 0.0)
        assert "used 0 of 1 GPU on average, 0 MB of GPU memory at most" in up.run("info", str(job.id)).stdout
    finally:
        outside.kill()
        outside.wait()
    job.cancel()


def test_a_job_whose_gpus_all_do_nothing_is_ended_by_the_rule(up: Up, tmp_path: Path) -> None:
    """Once, also if the coordinator is killed amid it; who works on one of them is left alone."""
    log, note = tmp_path / "log", tmp_path / "note"
    on_event = f'echo "$TENBIN_EVENT $TENBIN_JOB $TENBIN_STATE" >> {log}'
    options = ("--on-event", on_event, "--idle-gpu", "1s=end")
    file, begun = started(up, *options), tmp_path / "begun"
    works = up.client.submit([sys.executable, "-c", WORKS, str(file), str(begun)], gpus=1)
    up.until(begun.exists)
    assert up.client.call("GET", f"/jobs/{works.id}")["gpus"] == [0]
    tell = f'echo "$TENBIN_EVENT: $TENBIN_REASON" >> {note}'
    command = ("submit", "--gpus", "1", "--notify", tell, "--", "sleep", "600")
    assert up.run(*command).returncode == 0
    up.until(up.client.job(2).running)
    up.kill()
    up.start("--emulate", "gpus-2", *options)
    ended = up.client.job(2).wait(60)
    why = "GPU 1: no work for 1 s (tenbin up --idle-gpu)"
    assert (ended["stage"], ended["trouble"]) == ("cancelled", why)
    assert seen_idle(up, 2) == [f"{why}; it is ended"]
    until(lambda: all(file.exists() and file.read_text().count("\n") == 2 for file in (note, log)))
    assert sorted(note.read_text().splitlines()) == [f"ended: {why}", f"idle: {why}; it is ended"]
    assert sorted(log.read_text().splitlines()) == ["ended 2 cancelled", "idle 2 running"]
    assert up.client.call("GET", f"/jobs/{works.id}")["stage"] == "running"
    works.cancel()


def test_who_holds_a_gpu_outside_of_the_queue_is_told_once(up: Up, tmp_path: Path) -> None:
    """To whoever runs the machine, and to those who wait for a GPU."""
    log, note = tmp_path / "log", tmp_path / "note"
    file = started(up, "--on-event", f'echo "$TENBIN_EVENT:$TENBIN_JOB:$TENBIN_REASON" >> {log}')
    busy = up.client.submit(["sleep", "600"], gpus=1)
    up.until(busy.running)
    wait = ("submit", "--gpus", "2", "--notify", f'echo "$TENBIN_EVENT $TENBIN_JOB" >> {note}', "--", "true")
    assert up.run(*wait).returncode == 0
    command = [sys.executable, "-c", HOLDS, str(file.with_name("nvidia1"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as stranger:
        try:
            up.until(lambda: log.exists() and note.exists() and note.read_text())
            said = f"stranger::GPU 1 is held outside of the queue by process {stranger.pid}"
            assert log.read_text().startswith(said) and note.read_text() == "stranger 2\n"
        finally:
            stranger.kill()
    busy.cancel()
    up.until(lambda: note.read_text() == "stranger 2\nended 2\n")
    assert log.read_text().count("stranger:") == 1


@pytest.mark.parametrize("rule", ["2h", "2h=kill", "=end", "0s=end", "x=park"])
def test_a_rule_that_cannot_be_read_is_refused(tmp_path: Path, rule: str) -> None:
    done = tenbin("up", "--home", str(tmp_path / "home"), "--idle-gpu", rule)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and "--idle-gpu" in done.stderr
    assert not (tmp_path / "home" / "journal.sqlite").exists()


def test_a_rule_for_gpus_that_are_not_scheduled_is_refused(tmp_path: Path) -> None:
    done = tenbin("up", "--home", str(tmp_path / "home"), "--idle-gpu", "2h=end", "--no-gpus")
    assert done.returncode == 2 and done.stderr.startswith("tenbin: --idle-gpu: no GPUs are scheduled")


def test_numbers_that_cannot_be_read_are_told_in_a_line(up: Up) -> None:
    started(up)
    up.kill(signal.SIGTERM)
    file = up.home / "gpus.json"
    file.write_text('["GPU-')
    done = up.run("up", "--emulate", "gpus-2")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert f"{file}: the numbers of GPUs cannot be read" in done.stderr
    assert file.read_text() == '["GPU-'


# What a job does with its GPUs, by looks at set times.


def looks(job: JobGpus, *shares: float | None, every_s: float = 10.0, **meter: Any) -> None:
    """Look at GPU 0 as often as there are shares; GPU 1 always works."""
    for place, share in enumerate(shares):
        energy_j = meter.get("energy_j", (None,) * len(shares))[place]
        now = GpuNow(share, 100.0, energy_j, meter.get("power_w"), [])
        job.see({0: now, 1: GpuNow(1.0, 50.0, None, None, [])}, job.since_s + every_s)


def test_idle_time_counts_only_where_somebody_has_looked() -> None:
    job = JobGpus(1, [0, 1], since_s=0.0)
    looks(job, 0.0, 0.0, 0.0)
    assert job.quiet_s == {0: 20.0, 1: 0.0} and job.use.used == pytest.approx(1.0)
    looks(job, 0.0, every_s=UNSEEN_S + 1)
    assert job.quiet_s[0] == 0 and job.seen_s == 30
    looks(job, 0.0, 0.5)
    assert job.quiet_s[0] == 0
    job.see({1: GpuNow(1.0, 50.0, None, None, [])}, job.since_s + 10)  # it has fallen off the bus
    assert job.quiet_s[0] == 0 and job.peak_mb == 150


def test_of_a_part_that_does_not_tell_its_work_nothing_is_claimed() -> None:
    job = JobGpus(1, [0], since_s=0.0)
    looks(job, None, None, None)
    assert job.quiet_s == {0: 0.0} and job.use == (None, 100.0, None, False)


def test_a_job_s_part_of_what_a_gpu_does() -> None:
    """By its own processes where they are told apart; else nothing is claimed while others are there."""
    job = JobGpus(1, [0], since_s=100.0, began_s=100.0)

    def part(marks: dict[int, float | None], work: dict[int, float] | None, since_s: float) -> Any:
        holders = [Holder(9, "u", "x", mb, 0.5, 1.0, mark) for mark, mb in marks.items()]
        now = GpuNow(0.75, 900.0, None, None, holders, work, since_s)
        return now.of_job(7, job, read_s=110.0)[:2]

    assert part({7: 300.0, 0: 500.0}, {7: 0.25, 0: 0.5}, 100.0) == (0.25, 300.0)
    assert part({0: 500.0}, {0: 0.5}, 100.0) == (0.0, 0.0)
    assert part({7: 300.0}, {7: 0.25, 3: 0.5}, 90.0) == (0.5, 300.0)  # in the second half of the time
    # The driver tells their memory or their work of no process.
    assert part({7: None}, None, 100.0) == (0.75, 900.0)
    assert part({7: None, 0: None}, None, 100.0) == (None, None)
    assert part({7: 300.0}, None, 90.0) == (None, 300.0)  # others may have worked before it


def test_energy_is_counted_by_the_gpu_else_by_its_power() -> None:
    counted = JobGpus(1, [0], since_s=0.0, meters={0: (5.0, 70.0)})
    looks(counted, 0.0, 0.0, energy_j=(705.0, 1405.0), power_w=70.0)
    assert counted.energy_j == 1400
    looks(counted, 0.0, energy_j=(3.0,), power_w=70.0)  # the driver was loaded anew
    assert counted.energy_j == 2100
    counted.end(2.0)
    assert counted.energy_j == 2240
    by_power = JobGpus(1, [0], since_s=0.0)
    looks(by_power, 0.0, 0.0, power_w=70.0)
    assert by_power.energy_j == 1400


@pytest.fixture
def watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., GpuWatch]:
    """Make watches that see what the test gives them, in one folder."""
    monkeypatch.setattr(GpuWatch, "begin", lambda self: setattr(self, "_told", False))
    monkeypatch.setattr(local_gpus, "select", lambda *_: ([], [], []))
    gpus = Gpus({n: Gpu(uuid(n), "A100", 80e3) for n in range(2)}, {})

    def make(rule: IdleRule | None = None, free: Any = None, **more: Any) -> GpuWatch:
        return GpuWatch(gpus, free or {"gpu": [0, 1]}, tmp_path, idle_s=60.0, rule=rule, **more)

    return make


def show(watch: GpuWatch, seconds: float, *shares: float) -> None:
    """Let a time pass without a look, and then see these shares of work."""
    watch._now = {number: GpuNow(share, 1.0, None, 70.0, []) for number, share in enumerate(shares)}
    for job in watch._jobs.values():
        job.see(watch._now, job.since_s + seconds)
    watch._keep()


def test_idleness_of_each_gpu_is_told_once_until_it_works(watch: Callable[..., GpuWatch]) -> None:
    gpu_watch = watch()
    gpu_watch.begins("m", 7, (0, 1))
    news = []
    for _ in range(20):
        show(gpu_watch, 10.0, 0.0, 1.0)
        news += gpu_watch.idle()
    assert news == [(7, "GPU 0: no work for 1:00 min", "")]
    gpu_watch = watch()  # of the next coordinator
    gpu_watch.begins("m", 7, (0, 1))
    show(gpu_watch, 10.0, 0.5, 1.0)
    for _ in range(7):
        show(gpu_watch, 10.0, 0.0, 0.0)
    assert gpu_watch.idle() == [(7, "GPUs 0, 1: no work for 1:00 min", "")] and not gpu_watch.idle()
    gpu_watch = watch()  # the one before was killed as soon as it had told it
    gpu_watch.begins("m", 7, (0, 1))
    assert not gpu_watch.idle()


def test_among_devices_a_program_may_move_and_hold_others_than_its_own(
    watch: Callable[..., GpuWatch],
) -> None:
    """Number 5 is a processor. What the job does where it is not any more, nobody counts."""
    gpu_watch = watch(IdleRule(100.0, "park"), {"gpu-0": [0], "gpu-1": [1], "cpu-0": [5]}, moves=True)
    gpu_watch.begins("m", 7, (0,))
    gpu_watch.begins("n", 8, (5,))
    for _ in range(8):
        show(gpu_watch, 10.0, 0.0, 1.0)
    assert gpu_watch.idle() == [(7, "GPU 0: no work for 1:00 min", "")]
    gpu_watch.has_moved("m", (1,))
    for _ in range(8):
        show(gpu_watch, 10.0, 0.0, 0.0)
    assert gpu_watch.idle() == [(7, "GPU 1: no work for 1:00 min", "")]
    stranger = Holder(1, "ada", "python3", 1.0, 0.0, 5.0)
    own = [replace(stranger, pid=pid, mark=tree.number_of(mark)) for pid, mark in ((2, "m"), (3, "n"))]
    gpu_watch._now[0] = GpuNow(0.0, 1.0, None, None, own)
    gpu_watch._now[1] = GpuNow(0.0, 1.0, None, None, [stranger, *own])
    gpu_watch._has_answered, gpu_watch._due_s = True, math.inf
    assert [len(gpu_watch.strangers(number)) for number in (0, 1)] == [0, 1]
    assert gpu_watch.withheld() == {"gpu-0": 0.0, "gpu-1": 1.0, "cpu-0": 0.0}
    for _ in range(3):
        show(gpu_watch, 10.0, 0.0, 0.0)
    assert gpu_watch.idle() == [(7, "GPU 1: no work for 1:40 min", "park")]
    gpu_watch.has_moved("m", ())  # it is parked
    for _ in range(20):
        show(gpu_watch, 10.0, 0.0, 0.0)
    assert not gpu_watch.idle() and gpu_watch.use(7) is None and gpu_watch.has_ended("m", 0.0) is None


def test_opencl_devices_that_are_gpus_are_known_by_their_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    require(shutil.which("cc"), "a C compiler (Debian: gcc)")
    pytest.importorskip("pynvml")
    devices = {n: {"key": f"nvidia-{n}", "bus": pci_address(2 - n)} for n in range(3)}
    devices |= {3: {"key": "pocl-0", "bus": ""}, 4: {"key": "nvidia-4", "bus": pci_address(9)}}
    with emulated_gpus("gpus-3+mig") as folder:  # the last is divided
        monkeypatch.setenv(nvml.FOLDER, str(folder))
        gpus = gpus_behind(devices)
        assert gpus is not None
        found = {number: (gpu.uuid, gpu.name) for number, gpu in gpus.by_number.items()}
        assert found == {1: (uuid(1), "nvidia-1"), 2: (uuid(0), "nvidia-2")}
        assert gpus_behind({3: devices[3]}) is None and gpus_behind({4: devices[4]}) is None


def test_the_rule_counts_on_after_a_restart(watch: Callable[..., GpuWatch], tmp_path: Path) -> None:
    rule = IdleRule(50.0, "end")
    gpu_watch = watch(rule)
    gpu_watch.begins("m", 7, (0,))
    for _ in range(5):
        show(gpu_watch, 10.0, 0.0)
    assert not gpu_watch.idle()
    two = watch(rule)
    two.begins("m", 7, (0,))
    show(two, 10.0, 0.0)
    assert two.idle() == [(7, "GPU 0: no work for 50 s", "end")] and not two.idle()
    # Nobody has looked for long: it may have worked.
    file = tmp_path / "gpu-use.json"
    kept = json.loads(file.read_text())
    file.write_text(json.dumps({**kept, "at_s": kept["at_s"] - UNSEEN_S}))
    three = watch(rule)
    three.begins("m", 7, (0,))
    (job,) = three._jobs.values()
    job.see({0: GpuNow(0.0, 1.0, None, None, [])}, time.monotonic())
    assert job.quiet_s == {0: 0.0}


def test_a_rule_that_was_not_committed_is_due_again(watch: Callable[..., GpuWatch]) -> None:
    """The coordinator was killed after the notice of the same look was kept, and before its commit."""
    rule = IdleRule(60.0, "end")
    gpu_watch = watch(rule)
    gpu_watch.begins("m", 7, (0,))
    for _ in range(7):
        show(gpu_watch, 10.0, 0.0)
    due = (7, "GPU 0: no work for 1:00 min", "end")
    assert gpu_watch.idle() == [(*due[:2], ""), due]
    two = watch(rule)
    two.begins("m", 7, (0,))
    assert two.idle() == [due] and not two.idle()
    show(two, 10.0, 0.0)  # by now it is committed
    three = watch(rule)
    three.begins("m", 7, (0,))
    assert not three.idle()


def test_the_rule_holds_anew_where_a_program_has_moved(watch: Callable[..., GpuWatch]) -> None:
    gpu_watch = watch(IdleRule(50.0, "park"), {"gpu-0": [0], "gpu-1": [1]}, moves=True)
    gpu_watch.begins("m", 7, (0,))
    for numbers in ((0,), (), (1,)):
        gpu_watch.has_moved("m", numbers)
        for _ in range(6):
            show(gpu_watch, 10.0, 0.0, 0.0)
        due = [(7, f"GPU {numbers[0]}: no work for 50 s", "park")] if numbers else []
        assert gpu_watch.idle() == due and not gpu_watch.idle()


@pytest.mark.parametrize(
    "damaged", ["", "[]", "{}", '{"at_s": 1, "jobs": {"x": {}}}', '{"at_s": 1, "jobs": 1}']
)
def test_use_that_cannot_be_read_is_counted_anew(
    watch: Callable[..., GpuWatch], tmp_path: Path, damaged: str
) -> None:
    (tmp_path / "gpu-use.json").write_text(damaged)
    gpu_watch = watch()
    gpu_watch.begins("m", 7, (0,))
    show(gpu_watch, 1.0, 1.0)
    assert gpu_watch.use(7) == (1.0, 1.0, 70.0, False) and json.loads((tmp_path / "gpu-use.json").read_text())


def test_a_daemon_with_emulated_gpus_lets_its_starter_s_output_go(up: Up) -> None:
    """Whoever reads that comes to its end while the coordinator and the emulation run on."""
    require(shutil.which("cc"), "a C compiler (Debian: gcc)")
    pytest.importorskip("pynvml")
    done = up.run("up", "--daemon", "--emulate", "gpus-1")
    try:
        assert done.returncode == 0 and "EMULATED" in done.stdout, done.stderr
        assert up.client.call("GET", "/nodes")[0]["gpus"]
    finally:
        assert up.run("down").returncode == 0
