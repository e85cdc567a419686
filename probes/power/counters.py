"""A hardware energy counter, made monotonic; its faults detected and counted.

Counters wrap (Intel after about 262,144 J, AMD after 65,536 J: 262 s at 250 W), and they fail: they jump,
read all ones, stand still, or vanish. A wrap or a single bad reading is allowed for. Any other fault is a
*break*: an interval whose energy is unknown.
"""

from __future__ import annotations

import time
from collections import Counter as Tally
from collections.abc import Callable

PLAUSIBLE_W = 5000.0  # no package, DRAM or GPU draws more: a counter that shows more has jumped
SHORTEST_S = 0.01  # between two reads; the counters themselves advance in steps of 1 ms and more
ALL_ONES = 0xFFFFFFFF


class Counter:
    """A hardware counter, made monotonic.

    Args:
        name: the part: ``package-0``, ``package-0/dram``, ``gpu-0``.
        read: gives the raw value, or raises OSError or ValueError.
        unit_j: joules of one count.
        range_raw: the counter wraps to 0 after this value; None if unknown.
        stall_s: a counter that stands still longer than this has failed.
    """

    def __init__(
        self,
        name: str,
        read: Callable[[], int],
        unit_j: float,
        range_raw: int | None,
        *,
        stall_s: float = 0.2,
    ) -> None:
        self.name = name
        self.energy_j = 0.0
        self.breaks = 0
        self.troubles: Tally[str] = Tally()
        self.seen_s = 0.0
        self._moved_s = 0.0
        self._last: int | None = None
        self._stalled = False
        self._read, self._unit_j, self._range, self._stall_s = read, unit_j, range_raw, stall_s

    def update(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Read the counter once and add the energy used since the last good reading."""
        try:
            raw = self._read()
        except (OSError, ValueError):
            self._trouble("could not be read")
            self._check_stall(clock())
            return
        now = clock()
        if raw < 0 or (self._range is not None and raw >= self._range) or raw == ALL_ONES:
            self._trouble("read all ones or out of its range")  # the next good reading covers this interval
            self._check_stall(now)
            return
        if self._last is None:
            self._last, self.seen_s, self._moved_s = raw, now, now
            return
        used_j = self._used_j(raw - self._last, now - self.seen_s)
        self.energy_j += used_j
        if raw != self._last:
            self._moved_s, self._stalled = now, False
        self._last, self.seen_s = raw, now
        self._check_stall(now)

    def _used_j(self, difference: int, seconds: float) -> float:
        most_j = PLAUSIBLE_W * max(seconds, SHORTEST_S)
        if self._range is not None and self._range * self._unit_j < most_j:
            return self._break("was not read for so long that it may have wrapped unseen")
        if difference < 0 and self._range is not None:
            wrapped_j = (difference + self._range) * self._unit_j
            if wrapped_j <= most_j:
                self._trouble("wrapped (allowed for)")
                return wrapped_j
        if difference < 0:
            known = "" if self._range is not None else ", and where it wraps is not known"
            return self._break(f"jumped back{known}")
        if difference * self._unit_j > most_j:
            return self._break("jumped ahead")
        return difference * self._unit_j

    def _check_stall(self, now: float) -> None:
        if self._last is not None and not self._stalled and now - self._moved_s > self._stall_s:
            self._stalled = True
            self._break("stood still")

    def _break(self, what: str) -> float:
        self.breaks += 1
        self._trouble(what)
        return 0.0

    def _trouble(self, what: str) -> None:
        self.troubles[what] += 1
