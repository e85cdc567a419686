"""RegionPlacement that outlive the coordinator: written down whenever places change hands."""

from __future__ import annotations

import json
import logging
from collections.abc import Container, Mapping, Sequence
from pathlib import Path

from profiles.files.safe_files import write_whole
from scheduler.engines.common.region_placement import RegionPlacement
from scheduler.model.jobs import Region

FILE = "zones.json"
log = logging.getLogger("tenbin")


class StoredRegionPlacement(RegionPlacement):
    """The zones of a coordinator's pool.

    Args:
        store: its folder. capacity: as for ``RegionPlacement``.

    A file that is lost, or cannot be written, costs no more than places that change hands at a restart: what
    jobs have is in the journal.
    """

    def __init__(self, store: Path, capacity: Sequence[int]) -> None:
        self._file = store / FILE
        super().__init__(capacity, _read(self._file))
        self._written = 0

    def cut(self, regions: Sequence[Region]) -> None:
        super().cut(regions)
        self._keep()

    def place(self, region: str, units: int, away: Container[int] = ()) -> dict[int, int]:
        found = super().place(region, units, away)
        if found:
            self._keep()
        return found

    def hold(self, job: int, region: str, where: Mapping[int, int]) -> None:
        super().hold(job, region, where)
        if self.regions:
            self._keep()

    def _keep(self) -> None:
        changes = self.changes
        if changes == self._written:
            return
        try:
            write_whole(self._file, json.dumps(self.rows()))
            self._written = changes
        except OSError as error:  # tried again with the next job
            log.error("%s: %s", self._file, error.strerror)


def _read(file: Path) -> list[list[int]]:
    """Read what was written; nothing where that cannot be read."""
    try:
        rows = json.loads(file.read_text())
        return [[max(0, int(units)) for units in row] for row in rows]
    except (OSError, ValueError, TypeError):
        return []
