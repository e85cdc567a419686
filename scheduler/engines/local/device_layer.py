"""The layer below the OpenCL programs of jobs, which parks and moves those that know nothing of tenbin."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from agent.attempts.records import Order, RunState, Want
from agent.opencl_layer import requests
from agent.processes import tree
from agent.supervisor import parking
from profiles.errors import UserError
from scheduler.engines.common import layer_words
from scheduler.engines.local.trials import Trials
from scheduler.jobs.entry import Entry
from scheduler.jobs.specs import JobSpec
from scheduler.model.jobs import Pool

READY_S = 2.0  # so long a new coordinator waits for a library that was compiled earlier
log = logging.getLogger("tenbin")


class DeviceLayer:
    """The layer's library, compiled beforehand in a process of its own, and the jobs above it.

    Args:
        pools: the classes of devices. beside: folder of the coordinator's own sockets.

    Attributes:
        trials: of these jobs' programs; None: they are not tried.
    """

    def __init__(self, pools: Sequence[Pool], beside: Path, *, tries: bool = True) -> None:
        self._pools, self.folder = pools, beside / requests.OF_JOBS
        self.trials = Trials(self.folder) if tries else None
        self._library: Path | None = None
        self._trouble = layer_words.COMPILING.format(where="")
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
        if why := layer_words.left_out(spec):
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

    def told(self, job: Entry, state: RunState | None) -> str:
        """Say whether the programs of a job that runs can be moved now, or why not."""
        if state is None:
            return layer_words.UNBEGUN
        if state.paused:
            return layer_words.paused(job, state)
        return requests.moves(self.folder, tree.descendants(state.supervisor_pid))

    def close(self) -> None:
        """Let go; the compiler goes on."""
        if self.trials is not None:
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
