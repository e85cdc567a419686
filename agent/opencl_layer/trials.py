"""Trials of a running program on another device: from times of its kernels to the ratio of its speeds.

The time of a kernel is the median of its launches. Its interval holds the median of all launches that might
have been measured: by order statistics, with at least 95 % from six launches on (from fewer, all of them).
The low end of each time leaves out what a command costs that does nothing, because a program that keeps its
queue full does not wait for that. How long its kernels were under way tells which programs do.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import Any, NamedTuple

SAME_BY = {"float": 1e-5, "double": 1e-12}  # largest relative difference of results that still agree
CERTAINTY = 0.95


class Time(NamedTuple):
    """Time of one launch: median, and an interval of it, from ``n`` launches; ``call_s`` is a part of it."""

    low_s: float
    median_s: float
    high_s: float
    n: int
    call_s: float


class Ratio(NamedTuple):
    """Speed on the device that was tried over that on the device of the program, with an interval."""

    low: float
    value: float
    high: float


@dataclass(frozen=True)
class KernelTrial:
    """One kernel with one global and local size.

    Attributes:
        global_size, local_size: of the launch; no local size: the driver chooses it.
        launches: how many there were while the program was watched. ended: how many of those had ended then.
        memory_bytes: of its buffers and images.
        here, there: times on the program's device, and on the device that was tried; None: it was not run.
        compared_bytes, differing_bytes: of what it may write.
        types: how it was compared: ``float``, ``double``, ``bytes``, or ``mixed``.
        relative_difference: the largest of floating point numbers; None: there are none that differ.
        trouble: why it was not tried.
    """

    name: str
    global_size: tuple[int, ...]
    local_size: tuple[int, ...]
    launches: int
    ended: int
    memory_bytes: int
    here: Time | None
    there: Time | None
    compared_bytes: int
    differing_bytes: int
    types: str
    relative_difference: float | None
    trouble: str

    @property
    def ratio(self) -> Ratio | None:
        """Speed of this kernel there over that here."""
        return _ratio([(1, self.here, self.there)]) if self.here and self.there else None

    @property
    def agrees(self) -> bool | None:
        """Results are bit-identical, or numbers that differ by rounding; None: it was not tried."""
        if self.there is None:
            return None
        if not self.differing_bytes:
            return True
        return self.relative_difference is not None and self.relative_difference <= SAME_BY.get(
            self.types, -1
        )


@dataclass(frozen=True)
class Trial:
    """Trial of a program on a device.

    Attributes:
        device: key of the device that the program is on. on: of the device that was tried.
        at_s: when (Unix time). watched_s: how long launches were counted.
        busy_s: how long of that launches of the program had not ended, or it waited for its device.
        running_s: how long of that the driver said that they ran. looks: how often that was looked at.
        stopped_s, longest_stop_s: how long the program was kept from going on, in all and at once.
        not_kept: launches beyond those of the kernels that a trial takes at most.
        kernels: those that were launched meanwhile.
    """

    device: str
    on: str
    at_s: float
    watched_s: float
    busy_s: float
    running_s: float
    looks: int
    stopped_s: float
    longest_stop_s: float
    not_kept: int
    kernels: tuple[KernelTrial, ...]

    @property
    def busy_share(self) -> float:
        """Share of the time in which kernels that were tried were under way; the host worked in the rest."""
        return self._tried_s("median_s") / self.watched_s if self.watched_s > 0 else 0.0

    @property
    def ratio(self) -> Ratio | None:
        """Speed of the program's kernels there over that here, each as often as it was launched.

        The value leaves out that part of the calls for which the program does not wait, because its launches
        overlap: so much that those here take as long as kernels were under way. Of the time there no larger
        share is left out than here, because a call that does nothing tells only about what another one takes.
        """
        timed = [(kernel.launches, kernel.here, kernel.there) for kernel in self.kernels]
        kernels = _ratio([(n, here, there) for n, here, there in timed if here and there])
        if kernels is None:
            return None
        here_s, there_s = (self._sum_s(f"{where}.median_s") for where in ("here", "there"))
        calls_here_s, calls_there_s = (self._sum_s(f"{where}.call_s") for where in ("here", "there"))
        overlapped_s = min(here_s, max(self._tried_s("median_s"), here_s - calls_here_s))
        hidden = (here_s - overlapped_s) / calls_here_s if calls_here_s > 0 else 0.0
        left = max(1 - hidden * calls_there_s / there_s, overlapped_s / here_s)
        value = overlapped_s / (there_s * left)
        return Ratio(min(kernels.low, value), value, max(kernels.high, value))

    @property
    def program_ratio(self) -> Ratio | None:
        """Speed of the whole program there over that here, if its host works as long as now (Amdahl).

        The interval is that of its kernels, and of how long they were under way. That was looked at now and
        then, so it has the error of a share of so many looks.
        """
        kernels = self.ratio
        if kernels is None or self.watched_s <= 0:
            return None

        def speed(kernels: float, share: float) -> float:
            return 1 / (1 - share + share / kernels)

        low, high = self._tried_s("low_s") / self.watched_s, self._busy_s / self.watched_s
        shares = (max(0.0, low - self._error(low)), min(1.0, high + self._error(high)))
        ends = [speed(end, share) for end in (kernels.low, kernels.high) for share in shares]
        return Ratio(min(ends), speed(kernels.value, self.busy_share), max(ends))

    def _error(self, share: float) -> float:
        return 2 * math.sqrt(share * (1 - share) / max(1, self.looks))

    @property
    def _tried(self) -> list[KernelTrial]:
        return [kernel for kernel in self.kernels if kernel.here and kernel.there]

    @property
    def _busy_s(self) -> float:
        """Time in which launches were under way: no less than those took in the trial that ended meanwhile.

        Some drivers say that a launch has ended when it has just begun (rusticl of Mesa 22.3).
        """
        ended_s = self._sum_s("here.low_s", "ended")
        return max(self.busy_s, min(self.watched_s, ended_s))

    def _tried_s(self, end: str) -> float:
        """Time in which those kernels were under way in the program that were tried.

        As long as in the trial, within what was seen: not all drivers tell if a launch runs, or waits for
        other work. How long launches ran that were not tried is not known.
        """
        is_whole = not self.not_kept and len(self._tried) == len(self.kernels)
        return min(self._busy_s, max(self._sum_s(f"here.{end}"), self.running_s if is_whole else 0.0))

    def _sum_s(self, time: str, number: str = "launches") -> float:
        """Sum up a time (as ``here.median_s``) of so many launches of each kernel that was tried."""
        time_of_one, number_of = attrgetter(time), attrgetter(number)
        return float(sum(number_of(kernel) * time_of_one(kernel) for kernel in self._tried))

    @property
    def agrees(self) -> bool | None:
        """All kernels that were tried agree; None: none was."""
        verdicts = [kernel.agrees for kernel in self.kernels if kernel.agrees is not None]
        return all(verdicts) if verdicts else None

    def as_json(self) -> dict[str, Any]:
        """Give all figures, also those that follow from others."""
        kernels = [_with(kernel, ratio=kernel.ratio, agrees=kernel.agrees) for kernel in self.kernels]
        return asdict(self) | {
            "kernels": kernels,
            "ratio": _json(self.ratio),
            "program_ratio": _json(self.program_ratio),
            "busy_share": self.busy_share,
            "agrees": self.agrees,
        }


def trial_from(answer: Mapping[str, Any], at_s: float) -> Trial:
    """Read the layer's answer."""
    return Trial(
        device=answer["device"],
        on=answer["on"],
        at_s=at_s,
        watched_s=answer["watched_s"],
        busy_s=answer["busy_s"],
        running_s=answer["running_s"],
        looks=int(answer["looks"]),
        stopped_s=answer["stopped_s"],
        longest_stop_s=answer["longest_stop_s"],
        not_kept=int(answer["not_kept"]),
        kernels=tuple(map(_kernel, sorted(answer["kernels"], key=lambda kernel: -kernel["launches"]))),
    )


def _kernel(row: Mapping[str, Any]) -> KernelTrial:
    return KernelTrial(
        name=row["name"],
        global_size=tuple(row["global_size"]),
        local_size=tuple(row["local_size"]),
        launches=int(row["launches"]),
        ended=int(row["ended"]),
        memory_bytes=int(row["bytes"]),
        here=time_of(row["source_s"], row["source_call_s"]),
        there=time_of(row["target_s"], row["target_call_s"]),
        compared_bytes=int(row["compared_bytes"]),
        differing_bytes=int(row["differing_bytes"]),
        types=row["types"],
        relative_difference=row["relative_difference"],
        trouble=row["trouble"],
    )


def time_of(launches_s: Sequence[float], call_s: float = 0.0) -> Time | None:
    """Sum up the times of launches; None: there are none.

    Args:
        call_s: time of a command that does nothing.
    """
    if not launches_s:
        return None
    times, n = sorted(launches_s), len(launches_s)
    skip = ranks_outside(n)
    low_s, high_s = times[skip], times[n - 1 - skip]
    return Time(max(low_s - call_s, low_s * 1e-3), statistics.median(times), high_s, n, call_s)


def ranks_outside(n: int) -> int:
    """Count the ordered values at each end that lie outside of the median's interval."""
    skip, outside = 0, 2 * 0.5**n
    while skip < (n - 1) // 2:
        outside += 2 * math.comb(n, skip + 1) * 0.5**n
        if outside > 1 - CERTAINTY:
            break
        skip += 1
    return skip


def _ratio(timed: Sequence[tuple[int, Time, Time]]) -> Ratio | None:
    if not timed:
        return None

    def sums(end: str) -> tuple[float, float]:
        here, there = (sum(kernel[0] * getattr(kernel[which], end) for kernel in timed) for which in (1, 2))
        return here, there

    (low_here, low_there), (here, there), (high_here, high_there) = map(sums, ("low_s", "median_s", "high_s"))
    return Ratio(low_here / high_there, here / there, high_here / low_there)


def _json(ratio: Ratio | None) -> dict[str, float] | None:
    return None if ratio is None else ratio._asdict()


def _with(kernel: KernelTrial, *, ratio: Ratio | None, agrees: bool | None) -> dict[str, Any]:
    times = {"here": kernel.here, "there": kernel.there}
    times_as_json = {name: None if time is None else time._asdict() for name, time in times.items()}
    return asdict(kernel) | times_as_json | {"ratio": _json(ratio), "agrees": agrees}
