"""A thread that talks to Slurm, because a call may take seconds and the coordinator cannot wait."""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from agent.power.caps import IN_FORCE
from profiles.errors import Unavailable
from scheduler.engines.slurm.client.heartbeats import Answers, Heartbeats, Key
from scheduler.engines.slurm.client.parse import SlurmJob, SlurmNode
from scheduler.engines.slurm.client.sbatch_jobs import SeenJob
from scheduler.engines.slurm.client.tools import Slurm, SlurmError

BUSY_S = 2.0  # between looks at Slurm while there is something to see
IDLE_S = 10.0
BELL_S = 0.25  # between looks whether somebody has submitted a job by sbatch
RINGS_S = 0.2  # until it is in the queue
LOOKS_S = 0.02, 0.1  # between looks at the folders of attempts: while there is news, and long after
COST_S = 2e-3  # so long again for each folder: many of them are looked at less often
log = logging.getLogger("tenbin")


class ClusterSnapshot(NamedTuple):
    """All that Slurm knew at one moment; ``answers`` of nodes without a sign of life."""

    jobs: list[SlurmJob]
    nodes: list[SlurmNode]
    external_jobs: list[SeenJob] | None = None
    answers: Answers = Answers()


class Outcome(NamedTuple):
    """The outcome of a call that was made for an attempt."""

    key: Key
    what: str
    value: object
    error: SlurmError | None


News = ClusterSnapshot | Outcome | SlurmError


class SbatchSource(Protocol):
    """The place where jobs of plain ``sbatch`` are taken over, for ``gate_s`` at most."""

    gate_s: float

    def look(self) -> list[SeenJob]: ...

    def rung(self) -> bool: ...


class SlurmPoller:
    """A thread that makes calls one after the other, and looks at Slurm and at folders between them.

    ``news`` keeps the order of events: a snapshot behind an outcome was taken after the call.
    ``fileno`` is readable when there is news, or when a folder has changed.
    """

    def __init__(self, slurm: Slurm, lease_s: float, sbatch: SbatchSource | None = None) -> None:
        self.slurm, self.sbatch, self.heartbeats = slurm, sbatch, Heartbeats(lease_s)
        self.news: queue.SimpleQueue[News] = queue.SimpleQueue()
        self.folders: dict[Key, Path] = {}  # entries come and go one at a time: no lock
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._signs: dict[Key, tuple[int, bool]] = {}
        self._snapshot_at = self._look_at = self._bell_at = self._news_at = 0.0
        self._idle_s = min(IDLE_S, sbatch.gate_s / 4) if sbatch else IDLE_S
        self._thread = threading.Thread(target=self._work, daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def fileno(self) -> int:
        return self._bell

    def heard(self) -> None:
        """Reset the bell."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._bell)

    def do(self, key: Key, what: str, call: Callable[[], object]) -> None:
        """Make a call; its outcome comes as news."""
        self._tasks.put(lambda: self._tell(_try(key, what, call)))

    def look(self, after_s: float = 0.0) -> None:
        """Ask for a snapshot soon."""
        self._tasks.put(lambda: self._advance(time.monotonic() + after_s))

    def close(self) -> None:
        self._tasks.put(None)
        self._thread.join(self.slurm.timeout_s + 5.0)
        os.close(self._bell)

    # -- in the thread --------------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            try:
                task = self._tasks.get(timeout=max(0.0, self._due() - time.monotonic()))
            except queue.Empty:
                pass
            else:
                if task is None:
                    return
                task()
            self._look_where_due()

    def _look_where_due(self) -> None:
        if self.sbatch is not None and time.monotonic() >= self._bell_at:
            self._bell_at = time.monotonic() + BELL_S
            if self.sbatch.rung():
                self._advance(time.monotonic() + RINGS_S)
        if self.folders and time.monotonic() >= self.heartbeats.due and self.heartbeats.look():
            self._advance(time.monotonic())
        if time.monotonic() >= self._snapshot_at:
            self._take_snapshot()
        if self.folders and time.monotonic() >= self._look_at:
            self._look_around()

    def _due(self) -> float:
        due = [self._snapshot_at]
        if self.folders:
            due += [self._look_at, self.heartbeats.due]
        if self.sbatch is not None:
            due.append(self._bell_at)
        return min(due)

    def _look_around(self) -> None:
        folders, now = list(self.folders.items()), time.monotonic()
        signs = {key: _sign(folder) for key, folder in folders}
        if signs != self._signs:
            self._signs, self._news_at = signs, now
            self._ring()
        soon, late = LOOKS_S
        self._look_at = now + max(min(soon + (now - self._news_at) / 100, late), COST_S * len(folders))

    def _advance(self, at: float) -> None:
        self._snapshot_at = min(self._snapshot_at, at)

    def _take_snapshot(self) -> None:
        busy = bool(self.folders)
        try:
            external_jobs = self.sbatch.look() if self.sbatch else None
            busy = busy or any(seen.job.moves(time.time()) for seen in external_jobs or ())
            jobs, nodes = self.slurm.jobs(), self.slurm.nodes()
            answers = self.heartbeats.ask({node.name: node for node in nodes}, self.slurm.slurmd_port)
            self._tell(ClusterSnapshot(jobs, nodes, external_jobs, answers))
        except SlurmError as error:
            self._tell(error)
        except Unavailable as error:  # an answer that cannot be read, a file that cannot be written
            self._tell(SlurmError(error.what, error.remedy))
        self._snapshot_at = time.monotonic() + (BUSY_S if busy else self._idle_s)

    def _tell(self, news: News) -> None:
        self.news.put(news)
        self._ring()

    def _ring(self) -> None:
        os.eventfd_write(self._bell, 1)


def _try(key: Key, what: str, call: Callable[[], object]) -> Outcome:
    try:
        return Outcome(key, what, call(), None)
    except SlurmError as error:
        return Outcome(key, what, None, error)
    except Exception as error:  # a fault of ours must not end the thread: nothing would happen any more
        log.exception("slurm: %s", what)
        return Outcome(key, what, None, SlurmError(f"{what}: {error!r}"))


def _sign(folder: Path) -> tuple[int, bool]:
    """Return a value that changes when there is news in an attempt's folder."""
    told = 0
    for name in ("state.json", IN_FORCE):
        with suppress(OSError):
            told += (folder / name).stat().st_mtime_ns
    return told, os.path.exists(folder / "result.json")  # noqa: PTH110 (no error where that may not be seen)
