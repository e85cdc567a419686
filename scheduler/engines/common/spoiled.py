"""Attempts whose folders are not as they should be, on any engine: one job's stop no other."""

from __future__ import annotations

import errno
import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from agent.attempts.folder import Attempt

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
log = logging.getLogger("tenbin")


@contextmanager
def of_one(job_id: int, room: bool = True) -> Iterator[None]:
    """Log an OSError of one job's folder, which is tried again later.

    Args:
        room: a full disk, and whatever else goes wrong, counts as well; else it is raised.
    """
    try:
        yield
    except OSError as error:
        if not room and error.errno in NO_ROOM:
            raise
        log.error("job %d: %s", job_id, error)
    except Exception:
        if not room:
            raise
        log.exception("a fault of tenbin's: job %d", job_id)


def revoked(attempt: Attempt) -> bool:
    """Claim an attempt that has not begun; true if it will never begin, also because its folder is gone.

    OSError if that cannot be known now: all folders are out of sight.
    """
    try:
        return attempt.claim()
    except (FileNotFoundError, NotADirectoryError):
        if not attempt.path.parents[1].is_dir():
            raise
        return True


def trouble(attempt: Attempt) -> str:
    """Name the reason why an attempt has no result; "": its supervisor was killed."""
    if spoiled := attempt.broken_result():
        return spoiled
    if not attempt.claimed():
        return f"the files of its attempt were removed from {attempt.path}"
    said = attempt.last_log_line()
    return f"its supervisor failed: {said}" if said else ""


def end_supervisor(attempt: Attempt) -> None:
    """Kill who supervises it on this machine, also who is stopped: the job's main process dies with it."""
    for pid in attempt.supervisors():
        with suppress(ProcessLookupError):
            one = os.pidfd_open(pid)
            try:
                signal.pidfd_send_signal(one, signal.SIGSTOP)  # now it cannot turn to another attempt
                still = pid in attempt.supervisors()
                signal.pidfd_send_signal(one, signal.SIGKILL if still else signal.SIGCONT)
            finally:
                os.close(one)
