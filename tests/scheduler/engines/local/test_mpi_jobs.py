"""Jobs that mpiexec starts: real ranks under a real coordinator."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path

import psutil
import pytest

from agent.processes import tree
from tests.support.coordinator import Up

RANK = """
import json, os, signal, sys, time
from pathlib import Path
from mpi4py import MPI
comm = MPI.COMM_WORLD
seen = comm.gather((comm.size, sorted(os.sched_getaffinity(0)), os.environ["TENBIN_TASKS"]))
if comm.rank == 0:
    print(json.dumps(seen), flush=True)
comm.Barrier()
maps = Path("/proc/self/maps").read_text().split()
Path(f"segments-{comm.rank}").write_text("\\n".join(word for word in maps if word.startswith("/dev/shm/")))
comm.Barrier()
Path(f"rank-{comm.rank}").write_text(str(os.getpid()))
if comm.rank == 1:
    pass
    DEED
comm.Barrier()
"""


WAITS = "while not Path('go').exists(): time.sleep(0.02)"

pytestmark = pytest.mark.usefixtures("mpi")


def command(deed: str = "pass") -> list[str]:
    return [sys.executable, "-m", "mpi4py", "-c", RANK.replace("DEED", deed)]


def segments(folder: Path) -> list[str]:
    """Shared memory that the ranks had, and that is still there."""
    had = [line for file in folder.glob("segments-*") for line in file.read_text().split()]
    assert had, "the ranks had none: this test says nothing"
    return [path for path in had if Path(path).exists()]


def alive(folder: Path) -> list[int]:
    texts = [file.read_text() for file in folder.glob("rank-*")]
    return [int(text) for text in texts if text and runs(int(text))]  # a file is empty before it is written


def runs(pid: int) -> bool:
    """Check that the process exists and is not dead: init may reap an orphan late."""
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def stopped(pid: int) -> bool:
    return psutil.Process(pid).status() == psutil.STATUS_STOPPED


def test_ranks_each_on_their_own_cores(shared: Up, tmp_path: Path) -> None:
    job = shared.client.submit(command(), tasks=2, mpi=True, folder=str(tmp_path))
    found = job.wait(60)
    assert found["stage"] == "done", (found["trouble"], Path(found["stderr"]).read_text())
    seen = json.loads(Path(found["stdout"]).read_text())
    assert seen == [[2, [core], "2"] for core in found["cpus"]]
    wide = shared.client.submit(command(), tasks=1, cores=2, mpi=True, folder=str(tmp_path))
    assert json.loads(Path(wide.wait(60)["stdout"]).read_text()) == [[1, found["cpus"], "1"]]


@pytest.mark.parametrize(
    ("deed", "code", "number", "words"),
    [
        ("os._exit(3)", 3, None, "rank 1 .*exit code 3"),
        ("os.kill(os.getpid(), signal.SIGKILL)", None, 9, "rank 1 .*signal 9"),
        # It calls MPI_Abort: MPICH may end all, guards too, before it has passed on who that was.
        ("raise ValueError('on fire')", None, None, "(rank 1|a rank) .*ValueError: on fire"),
    ],
)
def test_a_rank_that_dies_ends_the_job_and_is_named(
    shared: Up, tmp_path: Path, deed: str, code: int | None, *, number: int | None, words: str
) -> None:
    found = shared.client.submit(command(deed), tasks=2, mpi=True, folder=str(tmp_path)).wait(60)
    assert found["stage"] == "failed"
    assert re.search(words, found["trouble"], re.DOTALL), found["trouble"]
    if code or number:
        assert (found["code"], found["signal"]) == (code, number)
    assert not alive(tmp_path) and not segments(tmp_path)


def test_cancelled_ranks_are_asked_and_then_gone(shared: Up, tmp_path: Path) -> None:
    """Both ranks see the SIGTERM: neither mpiexec nor a guard takes them along before."""
    code = """
import signal, sys, time
from pathlib import Path
from mpi4py import MPI
rank = MPI.COMM_WORLD.rank
def leave(*_):
    Path(f"asked-{rank}").touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
maps = Path("/proc/self/maps").read_text().split()
Path(f"segments-{rank}").write_text("\\n".join(word for word in maps if word.startswith("/dev/shm/")))
Path(f"up-{rank}").touch()
while True:
    time.sleep(0.05)
"""
    job = shared.client.submit([sys.executable, "-c", code], tasks=2, mpi=True, folder=str(tmp_path))
    shared.until(lambda: len(list(tmp_path.glob("up-*"))) == 2)
    job.cancel()
    assert job.wait(30)["stage"] == "cancelled"
    assert len(list(tmp_path.glob("asked-*"))) == 2
    assert not segments(tmp_path)


@pytest.mark.slow
def test_a_paused_and_a_killed_one(up: Up, tmp_path: Path) -> None:
    """Paused, no rank computes; a killed supervisor takes all ranks with it, and the job runs again."""
    up.start("--cores", "2")
    job = up.client.submit(command(WAITS), tasks=2, mpi=True, folder=str(tmp_path))
    up.until(lambda: len(alive(tmp_path)) == 2)
    first = alive(tmp_path)
    had = [Path(word) for names in tmp_path.glob("segments-*") for word in names.read_text().split()]
    job.suspend()
    up.until(lambda: all(map(stopped, first)))
    job.resume()
    state = json.loads((up.home / f"jobs/{job.id}/attempt-1/state.json").read_text())
    os.kill(state["supervisor_pid"], signal.SIGKILL)
    (tmp_path / "go").touch()
    found = job.wait(60)
    assert found["stage"] == "done" and found["attempt"] == 2
    assert had and not [path for path in had if path.exists()] and not segments(tmp_path)
    assert not [pid for pid in first if runs(pid)]
    assert not tree.marked(f"{up.home}:{job.id}:1")


def test_the_coordinator_may_die_meanwhile(up: Up, tmp_path: Path) -> None:
    up.start("--cores", "2")
    deed = f"{WAITS}\n    os._exit(7)"
    job = up.client.submit(command(deed), tasks=2, mpi=True, folder=str(tmp_path))
    up.until(lambda: len(alive(tmp_path)) == 2)
    up.kill()
    (tmp_path / "go").touch()
    up.until((up.home / f"jobs/{job.id}/attempt-1/result.json").exists)
    up.start("--cores", "2")
    found = job.wait(60)
    assert found["code"] == 7 and "rank 1" in found["trouble"]


def test_refused_without_an_mpiexec(up: Up, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A Python with another name, beside which there is none, and an empty PATH."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nPATH={os.environ["PATH"]}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYTHONNOUSERSITE", "1")  # so that it is not forked (tests.support.forked)
    for module in ("coordinator", "programs"):
        monkeypatch.setattr(f"tests.support.{module}.TENBIN", elsewhere(python))
    up.start("--cores", "1")
    done = up.run("submit", "--mpi", "--", "true")
    assert done.returncode == 2 and "no mpiexec" in done.stderr and "pip install mpich" in done.stderr
    assert up.client.submit(["/bin/true"]).result(20) == 0
    both = up.run("submit", "--mpi", "--checkpoint", "--", "true")
    assert both.returncode == 2 and "mpiexec hands no such signal on" in both.stderr


def elsewhere(python: Path) -> tuple[str, ...]:
    code = f"import sys; sys.executable = {str(python)!r}; from tenbin.cli import main; main()"
    return (sys.executable, "-P", "-c", code)
