"""The state of the machine while a probe runs, by which a later difference can be explained."""

from __future__ import annotations

import time
from dataclasses import dataclass

import psutil

from profiles.records import Condition

REFERENCE_LOOP = 200_000


def reference_s() -> float:
    """Measure the machine's present speed: the fastest of 5 runs of a fixed CPU loop (about 5 ms each)."""

    def once() -> float:
        start = time.perf_counter()
        x = 0
        for i in range(REFERENCE_LOOP):
            x ^= i
        return time.perf_counter() - start

    return min(once() for _ in range(5))


@dataclass(frozen=True)
class Watch:
    """A reading of the CPU counters at the start of a probe; ``ended`` compares with the end."""

    probe: str
    round: int
    reference_s: float
    started: float
    total_s: float
    busy_s: float
    steal_s: float
    ours_s: float

    @classmethod
    def begin(cls, probe: str, round_: int) -> Watch:
        return cls(probe, round_, reference_s(), time.monotonic(), *_counters())

    def ended(self) -> Condition:
        """Return what happened since; to be called when the probe's process has been waited for."""
        total, busy, steal, ours = _counters()
        elapsed = max(total - self.total_s, 1e-9)
        others = (busy - self.busy_s) - (ours - self.ours_s)
        return Condition(
            probe=self.probe,
            round=self.round,
            duration_s=round(time.monotonic() - self.started, 3),
            reference_s=round(self.reference_s, 6),
            steal_ratio=round(min(max((steal - self.steal_s) / elapsed, 0.0), 1.0), 4),
            others_ratio=round(min(max(others / elapsed, 0.0), 1.0), 4),
        )


def _counters() -> tuple[float, float, float, float]:
    """CPU seconds since boot: all, busy, stolen; and those of this process with its ended children."""
    cpu = psutil.cpu_times()
    steal = float(getattr(cpu, "steal", 0.0))
    idle = cpu.idle + float(getattr(cpu, "iowait", 0.0))
    # guest time is contained in user time: summing all fields would count it twice.
    total = sum(cpu) - float(getattr(cpu, "guest", 0.0)) - float(getattr(cpu, "guest_nice", 0.0))
    own = psutil.Process().cpu_times()
    ours = own.user + own.system + own.children_user + own.children_system
    return total, total - idle - steal, steal, ours
