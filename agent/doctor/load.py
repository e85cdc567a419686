"""The present load of the machine by others, which would disturb a measurement."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import NamedTuple

from agent.doctor.finding import Finding, limited, ok
from agent.inventory.files import Roots, read
from profiles.trust import BUSY, STOLEN

SAMPLE_S = 0.25
PRESSURE = 0.05

_QUIET = "measure when it is quiet; 'top' shows who it is"


class Ticks(NamedTuple):
    """CPU time of the whole machine since it was started, in clock ticks."""

    total: int
    idle: int
    stolen: int


def read_ticks(roots: Roots) -> Ticks | None:
    """Read the first line of ``/proc/stat``; ``None`` if there is none."""
    line = (read(roots.procfs / "stat") or "").partition("\n")[0].split()
    if len(line) < 5 or line[0] != "cpu":
        return None
    # user nice system idle iowait irq softirq steal; guest time, which follows, is in user time already.
    times = [int(text) for text in line[1:9]]
    return Ticks(sum(times), times[3] + sum(times[4:5]), sum(times[7:8]))


def check(roots: Roots) -> Iterator[Finding]:
    """Watch the machine for ``SAMPLE_S`` seconds, in which this process sleeps."""
    before = read_ticks(roots)
    time.sleep(SAMPLE_S)
    yield from compare(roots, before, read_ticks(roots))


def compare(roots: Roots, before: Ticks | None, after: Ticks | None) -> Iterator[Finding]:
    """Judge the load by two readings of CPU time and the kernel's averages."""
    yield from _busy(roots, before, after)
    yield from _stolen(before, after)
    for resource, what in (("io", "storage"), ("memory", "memory")):
        waiting = _pressure(roots, resource)
        if waiting is not None and waiting > PRESSURE:
            yield limited(
                "machine",
                f"busy: processes waited for {what} {waiting:.0%} of the last 10 s",
                "others use it, or there is too little of it",
                _QUIET,
            )


def _busy(roots: Roots, before: Ticks | None, after: Ticks | None) -> Iterator[Finding]:
    now = _busy_now(before, after)
    lately = _pressure(roots, "cpu")
    load = re.match(r"[\d.]+", read(roots.procfs / "loadavg") or "")
    beside = f"load average {load[0]}" if load else ""
    if now is not None and now > BUSY:
        yield limited("machine", f"busy: {now:.0%} of all CPU time is used by others", beside, _QUIET)
    elif lately is not None and lately > PRESSURE:
        what = f"busy: processes waited for a CPU {lately:.0%} of the last 10 s"
        yield limited("machine", what, beside, _QUIET)
    elif now is not None:
        yield ok("machine", f"quiet: {now:.0%} of all CPU time is used by others", beside)


def _busy_now(before: Ticks | None, after: Ticks | None) -> float | None:
    if before is None or after is None or after.total <= before.total:
        return None
    idle = after.idle - before.idle
    return min(max(1 - idle / (after.total - before.total), 0.0), 1.0)


def _stolen(before: Ticks | None, after: Ticks | None) -> Iterator[Finding]:
    if before is None or after is None:
        return
    since_start = after.stolen / after.total if after.total else 0.0
    ticks = after.total - before.total
    now = (after.stolen - before.stolen) / ticks if ticks else 0.0
    if max(now, since_start) > STOLEN:
        yield limited(
            "machine",
            f"the hypervisor gave {now:.1%} of the CPU time to others just now, {since_start:.1%} since boot",
            "more virtual CPUs than real ones are in use on this host",
            "ask for dedicated CPUs, or measure at another hour",
        )


def _pressure(roots: Roots, resource: str) -> float | None:
    """Read the share of the last 10 s in which some process waited (pressure stall information)."""
    text = read(roots.procfs / "pressure" / resource) or ""
    match = re.search(r"^some avg10=([\d.]+)", text, re.MULTILINE)
    return float(match[1]) / 100 if match else None
