"""Directions, units and instants: which way a quantity is better, and how people read it.

GB is 10^9 bytes and GB/s 10^9 bytes a second, for files and bandwidth; memory is in GiB (2^30 bytes).
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple


class Better(StrEnum):
    """The direction in which a quantity is better."""

    HIGHER = "higher"
    LOWER = "lower"
    NEITHER = "neither"  # depends on what one wants (power), or is about the fit and not about the machine


class Quantity(NamedTuple):
    """A direction; words of its own for a node whose value is higher, and lower (``{}``: by how much)."""

    better: Better
    more: str = ""
    less: str = ""


_FAST, _COST, _NEUTRAL = Quantity(Better.HIGHER), Quantity(Better.LOWER), Quantity(Better.NEITHER)

# Of a model, or of one of its coefficients ("run_s.A").
QUANTITIES = {
    "reference_s": Quantity(Better.LOWER, "computes {} slower", "computes {} faster"),
    "memory_bandwidth_gbs": Quantity(Better.HIGHER, "writes memory {} faster", "writes memory {} slower"),
    "memory_slowdown_ratio": Quantity(
        Better.LOWER, "suffers {} more from a neighbour in memory", "suffers {} less from one"
    ),
    "stream_bandwidth_gbs": Quantity(
        Better.HIGHER, "streams through memory {} faster", "streams through memory {} slower"
    ),
    "access_latency_ns": Quantity(Better.LOWER, "reaches memory {} later", "reaches memory {} sooner"),
    "cache_size_kib": _FAST,
    "compute_gflops": _FAST,
    "compute_clock_ghz": _FAST,
    "compute_share_ratio": _FAST,
    "compute_clock_ratio": _FAST,
    "compute_core_ratio": _FAST,
    "compute_core_clock_ratio": _FAST,
    "network_bandwidth_gbs": Quantity(
        Better.HIGHER, "moves large messages {} faster", "moves large messages {} slower"
    ),
    "network_latency_s": Quantity(
        Better.LOWER, "takes {} longer for small messages", "takes {} less for small messages"
    ),
    "network_jitter_ratio": _COST,
    "message_bandwidth_gbs": _FAST,
    "message_latency_s": _COST,
    "device_bandwidth_gbs": Quantity(
        Better.HIGHER,
        "has an OpenCL device with {} faster memory",
        "has an OpenCL device with {} slower memory",
    ),
    "device_gflops": Quantity(
        Better.HIGHER, "has an OpenCL device that computes {} faster", "has one that computes {} slower"
    ),
    "device_product_gflops": _FAST,
    "device_copy_gbs": Quantity(
        Better.HIGHER, "copies {} faster to or from a device", "copies {} slower to or from a device"
    ),
    "device_launch_s": Quantity(Better.LOWER, "launches kernels {} slower", "launches kernels {} faster"),
    "device_queue_s": _COST,
    "device_copies_ratio": _FAST,
    "storage_write_mbs": Quantity(Better.HIGHER, "writes files {} faster", "writes files {} slower"),
    "storage_read_mbs": Quantity(Better.HIGHER, "reads files {} faster", "reads files {} slower"),
    **{
        f"storage_{kind}_{figure}": direction
        for kind in ("random_read", "random_write", "fsync")
        for figure, direction in (("p50_s", _COST), ("p99_s", _COST), ("iops", _FAST))
    },
    **{f"{part}_s": _COST for part in ("copy_out", "copy_in", "copy_new", "write", "read", "compile")},
    **{f"{part}_s": _COST for part in ("context", "checkpoint", "restart", "drain", "migration")},
    "migration_error_ratio": _NEUTRAL,
    "W_base": Quantity(Better.NEITHER, "draws {} more power at rest", "draws {} less power at rest"),
    "beside_packages_w": _NEUTRAL,
    "power_w": Quantity(Better.NEITHER, "draws {} more power under load", "draws {} less power under load"),
    "gpu_power_w": _NEUTRAL,
    "power_speed_ratio": _NEUTRAL,
    "job_power_speed_ratio": _NEUTRAL,
    "run_s": _COST,
    "run_s.A": _FAST,
    "run_s.sigma": _NEUTRAL,
}


def better(quantity: str, coefficient: str = "") -> Better:
    """Say which way a coefficient of a quantity is better; neither for a quantity that nobody has entered."""
    entry = QUANTITIES.get(f"{quantity}.{coefficient}") or QUANTITIES.get(quantity)
    return entry.better if entry else Better.NEITHER


# -- units that people read --------------------------------------------------------------------------------


_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_LEAST = {"s": 0.1, "ms": 1e-3, "us": 1e-6, "ns": 0.0}  # in seconds


def readable_unit(unit: str, *values: float | None) -> tuple[float, str]:
    """Choose the unit in which people read values: the factor to it, and its name (48.7 us, 2.1 GB/s)."""
    size = max((abs(value) for value in values if value is not None), default=0.0)
    base, slash, per = unit.partition("/")
    if base in _SECONDS and size:
        seconds = size * _SECONDS[base]
        name = next(name for name, least in _LEAST.items() if seconds >= least)
        return _SECONDS[base] / _SECONDS[name], f"{name}{slash}{per}"
    if unit == "MB/s" and size >= 1000:
        return 1e-3, "GB/s"
    if unit == "KiB" and size >= 1024:
        return 1 / 1024, "MiB"
    return 1.0, unit


def number(value: float | None) -> str:
    """Write three significant digits or whole numbers: 0.00123, 12.3, 45678, 1.20e-07."""
    if value is None:
        return "-"
    if value != 0 and not 1e-4 <= abs(value) < 1e6:
        return f"{value:.2e}"
    digits = f"{value:.3g}"
    return f"{value:.0f}" if "e" in digits else digits


def duration(seconds: float) -> str:
    """Write ``10.2 us``, ``0.45 s``, ``1:05 min``, ``3:20 h``, from two days ``12.5 d``; never below 0."""
    seconds = max(seconds, 0.0)
    if seconds < 59.95:
        factor, unit = readable_unit("s", seconds)
        return f"{number(factor * seconds)} {unit}"
    for size, unit, end in ((60, "min", 3600), (3600, "h", 48 * 3600)):
        parts = round(seconds * 60 / size)  # seconds of a minute, minutes of an hour
        if parts * size < 60 * end:
            return f"{parts // 60}:{parts % 60:02} {unit}"
    return f"{number(seconds / 86400)} d"


def file_size(mb: float) -> str:
    """Write the size of files, or of the room for them: ``12.3 GB``, ``90 MB``."""
    return f"{mb / 1000:.3g} GB" if mb >= 1000 else f"{mb:.0f} MB"


def memory(mb: float) -> str:
    """Write an amount of memory (in MB) as people do: ``23.6 GiB``, ``512 MiB``."""
    mib = mb * 1e6 / 2**20
    if mib < 1024:
        return f"{mib:.0f} MiB"
    return f"{mib / 1024:.1f} GiB" if mib < 100 * 1024 else f"{mib / 1024:.0f} GiB"


# -- facts of a machine that differ ------------------------------------------------------------------------


NO_AMOUNTS: Mapping[str, float] = MappingProxyType({})


class Difference(NamedTuple):
    """A fact that is not what it was; None: it was not there before, or is gone.

    ``is_loss``: there is less of something now, or nothing.
    """

    fact: str
    before: str | None
    after: str | None
    is_loss: bool = False

    def __str__(self) -> str:
        if self.after is None:
            return f"{self.fact} is gone ({self.before})"
        if self.before is None:
            return f"{self.fact} is new ({self.after})"
        return f"{self.fact} {self.before} -> {self.after}"


def compare_facts(
    before: Mapping[str, str],
    after: Mapping[str, str],
    had: Mapping[str, float] = NO_AMOUNTS,
    has: Mapping[str, float] = NO_AMOUNTS,
) -> list[Difference]:
    """List the facts that differ; none where those before are not known.

    Args:
        had, has: of facts that are amounts, how much there was, and is.
    """
    differences = []
    for name in dict.fromkeys((*before, *after)) if before else ():
        old, new = before.get(name), after.get(name)
        less = name in had and (new is None or has.get(name, had[name]) < had[name])
        if old != new:
            differences.append(Difference(name, old, new, less))
    return differences


def counted(count: int, noun: str) -> str:
    """Write ``1 core``, ``8 cores``."""
    return f"{count} {noun}{'s' * (count != 1)}"


# -- instants, in the time zone of who reads, with the date where that is not today ------------------------
#
# A sentence is often shown by another process than the one that made it, in another zone, or much later. So
# sentences carry stamps (``stamp``), and who shows them calls ``local``.


STAMP = re.compile(r"(?<![\w/.-])\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ(?![\w/.-]*[\w/])")  # no part of a path


def clock(at_s: float, *, date: bool = False) -> str:
    """Write an instant (seconds since 1970) in local time; ``date``: with its date, though that is today."""
    when = time.localtime(at_s)
    today = not date and when[:3] == time.localtime()[:3]
    return time.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M:%S", when)


def stamp(at_s: float) -> str:
    """Write an instant for a sentence that is shown elsewhere: ``2026-11-20T08:30:00Z``."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at_s))


def local(sentence: str) -> str:
    """Write the stamps in a sentence as ``clock`` does."""

    def shown(match: re.Match[str]) -> str:
        try:
            return clock(datetime.fromisoformat(match[0]).timestamp())
        except ValueError:  # no stamp of ours
            return match[0]

    return STAMP.sub(shown, sentence)
