"""Callbacks for the end of jobs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from threading import Lock, Thread
from typing import Any

from tenbin.errors import TenbinError

CHECK_S = 1.0  # longest delay of a callback, and the pause before a lost coordinator is asked again


class Callbacks:
    """Callbacks of one client's jobs; a thread runs while there are any.

    Args:
        ended: waits at most so many seconds for one of these jobs, and returns those that have ended.
    """

    def __init__(self, ended: Callable[[Sequence[int], float], list[dict[str, Any]]]) -> None:
        self._ended = ended
        self._lock = Lock()
        self._waiting: dict[int, list[Callable[[], object]]] = {}

    def add(self, job_id: int, callback: Callable[[], object]) -> None:
        """Call ``callback`` when the job has ended."""
        with self._lock:
            is_first = not self._waiting
            self._waiting.setdefault(job_id, []).append(callback)
        if is_first:
            Thread(target=self._run, name="tenbin-callbacks", daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._lock:
                ids = list(self._waiting)
            try:
                ended = [found["id"] for found in self._ended(ids, CHECK_S)]
            except TenbinError:  # the coordinator may be started again
                time.sleep(CHECK_S)
                continue
            with self._lock:
                due = [(job_id, callback) for job_id in ended for callback in self._waiting.pop(job_id)]
                is_last = not self._waiting
            for job_id, callback in due:
                run_callback(job_id, callback)
            if is_last:
                return


def run_callback(job_id: int, callback: Callable[[], object]) -> None:
    """Run a callback, and log what it raises."""
    try:
        callback()
    except Exception:
        logging.getLogger("tenbin").exception("callback of job %d", job_id)
