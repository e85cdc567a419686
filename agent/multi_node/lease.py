"""A job on a node that nobody reaches ends itself: only so it can run elsewhere and not twice at once.

The supervisor looks at the attempt's folder, on the shared disk, and leaves a beat there: a number that
grows, in a file of its node. While both succeed the job may go on. Once there is a fence, or for the time of
the lease no beat could be left (the disk does not answer, or the network is cut), it kills its job.

So whoever sees no new beat for that long knows that on this node the job runs no more, or that all of it is
stopped. Who cannot see beats raises the fence, and waits that long.

Over NFS what others have written is sure to be seen only by opening a file that was there before: fence and
beats are made with the order, and overwritten.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from agent.attempts.begin import FENCED, GOES_ON
from agent.attempts.folder import Attempt
from agent.multi_node.node_name import node_name
from profiles.files import overwrite

LEASE_S = 30.0  # where nobody says otherwise
MARGIN_S = 2.0  # beyond the lease: then nothing runs any more
LOOKS_S = 0.5
BEATS_S = 2.0
WIDTH = 20  # bytes of a beat
FULL = (errno.ENOSPC, errno.EDQUOT)  # a disk that is full can be seen all the same


def prepare(attempt: Attempt, hosts: Iterable[str]) -> None:
    """Make the files of an attempt that is to run on these nodes; OSError if there is no room."""
    overwrite(attempt.fence, GOES_ON, len(FENCED))
    for host in hosts:
        overwrite(beat_file(attempt.path, host), "", WIDTH)


def beat_file(folder: Path, host: str) -> Path:
    """Where the attempt's beats are left on that node; blank before the first one."""
    return folder / f"beat-{host}"


def beats_every_s(lease_s: float) -> float:
    """Seconds between beats."""
    return min(BEATS_S, lease_s / 6)


class Lease:
    """The right to go on; two threads, because a look may hang for ever where the disk is gone.

    It ages in its own steps, none longer than twice what it is meant to be: while all of the job is stopped
    it does nothing wrong.

    Args:
        lease_s: seconds that the job may run without a beat.
        end: kills the job; called again and again.
    """

    def __init__(self, attempt: Attempt, lease_s: float, end: Callable[[], None]) -> None:
        self.attempt, self.lease_s, self.end = attempt, lease_s, end
        self._beat = beat_file(attempt.path, node_name())
        self._step_s = min(LOOKS_S, lease_s / 6)
        self._age_s = 0.0  # of this object
        self._renewed_s = 0.0  # at that age
        self._fenced = False

    def begin(self) -> None:
        for work in (self._look, self._mind):
            threading.Thread(target=work, daemon=True).start()

    def _look(self) -> None:
        beats, due_s = 0, 0.0
        while not self._fenced:
            began_s = self._age_s  # the beat may be seen long before the disk says that it is written
            try:
                self._fenced = self.attempt.fenced()
                if began_s >= due_s and not self._fenced:
                    beats += 1
                    self._leave(beats)
                    self._renewed_s, due_s = began_s, began_s + beats_every_s(self.lease_s)
            except OSError:  # such as ESTALE, EIO: the folder cannot be seen
                pass
            time.sleep(self._step_s)

    def _leave(self, number: int) -> None:
        try:
            overwrite(self._beat, str(number), WIDTH)
        except OSError as error:
            if error.errno not in FULL:
                raise

    def _mind(self) -> None:
        now = time.monotonic()
        while True:
            time.sleep(self._step_s)
            before, now = now, time.monotonic()
            self._age_s += min(now - before, 2 * self._step_s)
            if self._fenced or self._age_s >= self._renewed_s + self.lease_s:
                self.end()
