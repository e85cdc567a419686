"""Processes that are killed at a step of their own, not at an instant."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from itertools import count

STEPS = ("os", "open", "sqlite3")  # audit events of these: what changes files, among others


def killed(step: int, act: Callable[[], object]) -> bool:
    """Act in a process that is killed before its step of that number; return whether it came so far."""
    pid = os.fork()
    if pid == 0:
        steps = count(1)

        def look(event: str, _: object) -> None:
            if event.partition(".")[0] in STEPS and next(steps) == step:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(look)
        act()
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    assert status in (0, signal.SIGKILL)
    return status != 0
