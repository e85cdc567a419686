"""Plan of a checkpoint measurement: sizes, their order, and estimates of the time that items take."""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["trip", "io", "copy", "migration", "compile", "drain"]

SMALLEST_MB = 1
USEFUL_MB = 64
_FEWEST_SWEEPS = 1.5
QUEUE_LENGTHS = (0, 100, 250, 1000, 4000)  # kernels waiting to be drained; NVIDIA's driver took 250, not 1000


class Item(NamedTuple):
    """A measurement: its kind, devices, folder and size."""

    kind: Kind
    device: str = ""
    to_device: str = ""
    storage: str = ""
    size_mb: int = 0


class Extent(NamedTuple):
    """Extent of a plan: sizes, repetitions, and builds of the program."""

    sizes: int
    largest_mb: int
    sweeps: int
    builds: int  # with cold caches; each takes as long as some dozen checkpoints
    whole: int  # sweeps whatever time they take: the lines need five points at three sizes


QUICK = Extent(sizes=4, largest_mb=256, sweeps=4, builds=1, whole=2)
FULL = Extent(sizes=6, largest_mb=2048, sweeps=5, builds=2, whole=1)


def ladder(largest_mb: int, sizes: int) -> list[int]:
    """List ``sizes`` doubling sizes up to ``largest_mb`` (a power of two), none below 1 MB."""
    ascending = [largest_mb >> step for step in reversed(range(sizes))]
    return [size for size in ascending if size >= SMALLEST_MB]


def affordable_mb(extent: Extent, room_mb: float, *, per_mb_s: float, each_s: float, left_s: float) -> int:
    """Find the largest power of two whose ladder can be swept ``extent.sweeps`` times in ``left_s``.

    Up to ``USEFUL_MB`` fewer sweeps will do, because small sizes alone say nothing of the time per MB.

    Args:
        room_mb: room of device, memory and storage.
        per_mb_s, each_s: cost of all items of one size together: seconds per MB, and seconds.

    Returns:
        0 where not even the smallest size has room.
    """
    size = extent.largest_mb
    while size > room_mb:
        size //= 2
    while size > 4 * SMALLEST_MB:
        sweep_s = sum(per_mb_s * mb + each_s for mb in ladder(size, extent.sizes))
        if sweep_s * (extent.sweeps if size > USEFUL_MB else _FEWEST_SWEEPS) <= left_s:
            break
        size //= 2
    return size
