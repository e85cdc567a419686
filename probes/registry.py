"""Probes by name. A new probe is one new file, or a function in one of its subject, and one line here.

The samples of probe ``x`` are fitted by ``profiles/fits/x.py`` and drawn by ``tenbin/report/probes/x.py``,
where those exist. Where they lie with another probe's, ``SHARED`` of ``profiles/fits`` and of
``tenbin/report/drawings.py`` says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from probes.run import Run  # late, because that imports numpy, and the command line needs the names only


@dataclass(frozen=True)
class ProbeEntry:
    """A probe: the module of its ``function(run)``, its title on the page, and the time that it takes."""

    module: str
    title: str
    full_s: float
    quick_s: float
    function: str = "measure"

    def load(self) -> Callable[[Run], None]:
        """Import the probe's function; only here, because probes need heavy libraries."""
        measure: Callable[[Run], None] = getattr(import_module(self.module), self.function)
        return measure


PROBES = {
    "memory": ProbeEntry("probes.memory", "Stores to memory, and interference", full_s=60, quick_s=8),
    "streams": ProbeEntry("probes.streams", "Memory streams and latency", full_s=15, quick_s=3),
    "compute": ProbeEntry("probes.compute", "Floating point speed and clock", full_s=10, quick_s=2),
    "network": ProbeEntry("probes.network", "All-to-all communication", full_s=40, quick_s=4),
    "messages": ProbeEntry(
        "probes.network", "Messages between two ranks", full_s=10, quick_s=2, function="measure_messages"
    ),
    "device": ProbeEntry("probes.device", "Speed of OpenCL devices", full_s=20, quick_s=3),
    "checkpoint": ProbeEntry("probes.checkpoint", "Checkpoint and restart costs", full_s=115, quick_s=11),
    "storage": ProbeEntry("probes.storage", "Speed of storage", full_s=15, quick_s=2),
    "power": ProbeEntry("probes.power", "Power caps and speed", full_s=115, quick_s=13),
    "scaling": ProbeEntry(
        "probes.compute", "Parallel scaling", full_s=70, quick_s=8, function="measure_scaling"
    ),
}

# The slices of a check, which no profile visits; of devices with the time of each.
BATTERY, DEVICES = "battery", "devices"
CHECKS = {
    BATTERY: ProbeEntry("probes.battery", "Slices of a check", full_s=23, quick_s=6.5),
    DEVICES: ProbeEntry("probes.device_check", "Slices of a check on devices", full_s=6, quick_s=1.5),
}


def entry_of(name: str) -> ProbeEntry:
    """Find a probe of profiles, or the slices of checks, by name."""
    return (PROBES | CHECKS)[name]
