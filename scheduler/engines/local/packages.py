"""Processor packages as units of jobs: each job has some to itself, under the cap of its placement."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.attempts.folder import Attempt
from agent.journal import restore_leftovers
from agent.power.caps import requested_cap, set_package_caps
from agent.users import state_dir

PAUSES_S = 2.0  # a supervisor that lives stops its job and gives its packages back in milliseconds
log = logging.getLogger("tenbin")


@dataclass(frozen=True)
class Packages:
    """The packages of this machine that jobs may have.

    Attributes:
        sysfs: root of the tree with their zones.
        keys: of the zones, node by node.
        emulated: name of the emulated machine; empty: it is real.
    """

    sysfs: Path
    keys: tuple[str, ...]
    emulated: str = ""

    def set_caps(self, attempt: Attempt, nodes: Sequence[int], cap_w: float | None) -> None:
        """Give the attempt these nodes, each package under this cap: from its start on, or now if it runs."""
        if attempt.path.exists():
            set_package_caps(attempt, self.sysfs, [self.keys[node] for node in nodes], cap_w)


def lowers(attempt: Attempt, cap_w: float | None) -> bool:
    """Return true if this cap is lower than the attempt's present cap."""
    before = requested_cap(attempt)
    return cap_w is not None and (before is None or before.cap_w is None or cap_w < before.cap_w)


def await_pause(attempt: Attempt, request: int) -> None:
    """Until its packages are no longer the job's: what they drew is given to others next."""
    deadline = time.monotonic() + PAUSES_S
    while time.monotonic() < deadline and attempt.result() is None and attempt.lives():
        state = attempt.state()
        if state is not None and state.done >= request:
            return
        time.sleep(0.001)


def put_back() -> None:
    """Caps that killed supervisors, or a killed profile, have left."""
    for restored in restore_leftovers(state_dir() / "journal"):
        log.warning("left changed by a crash, now %s", restored)
