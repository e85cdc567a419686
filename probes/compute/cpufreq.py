"""Clock of a CPU as the kernel tells it (cpufreq in sysfs), beside which the measured clock stands."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from probes.topology import read_text

KHZ, MHZ = 1e-6, 1e-3  # in GHz


class ToldClock(NamedTuple):
    """Present clock of a CPU, its base without boost, and its most, in GHz; None: not told."""

    current_ghz: float | None
    base_ghz: float | None
    max_ghz: float | None


def read_clock(sysfs: Path, cpu: int) -> ToldClock:
    """Read what the kernel tells of ``cpu``; AMD's base is in ``acpi_cppc``."""
    folder = sysfs / f"devices/system/cpu/cpu{cpu}"
    base = _ghz(folder / "cpufreq/base_frequency", KHZ) or _ghz(folder / "acpi_cppc/nominal_freq", MHZ)
    return ToldClock(
        _ghz(folder / "cpufreq/scaling_cur_freq", KHZ), base, _ghz(folder / "cpufreq/cpuinfo_max_freq", KHZ)
    )


def _ghz(path: Path, unit: float) -> float | None:
    """Read a frequency; None where there is no file, or no number above 0 in it (``<unknown>``)."""
    text = read_text(path)
    return round(int(text) * unit, 6) if text.isdecimal() and int(text) else None
