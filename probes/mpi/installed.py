"""The files of the MPI of this environment; the doctor looks at them, and seldom needs more."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

_LAUNCHERS = ("mpiexec", "mpiexec.hydra", "mpiexec.mpich", "mpiexec.openmpi", "mpirun")


def launchers() -> Iterator[Path]:
    """Find the launchers, those beside this Python first and then those on PATH."""
    folders = [Path(sys.executable).parent, *map(Path, os.get_exec_path())]
    for folder in dict.fromkeys(folders):
        for name in _LAUNCHERS:
            if os.access(folder / name, os.X_OK) and (folder / name).is_file():
                yield folder / name


def files() -> list[Path]:
    """List what starts and loads an MPI: launchers and libraries beside them, mpi4py, packages."""
    programs = list(launchers())
    folders = {folder for path in programs for folder in (path.parent.parent, path.resolve().parent.parent)}
    libraries = [file for folder in sorted(folders) for file in folder.glob("lib*/libmpi*")]
    spec = find_spec("mpi4py")
    packages = [Path(folder) for folder in (spec.submodule_search_locations or () if spec else ())]
    modules = [file for folder in packages for file in folder.glob("MPI*.so")]
    return [*programs, *libraries, *modules, *(folder.parent for folder in packages)]
