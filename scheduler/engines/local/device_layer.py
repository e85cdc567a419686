"""The layer below the OpenCL programs of jobs, which parks and moves those that know nothing of tenbin.

Whether it can is tried first, one program at a time, in a thread.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from agent.attempts.records import Order, RunState, Want
from agent.opencl_layer import requests
from agent.opencl_layer.trials import Trial
from agent.processes import tree
from agent.supervisor import parking
from profiles.errors import Unavailable, UserError
from scheduler.engines.protocol import (
    LAYER_COMPILING,
    NOT_BEGUN,
    DeviceMoves,
    DeviceTrials,
    Report,
    where_parked,
    why_without_layer,
)
from scheduler.jobs.entry import Entry
from scheduler.jobs.specs import JobSpec
from scheduler.model.jobs import Pool

# -- trials ------------------------------------------------------------------------------------------------


class Trials(DeviceTrials):
    """Tries running programs on other devices; readable, like a socket, when a report is to be taken.

    If this process ends, the layer gives up the trial by itself.

    Args:
        folder: of the sockets of programs.
    """

    able = True

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


# -- the layer ---------------------------------------------------------------------------------------------


READY_S = 2.0  # so long a new coordinator waits for a library that was compiled earlier
log = logging.getLogger("tenbin")


class DeviceLayer(DeviceMoves):
    """The layer's library, compiled beforehand in a process of its own, and the jobs above it.

    Args:
        pools: the classes of devices. beside: folder of the coordinator's own sockets.

    Attributes:
        trials: of these jobs' programs.
    """

    able = True

    def __init__(self, pools: Sequence[Pool], beside: Path, *, tries: bool = True) -> None:
        self._pools, self.folder = pools, beside / requests.OF_JOBS
        self.trials: DeviceTrials = Trials(self.folder) if tries else DeviceTrials()
        self._library: Path | None = None
        self._trouble = LAYER_COMPILING.format(where="")
        self._build: subprocess.Popen[str] | None = subprocess.Popen(
            [sys.executable, "-P", "-m", "agent.opencl_layer.build"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        with suppress(subprocess.TimeoutExpired):
            self._build.wait(READY_S)

    def why_not(self, spec: JobSpec, devices: Sequence[int] = ()) -> str:
        """Say as a clause why the layer is not below a job that starts now, on any device; "" if it is."""
        if why := why_without_layer(spec):
            return why
        self._look()
        return self._trouble

    def _look(self) -> None:
        """Take up the library when the compiler has ended, or say what is missing, once."""
        if self._build is None or self._build.poll() is None:
            return
        said, trouble = self._build.communicate()
        self._build, self._trouble = None, ""
        try:
            if not said:
                raise UserError((trouble.strip().splitlines() or ["the compiler was killed"])[-1])
            requests.own_folder(self.folder)
            self._library = Path(said.strip())
        except (OSError, UserError) as error:
            self._trouble = f"tenbin up has no layer: {error}"
            log.warning("jobs on devices cannot be moved while they run: %s", error)

    def below(self, order: Order, job: Entry) -> Order:
        """Return the order with the layer: the program may use all devices that will do, its own first."""
        if self._library is None or job.placement is None:
            return order
        own, device = job.placement.pool, job.spec.device
        others = [pool.name for pool in self._pools if device in ("any", pool.kind, pool.name)]
        devices = [own, *(name for name in others if name != own)]
        return parking.below(order, self._library, self.folder, devices)

    def readiness(self, job: Entry, state: RunState | None) -> str:
        """Say whether the programs of a job that runs can be moved now, or why not."""
        if state is None:
            return NOT_BEGUN
        if state.paused:
            return where_parked(job, state)
        return requests.moves(self.folder, tree.descendants(state.supervisor_pid))

    def close(self) -> None:
        """Let go; the compiler goes on."""
        if isinstance(self.trials, Trials):
            self.trials.close()
        if self._build is not None and self._build.stdout is not None and self._build.stderr is not None:
            self._build.stdout.close()
            self._build.stderr.close()


def goal(job: Entry, want: Want) -> str:
    """Return the key of the device on which the job is to go on; "" if there is none."""
    if not job.may_park or want not in ("park", "move", "run"):
        return ""
    places = (job.placement,) if want == "run" else job.goals
    return next((place.pool for place in places if place is not None), "")
