"""Messages to viewers as things happen: ``text/event-stream``, at most one a second for each.

The id of a message is the number of the journal's last event, so a viewer that comes back is told every
event since the last one it has.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

from profiles.errors import UserError
from tenbin.page.mirror import Mirror
from tenbin.page.views.explainer import Explainer

LOOK_S, APART_S, COMMENT_S = 0.25, 1.0, 15.0
MOST_EVENTS, MOST_JOBS = 500, 1000  # of a message
MOST_VIEWERS = 200
log = logging.getLogger(__name__)


class Streams:
    """The streams of all viewers, and the one task that looks for changes.

    Attributes:
        trouble: why the journal cannot be read now; "": it can.
    """

    def __init__(self, mirror: Mirror, explainer: Explainer) -> None:
        self._mirror, self._explainer = mirror, explainer
        self._news = asyncio.Event()
        self._over = False
        self.viewers = 0
        self.trouble = ""

    def end(self) -> None:
        """End all streams: the server waits for them."""
        self._over = True
        self._news.set()

    async def run(self) -> None:
        """Look for changes, until cancelled."""
        known = self._explainer.version
        while True:
            began, changed = time.monotonic(), False
            try:
                changed = await asyncio.to_thread(self._mirror.refresh)
                trouble = ""
            except UserError as error:
                trouble = str(error)
            if changed or trouble != self.trouble or self._explainer.version != known:
                self.trouble, known = trouble, self._explainer.version
                self._news.set()
                self._news = asyncio.Event()
            took_s = time.monotonic() - began
            await asyncio.sleep(max(LOOK_S, 4 * took_s))

    async def stream(self, last_id: int | None) -> AsyncIterator[str]:
        """Yield the messages for one viewer.

        Args:
            last_id: of the last message that the viewer has; None: it has just come.
        """
        mirror, explainer = self._mirror, self._explainer
        number = mirror.number if last_id is None else last_id
        version: int | None = None  # not known what this viewer has
        answers, epoch = 0, mirror.epoch
        state: dict[str, Any] | None = None
        yield "retry: 1000\n\n"
        while not self._over:
            news = self._news
            if (read := mirror.version) != version:  # before the rest: more may be read meanwhile
                anew = mirror.epoch != epoch
                told = _changes(mirror, number, None if anew else version, anew=anew)
                number, version, epoch = told["to"], read, mirror.epoch
                yield _message("changes", told, number)
            if (now := self._state()) != state:
                state = now
                yield _message("coordinator", state)
            if explainer.version != answers:
                found = explainer.changed_since(answers)
                answers = explainer.version
                if found:
                    yield _message("reasons", found)
            await asyncio.sleep(APART_S)
            while news is self._news and not self._over:
                try:
                    await asyncio.wait_for(news.wait(), COMMENT_S)
                except TimeoutError:
                    yield ": here\n\n"

    def _state(self) -> dict[str, Any]:
        """Return what is known of journal and coordinator."""
        status = self._explainer.status or {}
        told = {name: status.get(name) for name in ("policy", "power")}
        explainer = self._explainer
        return {
            "journal": self.trouble,
            "trouble": explainer.trouble,
            "status": explainer.status_number,
        } | told


def _changes(mirror: Mirror, number: int, version: int | None, *, anew: bool) -> dict[str, Any]:
    """Tell what happened after event ``number``; ``jobs`` None: any may have changed."""
    to = mirror.number
    events = None if anew else mirror.events_since(number)
    jobs = None if version is None or events is None else mirror.changed_since(version)
    if jobs is not None and len(jobs) > MOST_JOBS:
        jobs = None
    shown = None if events is None else [event for event in events if event.number <= to]
    return {
        "from": number if events is not None else None,
        "to": to,
        "events": shown if shown is not None and len(shown) <= MOST_EVENTS else None,
        "jobs": jobs,
        "counts": mirror.counts(),
    }


def _message(event: str, data: dict[Any, Any], number: int | None = None) -> str:
    of_id = "" if number is None else f"id: {number}\n"
    return f"{of_id}event: {event}\ndata: {json.dumps(data)}\n\n"
