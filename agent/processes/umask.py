"""The two umasks of a coordinator: its own files are private, its jobs have its user's umask."""

from __future__ import annotations

import os

_of_jobs = -1


def close_files() -> None:
    """Make private what this process writes from now on."""
    global _of_jobs  # noqa: PLW0603 (as the umask itself, of the process)
    before = os.umask(0o077)
    if _of_jobs < 0:
        _of_jobs = before


def of_jobs() -> int:
    """Return the umask for processes that start jobs, as ``Popen`` takes it; -1: that of this process."""
    return _of_jobs
