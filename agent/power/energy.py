"""Energy of processor packages and their memory while a job has them, by the kernel's counters."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from probes.power.counters import Counter
from probes.power.powercap import Zone, metered, zones


class Energy:
    """Counts energy from ``begin`` to ``end``, and again.

    ``joules`` must be read so often that no counter wraps unseen.
    """

    def __init__(self, sysfs: Path) -> None:
        self._sysfs = sysfs
        self._counters: list[Counter] = []
        self._counted_j = 0.0
        self._known = False
        self._broken = False

    def begin(self, packages: Sequence[Zone]) -> None:
        """Count these packages, and their memory, from now on."""
        self.end()
        own = {zone.key for zone in packages}
        below = [z for z in metered(zones(self._sysfs)) if z.is_dram and z.parent in own]
        readable = [zone for zone in [*packages, *below] if zone.readable]
        self._known = bool(readable)
        self._counters = [
            Counter(zone.key, _reader(zone.energy_path), 1e-6, zone.energy_range_uj, stall_s=5.0)
            for zone in readable
        ]
        self._sample()

    def end(self) -> None:
        """Stop counting."""
        self._sample()
        self._counted_j += sum(counter.energy_j for counter in self._counters)
        for counter in self._counters:
            if counter.breaks:
                self._broken = True
                print(f"energy unknown: {counter.name} {dict(counter.troubles)}", file=sys.stderr, flush=True)
        self._counters = []

    @property
    def joules(self) -> float | None:
        """Energy so far; None if there is no counter, or a counter failed."""
        self._sample()
        total = self._counted_j + sum(counter.energy_j for counter in self._counters)
        broken = self._broken or any(counter.breaks for counter in self._counters)
        return total if self._known and not broken else None

    def _sample(self) -> None:
        for counter in self._counters:
            counter.update()


def _reader(path: Path) -> Callable[[], int]:
    return lambda: int(path.read_text())
