"""Real code run one system call at a time, so that several threads can be interleaved in any order.

Nothing is replaced: a thread waits before each call of the operating system that touches files.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

CALLS = {"open", "stat", "link", "replace", "unlink", "listdir", "fsync", "posix_fallocate", "pwrite"}
MODULES = {"posix", "io", "_io"}
LIMIT_S = 60.0


class Stepped:
    """A thread that goes on only by ``step``.

    Attributes:
        done: whether it has come to its end.
        next: name of the call before which it waits; empty: it has not begun, or has ended.
        error: what it ended with.
    """

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self._go, self._waits = threading.Semaphore(0), threading.Semaphore(0)
        self.done = self._given_up = False
        self.next = ""
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def step(self) -> None:
        """Let it make its next call, and come up to the one after that."""
        if not self.done:
            self._go.release()
            assert self._waits.acquire(timeout=LIMIT_S), "it hangs"

    def finish(self) -> None:
        """Let it run to its end."""
        while not self.done:
            self.step()

    def give_up(self) -> None:
        """Let the thread make no further call of those; for the end of a test."""
        if not self.done:
            self._given_up = True
            self._go.release()
            self._thread.join(LIMIT_S)

    def _run(self) -> None:
        self._go.acquire()
        sys.setprofile(self._seen)
        try:
            self._work()
        except BaseException as error:
            self.error = error
        finally:
            sys.setprofile(None)
            self.next, self.done = "", True
            self._waits.release()

    def _seen(self, _: FrameType, event: str, what: Any) -> None:
        if event == "c_call" and what.__name__ in CALLS and getattr(what, "__module__", "") in MODULES:
            self.next = what.__name__
            self._waits.release()
            self._go.acquire()
            if self._given_up:
                raise AttemptRevoked


class AttemptRevoked(BaseException):
    """Ends a thread that would otherwise wait for ever."""
