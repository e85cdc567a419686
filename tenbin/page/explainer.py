"""Reasons and expected starts of waiting jobs, asked of the coordinator rarely, once for all viewers.

All calls together take at most ``SHARE`` of a processor of the coordinator: each is timed, and after it the
poller waits until its time is earned again.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from scheduler.prediction.predictions import StartTimes
from tenbin.client.client import Client
from tenbin.client.connection import holder
from tenbin.errors import NO_ANSWER, TenbinError
from tenbin.page.mirror import Mirror

SHARE = 0.01  # of a processor
BURST_S = 0.3  # earned while nobody asks
FRESH_S = 10.0  # a reason is not asked again before
SOONER_FRESH_S = 60.0  # nor what would start a job sooner
WATCHED_S = 30.0  # a job is asked for so long after a viewer saw it
STATUS_S, QUIET_S = 2.0, 10.0  # between two looks at its nodes: while jobs change, and else
ANSWER_S = 10.0  # to wait for an answer
NO_STARTS = StartTimes().account()


class Answer(NamedTuple):
    """The reason of a wait, the expected start and its interval (None: not known), and when that was said.

    ``sooner``: what would let the job start sooner; None: it was not asked yet.
    """

    why: str
    expected_start_s: float | None
    start_low_s: float | None
    start_high_s: float | None
    at_s: float
    sooner: list[dict[str, Any]] | None = None


class Explainer:
    """The one caller of the coordinator; viewers share its answers.

    Attributes:
        status: the last answer to ``GET /status``; None: it never answered. status_number: counts them.
        trouble: why the coordinator does not answer; "": it does.
        version: counts what has changed here.
    """

    def __init__(self, store: Path, mirror: Mirror) -> None:
        self._client, self._mirror = Client(store), mirror
        self._store = store
        self._watched: dict[int, float] = {}
        self._looked_at: dict[int, float] = {}  # when a viewer saw a job's sentence last
        self._sooner_at: dict[int, float] = {}
        self._answers: dict[int, Answer] = {}
        self._answered_at: dict[int, float] = {}
        self._changed: deque[tuple[int, int]] = deque(maxlen=10_000)
        self._earned_s, self._earned_at = BURST_S, time.monotonic()
        self._asked_at, self._asked_version = -math.inf, -1
        self._wake = asyncio.Event()
        self.status: dict[str, Any] | None = None
        self.trouble, self.version, self.status_number = "", 0, 0

    def gpus_of(self, job: int) -> list[dict[str, Any]]:
        """Return the GPUs that a job has, as the coordinator said last."""
        table = self.status["nodes"] if self.status else []
        return [gpu for node in table for gpu in node.get("gpus", ()) if gpu["job"] == job]

    def watch(self, jobs: list[int], *, sooner: bool = False) -> None:
        """Note that viewers see these waiting jobs now; ``sooner``: and read what would start them sooner."""
        now = time.monotonic()
        fresh = [job for job in jobs if job not in self._answers]
        self._watched.update(dict.fromkeys(jobs, now))
        if sooner:
            self._looked_at.update(dict.fromkeys(jobs, now))
        if fresh:
            self._wake.set()

    def answer_of(self, job: int) -> dict[str, Any] | None:
        """Return what is known of a waiting job; None: nothing yet."""
        answer = self._answers.get(job)
        return None if answer is None else answer._asdict() | {"outcomes": self.starts["outcomes"]}

    @property
    def starts(self) -> dict[str, Any]:
        """The quality of the coordinator's expected starts, as it said last."""
        return (self.status or {}).get("starts") or NO_STARTS

    def changed_since(self, version: int) -> dict[int, Any]:
        """Return the answers that are newer than a version."""
        jobs = {job for at, job in self._changed if at > version}
        return {job: self.answer_of(job) for job in jobs if job in self._answers}

    async def run(self) -> None:
        """Ask, until cancelled."""
        while True:
            await self._earn()
            if holder(self._store) is None:
                self._say("no coordinator runs; start one with: tenbin up --daemon")
                await asyncio.sleep(0.5)
            elif self.trouble or self._status_is_due():
                await self._ask_status()
            elif (job := self._next()) is not None:
                await self._ask(job)
            elif (job := self._next_sooner()) is not None:
                await self._ask(job, sooner=True)
            else:
                self._wake.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), 0.5)

    async def _earn(self) -> None:
        """Wait until calls may go on."""
        while True:
            now = time.monotonic()
            self._earned_s = min(self._earned_s + SHARE * (now - self._earned_at), BURST_S)
            self._earned_at = now
            if self._earned_s > 0:
                return
            await asyncio.sleep(-self._earned_s / SHARE + 0.01)

    async def _call(self, path: str) -> Any:
        began = time.monotonic()
        try:
            answer = await asyncio.to_thread(self._client.call, "GET", path, None, ANSWER_S)
        except TenbinError as error:
            if error.exit_code != NO_ANSWER:
                self._earned_s -= time.monotonic() - began
                return None
            self._earned_s -= min(time.monotonic() - began, BURST_S)  # it did not work for us all the time
            self._say(str(error))
            await asyncio.sleep(0.5)
            return None
        self._earned_s -= time.monotonic() - began
        self._say("")
        return answer

    async def _ask_status(self) -> None:
        before = self._mirror.version
        if (status := await self._call("/status")) is not None:
            self._asked_at, self._asked_version = time.monotonic(), before
            if status != self.status:
                self.status = status
                self.status_number += 1
                self.version += 1

    def _status_is_due(self) -> bool:
        quiet = self._asked_version == self._mirror.version
        return time.monotonic() >= self._asked_at + (QUIET_S if quiet else STATUS_S)

    async def _ask(self, job: int, *, sooner: bool = False) -> None:
        if sooner:
            self._sooner_at[job] = time.monotonic()
        fields = await self._call(f"/jobs/{job}?sooner=true" if sooner else f"/jobs/{job}")
        if fields is None:
            self._watched.pop(job, None)
            return
        before = self._answers.get(job)
        starts = fields.get("sooner", before and before.sooner)
        within = fields.get("start_low_s"), fields.get("start_high_s")
        answer = Answer(
            fields["why"], fields["expected_start_s"], *within, time.time(), _still(starts, fields)
        )
        self._answers[job], self._answered_at[job] = answer, time.monotonic()
        if before is None or before._replace(at_s=answer.at_s) != answer:
            self.version += 1
            self._changed.append((self.version, job))

    def _next(self) -> int | None:
        """Choose the job to ask for: first what was never explained, then the oldest answer."""
        now = time.monotonic()
        rows = self._mirror.rows
        for job, at in list(self._watched.items()):
            row = rows.get(job)
            if now - at > WATCHED_S or row is None or row.stage not in ("waiting", "held", "suspended"):
                del self._watched[job]
                self._answers.pop(job, None)
                self._answered_at.pop(job, None)
                self._looked_at.pop(job, None)
                self._sooner_at.pop(job, None)
        ages = [(self._answered_at.get(job, -math.inf), job) for job in self._watched]
        oldest = min(ages, default=None)
        return None if oldest is None or oldest[0] > now - FRESH_S else oldest[1]

    def _next_sooner(self) -> int | None:
        """Choose the job for which to ask what would start it sooner; nothing else is to be asked."""
        now = time.monotonic()
        ages = [
            (self._sooner_at.get(job, -math.inf), job)
            for job, at in self._looked_at.items()
            if job in self._watched and job in self._answers and now - at <= WATCHED_S
            if self._mirror.rows[job].stage == "waiting"
        ]
        oldest = min(ages, default=None)
        return None if oldest is None or oldest[0] > now - SOONER_FRESH_S else oldest[1]

    def _say(self, trouble: str) -> None:
        if trouble != self.trouble:
            self.trouble, self._asked_at = trouble, -math.inf
            self.version += 1


def _still(starts: list[dict[str, Any]] | None, fields: dict[str, Any]) -> list[dict[str, Any]] | None:
    """Leave out what was said before and would not start the job sooner any more."""
    if starts is None or fields["expected_start_s"] is None:
        return starts
    return [start for start in starts if start["expected_start_s"] < fields["expected_start_s"]]
