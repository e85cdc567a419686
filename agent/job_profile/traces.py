"""Traces of a run: its use of OpenCL devices, and the time of its ranks inside MPI."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from agent.attempts import checked
from agent.paths import default_storage
from probes import opencl_layer
from probes.mpi import mpi_time
from profiles.errors import Unavailable
from profiles.files.safe_files import make_folder
from profiles.records import MB


class DeviceWatch:
    """The traces of each run, in a folder of its own.

    The folder is also the run's ``TENBIN_JOB_FOLDER``, so that a ``tenbin.Checkpoint`` begins anew in each
    run, and notes its phases there.

    Attributes:
        trouble: why there is no layer, as a sentence; "" if there is one.
    """

    def __init__(self) -> None:
        self.trouble = ""
        self._library: Path | None = None
        self._runs = 0

    def __enter__(self) -> Self:
        self._aside = tempfile.TemporaryDirectory(prefix="tenbin-job-")
        self._root = Path(self._aside.name)
        try:
            self._library = opencl_layer.build(self._root)
        except Unavailable as error:
            self.trouble = str(error)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._aside.cleanup()

    def variables(self) -> dict[str, str]:
        """Return variables of the environment of the next run."""
        self._runs += 1
        folder = self._folder
        folder.mkdir()
        more = opencl_layer.environment(self._library, folder) if self._library else {}
        return {"TENBIN_JOB_FOLDER": str(folder), **more}

    def seen(self) -> dict[str, float | None]:
        """Read what the last run needed, in the columns of ``profiles.fits.job``; empty without a device.

        ``tenbin.Checkpoint`` goes before the layer, because its build times are those of a restart.
        """
        told, facts = checked.read_phases(self._folder), opencl_layer.read(self._folder)
        found: dict[str, float | None] = {}
        if facts is not None:
            found = {
                "device_memory_mb": facts.device_memory_mb,
                "kernels": float(facts.kernels),
                "compile_s": facts.compile_s,
                "drain_s": facts.drain_s,
            }
        if told:
            found["registered_mb"] = max(phase.bytes for phase in told) / MB
            found["compile_s"] = sum(phase.time_s for phase in told if phase.phase == "compile")
            drains = [phase.time_s for phase in told if phase.phase == "drain"]
            found["drain_s"] = max(drains) if drains else found.get("drain_s")
        return found

    @property
    def _folder(self) -> Path:
        return self._root / f"run-{self._runs}"


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
