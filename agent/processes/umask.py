"""Two umasks: a coordinator's files are its owner's only, its jobs have that of whoever started it."""

from __future__ import annotations

import os

_of_jobs = -1


def close_files() -> None:
    """From now on what this process writes is its owner's only."""
    global _of_jobs  # noqa: PLW0603 (as the umask itself, of the process)
    before = os.umask(0o077)
    if _of_jobs < 0:
        _of_jobs = before


def of_jobs() -> int:
    """The umask for a process by which jobs are started, as ``Popen`` takes it; -1: this one's own."""
    return _of_jobs
