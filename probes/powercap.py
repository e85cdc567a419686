"""The kernel's powercap tree: the parts of the node with an energy counter, and the parts that can be capped.

Layout and units follow the kernel's Documentation/ABI/testing/sysfs-class-powercap: energy in uJ, power
in uW, windows in us. Zones are told apart by their ``name`` file and never by their number, because the
numbers follow the order in which the driver found the zones. Containment (Intel SDM vol. 3, 15.10; AMD's
driver offers the same names): ``core`` and ``uncore`` are parts of their package; ``dram`` is shown below
a package but is *not* in the package's counter; ``psys`` is the whole platform; ``intel-rapl-mmio`` is a
second interface to the same packages.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from probes.topology import read_text
from profiles.errors import Unavailable

if TYPE_CHECKING:  # which brings numpy along: a supervisor must start at once
    from probes.run import Control


ZONE_FOLDER = re.compile(r"(?P<control>[^:]*rapl[^:]*):(?P<numbers>\d+(?::\d+)*)")
CONSTRAINT_NAME = re.compile(r"constraint_(\d+)_name")
MSR_CONTROL = "intel-rapl"


@dataclass(frozen=True)
class Constraint:
    """A power limit of a zone, with the window over which the power is averaged."""

    name: str  # long_term, short_term, peak_power
    limit_path: Path
    window_path: Path
    limit_w: float | None
    window_s: float | None
    min_w: float | None
    max_w: float | None
    writable: bool


@dataclass(frozen=True)
class Zone:
    """A part of the node with an energy counter, limits, or both."""

    name: str  # as the kernel names it: package-0, package-0-die-1, dram, core, psys
    key: str  # unique on the node: package-0, package-0/dram, package-0@intel-rapl-mmio
    path: Path
    control_type: str  # intel-rapl (also for AMD), intel-rapl-mmio
    parent: str | None  # key of the zone that this one is shown below
    energy_range_uj: int | None  # the counter wraps here; None where the kernel does not say
    readable: bool  # whether energy_uj could be read just now
    enabled: bool | None
    constraints: tuple[Constraint, ...]

    @property
    def energy_path(self) -> Path:
        return self.path / "energy_uj"

    @property
    def enabled_path(self) -> Path:
        return self.path / "enabled"

    @property
    def is_package(self) -> bool:
        return self.name.startswith("package-")

    @property
    def is_dram(self) -> bool:
        return self.name.startswith("dram")

    @property
    def is_duplicate(self) -> bool:
        """True for a second interface (MMIO) to a part that ``intel-rapl`` shows too."""
        return self.control_type != MSR_CONTROL

    @property
    def long_term(self) -> Constraint | None:
        """The sustained limit, which is what a power cap means."""
        return next((c for c in self.constraints if c.name == "long_term"), None)

    @property
    def cap_w(self) -> float | None:
        """The sustained limit in force; None where the zone has none (AMD, core, dram)."""
        return self.long_term.limit_w if self.long_term else None

    @property
    def cap_max_w(self) -> float | None:
        """The largest sustained limit that the hardware announces (the TDP)."""
        return self.long_term.max_w if self.long_term else None

    @property
    def writable(self) -> bool:
        """True if this process may write the sustained limit (the firmware may still lock it)."""
        return self.long_term is not None and self.long_term.writable


def zones(sysfs: Path) -> list[Zone]:
    """List every RAPL zone under ``sysfs``/class/powercap, parents before children; empty if there is none.

    A file that is missing, unreadable or no number becomes None (or ``readable=False``); nothing is raised.
    """
    folder = sysfs / "class" / "powercap"
    folders: list[tuple[str, tuple[int, ...], Path]] = []
    for name in _entries(folder):
        if match := ZONE_FOLDER.fullmatch(name):
            numbers = tuple(int(n) for n in match["numbers"].split(":"))
            folders.append((match["control"], numbers, folder / name))
    # The plain MSR control first, so that it keeps the plain names and others are marked as duplicates.
    folders.sort(key=lambda item: (item[0] != MSR_CONTROL, item[0], item[1]))
    keys: dict[tuple[str, tuple[int, ...]], str] = {}
    result = []
    for control, numbers, path in folders:
        name = read_text(path / "name")
        if not name:
            continue
        parent = keys.get((control, numbers[:-1]))
        key = _unique(_key(name, control, parent), keys.values())
        keys[control, numbers] = key
        result.append(_zone(path, name=name, key=key, control=control, parent=parent))
    return result


def metered(tree: Iterable[Zone]) -> list[Zone]:
    """Select the zones whose counters add up to all metered energy, none counted twice: packages and DRAM.

    ``core`` and ``uncore`` are inside the package, and ``psys`` contains the packages. An MMIO zone counts
    only for a package that has no other zone.
    """
    result: list[Zone] = []
    for zone in tree:
        if (zone.is_package or zone.is_dram) and not any(_same_part(zone, z) for z in result):
            result.append(zone)
    return result


def platform(tree: Iterable[Zone]) -> Zone | None:
    """Find the zone that measures the whole node, if there is one."""
    return next((z for z in tree if z.name == "psys"), None)


def capped(tree: Iterable[Zone]) -> list[Zone]:
    """Select the package zones that have a sustained limit, writable or not."""
    return [z for z in metered(tree) if z.is_package and z.cap_w is not None]


def cores_of(sysfs: Path, packages: Sequence[Zone], cpus: Iterable[int]) -> dict[str, tuple[int, ...]]:
    """Group ``cpus`` by the key of their package, or of their die where dies are capped on their own."""
    cores: dict[str, tuple[int, ...]] = {zone.key: () for zone in packages}
    for cpu in sorted(cpus):
        topology = sysfs / "devices" / "system" / "cpu" / f"cpu{cpu}" / "topology"
        package, die = read_int(topology / "physical_package_id"), read_int(topology / "die_id")
        for zone in packages:
            if zone.name in (f"package-{package}", f"package-{package}-die-{die}"):
                cores[zone.key] += (cpu,)
    return cores


def read_int(path: Path) -> int | None:
    """Read the number in a sysfs file; None where there is no such file, no permission, or no number."""
    with suppress(ValueError):
        return int(read_text(path))
    return None


def _zone(path: Path, *, name: str, key: str, control: str, parent: str | None) -> Zone:
    enabled = read_int(path / "enabled")
    return Zone(
        name=name,
        key=key,
        path=path,
        control_type=control,
        parent=parent,
        energy_range_uj=read_int(path / "max_energy_range_uj") or None,
        readable=read_int(path / "energy_uj") is not None,
        enabled=None if enabled is None else enabled != 0,
        constraints=_constraints(path),
    )


def _constraints(path: Path) -> tuple[Constraint, ...]:
    numbers = sorted(int(m[1]) for name in _entries(path) if (m := CONSTRAINT_NAME.fullmatch(name)))
    return tuple(_constraint(path, number) for number in numbers)


def _constraint(path: Path, number: int) -> Constraint:
    def file(what: str) -> Path:
        return path / f"constraint_{number}_{what}"

    return Constraint(
        name=read_text(file("name")),
        limit_path=file("power_limit_uw"),
        window_path=file("time_window_us"),
        limit_w=_millionth(file("power_limit_uw")),
        window_s=_millionth(file("time_window_us")),
        min_w=_millionth(file("min_power_uw")) or None,  # a firmware that does not know it says 0
        max_w=_millionth(file("max_power_uw")) or None,
        writable=os.access(file("power_limit_uw"), os.W_OK),
    )


def _key(name: str, control: str, parent: str | None) -> str:
    if parent:
        return f"{parent}/{name}"
    return name if control == MSR_CONTROL else f"{name}@{control}"


def _unique(key: str, taken: Iterable[str]) -> str:
    """Make ``key`` unique where the kernel gave two zones one name (two-die packages before Linux 5.3)."""
    used = set(taken)
    number = 2
    unique = key
    while unique in used:
        unique, number = f"{key}#{number}", number + 1
    return unique


def _same_part(a: Zone, b: Zone) -> bool:
    """Tell whether two zones of different control types are interfaces to one part."""
    return a.control_type != b.control_type and _plain(a.key) == _plain(b.key)


def _plain(key: str) -> str:
    return re.sub(r"@[^/]*", "", key)


def _entries(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return []


def _millionth(path: Path) -> float | None:
    value = read_int(path)
    return None if value is None else value / 1e6


# -- caps of a node: one number, the sum over its packages, spread evenly ----------------------------------


LOWEST_SHARE = 0.25  # of the largest cap: a guess at the lowest, if the hardware names none
SUSTAINED = ("long_term", "short_term")  # a cap is on both: a window of 2 ms settles sooner than one of 28 s


@dataclass(frozen=True)
class Caps:
    """Limits of the packages as found; ``set_w`` and ``reset`` change them, through the restore journal."""

    packages: list[Zone]
    control: Control

    @property
    def original_w(self) -> float:
        """The sustained limit as found, summed over the packages."""
        return sum(zone.cap_w or 0.0 for zone in self.packages)

    @property
    def lowest_w(self) -> float:
        """The lowest cap worth trying: the one that the hardware names, else a quarter of the largest."""
        named = [zone.long_term.min_w for zone in self.packages if zone.long_term and zone.long_term.min_w]
        if len(named) == len(self.packages):
            return sum(named)
        return LOWEST_SHARE * sum(min(z.cap_max_w or z.cap_w or 0.0, z.cap_w or 0.0) for z in self.packages)

    def remember(self) -> None:
        """Journal all that a change of limits might touch (limits, windows, enabled), and enable capping.

        Raises:
            Unavailable: a file cannot be written.
        """
        for zone in self.packages:
            for constraint in zone.constraints:
                if constraint.window_s is not None:
                    self.control(constraint.window_path, f"{round(constraint.window_s * 1e6)}")
                if constraint.limit_w is not None:
                    self.control(constraint.limit_path, _uw(constraint.limit_w))
            if zone.enabled is not None:
                self.control(zone.enabled_path, "1")

    def set_w(self, cap_w: float) -> None:
        """Cap the node at ``cap_w``."""
        for zone in self.packages:
            for constraint in zone.constraints:
                if constraint.name in SUSTAINED:
                    self.control(constraint.limit_path, _uw(cap_w / len(self.packages)))

    def reset(self) -> None:
        """Restore the limits as found (the journal does so once more at the end of the run)."""
        for zone in self.packages:
            for constraint in zone.constraints:
                if constraint.name in SUSTAINED and constraint.limit_w is not None:
                    self.control(constraint.limit_path, _uw(constraint.limit_w))


def find_caps(sysfs: Path, control: Control) -> Caps:
    """Find the caps of all packages of this node.

    Raises:
        Unavailable: there are no caps, or this process may not write them.
    """
    packages = capped(zones(sysfs))
    if not packages:
        raise Unavailable(
            "the packages have energy counters but no power limits (AMD's driver offers none)",
            "use a processor whose powercap zones have constraint_0_power_limit_uw",
        )
    for zone in packages:
        if zone.long_term and not zone.writable:
            raise Unavailable(f"{zone.long_term.limit_path}: may be written by root only", "run as root")
    return Caps(packages, control)


def _uw(watts: float) -> str:
    return str(round(watts * 1e6))
