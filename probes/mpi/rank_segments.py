"""Shared memory between the ranks of a node, which killed ranks leave behind."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

SHARED = Path("/dev/shm")
NAMES = ("mpich_shm_", "vader_segment.", "sm_segment.")  # of MPICH and Open MPI
SETTLE_S = 1.0  # in which a new segment is surely mapped by its maker, on a busy machine too


def sweep_segments(since_s: float) -> None:
    """Remove segments of killed ranks since then (seconds since 1970): ours, and mapped by no process."""
    left = {path for path in _segments() if _is_ours(path, since_s)}
    if left:
        time.sleep(SETTLE_S)
        for maps in Path("/proc").glob("[0-9]*/maps"):
            with suppress(OSError):
                text = maps.read_text()
                left = {path for path in left if str(path) not in text}
    for path in left:
        path.unlink(missing_ok=True)


def _segments() -> Iterable[Path]:
    return (path for path in SHARED.iterdir() if path.name.startswith(NAMES)) if SHARED.is_dir() else ()


def _is_ours(path: Path, since_s: float) -> bool:
    with suppress(OSError):
        found = path.lstat()
        return found.st_uid == os.getuid() and found.st_ctime >= since_s - 1.0
    return False
