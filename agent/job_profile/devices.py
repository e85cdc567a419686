"""A program's use of OpenCL devices, as a layer below it sees and ``tenbin.Checkpoint`` tells it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from agent.attempts import phases
from probes.opencl import layer
from profiles.errors import Unavailable
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
            self._library = layer.build(self._root)
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
        more = layer.environment(self._library, folder) if self._library else {}
        return {"TENBIN_JOB_FOLDER": str(folder), **more}

    def seen(self) -> dict[str, float | None]:
        """Read what the last run needed, in the columns of ``profiles.fits.job``; empty without a device.

        ``tenbin.Checkpoint`` goes before the layer, because its build times are those of a restart.
        """
        told, facts = phases.read(self._folder), layer.read(self._folder)
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
