"""Ranks on several nodes of the cluster: real ones, whatever becomes of the nodes."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path

import pytest

from tenbin.client.client import Job
from tests.scheduler.engines.slurm.test_engine import START
from tests.support.amounts import slow
from tests.support.coordinator import Up
from tests.support.labs.slurm_lab import SlurmLab

RANK = """
import json, os, signal, sys, time
from pathlib import Path
from mpi4py import MPI
comm = MPI.COMM_WORLD
seen = comm.gather((comm.rank, comm.size, os.uname().nodename, os.environ["TENBIN_TASKS"]))
if comm.rank == 0:
    print(json.dumps(seen), flush=True)
def leave(*_):
    Path(f"asked-{comm.rank}").touch()
    last = time.time() + 10
    while len(list(Path().glob("asked-*"))) < comm.size and time.time() < last:
        time.sleep(0.02)  # mpiexec ends the others as soon as one has left
    os._exit(0)
def beat():
    with open(f"beats-{comm.rank}", "a") as file:
        file.write(f"{os.uname().nodename} {os.environ['TENBIN_MARK']} {time.time()}\\n")
    time.sleep(0.05)
beat()
comm.Barrier()
DEED
comm.Barrier()
"""
BEATS = "while not Path('go').exists(): beat()"

pytestmark = pytest.mark.usefixtures("mpi")


def submit(up: Up, folder: Path, deed: str = "pass", **options: object) -> Job:
    command = [sys.executable, "-m", "mpi4py", "-c", RANK.replace("DEED", deed)]
    return up.client.submit(command, mpi=True, folder=str(folder), **options)


def beats(folder: Path, rank: int) -> list[tuple[str, str, float]]:
    """Node, attempt and time of each sign of life."""
    file = folder / f"beats-{rank}"
    lines = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
    return [(node, mark, float(at)) for node, mark, at in lines]


def begun(folder: Path, ranks: int, attempt: int = 1) -> bool:
    return all(
        any(mark.endswith(f":{attempt}") for _, mark, _ in beats(folder, rank)) for rank in range(ranks)
    )


def silent(folder: Path, ranks: int, for_s: float = 1.0) -> bool:
    """Check that no rank has beaten for a while."""
    sizes = [len(beats(folder, rank)) for rank in range(ranks)]
    time.sleep(for_s)
    return sizes == [len(beats(folder, rank)) for rank in range(ranks)]


def told(found: dict[str, object]) -> list[list[object]]:
    assert found["stage"] == "done", (found["trouble"], Path(str(found["stderr"])).read_text())
    seen: list[list[object]] = json.loads(Path(str(found["stdout"])).read_text())
    return seen


def test_ranks_on_their_nodes(up: Up, lab: SlurmLab, tmp_path: Path) -> None:
    """As many on each node as tasks have cores there: full nodes, one that is not, wide tasks, one node.

    Where the policy chooses: the fewest nodes that hold the fewest tasks, and as many tasks as fit there.
    """
    up.start(*START, "--policy", "easy")
    sizes: list[tuple[dict[str, int], list[int]]] = [
        ({"tasks": 2, "cores": 2}, [1, 1]),
        ({"tasks": 3}, [2, 1]),
        ({"nodes": 2}, [2, 2]),
        ({"tasks": 2}, [2]),
        ({"tasks": 3, "max_tasks": 6}, [2, 2]),
    ]
    jobs = [(submit(up, tmp_path, **size), counts) for size, counts in sizes]
    for job, counts in jobs:
        found = job.wait(60)
        seen, size = told(found), sum(counts)
        assert [(rank, all_, tasks) for rank, all_, _, tasks in seen] == [
            (rank, size, str(size)) for rank in range(size)
        ]
        where = [node for _, _, node, _ in seen]
        assert [where.count(node) for node in dict.fromkeys(where)] == counts
        assert set(where) == set(found["hosts"])
        assert not Path(found["stderr"]).read_text()


def test_a_rank_that_dies_afar_ends_the_job_and_is_named(up: Up, lab: SlurmLab, tmp_path: Path) -> None:
    up.start(*START)
    found = submit(up, tmp_path, f"if comm.rank == 3: os._exit(3)\n{BEATS}", tasks=4).wait(60)
    (node, *_) = beats(tmp_path, 3)[0]
    assert (found["stage"], found["code"]) == ("failed", 3)
    assert re.search(f"rank 3 on {node} .*exit code 3", found["trouble"], re.DOTALL), found["trouble"]
    assert silent(tmp_path, 4)


def test_cancelled_on_all_nodes(up: Up, lab: SlurmLab, tmp_path: Path) -> None:
    """Each rank is asked; those that do not listen are gone as well when the job is."""
    up.start(*START)
    job = submit(up, tmp_path, f"signal.signal(signal.SIGTERM, leave)\n{BEATS}", tasks=4)
    up.until(lambda: all(len(beats(tmp_path, rank)) > 1 for rank in range(4)))
    job.cancel()
    assert job.wait(60)["stage"] == "cancelled"
    assert len(list(tmp_path.glob("asked-*"))) == 4
    folder = tmp_path / "deaf"
    folder.mkdir()
    deaf = submit(up, folder, f"signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{BEATS}", tasks=4, grace_s=1)
    up.until(lambda: all(len(beats(folder, rank)) > 1 for rank in range(4)))
    deaf.cancel()
    assert deaf.wait(60)["stage"] == "cancelled"
    assert silent(folder, 4)


@pytest.mark.slow
def test_a_memory_limit_holds_on_all_nodes(up: Up, lab: SlurmLab, tmp_path: Path) -> None:
    up.start(*START)
    hungry = "if comm.rank == 3: kept = os.urandom(1 << 20) * 400\n" + BEATS
    found = submit(up, tmp_path, hungry, tasks=4, memory_mb=150.0).wait(60)
    (node, *_) = beats(tmp_path, 3)[0]
    assert found["stage"] == "killed" and "more than 300 MB" in found["trouble"] and node in found["trouble"]
    assert silent(tmp_path, 4)


@pytest.mark.slow
def test_paused_on_all_nodes(up: Up, lab: SlurmLab, tmp_path: Path) -> None:
    up.start(*START)
    job = submit(up, tmp_path, BEATS, tasks=4)
    up.until(lambda: begun(tmp_path, 4))
    job.suspend()
    up.until(lambda: "SUSPENDED" in lab.call("squeue", "-h", "-o", "%T"))
    up.until(lambda: silent(tmp_path, 4))  # slurmctld says so before the nodes have done it
    job.resume()
    before = [len(beats(tmp_path, rank)) for rank in range(4)]
    up.until(lambda: all(len(beats(tmp_path, rank)) > before[rank] + 3 for rank in range(4)))
    (tmp_path / "go").touch()
    assert job.result(60) == 0 and job.info()["attempt"] == 1


@pytest.mark.parametrize(("how", "which"), [slow("power", 0), ("link", 1)])
def test_a_node_is_lost(up: Up, lab: SlurmLab, tmp_path: Path, how: str, *, which: int) -> None:
    """The supervisor's node, or another: all ranks are gone before the job runs elsewhere, from any node."""
    up.start(*START, "--lease", "3")
    job = submit(up, tmp_path, BEATS, tasks=4)
    up.until(lambda: begun(tmp_path, 4))
    lost = beats(tmp_path, 2 * which)[0][0]
    (lab.power_off if how == "power" else lab.cut)(lost)
    lab.call("scontrol", "update", f"nodename={lost}", "state=down", f"reason={how}")
    up.until(lambda: begun(tmp_path, 4, attempt=2), 90)
    if how == "link":
        lab.join(lost)
    (tmp_path / "go").touch()
    assert job.result(60) == 0 and job.info()["attempt"] == 2
    signs = [sign for rank in range(4) for sign in beats(tmp_path, rank)]
    first = [at for _, mark, at in signs if mark.endswith(":1")]
    second = [at for _, mark, at in signs if mark.endswith(":2")]
    assert max(first) < min(second)
    assert lost not in {node for node, mark, _ in signs if mark.endswith(":2")}


@pytest.mark.slow
def test_its_supervisor_is_killed(up: Up, lab: SlurmLab, tmp_path: Path) -> None:
    """No rank goes on anywhere, and the job runs again."""
    up.start(*START, "--lease", "3")
    job = submit(up, tmp_path, BEATS, tasks=4)
    up.until(lambda: begun(tmp_path, 4))
    slurm = lab.call("squeue", "-h", "-o", "%i").strip()
    lab.call("scancel", "--batch", "--signal=KILL", slurm)
    up.until(lambda: begun(tmp_path, 4, attempt=2), 90)
    (tmp_path / "go").touch()
    assert job.result(60) == 0
    signs = [sign for rank in range(4) for sign in beats(tmp_path, rank)]
    first = [at for _, mark, at in signs if mark.endswith(":1")]
    assert max(first) < min(at for _, mark, at in signs if mark.endswith(":2"))
