"""Slices of storage: blocks in a row, 4 KiB at random places, and 4 KiB with fsync, in one folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from probes.battery.slices import Reading, Slice
from probes.run import Run
from probes.storage.place import BLOCK, Place, prepared
from probes.storage.probe import pinned
from probes.storage.timing import Limits
from profiles.records import MB

QUICK_BYTES, FULL_BYTES = 96 << 20, 160 << 20  # written at most
FILL_S = 1.5
FEW = Limits(0.004, 12, 0.25)
QUANTITIES = {
    "read": ("storage_read_mbs", "MB/s"),
    "write": ("storage_write_mbs", "MB/s"),
    "random_read": ("storage_random_read_p50_s", "s"),
    "fsync": ("storage_fsync_p50_s", "s"),
}
EACH_ROUND = {"write": 2}


@contextmanager
def slices(run: Run, folder: Path) -> Iterator[list[Slice]]:
    """Yield the slices of a folder, in which a file lies meanwhile.

    Raises:
        Unavailable: the folder cannot be measured. OSError: it is broken.
    """
    most = QUICK_BYTES if run.settings.quick else FULL_BYTES
    with prepared(folder, most, FILL_S, run.rng) as place:
        for kind in QUANTITIES:
            place.batch(kind, Limits(0.0, 4, 0.1))
        yield [
            Slice(f"{kind} in {folder}", partial(_batch, place, kind), EACH_ROUND.get(kind))
            for kind in QUANTITIES
        ]


def _batch(place: Place, kind: str) -> Iterator[Reading]:
    if not place.can(kind):
        return
    with pinned():
        batch = place.batch(kind, FEW)
    quantity, unit = QUANTITIES[kind]
    count = len(batch.each_s)
    value = batch.percentile_s(50) if unit == "s" else count * BLOCK / MB / batch.seconds
    yield Reading(quantity, {"storage": place.folder}, value, unit)
