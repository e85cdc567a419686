"""The hold of a machine: jobs that run go on, and none is started, for a time or while it is unfit."""

from __future__ import annotations

from collections.abc import Callable

from profiles.instants import stamp


class MachineHold:
    """Reasons to start no job on this machine now.

    Attributes:
        until_s: end of the time for which somebody has asked for a hold, in seconds since 1970.
        unfit: says why the machine may not have jobs; "" while it may, or where nodes have names.
    """

    def __init__(self) -> None:
        self.until_s = 0.0
        self.unfit: Callable[[], str] = lambda: ""

    def why(self, now: float) -> str:
        """Say why no job is started; "" if jobs are."""
        if now < self.until_s:
            return f"no job is started until {stamp(self.until_s)}, for a check of this machine"
        return self.unfit()
