"""The packages that a job has to itself: capped while it runs, and their energy counted for it.

Who does what. The coordinator says which packages and which cap (``wish``), in a file of the attempt, and may
change the cap of a running job at once. The supervisor journals what it finds (``agent.journal``), caps the
packages before the job starts, and puts everything back when the job pauses or has ended, before anybody
hears of that: so no package that a job has is ever without its cap, whether a coordinator lives or not. What
a killed supervisor left is put back by the coordinator, at the latest when it is started again, or by
``tenbin restore``.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from agent.attempts import checked
from agent.attempts.folder import Attempt
from agent.controls import read_control, write_control
from agent.journal import Journal
from agent.paths import state_dir
from agent.power.energy import Energy
from probes.power.caps import Caps
from probes.power.powercap import Zone, zones
from profiles.errors import Busy, Unavailable
from profiles.files import try_lock, write_whole

CAP = "cap.json"
HINT = "start tenbin up anew: it looks which packages there are"
LOCKS_S = 5.0  # who changes a cap has the lock for milliseconds
GIVES_WAY_S = 10.0  # who had the packages before, and pauses, puts them back in milliseconds


@dataclass(frozen=True)
class Wish:
    """What the coordinator wants, and what the supervisor has made of it.

    Attributes:
        packages: keys of the job's zones (``probes.power.powercap``).
        cap_w: of each; None: as they are.
        held: the packages that the supervisor has journalled and capped, and not put back.
    """

    packages: tuple[str, ...]
    cap_w: float | None
    held: tuple[str, ...] = ()


def wish(attempt: Attempt, sysfs: Path, packages: Sequence[str], cap_w: float | None) -> None:
    """The coordinator's part; a cap that is in force already is changed before this returns.

    Raises:
        OSError: a file cannot be written.
    """
    with _locked(attempt):
        before = attempt.read(Wish, CAP)
        held = before.held if before else ()
        now = Wish(tuple(packages), cap_w, held)
        _write(attempt, now)
        if cap_w is not None and held == now.packages and attempt.lives():
            Caps(_zones(sysfs, held), _set).set_w(cap_w * len(held))


def wished_cap_w(attempt: Attempt) -> float | None:
    """The cap that is wished at present; None if there is none, or something else."""
    found = attempt.read(Wish, CAP)
    return None if found is None else found.cap_w


class Power:
    """The supervisor's part.

    Attributes:
        energy_j: of the packages and their memory while the job had them, up to now; None: no counter, or one
            failed. To be looked at often enough that no counter wraps unseen.
    """

    def __init__(self, attempt: Attempt, sysfs: Path) -> None:
        self.attempt, self.sysfs = attempt, sysfs
        self._journal = Journal(state_dir() / "journal", watchdog=False)
        self._energy = Energy(sysfs)

    def begin(self) -> None:
        """Cap the packages as wished, and count from now on.

        Raises:
            Unavailable, Busy: a limit cannot be written, or somebody else has changed it.
            Broken: what is wished cannot be read.
        """
        deadline = time.monotonic() + GIVES_WAY_S
        while True:
            try:
                with _locked(self.attempt):
                    return self._begin()
            except Busy:
                self._journal.restore()
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def _begin(self) -> None:
        wished = checked.read(Wish, self.attempt.path / CAP)
        if wished is None:
            return
        if wished.held and wished.held != wished.packages:
            self._put_back(wished)
        own = _zones(self.sysfs, wished.packages)
        if len(own) != len(wished.packages):
            raise Unavailable(f"{', '.join(wished.packages)}: not all are below {self.sysfs}", HINT)
        if wished.cap_w is not None:
            caps = Caps(own, self._journal.control)
            caps.remember()
            caps.set_w(wished.cap_w * len(own))
            _write(self.attempt, Wish(wished.packages, wished.cap_w, wished.packages))
        self._energy.begin(own)

    def follow(self) -> None:
        """A cap that is in force the coordinator changes itself."""

    def release(self) -> None:
        """Put everything back, and count no more."""
        self._energy.end()
        try:
            with _locked(self.attempt):
                wished = self.attempt.read(Wish, CAP)
                if wished is not None:
                    self._put_back(wished)
        except OSError:  # the folder is gone, for instance
            pass
        self._journal.restore()

    def close(self) -> None:
        """Nothing is left to do after ``release``."""

    @property
    def energy_j(self) -> float | None:
        return self._energy.joules

    def _put_back(self, wished: Wish) -> None:
        self._journal.restore()
        with suppress(OSError):  # a full disk: the coordinator looks whether this supervisor lives, too
            _write(self.attempt, Wish(wished.packages, wished.cap_w))


def _zones(sysfs: Path, keys: Sequence[str]) -> list[Zone]:
    found = {zone.key: zone for zone in zones(sysfs)}
    return [found[key] for key in keys if key in found]


def _set(path: Path, value: str) -> None:
    """As ``Journal.control``, where another process has journalled the original."""
    if read_control(path) != value.strip():
        write_control(path, value)


@contextmanager
def _locked(attempt: Attempt) -> Iterator[None]:
    """OSError if somebody else keeps it."""
    lock, deadline = attempt.path / ".cap.lock", time.monotonic() + LOCKS_S
    while (descriptor := try_lock(lock)) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(errno.ETIMEDOUT, "somebody keeps it locked", str(lock))
        time.sleep(0.001)
    try:
        yield
    finally:
        os.close(descriptor)


def _write(attempt: Attempt, wished: Wish) -> None:
    write_whole(attempt.path / CAP, json.dumps(asdict(wished)))
