"""Limits of a server's connections, so that callers without the token stop nobody else.

Whoever reaches the port can open connections. A caller is a stranger until it has shown the token (the cookie
of the page); callers by the Unix socket are the server's own user. Each kind has a share of the files that
the process may open, and what is left is for the journal and for jobs. Strangers are let in all the same
while their share is in use: the one that has been there longest goes. So a call that knows the token, which
is sent at once, is heard among any number of silent ones.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import uvicorn
from starlette.responses import JSONResponse
from uvicorn.protocols.http.h11_impl import H11Protocol

from tenbin.server.tcp import CONNECTION, App, Scope

STRANGER_S = 15.0  # a caller must have shown the token by then
MOST_CALLERS, MOST_STRANGERS = 4096, 512  # at once, where the process may open enough files
LIKE_RECORDS, LIKE_S = 10, 3600.0  # records from one place that are logged in this time


def configure(app: App | str) -> uvicorn.Config:
    """Make the configuration of a server with these limits."""
    for name in ("uvicorn.error", "asyncio"):  # where strangers can have lines written
        logger = logging.getLogger(name)
        if not any(isinstance(known, LikeRecords) for known in logger.filters):
            logger.addFilter(LikeRecords())
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    callers = Callers(min(MOST_CALLERS, files // 2), min(MOST_STRANGERS, files // 4))
    protocol = cast("type[asyncio.Protocol]", partial(Connection, callers))
    return uvicorn.Config(app, http=protocol, log_config=None, lifespan="off", access_log=False)


class Callers:
    """The connections of a server.

    Args:
        most: of callers that are known. most_strangers: of others.
    """

    def __init__(self, most: int, most_strangers: int) -> None:
        self.most, self._most_strangers = most, most_strangers
        self.known: set[Connection] = set()
        self._strangers: dict[Connection, asyncio.TimerHandle] = {}  # the oldest first

    def meet(self, connection: Connection) -> None:
        """Let a stranger in, for a while; the oldest goes where there are too many."""
        late = asyncio.get_running_loop().call_later(STRANGER_S, connection.transport.abort)
        self._strangers[connection] = late
        if len(self._strangers) > self._most_strangers:
            oldest = next(iter(self._strangers))
            self.forget(oldest)
            oldest.transport.abort()

    def know(self, connection: Connection) -> None:
        """Take a caller for one that may stay."""
        self.forget(connection)
        self.known.add(connection)

    def forget(self, connection: Connection) -> None:
        self.known.discard(connection)
        if late := self._strangers.pop(connection, None):
            late.cancel()


class Connection(H11Protocol):
    """A connection that counts."""

    def __init__(self, callers: Callers, **given: Any) -> None:
        super().__init__(**given)
        self._callers = callers
        self.app_state = {**self.app_state, CONNECTION: self}

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if transport.get_extra_info("socket").family == socket.AF_UNIX:
            self.recognise()
        else:
            self._callers.meet(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._callers.forget(self)
        super().connection_lost(exc)

    def recognise(self) -> None:
        """Note that the caller is no stranger; one too many is told so."""
        if self not in self._callers.known:
            self._callers.know(self)
            if len(self._callers.known) > self._callers.most:
                self.app = cast("Any", self._refuse)

    async def _refuse(self, scope: Scope, receive: Any, send: Any) -> None:
        detail = f"{self._callers.most} calls are under way; try again"
        await JSONResponse({"detail": detail}, 503, {"Connection": "close"})(scope, receive, send)


class LikeRecords(logging.Filter):
    """Lets through the first records from each place in an hour, because strangers can cause any number."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        self._seen: dict[tuple[str, int, str, int], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        place, line = "", 0
        trace = record.exc_info[2] if record.exc_info else None
        while trace is not None:
            place, line, trace = trace.tb_frame.f_code.co_filename, trace.tb_lineno, trace.tb_next
        key = record.pathname, record.lineno, place, line
        since, count = self._seen.get(key, (self._now(), 0))
        if self._now() - since > LIKE_S:
            since, count = self._now(), 0
        self._seen[key] = since, count + 1
        if count + 1 == LIKE_RECORDS:
            record.msg = f"{record.msg} (more of this in this hour is not logged)"
        return count < LIKE_RECORDS
