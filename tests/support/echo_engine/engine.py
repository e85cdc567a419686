"""Starts jobs as children of the coordinator, and echoes their ends."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence

from agent.attempts.records import How, Result, Want
from scheduler.engines.protocol import Engine, Report
from scheduler.jobs.entry import Entry
from scheduler.model.jobs import Cluster, Placement

SIGNALS = {"pause": signal.SIGSTOP, "run": signal.SIGCONT, "checkpoint": signal.SIGURG, "end": signal.SIGTERM}


class EchoEngine(Engine):
    """Runs commands without a supervisor; what was paused or asked for is lost with the coordinator."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._selector = selectors.DefaultSelector()
        self._running: dict[int, tuple[Entry, subprocess.Popen[bytes], float]] = {}
        self._reports: list[Report] = []

    def place(self, job: Entry, placement: Placement) -> None: ...

    def occupy(self, job: Entry) -> None: ...

    def free(self, job: Entry) -> None: ...

    def start(self, jobs: Sequence[tuple[Entry, dict[str, str]]]) -> None:
        for job, environment in jobs:
            process = subprocess.Popen(job.spec.command, env=environment, cwd=job.spec.folder)
            end = time.monotonic() + (job.spec.time_s or float("inf"))
            self._running[job.id] = job, process, end
            self._selector.register(os.pidfd_open(process.pid), selectors.EVENT_READ, job.id)
            self._reports.append(Report(job.id, job.attempt, "started", time.time()))

    def ask(self, job: Entry, want: Want) -> None:
        if job.id in self._running:
            self._running[job.id][1].send_signal(SIGNALS[want])
            self._reports.append(Report(job.id, job.attempt, "obeyed", time.time(), done=job.request))

    def recover(self, job: Entry) -> None:
        self._reports.append(Report(job.id, job.attempt, "lost", time.time()))

    def poll(self) -> list[Report]:
        for job, process, end in self._running.values():
            if time.monotonic() > end:
                process.kill()
            elif job.want == "checkpoint":  # the command may not have listened before
                process.send_signal(SIGNALS["checkpoint"])
        for key, _ in self._selector.select(0):
            self._selector.unregister(key.fd)
            os.close(key.fd)
            job, process, end = self._running.pop(key.data)
            how: How = "time-limit" if time.monotonic() > end else "exited"
            if job.want == "checkpoint" and process.wait() == job.spec.checkpoint_code:
                how = "checkpointed"
            result = Result(how, time.time(), code=process.wait())
            self._reports.append(Report(job.id, job.attempt, "ended", result.ended_s, result))
        reports, self._reports = self._reports, []
        return reports

    def urgent(self) -> bool:
        return bool(self._reports)

    def fileno(self) -> int:
        return self._selector.fileno()

    def close(self) -> None:
        for _, process, _ in self._running.values():
            process.kill()
            process.wait()
        self._selector.close()
