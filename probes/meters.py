"""Energy meters: hardware counters turned into monotonic totals, faults detected and counted.

One thread reads all counters of a meter often enough to see every wrap. An interval in which a counter
failed is a break, across which no power is computed.

    with choose_meter(settings) as meter:
        before = meter.read()
        ...
        watts = power_w(before, meter.read())  # None: a counter failed in between
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from probes import nvml
from probes.powercap import MSR_CONTROL, Zone, metered, platform, zones
from profiles.errors import Unavailable

if TYPE_CHECKING:  # which brings pydantic along: who keeps a cap needs the counter only
    from profiles.records import Settings


# -- a hardware counter, made monotonic --------------------------------------------------------------------
#
# Counters wrap (Intel after about 262,144 J, AMD after 65,536 J: 262 s at 250 W), and they fail: they jump,
# read all ones, stand still, or vanish. A wrap or a single bad reading is allowed for. Any other fault is a
# *break*: an interval whose energy is unknown.


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
        self.wraps = 0
        self.troubles: Tally[str] = Tally()
        self.seen_s = 0.0
        self._moved_s = 0.0
        self._last: int | None = None
        self._stalled = False
        self._read, self._unit_j, self._range, self._stall_s = read, unit_j, range_raw, stall_s

    def update(self, clock: Callable[[], float]) -> None:
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
                self.wraps += 1
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


INTERVAL_S = 0.1

UDEV_RULE = (
    'SUBSYSTEM=="powercap", KERNEL=="intel-rapl*", ACTION=="add|change", RUN+="/bin/chmod a+r %S%p/energy_uj"'
)
READ_REMEDY = (
    f"run as root, or put  {UDEV_RULE}  into /etc/udev/rules.d/70-powercap.rules and type "
    "'udevadm control --reload && udevadm trigger -s powercap' as root"
)


@dataclass(frozen=True)
class Reading:
    """Energy that a meter's parts had used at one moment."""

    energy_j: dict[str, float]  # since the meter was opened
    seen_s: dict[str, float]  # when each counter was last read well (time.monotonic)
    breaks: dict[str, int]  # intervals of unknown energy


def power_w(before: Reading, after: Reading, parts: Iterable[str] | None = None) -> float | None:
    """Compute mean power between two readings, summed over ``parts`` (default: all).

    None where a counter jumped, stopped or vanished in between.
    """
    total = 0.0
    for part in after.energy_j if parts is None else parts:
        seconds = after.seen_s[part] - before.seen_s[part]
        energy_j = after.energy_j[part] - before.energy_j[part]
        if after.breaks[part] != before.breaks[part] or seconds <= 0 or energy_j <= 0:
            return None
        total += energy_j / seconds
    return total


class Meter:
    """Counters read together by one thread under one lock; a context manager.

    Args:
        name: powercap, pyrapl or nvml.
        counters: counters that do not advance while the meter is opened are left out (see ``troubles``).
        settle_s: longest wait for every counter to advance once.

    Raises:
        Unavailable: no counter advances.
    """

    def __init__(
        self, name: str, counters: list[Counter], interval_s: float = INTERVAL_S, settle_s: float = 0.1
    ) -> None:
        self.name = name
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._interval_s = interval_s
        self._all = counters
        self._counters = _advancing(counters, settle_s)
        if not self._counters:
            names = ", ".join(c.name for c in counters)
            raise Unavailable(f"{name}: no energy counter advances ({names})", "see the kernel log (dmesg)")
        self._thread = threading.Thread(target=self._sample, name=f"{name}-sampler", daemon=True)
        self._thread.start()

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the parts: ``package-0``, ``package-0/dram``, ``psys``, ``gpu-0``."""
        return tuple(c.name for c in self._counters)

    @property
    def packages(self) -> tuple[str, ...]:
        """The parts that are whole processors."""
        return tuple(p for p in self.parts if p.startswith("package-") and "/" not in p)

    @property
    def total_parts(self) -> tuple[str, ...]:
        """The parts whose sum is all that is metered: the platform if it has a counter, else all."""
        return ("psys",) if "psys" in self.parts else self.parts

    def read(self) -> Reading:
        """Read every counter now."""
        with self._lock:
            self._update()
            return Reading(
                {c.name: c.energy_j for c in self._counters},
                {c.name: c.seen_s for c in self._counters},
                {c.name: c.breaks for c in self._counters},
            )

    def troubles(self) -> dict[str, dict[str, int]]:
        """Count the faults so far, by part and kind."""
        with self._lock:
            return {c.name: dict(c.troubles) for c in self._all if c.troubles}

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _sample(self) -> None:
        while not self._stop.wait(self._interval_s):
            with self._lock:
                self._update()

    def _update(self) -> None:
        for counter in self._counters:
            counter.update(time.monotonic)


def choose_meter(settings: Settings) -> Meter:
    """Open the meter that ``settings.meter`` names; ``auto`` is the own powercap reader.

    Raises:
        Unavailable: the meter cannot be read on this machine; with the reason and the remedy.
    """
    if settings.meter == "none":
        raise Unavailable("no meter was asked for (--meter none)", "leave the option out")
    if settings.meter == "pyrapl":
        return pyrapl_meter(settings.sysfs, settings.procfs)
    if settings.meter == "nvml":
        return nvml_meter()
    return powercap_meter(settings.sysfs, settings.procfs)


def powercap_meter(sysfs: Path, procfs: Path = Path("/proc"), interval_s: float = INTERVAL_S) -> Meter:
    """Open the kernel's energy counters of packages, DRAM and platform.

    Raises:
        Unavailable: no powercap, or no permission.
    """
    return Meter("powercap", [_zone_counter(z) for z in _readable(sysfs, procfs)], interval_s)


def pyrapl_meter(sysfs: Path, procfs: Path = Path("/proc")) -> Meter:
    """Open the same counters through pyRAPL, which reads /sys only and knows packages and DRAM by socket.

    Its raw values pass through ``Counter``, which handles wraps.

    Raises:
        Unavailable: pyRAPL is not installed, or refuses this machine.
    """
    if sysfs.resolve() != Path("/sys"):
        raise Unavailable(f"pyRAPL reads /sys only, not {sysfs}", "use --meter powercap")
    ranges = {z.key: z.energy_range_uj for z in _readable(sysfs, procfs)}
    try:
        with _quiet_logging():
            from pyRAPL import Sensor
            from pyRAPL.exception import (
                PyRAPLBadSocketIdException,
                PyRAPLCantInitDeviceAPI,
                PyRAPLCantRecordEnergyConsumption,
            )
    except ImportError:
        raise Unavailable("pyRAPL is not installed", ".venv/bin/pip install pyRAPL") from None
    try:
        sensor = Sensor()
        raw = sensor.energy()
    except (
        OSError,
        ValueError,
        PyRAPLBadSocketIdException,
        PyRAPLCantInitDeviceAPI,
        PyRAPLCantRecordEnergyConsumption,
    ) as error:
        reason = str(error) if isinstance(error, OSError) else type(error).__name__
        raise Unavailable(f"pyRAPL refuses this machine ({reason})", "use --meter powercap") from None

    def reader(index: int) -> Callable[[], int]:
        return lambda: int(sensor.energy()[index])

    names = [f"package-{i // 2}" + ("/dram" if i % 2 else "") for i in range(len(raw))]
    counters = [
        Counter(name, reader(i), 1e-6, ranges.get(name)) for i, name in enumerate(names) if raw[i] >= 0
    ]
    return Meter("pyrapl", counters)


def nvml_meter() -> Meter:
    """Open the energy counters of NVIDIA GPUs (Volta and newer).

    Raises:
        Unavailable: no NVIDIA driver or library, or no GPU with such a counter.
    """
    library = nvml.load()
    try:
        handles = [library.nvmlDeviceGetHandleByIndex(i) for i in range(library.nvmlDeviceGetCount())]
    except library.NVMLError as error:
        raise Unavailable(f"NVML: {error}", "see what 'nvidia-smi' says") from None
    if not handles:
        raise Unavailable("NVML finds no GPU", "make one visible to this process, if there is one")

    def reader(handle: object) -> Callable[[], int]:
        def read() -> int:
            try:
                return int(library.nvmlDeviceGetTotalEnergyConsumption(handle))
            except library.NVMLError as error:
                raise OSError(str(error)) from error

        return read

    # The driver refreshes these counters only some ten times a second.
    counters = [Counter(f"gpu-{i}", reader(h), 1e-3, None, stall_s=1.0) for i, h in enumerate(handles)]
    return Meter("nvml", counters, settle_s=1.0)


def _readable(sysfs: Path, procfs: Path) -> list[Zone]:
    """Find the zones to read: packages, DRAM and platform.

    Raises:
        Unavailable: there are no zones, or they may not be read.
    """
    tree = zones(sysfs)
    parts = metered(tree)
    if not parts:
        where = sysfs / "class" / "powercap"
        if _virtual(procfs):
            raise Unavailable(
                f"no powercap interface ({where}): virtual machines do not see the energy counters",
                "measure on the bare machine",
            )
        raise Unavailable(
            f"no powercap interface ({where})", "load the driver as root: modprobe intel_rapl_msr"
        )
    psys = platform(tree)
    readable = [z for z in [*parts, *([psys] if psys else [])] if z.readable]
    if not readable:
        path = parts[0].energy_path
        raise Unavailable(f"{path}: readable by root only (since CVE-2020-8694)", READ_REMEDY)
    if not any(z.is_package for z in readable):
        raise Unavailable(f"{parts[0].energy_path}: no package counter can be read", READ_REMEDY)
    return readable


def _virtual(procfs: Path) -> bool:
    with suppress(OSError):
        return " hypervisor" in (procfs / "cpuinfo").read_text(errors="replace")
    return False


def _zone_counter(zone: Zone) -> Counter:
    path = str(zone.energy_path)

    def read() -> int:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - this runs ten times a second and zone
            return int(file.read(64))

    name = zone.key.removesuffix(f"@{zone.control_type}") if zone.control_type != MSR_CONTROL else zone.key
    return Counter(name, read, 1e-6, zone.energy_range_uj)


def _advancing(counters: list[Counter], settle_s: float) -> list[Counter]:
    """Keep the counters that advance within ``settle_s``; note a fault of the others."""
    deadline = time.monotonic() + settle_s
    waiting = list(counters)
    while waiting and time.monotonic() < deadline:
        for counter in waiting:
            counter.update(time.monotonic)
        waiting = [c for c in waiting if c.energy_j == 0]
        time.sleep(0.002)
    for counter in waiting:
        counter.troubles["does not advance: left out"] += 1
    return [c for c in counters if c not in waiting]


@contextmanager
def _quiet_logging() -> Iterator[None]:
    """Silence pyRAPL, which warns about databases and sets up the root logger in passing."""
    handlers = logging.root.handlers[:]
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        logging.root.handlers[:] = handlers
