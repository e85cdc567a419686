"""The time that the ranks of a job are inside MPI, run by run (``probes.mpi.mpi_time``)."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from agent.paths import default_storage
from probes.mpi import mpi_time
from profiles.files.own_files import make_folder


@dataclass
class MpiTime:
    """The library that counts time inside MPI, and the folder with the counts of each run."""

    library: Path
    folder: Path
    run: int = 0

    def variables(self) -> dict[str, str]:
        """Return variables of the environment of the next run."""
        self.run += 1
        self._folder.mkdir()
        return mpi_time.variables(self.library, self._folder)

    @property
    def seen(self) -> int:
        """Number of ranks of the last run that called MPI."""
        return len(mpi_time.read(self._folder))

    def share(self, wall_s: float) -> float | None:
        """Return the share of the last run's ``wall_s`` inside MPI; None if no rank called MPI."""
        ranks = mpi_time.read(self._folder)
        return mpi_time.share(ranks, wall_s) if ranks else None

    @property
    def _folder(self) -> Path:
        return self.folder / str(self.run)


@contextmanager
def mpi_times(hosts: Sequence[str]) -> Iterator[MpiTime]:
    """Build the library in a folder that the hosts share if they share home folders; remove it afterwards.

    Raises:
        Unavailable: it cannot be built.
    """
    above = default_storage() if hosts else None
    if above:
        make_folder(above)
    with tempfile.TemporaryDirectory(prefix="tenbin-mpi-", dir=above) as name:
        folder = Path(name)
        yield MpiTime(mpi_time.build(folder), folder)
