"""Finding the MPI, starting ranks, leaving none behind: with the MPI that is here, and with broken ones."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from probes.mpi import rank_guard, runner
from probes.mpi.runner import MpiInstall, RanksFailed, find_mpi, library_name, run_ranks
from profiles.errors import Unavailable
from tests.support.labs.components import require

MISBEHAVING = """
import os, signal, sys, time
from mpi4py import MPI
comm = MPI.COMM_WORLD
comm.Barrier()
if comm.rank == 1:
    {deed}
comm.Barrier()
"""


def singletons(mpi: MpiInstall) -> str:
    """Act as the mpiexec of another MPI does: make every program rank 0 of 1."""
    version = "mpiexec (Open MPI)" if mpi.family == "openmpi" else "HYDRA build details:"
    return f"""#!/bin/sh
PATH={os.defpath}
[ "$1" = --version ] && {{ echo "{version}"; exit; }}
while [ "$1" != -n ]; do shift; done
shift 2
"$@" & "$@" & wait
"""


def python(code: str, mark: str = "") -> list[str]:
    return [sys.executable, "-P", "-m", "mpi4py", "-c", code, mark]


def survivors(mark: str) -> list[psutil.Process]:
    processes = []
    for process in psutil.process_iter(["cmdline", "status"]):
        if mark in (process.info["cmdline"] or []) and process.info["status"] != psutil.STATUS_ZOMBIE:
            processes.append(process)
    return processes


def gone(mark: str) -> bool:
    """Wait until no process has this argument; the kernel takes a moment."""
    deadline = time.monotonic() + 20
    while survivors(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not survivors(mark)


def orphaned(segment: Path) -> bool:
    """Check that the segment exists and no process maps it; other tests have ranks, too."""
    maps = "".join(map(read, Path("/proc").glob("[0-9]*/maps")))
    return segment.name.startswith("mpich_shm_") and segment.exists() and segment.name not in maps


def read(file: Path) -> str:
    with suppress(OSError):
        return file.read_text()
    return ""


def test_two_ranks_see_each_other_and_sit_on_their_cores(mpi: MpiInstall) -> None:
    cores = sorted(os.sched_getaffinity(0))[:2]
    require(len(cores) == 2, "two cores")
    code = (
        "import os; from mpi4py import MPI; c = MPI.COMM_WORLD;"
        "all = c.gather((c.size, sorted(os.sched_getaffinity(0))));"
        "print('saw', all, flush=True) if c.rank == 0 else None"
    )
    lines: list[str] = []
    run_ranks(mpi, python(code), 2, timeout_s=60, on_line=lines.append, cores=cores[::-1])
    assert lines == [f"saw {[(2, [cores[1]]), (2, [cores[0]])]}"]


@pytest.mark.parametrize(
    "outer", [{"OMPI_COMM_WORLD_RANK": "0"}, {"PMI_RANK": "0"}], ids=["openmpi", "mpich"]
)
def test_ranks_inside_another_mpi_job_sit_on_their_own_cores(
    mpi: MpiInstall, monkeypatch: pytest.MonkeyPatch, outer: dict[str, str]
) -> None:
    cores = sorted(os.sched_getaffinity(0))[:2]
    require(len(cores) == 2, "two cores")
    for name, value in outer.items():
        monkeypatch.setenv(name, value)
    code = "import os; from mpi4py import MPI; print(MPI.COMM_WORLD.rank, sorted(os.sched_getaffinity(0)))"
    lines: list[str] = []
    run_ranks(mpi, python(code), 2, timeout_s=60, on_line=lines.append, cores=cores)
    assert sorted(lines) == [f"0 [{cores[0]}]", f"1 [{cores[1]}]"]


@pytest.mark.parametrize(
    ("deed", "words"),
    [
        ("os._exit(3)", r"rank 1.* ended with exit code 3"),
        ("os.kill(os.getpid(), signal.SIGKILL)", r"rank 1 on .* ended with signal 9"),
        ("raise ValueError('the disk is on fire')", r"rank 1.*ValueError: the disk is on fire"),
    ],
)
def test_a_dying_rank_is_named(mpi: MpiInstall, deed: str, words: str) -> None:
    mark = uuid.uuid4().hex
    for _ in range(4):
        with pytest.raises(RanksFailed) as error:
            run_ranks(
                mpi, python(MISBEHAVING.format(deed=deed), mark), 2, timeout_s=60, on_line=lambda line: None
            )
        assert gone(mark)
        # An MPI that aborts ends the guard as well, now and then before that could tell (1 of 75 under load).
        if not ("raise" in deed and re.match("a rank ended with exit code 1; .*on fire", str(error.value))):
            break
    assert re.search(words, str(error.value)), error.value


def test_ranks_that_hang_are_stopped_in_time(mpi: MpiInstall) -> None:
    mark = uuid.uuid4().hex
    before = set(Path("/dev/shm").iterdir())
    with pytest.raises(RanksFailed, match="2 ranks had not ended after 2 s"):
        run_ranks(
            mpi,
            python(MISBEHAVING.format(deed="time.sleep(100)"), mark),
            2,
            timeout_s=2,
            on_line=lambda line: None,
        )
    assert gone(mark)
    new = set(Path("/dev/shm").iterdir()) - before
    deadline = time.monotonic() + 20  # what others have killed meanwhile they sweep as well
    while (left := [segment for segment in new if orphaned(segment)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left


def test_an_exception_of_the_listener_leaves_no_rank(mpi: MpiInstall) -> None:
    mark = uuid.uuid4().hex

    def interrupt(line: str) -> None:
        assert survivors(mark)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_ranks(
            mpi,
            python("import time; print('up', flush=True); time.sleep(100)", mark),
            2,
            timeout_s=60,
            on_line=interrupt,
        )
    assert gone(mark)


def test_killing_the_caller_leaves_no_rank(mpi: MpiInstall) -> None:
    mark = uuid.uuid4().hex
    caller = (
        "import sys; from probes.mpi.runner import *;"
        f"run_ranks(find_mpi(), {python('import time; print(1, flush=True); time.sleep(100)', mark)!r}, 2,"
        "timeout_s=90, on_line=lambda line: print(line, flush=True))"
    )
    process = subprocess.Popen([sys.executable, "-P", "-c", caller], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "1\n"
    assert survivors(mark)
    process.kill()
    process.communicate()
    assert gone(mark)


@pytest.mark.parametrize(
    ("text", "name", "family"),
    [
        ("MPICH Version:      5.0.2\nMPICH Release date: x", "MPICH 5.0.2", "mpich"),
        ("Open MPI v4.1.6, package: Debian OpenMPI, ident: 4.1.6", "Open MPI v4.1.6", "openmpi"),
        (
            "Intel(R) MPI Library 2021.15 for Linux* OS\n",
            "Intel(R) MPI Library 2021.15 for Linux* OS",
            "intel",
        ),
        ("MVAPICH2 Version      :\t2.3.7\n", "MVAPICH2 2.3.7", "mpich"),
    ],
)
def test_names_and_families(text: str, name: str, family: str) -> None:
    assert library_name(text) == name
    assert runner._family(text) == family


def test_command_lines_of_both_families(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENBIN_MPI_LAUNCHER", "/site/reach")
    monkeypatch.setenv("TENBIN_MPI_IFACE", "ib0")
    mpich = MpiInstall(Path("/m/mpiexec"), "mpich", "MPICH 5").command(2, ["x"], hosts=["a", "b"])
    assert "-launcher ssh -hosts a,b -ppn 1 -launcher-exec /site/reach -iface ib0 -n 2" in " ".join(mpich)
    assert mpich[-2:] == [rank_guard.__file__, "x"]
    openmpi = MpiInstall(Path("/m/mpiexec"), "openmpi", "Open MPI v5")
    assert {"--allow-run-as-root", "--oversubscribe", "--bind-to"} <= set(openmpi.command(2, ["x"]))
    assert openmpi.environment(5)["PRTE_MCA_plm_ssh_agent"].startswith("/site/reach -o BatchMode=yes")
    pinned = openmpi.command(2, ["x"], cores=[4, 6])
    assert pinned[-4:] == [rank_guard.__file__, "--cores", "4,6", "x"]
    assert ":" not in pinned  # on which the mpiexec of Debian's Open MPI 5 crashes


Elsewhere = Callable[[str, str], Path]


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Elsewhere:
    """Copy this Python to another folder without our mpiexec: scripts go there by name."""
    real = sys.executable

    def put(name: str, text: str) -> Path:
        script = tmp_path / name
        script.write_text(text.replace("PYTHON", real))
        script.chmod(0o755)
        return script

    monkeypatch.setattr(sys, "executable", str(put("python", '#!/bin/sh\nexec PYTHON "$@"\n')))
    monkeypatch.setenv("PATH", str(tmp_path / "nothing-here"))
    return put


def words_of_another(mpi: MpiInstall) -> str:
    return "HYDRA build details:" if mpi.family == "openmpi" else "mpiexec (OpenRTE) 4.1.6"


def test_no_mpiexec(mpi: MpiInstall, elsewhere: Elsewhere) -> None:
    with pytest.raises(Unavailable, match=r"no mpiexec beside .* nor on PATH; .*pip install mpich"):
        find_mpi()


def test_mpiexec_of_the_other_family(mpi: MpiInstall, elsewhere: Elsewhere) -> None:
    elsewhere("mpiexec", f"#!/bin/sh\necho '{words_of_another(mpi)}'\n")
    with pytest.raises(Unavailable, match=f"mpi4py loads {mpi.library}, but mpiexec belongs to another MPI"):
        find_mpi()


def test_every_rank_alone_in_its_world(mpi: MpiInstall, elsewhere: Elsewhere) -> None:
    elsewhere("mpiexec", singletons(mpi))
    with pytest.raises(Unavailable, match=r"saw .*world 1.* it does not belong to"):
        find_mpi()


def test_the_trial_starts_ranks_as_the_probes_do(
    mpi: MpiInstall, elsewhere: Elsewhere, tmp_path: Path
) -> None:
    """An mpiexec that crashes on what the probes ask of it must not pass for one that works."""
    crash = f'shift 2\necho "$@" > {tmp_path}/started\nkill -SEGV $$\n'
    elsewhere("mpiexec", singletons(mpi).replace("shift 2\n", crash))
    with pytest.raises(Unavailable, match="does not start two ranks"):
        find_mpi()
    cores = sorted(os.sched_getaffinity(0))
    started = (tmp_path / "started").read_text()
    assert f"{rank_guard.__file__} --cores {cores[0]},{cores[-1]} " in started
    assert " -m mpi4py " in started


def test_a_launcher_of_the_right_family_further_down_the_path_is_taken(
    mpi: MpiInstall, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere("mpiexec", f"#!/bin/sh\necho '{words_of_another(mpi)}'\n")
    monkeypatch.setenv("PATH", f"{mpi.launcher.parent}:{os.defpath}")
    assert find_mpi().launcher.parent == mpi.launcher.parent


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo 'RuntimeError: cannot load MPI library' >&2; exit 1", "RuntimeError: cannot load MPI library"),
        ("kill -ABRT $$", "exit code -6"),
        ("exec sleep 100", "hangs while it loads"),
    ],
)
def test_broken_library(
    elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch, script: str, words: str
) -> None:
    elsewhere("python", f"#!/bin/sh\nPATH={os.defpath}\n{script}\n")
    monkeypatch.setattr(runner, "LIBRARY_S", 1.0)
    with pytest.raises(Unavailable, match=words):
        find_mpi()


def test_two_wheels_in_one_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mpich", "openmpi"):
        folder = tmp_path / f"{name}-9.9.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.9\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(Unavailable, match="mpich and openmpi are both installed"):
        find_mpi()
