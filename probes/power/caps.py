"""A node's package caps as a single number: the sum over its packages, spread evenly."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from probes.power.powercap import Zone, capped, zones
from profiles.errors import Unavailable

if TYPE_CHECKING:  # which brings numpy along: a supervisor must start at once
    from probes.run import Control

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
    found = zones(sysfs)
    packages = capped(found)
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
