"""Trials of the programs of jobs by the layer below them, one at a time, in a thread."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from agent.attempts.records import RunState
from agent.opencl_layer import requests
from agent.opencl_layer.trials import Trial
from agent.processes import tree
from profiles.errors import Unavailable, UserError
from scheduler.engines.protocol import Report
from scheduler.jobs.entry import Entry


class Trials:
    """Tries running programs on other devices; readable, like a socket, when a report is to be taken.

    If this process ends, the layer gives up the trial by itself.

    Args:
        folder: of the sockets of programs.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ended = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread: threading.Thread | None = None
        self._line: socket.socket | None = None
        self._given_up = ""
        self._report: Report | None = None

    def fileno(self) -> int:
        return self._ended

    @property
    def busy(self) -> bool:
        """True while a trial is under way, or its report has not been taken."""
        return self._thread is not None

    def begin(self, job: Entry, state: RunState, pool: str) -> bool:
        """Begin to try a job's program on a class of device; False: it has not used OpenCL."""
        pids = requests.programs(self._folder, tree.descendants(state.supervisor_pid))
        if not pids:
            return False
        self._given_up, self._line = "", None
        self._thread = threading.Thread(
            target=self._work, args=(job.id, job.attempt, pids, pool), daemon=True
        )
        self._thread.start()
        return True

    def give_up(self, why: str) -> None:
        """End the trial: the layer leaves the program alone after the launch under way."""
        self._given_up = self._given_up or why
        self._shut_down()

    def take(self) -> Report:
        """Take the report of the trial that has ended."""
        os.eventfd_read(self._ended)
        report, self._thread = self._report, None
        assert report is not None
        return report

    def close(self) -> None:
        """Give up what is under way."""
        if self._thread is not None:
            self.give_up("the coordinator ends")
            self._thread.join()
        os.close(self._ended)

    def _work(self, job_id: int, attempt: int, pids: Sequence[int], pool: str) -> None:
        trial: Trial | None = None
        trouble, for_now = "its answer was cut off", False
        try:
            if len(pids) > 1:
                raise UserError(f"{len(pids)} of its processes use OpenCL")
            trial, trouble = requests.try_on(self._folder, pids[0], pool, opened=self._opened), ""
        except UserError as error:
            trouble = self._given_up or str(error)
            postponed = isinstance(error, requests.LayerRefused) and error.postponed
            for_now = postponed or isinstance(error, Unavailable)
        finally:
            self._report = Report(
                job_id, attempt, "tried", time.time(), trouble=trouble, trial=trial, for_now=for_now
            )
            os.eventfd_write(self._ended, 1)

    def _opened(self, line: socket.socket) -> None:
        self._line = line
        if self._given_up:  # before there was a line
            self._shut_down()

    def _shut_down(self) -> None:
        if self._line is not None:
            with suppress(OSError):
                self._line.shutdown(socket.SHUT_RDWR)
