"""Caps of the processor packages that a job has to itself on this machine, and their energy.

The coordinator requests packages and cap, and changes a cap that is in force itself, at once. The supervisor
journals the limits as found, caps the packages before the job starts, and restores them before it tells that
the job is paused or has ended. So no package of a running job is ever without its cap, even while no
coordinator lives. What a killed supervisor left is restored by the next coordinator or by ``tenbin restore``.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from agent.attempts.folder import Attempt
from agent.controls import read_control, write_control
from agent.paths import state_dir
from agent.power.cap_files import (
    CapInForce,
    CapRequest,
    cap_in_force,
    confirm_cap,
    request_cap,
    requested_cap,
    require_requested_cap,
)
from agent.power.cap_keeper import CapKeeper
from probes.power.caps import Caps
from probes.power.powercap import Zone, zones
from profiles.errors import Unavailable
from profiles.files.whole_files import try_lock

HINT = "start tenbin up anew: it looks which packages there are"
LOCKS_S = 5.0  # a process that changes a cap has the lock for milliseconds


def set_package_caps(attempt: Attempt, sysfs: Path, packages: Sequence[str], cap_w: float | None) -> None:
    """Request a cap for each package; if the attempt's caps are in force, change them before returning.

    Raises:
        OSError: a file cannot be written.
    """
    with _locked(attempt):
        before, in_force = requested_cap(attempt), cap_in_force(attempt)
        number = before.number + 1 if before else 1
        now = CapRequest(cap_w, number, packages=tuple(packages))
        request_cap(attempt, now)
        capped = in_force is not None and in_force.packages == now.packages
        if cap_w is not None and capped and attempt.lives():
            Caps(_zones(sysfs, now.packages), _set).set_w(cap_w * len(now.packages))


class PackageCaps:
    """The supervisor's part: holds the requested cap while the job runs."""

    def __init__(self, attempt: Attempt, sysfs: Path) -> None:
        self._attempt, self._sysfs = attempt, sysfs
        self._keeper = CapKeeper(sysfs, state_dir() / "journal")

    def begin(self) -> None:
        """Cap the packages as requested, and count their energy from now on.

        Raises:
            Unavailable, Busy: a limit cannot be written, or another process has changed it.
            Broken: the request cannot be read.
        """
        self._keeper.retry_while_busy(self._begin)

    def _begin(self) -> None:
        with _locked(self._attempt):
            wanted = require_requested_cap(self._attempt)
            if wanted is None:
                return
            own = _zones(self._sysfs, wanted.packages)
            if len(own) != len(wanted.packages):
                raise Unavailable(f"{', '.join(wanted.packages)}: not all are below {self._sysfs}", HINT)
            cap_w = None if wanted.cap_w is None else wanted.cap_w * len(own)
            self._keeper.hold(Caps(own, self._keeper.control), cap_w)
            if cap_w is not None:
                confirm_cap(self._attempt, CapInForce(wanted.number, wanted.cap_w, wanted.packages))

    def follow(self) -> None:
        """Do nothing, because the coordinator changes a cap that is in force itself."""

    def release(self) -> None:
        """Restore the limits as found, and stop counting energy."""
        with suppress(OSError), _locked(self._attempt):  # the folder may be gone
            self._keeper.release()
            if (wanted := requested_cap(self._attempt)) is not None:
                confirm_cap(self._attempt, CapInForce(wanted.number, None))
        self._keeper.release()

    def close(self) -> None:
        """Do nothing, because ``release`` leaves nothing to close."""

    @property
    def energy_j(self) -> float | None:
        """Energy of the packages and their memory while the job had them; None if a counter is missing."""
        return self._keeper.energy_j


def _zones(sysfs: Path, keys: Sequence[str]) -> list[Zone]:
    found = {zone.key: zone for zone in zones(sysfs)}
    return [found[key] for key in keys if key in found]


def _set(path: Path, value: str) -> None:
    """Write a control file whose original another process has journalled."""
    if read_control(path) != value.strip():
        write_control(path, value)


@contextmanager
def _locked(attempt: Attempt) -> Iterator[None]:
    """Keep the other side from changing a cap; OSError if it does not let go."""
    lock, deadline = attempt.path / ".cap.lock", time.monotonic() + LOCKS_S
    while (descriptor := try_lock(lock)) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(errno.ETIMEDOUT, "another process keeps it locked", str(lock))
        time.sleep(0.001)
    try:
        yield
    finally:
        os.close(descriptor)
