"""comprobe as a neighbour: all-to-all between hosts while something else is measured beside it.

The speed of comprobe, window by window, tells how much it suffers meanwhile. One rank is on each host, on a
core of its own; pauses grade the intensity. The counterpart of ``probes.memory.pool``.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from probes.mpi.launchers import MpiInstall
from probes.mpi.runner import RanksFailed, run_ranks
from probes.network.probe import path_doubts
from probes.network.streamer import StreamPlan
from profiles.errors import Unavailable, UserError
from profiles.jobs import COMPROBE_BYTES

WINDOW_S = 0.2
READY_S = 60.0
MOST_S = 24 * 3600


class ExchangeWindow(NamedTuple):
    """A window of comprobe.

    Attributes:
        ended_s: arrival of the report, on our monotonic clock.
        inside_s: time in all-to-alls; the rest is pauses.
        bytes: sent by each rank to the others.
    """

    ended_s: float
    wall_s: float
    inside_s: float
    bytes: int


@dataclass(frozen=True)
class RankPlaces:
    """Places of comprobe's ranks: ``cores[i]`` of ``hosts[i]``."""

    hosts: tuple[str, ...]
    cores: tuple[int, ...]


class Comprobe:
    """A context in which comprobe is at work; once it is entered, the ranks exchange.

    Raises:
        RanksFailed: a rank died, or none is ready after a minute. Unavailable: see ``path_doubts``.
    """

    def __init__(self, mpi: MpiInstall, at: RankPlaces, intensity: float, *, preflight: bool = False) -> None:
        ranks = len(at.hosts)
        self._mpi, self._at = mpi, at
        self._plan = StreamPlan(ranks, COMPROBE_BYTES, intensity, WINDOW_S, MOST_S, preflight)
        self._windows: list[ExchangeWindow] = []
        self._news = threading.Condition()
        self._ready = self._told_to_end = False
        self._trouble: UserError | None = None
        self._thread = threading.Thread(target=self._run)
        self.doubts: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            with self._news:
                self._news.wait_for(lambda: self._ready or self._trouble, READY_S)
                if self._trouble:
                    raise self._trouble
                if not self._ready:
                    raise RanksFailed(f"comprobe was not at work after {READY_S:.0f} s")
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def windows(self, least: int = 0) -> list[ExchangeWindow]:
        """Take the windows ended since the last call, after waiting for ``least`` of them.

        Raises:
            RanksFailed: comprobe has ended.
        """
        with self._news:
            self._news.wait_for(lambda: len(self._windows) >= least or self._trouble, READY_S)
            if self._trouble:
                raise self._trouble
            if len(self._windows) < least:
                raise RanksFailed(f"comprobe said nothing for {READY_S:.0f} s")
            found, self._windows = self._windows, []
            return found

    def _end(self) -> None:
        self._told_to_end = True
        self._thread.join()

    def _run(self) -> None:
        plan = self._plan
        program = [sys.executable, "-P", "-m", "mpi4py", "-m", "probes.network.streamer", plan.to_json()]
        trouble: UserError = RanksFailed("comprobe ended by itself")
        try:
            run_ranks(
                self._mpi,
                program,
                plan.ranks,
                timeout_s=plan.limit_s,
                on_line=self._line,
                hosts=self._at.hosts,
                cores=self._at.cores,
                enough=lambda: self._told_to_end,
            )
        except UserError as error:
            trouble = error
        with self._news:
            self._trouble = trouble
            self._news.notify_all()

    def _line(self, text: str) -> None:
        """Take a line of the ranks' output."""
        if not text.startswith('{"event": '):
            return
        event: dict[str, Any] = json.loads(text)
        match event["event"]:
            case "preflight":
                self.doubts = path_doubts(event["ranks"], event["expected"])
            case "world":
                raise Unavailable(
                    f"{self._plan.ranks} ranks were started, but each sees a world of {event['size']}",
                    "use one MPI on all hosts, with its own mpiexec first in PATH",
                )
            case "ready" | "window":
                with self._news:
                    self._take(event)
                    self._news.notify_all()

    def _take(self, event: dict[str, Any]) -> None:
        self._ready = True
        if event["event"] == "window":
            sent = event["exchanges"] * COMPROBE_BYTES * (self._plan.ranks - 1)
            self._windows.append(ExchangeWindow(time.monotonic(), event["wall_s"], event["inside_s"], sent))
