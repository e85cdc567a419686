"""Leases: a job on a node that nobody reaches ends itself, so that it can run elsewhere, and never twice.

The supervisor reads the fence in the attempt's folder on the shared disk, and writes a beat there: a number
that grows, in a file of its node. It kills its job if the fence says "end", or if it could write no beat for
the time of the lease, because the disk does not answer or the network is cut.

So a coordinator that sees no new beat for that time knows that the job no longer runs on this node, or is
stopped as a whole. A coordinator that cannot see beats sets the fence, and waits for that time.

NFS shows the writes of other nodes reliably only in a file that existed when it was opened. So fence and
beats are made with the order, and overwritten.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from agent.attempts.begin import FENCED, GOES_ON
from agent.attempts.folder import Attempt
from profiles.files.safe_files import overwrite

LEASE_S = 30.0  # the default
MARGIN_S = 2.0  # after the end of the lease; then nothing runs any more
LOOKS_S = 0.5
BEATS_S = 2.0
WIDTH = 20  # bytes of a beat
FULL = (errno.ENOSPC, errno.EDQUOT)  # a full disk can still be read


def prepare(attempt: Attempt, hosts: Iterable[str]) -> None:
    """Make fence and beats of an attempt for these nodes; OSError if there is no room."""
    overwrite(attempt.fence, GOES_ON, len(FENCED))
    for host in hosts:
        overwrite(beat_file(attempt.path, host), "", WIDTH)


def beat_file(folder: Path, host: str) -> Path:
    """Return the file of the attempt's beats from that node, which is blank before the first beat."""
    return folder / f"beat-{host}"


def beats_every_s(lease_s: float) -> float:
    """Return the seconds between beats."""
    return min(BEATS_S, lease_s / 6)


class Lease:
    """The right of a job to run, kept by two threads, because access to a lost disk may hang for ever.

    A step of the lease's age counts at most twice its planned length, because a job that is stopped as a
    whole does no harm meanwhile.

    Args:
        lease_s: seconds that the job may run without a beat.
        end: kills the job; called again and again.
    """

    def __init__(self, attempt: Attempt, lease_s: float, end: Callable[[], None]) -> None:
        self.attempt, self.lease_s, self.end = attempt, lease_s, end
        self._beat = beat_file(attempt.path, node_name())
        self._step_s = min(LOOKS_S, lease_s / 6)
        self._age_s = 0.0  # of this lease
        self._renewed_s = 0.0  # its age at the last beat
        self._fenced = False

    def begin(self) -> None:
        """Start the threads."""
        for work in (self._renew, self._enforce):
            threading.Thread(target=work, daemon=True).start()

    def _renew(self) -> None:
        beats, due_s = 0, 0.0
        while not self._fenced:
            began_s = self._age_s  # a beat may be visible long before its write returns
            try:
                self._fenced = self.attempt.fenced()
                if began_s >= due_s and not self._fenced:
                    beats += 1
                    self._write_beat(beats)
                    self._renewed_s, due_s = began_s, began_s + beats_every_s(self.lease_s)
            except OSError:  # such as ESTALE or EIO
                pass
            time.sleep(self._step_s)

    def _write_beat(self, number: int) -> None:
        try:
            overwrite(self._beat, str(number), WIDTH)
        except OSError as error:
            if error.errno not in FULL:
                raise

    def _enforce(self) -> None:
        now = time.monotonic()
        while True:
            time.sleep(self._step_s)
            before, now = now, time.monotonic()
            self._age_s += min(now - before, 2 * self._step_s)
            if self._fenced or self._age_s >= self._renewed_s + self.lease_s:
                self.end()


def node_name() -> str:
    """Return the node's name, that of Slurm if Slurm has started this process."""
    return os.environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]
