"""A job on a node that nobody reaches ends itself: only so it can run elsewhere and not twice at once.

The supervisor looks at the attempt's folder, on the shared disk, and goes on while it sees that it may. Once
there is a fence, or the folder could not be looked at for the time of the lease (the disk does not answer, or
the network is cut), it kills its job. Whoever made the fence waits that long: then nothing of it runs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

LOOKS_S = 0.5


class Lease:
    """The right to go on; two threads, because a look may hang for ever where the disk is gone.

    Args:
        fence: the file that ends it.
        lease_s: seconds that the job may run without a look that succeeds.
        end: kills the job; called again and again.
    """

    def __init__(self, fence: Path, lease_s: float, end: Callable[[], None]) -> None:
        self.fence, self.lease_s, self.end = fence, lease_s, end
        self._looks = 0
        self._fenced = False

    def begin(self) -> None:
        for work in (self._look, self._mind):
            threading.Thread(target=work, daemon=True).start()

    def _look(self) -> None:
        while not self._fenced:
            try:
                self.fence.stat()
                self._fenced = True
            except FileNotFoundError:
                if self.fence.parent.is_dir():
                    self._looks += 1
            except OSError:  # such as ESTALE, EIO: it cannot be seen
                pass
            time.sleep(min(LOOKS_S, self.lease_s / 4))

    def _mind(self) -> None:
        """Ages by its own steps, not by the clock: while all of the job is stopped it does nothing wrong."""
        age_s, looks, step_s = 0.0, 0, min(LOOKS_S, self.lease_s / 4)
        while True:
            time.sleep(step_s)
            age_s += step_s
            if self._looks != looks:
                age_s, looks = 0.0, self._looks
            if self._fenced or age_s >= self.lease_s:
                self.end()
