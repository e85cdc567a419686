"""A look taken again and again, in a thread beside the test."""

from __future__ import annotations

import threading
from typing import Self


class Repeated:
    """Calls ``look`` every few milliseconds while it is entered; a look that fails fails the test."""

    def __init__(self, every_s: float) -> None:
        self.looks = 0
        self._every_s, self._stop = every_s, threading.Event()
        self._thread = threading.Thread(target=self._repeat)

    def look(self) -> None:
        raise NotImplementedError

    def _repeat(self) -> None:
        while not self._stop.wait(self._every_s):
            self.look()
            self.looks += 1

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        died = not self._thread.is_alive()
        self._stop.set()
        self._thread.join()
        assert not died, "a look failed"
