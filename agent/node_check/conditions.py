"""The machine while it is checked: who else used it, heat, throttling."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from agent.inventory import number
from agent.node_profile.conditions import Watch
from profiles.checks.check import CheckConditions, Consumer

WORTH_NAMING = 0.03  # processors
MOST_NAMED = 3
SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "acpitz")

Processes = dict[tuple[int, float], tuple[str, str, float]]  # pid and start -> name, user, CPU seconds


@dataclass(frozen=True)
class CheckWatch:
    """A reading of the machine at the start of a check; ``ended`` compares with the end."""

    watch: Watch
    began: float
    processes: Processes
    throttled: int | None
    sysfs: Path

    @classmethod
    def begin(cls, sysfs: Path = Path("/sys")) -> CheckWatch:
        return cls(Watch.begin("check", 0), time.monotonic(), _processes(), throttle_events(sysfs), sysfs)

    def ended(self, quiet: str = "") -> CheckConditions:
        """Return what happened since; to be called when the battery's process has been waited for."""
        condition, processes = self.watch.ended(), _processes()
        seconds, throttled = time.monotonic() - self.began, throttle_events(self.sysfs)
        count = psutil.cpu_count() or 1
        rise = None if throttled is None or self.throttled is None else throttled - self.throttled
        return CheckConditions(
            duration_s=condition.duration_s,
            steal_ratio=condition.steal_ratio,
            others_processors=round(condition.others_ratio * count, 3),
            processors=count,
            consumers=tuple(self._consumers(processes, seconds)),
            temperature_c=temperature_c(),
            throttled=rise,
            quiet=quiet,
        )

    def _consumers(self, now: Processes, seconds: float) -> list[Consumer]:
        """Find the processes that used most, also those that began meanwhile."""
        found = []
        for key, (name, user, cpu_s) in now.items():
            before = self.processes.get(key, ("", "", 0.0))[2]
            processors = (cpu_s - before) / seconds
            if processors >= WORTH_NAMING:
                found.append(Consumer(name=name, pid=key[0], user=user, processors=round(processors, 3)))
        return sorted(found, key=lambda one: -one.processors)[:MOST_NAMED]


def _processes() -> Processes:
    """Read the CPU time of every process but this one; those of the battery do not live so long."""
    own = os.getpid()
    found: Processes = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid != own:
                times = process.cpu_times()
                found[process.pid, process.create_time()] = (
                    process.name(),
                    process.username(),
                    times.user + times.system,
                )
    return found


def temperature_c() -> float | None:
    """Read the hottest sensor of the processors; None where there is none."""
    try:
        sensors = psutil.sensors_temperatures()
    except (AttributeError, OSError):
        return None
    found = [one.current for name in SENSORS for one in sensors.get(name, ()) if one.current > 0]
    return max(found, default=None)


def throttle_events(sysfs: Path) -> int | None:
    """Count the events of thermal throttling since boot; None where the processor does not tell."""
    counters = sysfs.glob("devices/system/cpu/cpu[0-9]*/thermal_throttle/core_throttle_count")
    counts = [count for path in counters if (count := number(path)) is not None]
    return sum(counts) if counts else None
