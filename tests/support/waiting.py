"""Wait for what comes, with a limit that only a hang reaches."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(condition: Callable[[], object], limit_s: float = 60.0) -> None:
    """Wait until the condition holds."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
