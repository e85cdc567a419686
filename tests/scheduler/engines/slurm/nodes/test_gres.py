"""Nodes whose GPUs Slurm counts, and hides from who has not asked; the GPU is a device of PoCL's."""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from scheduler.engines.slurm.discovery import gpu_kinds
from scheduler.engines.slurm.node_inventory import ClusterNode
from scheduler.engines.slurm.slurm_commands import Slurm
from scheduler.jobs.gpus import kinds_for, settle_kind
from scheduler.jobs.specs import JobSpec
from tests.scheduler.engines.slurm.nodes.test_devices import NEEDS
from tests.scheduler.engines.slurm.test_engine import START
from tests.support.coordinator import Up
from tests.support.labs.components import require
from tests.support.labs.slurm_lab import SlurmLab, require_slurm, short_slurmlab, slurmlab
from tests.support.programs import opencl_devices, opencl_layer

OPENS = (
    "import os, tenbin, pyopencl as cl; kind = tenbin.Checkpoint('p').device.type\n"
    "print(os.environ['TENBIN_DEVICE'], kind & cl.device_type.GPU > 0, os.environ.get('SLURM_JOB_GPUS'))"
)


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmLab]:
    """Two nodes with a GPU each, which only a job sees that has asked for it."""
    require_slurm()
    devices = "basic pthread"
    require(len(opencl_devices(POCL_DEVICES=devices)) == 2, "two OpenCL devices (PoCL)")
    with tempfile.TemporaryDirectory(prefix="slurm-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        layer = opencl_layer("hidden_gpu", folder)
        with slurmlab(folder / "lab", nodes=2, gpus=("1", "1")) as cluster:
            variables = {"POCL_DEVICES": devices, "POCL_CACHE_DIR": str(folder / "cache")}
            for key, value in {**cluster.env, **variables, "OPENCL_LAYERS": layer}.items():
                monkeypatch.setenv(key, value)
            yield cluster


def test_a_job_holds_its_gpu_in_slurm(
    up: Up, lab: SlurmLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job sees its GPU, others do not."""
    monkeypatch.setenv("TENBIN_STORE", str(tmp_path / "store"))
    up.start(*START, "--devices", "--policy", "fcfs")
    told = {row["name"]: row for row in up.client.call("GET", "/nodes")}
    assert {"pocl-0@node1", "pocl-1@node1", "pocl-0@node2", "pocl-1@node2"} <= told.keys()
    assert "pocl-0@node1 (gpu)" in up.run("submit", "--device", "accelerator", "--", "true").stderr
    for kind, expected in (("gpu", "0 True 0\n"), ("cpu", "0 False None\n")):
        job = up.client.submit([sys.executable, "-c", OPENS], device=kind, folder=NEEDS["folder"])
        assert job.result(90) == 0, Path(job.info()["stderr"]).read_text()
        assert up.client.output(job.id).decode() == expected
    waits = up.client.submit(["sleep", "600"], device="any")
    up.until(lambda: "RUNNING gres" in lab.call("squeue", "-h", "-o", "%T %b", f"--name=tenbin-{waits.id}"))
    assert waits.info()["placement"].startswith("pocl-0")
    waits.cancel()


# Takes each of its GPUs for itself, or fails; says what it sees, and waits for a file.
TAKES = """
node=$(hostname); gpus=$(echo $SLURM_JOB_GPUS | tr , ' ')
for gpu in $gpus; do mkdir $node.$gpu || exit 7; done
echo $TENBIN_JOB_ID $node $SLURM_JOB_GPUS-$CUDA_VISIBLE_DEVICES >>begun
until [ -e go ]; do sleep 0.05; done
for gpu in $gpus; do rmdir $node.$gpu; done
"""


@pytest.fixture(scope="module")
def gpus() -> Iterator[SlurmLab]:
    """Two nodes with two GPUs each, one with another kind, and one without."""
    with (
        short_slurmlab(nodes=4, cpus=4, gpus=("a100:2", "a100:2", "tesla_t4:1")) as cluster,
        pytest.MonkeyPatch.context() as patch,
    ):
        for key, value in {**cluster.env, "CUDA_VISIBLE_DEVICES": "9"}.items():  # of whoever submits
            patch.setenv(key, value)
        yield cluster


@pytest.fixture
def start(gpus: SlurmLab, tmp_path: Path) -> Iterator[Up]:
    """Yield a coordinator for the cluster with several GPUs."""
    one = Up(tmp_path / "home")
    one.start(*START)
    yield one
    one.sweep()


def test_jobs_with_one_gpu_and_two_beside_jobs_of_cores(start: Up, gpus: SlurmLab, tmp_path: Path) -> None:
    """No GPU is given twice, also not after a restart amid it; jobs without GPUs see none."""
    up, takes = start, ("--chdir", str(tmp_path), "--", "sh", "-c", TAKES)
    for needs in ("--gpus a100:2 -c 2", "--gpus t4", "--array 1-3 --gpus a100:1", "--gpus 2", "-c 3", "-c 3"):
        assert up.run("submit", "--time", "10m", *needs.split(), *takes).returncode == 0
    rows = partial(read_rows, tmp_path / "begun")
    up.until(lambda: len(rows()) == 6)
    assert [row[0] for row in rows()] == ["1", "2", "4", "5", "8", "9"]
    assert rows()[0][2] == "0,1-0,1" and {rows()[2][2], rows()[3][2]} == {"0-0", "1-1"}
    assert rows()[1][1:] == ["node3", "0-0"]
    assert {rows()[4][1], rows()[5][1]} == {"node3", "node4"} and rows()[4][2] == rows()[5][2] == "-"
    assert sorted(gpus.call("squeue", "-h", "-o", "%b").split()) == [
        *("N/A", "N/A", "gres:gpu:a100:1", "gres:gpu:a100:1", "gres:gpu:a100:2", "gres:gpu:tesla_t4:1")
    ]
    assert "node1: 2 of 4 cores, 2.097 of 2.097 GB memory, 0 of 2 a100 GPUs free; jobs: 1\n" in (
        up.run("nodes").stdout
    )
    assert "waits for" in up.run("info", "6").stdout
    up.kill()
    up.start(*START)
    (tmp_path / "go").touch()
    assert [up.client.job(number).result(90) for number in (1, 2, 4, 5, 6, 7, 8, 9)] == [0] * 8
    assert len(rows()) == 8 and not list(tmp_path.glob("node*"))


# Says what its programs on each node see, and waits for a file; srun starts them, then mpiexec.
SEES = (
    "echo $0 $TENBIN_JOB_ID $(hostname) $CUDA_VISIBLE_DEVICES >>begun; until [ -e go ]; do sleep 0.05; done"
)


def test_jobs_with_gpus_on_two_nodes(start: Up, gpus: SlurmLab, tmp_path: Path) -> None:
    """Each node gives as many; others wait for both nodes, also after a restart amid it."""
    up, rows, on = start, partial(read_rows, tmp_path / "begun"), ("--chdir", str(tmp_path), "--nodes", "2")
    two, srun = ("submit", "--time", "10m", *on, "--gpus"), ("srun", "-n", "2", "sh", "-c", SEES, "srun")
    assert up.run(*two, "a100:4", "--", *srun).returncode == 0
    assert up.run(*two, "a100:2", "--", *srun).returncode == 0
    assert up.run("submit", "--gpus", "t4", "--", "true").returncode == 0  # passes them on node3
    up.until(lambda: len(rows()) == 2)
    assert rows() == [["srun", "1", "node1", "0,1"], ["srun", "1", "node2", "0,1"]]
    assert gpus.call("squeue", "-h", "-o", "%b %D", "--name=tenbin-1") == "gres:gpu:a100:2 2\n"
    assert up.client.job(3).result(90) == 0 and "waits for 2 times 1 a100 GPU" in up.run("info", "2").stdout
    up.kill()
    up.start(*START)
    assert len(rows()) == 2 and up.client.job(2).info()["stage"] == "waiting"
    (tmp_path / "go").touch()
    assert [up.client.job(number).result(90) for number in (1, 2)] == [0, 0]
    assert [row[2:] for row in rows()[2:]] == [["node1", "0"], ["node2", "0"]]
    # Both nodes are free again.
    assert up.run("submit", *on, "--gpus", "a100:2", "--", "true").returncode == 0
    assert up.client.job(4).result(90) == 0


@pytest.mark.usefixtures("mpi")
def test_ranks_see_the_gpus_of_their_own_node(start: Up, gpus: SlurmLab, tmp_path: Path) -> None:
    up, rows = start, partial(read_rows, tmp_path / "begun")
    waits = ["sh", "-c", SEES, "one"]
    first = up.client.submit(waits, gpus=1, gpu_kind="a100", folder=str(tmp_path))
    up.until(lambda: len(rows()) == 1)
    sees = ["sh", "-c", SEES, "rank"]
    job = up.client.submit(sees, nodes=2, cores=4, gpus=2, gpu_kind="a100", mpi=True, folder=str(tmp_path))
    (tmp_path / "go").touch()
    assert (first.result(90), job.result(90)) == (0, 0)
    assert rows()[1:] == [["rank", str(job.id), "node1", "0"], ["rank", str(job.id), "node2", "0"]]


def test_of_alternatives_slurm_is_asked_for_the_one_that_was_chosen(
    start: Up, gpus: SlurmLab, tmp_path: Path
) -> None:
    """Its GPUs, cores and time; after a restart it runs on as it is."""
    up = start
    up.kill()
    up.start(*START, "--policy", "easy")
    script = ("--chdir", str(tmp_path), "--", "sh", "-c", f"{TAKES} exit $((40 + TENBIN_ALTERNATIVE))")
    two = ("submit", "--time", "1h", "--gpus", "a100:2")
    for needs in ("--array 1-3 --or gpus=t4:1,cores=2,time=2h", "--array 1-2 --or cores=3,time=3h"):
        assert up.run(*two, *needs.split(), *script).returncode == 0
    rows = partial(read_rows, tmp_path / "begun")
    up.until(lambda: len(rows()) == 5)
    assert Counter(gpus.call("squeue", "-h", "-o", "%b %C %l").splitlines()) == {
        "gres:gpu:a100:2 1 1:02:00": 2,  # with a grace
        "gres:gpu:tesla_t4:1 2 2:02:00": 1,
        "N/A 3 3:02:00": 2,
    }
    up.kill()
    up.start(*START, "--policy", "easy")
    (tmp_path / "go").touch()
    assert [up.client.job(number).result(90) for number in (2, 3, 4, 6, 7)] == [40, 40, 41, 41, 41]
    assert len(rows()) == 5


LEAVES = (
    f"trap 'exit 85' USR1; {SEES.replace('0.05', '0.05 & wait $!')}"  # by a checkpoint, when it is told to
)


def test_under_las_a_job_gives_its_gpu_to_a_new_one_by_a_checkpoint(gpus: SlurmLab, tmp_path: Path) -> None:
    up, rows = Up(tmp_path / "home"), partial(read_rows, tmp_path / "begun")
    up.start(*START, "--policy", "las-mq")
    on = ("submit", "--gpus", "t4", "--chdir", str(tmp_path))
    assert up.run(*on, "--checkpoint-signal", "USR1", "--", "sh", "-c", LEAVES, "leaves").returncode == 0
    up.until(lambda: len(rows()) == 1)
    assert up.run(*on, "--", "sh", "-c", SEES, "new").returncode == 0
    up.until(lambda: len(rows()) == 2)
    leaves, new = up.client.job(1), up.client.job(2)
    assert [job.info()["stage"] for job in (leaves, new)] == ["suspended", "running"]
    assert gpus.call("squeue", "-h", "-o", "%b").split() == ["gres:gpu:tesla_t4:1"]
    (tmp_path / "go").touch()
    assert [job.result(90) for job in (new, leaves)] == [0, 0]
    assert leaves.info()["preemptions"] == 1
    assert sorted(row[:2] for row in rows()) == [["leaves", "1"], ["leaves", "1"], ["new", "2"]]
    assert {row[3] for row in rows()} == {"0"}
    up.sweep()


def test_jobs_go_on_where_gpus_are_scheduled_from_now_on(gpus: SlurmLab, tmp_path: Path) -> None:
    """They have whole nodes in Slurm still; who is given a part of these waits there."""
    up, name = Up(tmp_path / "home"), "partitionname=main"
    waits = ["sh", "-c", "until [ -e go ]; do sleep 0.05; done"]
    gpus.call("scontrol", "update", name, "OverSubscribe=EXCLUSIVE")
    up.start(*START)
    gpus.call("scontrol", "update", name, "OverSubscribe=NO")
    sizes: list[dict[str, int]] = [{"cores": 1}, {"tasks": 6}, {"nodes": 1}]
    jobs = [up.client.submit(waits, folder=str(tmp_path), **size) for size in sizes]
    up.until(lambda: all(job.info()["stage"] == "running" for job in jobs))
    up.kill()
    up.start(*START)
    jobs.append(up.client.submit(["true"], gpus=1, gpu_kind="a100"))
    jobs.append(up.client.submit(["true"], cores=4))
    assert [job.info()["cpus"] for job in jobs[:3]] == [[0], [4, 5, 6, 7, 8, 9], [12, 13, 14, 15]]
    up.until(lambda: jobs[3].info()["stage"] == "running")
    (tmp_path / "go").touch()
    assert [job.result(90) for job in jobs] == [0] * 5
    log = (tmp_path / "coordinator.log").read_text()
    assert "OverSubscribe=EXCLUSIVE of partition main: Slurm gives whole nodes" in log
    assert "GPUs: 4 a100, 2 on a node; 1 tesla_t4, 1 on a node; Slurm gives them" in log
    up.sweep()


def test_gpus_with_and_without_a_type() -> None:
    """Each is a kind, which Slurm is asked for by its own word."""
    slurm = cast("Slurm", SimpleNamespace(config=dict, partitions=lambda: {"main": {}}))
    hosts = [
        ClusterNode("n1", 8, 1e5, {"": 2}),
        ClusterNode("n2", 8, 1e5, {"NVIDIA-A100": 4, "": 1}),
        ClusterNode("n3", 8, 1e5),
    ]
    kinds, gres = gpu_kinds(slurm, "main", hosts)
    assert [str(kind) for kind in kinds] == ["3 gpu, 2 on a node", "4 nvidia_a100, 4 on a node"]
    assert gres == {"gpu:gpu": "gpu", "gpu:nvidia_a100": "gpu:NVIDIA-A100"}
    assert gpu_kinds(slurm, "main", hosts[:1])[1] == {"gpu": "gpu"}
    assert gpu_kinds(slurm, "main", hosts[2:]) == ((), {})
    job = settle_kind(JobSpec(command=("true",), folder="/", gpus=2), kinds, Counter({"gpu:nvidia_a100": 3}))
    assert kinds_for(job, kinds) == [kinds[0]]


def read_rows(file: Path) -> list[list[str]]:
    text = file.read_text() if file.exists() else ""
    return sorted(line.split() for line in text.splitlines())


@pytest.mark.parametrize(
    ("needs", "message"),
    [
        ("--gpus 3", "jobs may have 4 a100, 2 on a node; 1 tesla_t4, 1 on a node; ask for fewer"),
        ("--gpus v100:1", "jobs may have 4 a100, 2 on a node"),
        ("--gpus-memory 20G", "Slurm does not tell their memory; name a kind: --gpus KIND:NUMBER"),
        ("--gpus 1 -c 5", "it needs 1 times 5 cores, 1 gpu:a100, node has room for 0"),
        ("--gpus 3 --nodes 2", "each node has as many of them; ask for a multiple of 2"),
        ("--gpus 2 --nodes 1-2", "GPUs are of a fixed number of nodes; write --nodes 1"),
        ("--gpus 6 --nodes 2", "jobs may have 4 a100, 2 on a node"),
        ("--gpus 4 --nodes 4", "it needs 4 times 4 cores, 1 gpu:a100, node has room for 2"),
    ],
)
def test_what_no_node_has_is_refused(start: Up, needs: str, message: str) -> None:
    done = start.run("submit", *needs.split(), "--", "true")
    assert done.returncode == 2 and message in done.stderr
