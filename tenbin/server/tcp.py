"""A server over TCP (``tenbin up --listen``, ``tenbin page``): its address, callers, and connections.

Callers must know a token, which is in a file that only the coordinator's owner can read. A request whose Host
header is not a name of this machine is refused, because a web page could make a browser send such a request
(DNS rebinding).
"""

from __future__ import annotations

import asyncio
import html
import ipaddress
import logging
import os
import re
import resource
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import uvicorn
from starlette.responses import HTMLResponse, JSONResponse, Response
from uvicorn.protocols.http.h11_impl import H11Protocol

from profiles.errors import BadInput
from profiles.files.safe_files import write_whole

LOOPBACK = "127.0.0.1"
LEAST_TOKEN = 20  # characters
AT_ONCE = 16  # connections accepted between two turns of the loop
CONNECTION = "connection"  # in the state of a request
Scope = MutableMapping[str, Any]
App = Callable[[Scope, Any, Any], Awaitable[None]]


def where(text: str, option: str = "--listen") -> tuple[str, int]:
    """Read host and port of ``8470``, ``HOST:8470`` or ``[::1]:8470``; the default host is the loopback."""
    match = re.fullmatch(r"(?:(?:\[([0-9a-fA-F:.]+)\]|([^\s:\[\]/]+)):)?(\d{1,5})", text)
    if not match or int(match[3]) > 65535:
        remedy = "write PORT (only from this machine), 0.0.0.0:PORT (from everywhere) or HOST:PORT"
        raise BadInput(f"{option} {text!r} is no place to listen", remedy)
    return match[1] or match[2] or LOOPBACK, int(match[3])


def listen(text: str, option: str = "--listen") -> socket.socket:
    """Open a listening socket there; port 0: any free one."""
    host, port = where(text, option)
    try:
        family, kind, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = Listener(family, kind)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(128)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise BadInput(f"{option} {text}: {error.strerror}", "choose another address or port") from error
    return listener


def url_of(listener: socket.socket) -> str:
    """Return the URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def token_of(home: Path) -> str:
    """Return the token that callers must know; the first call makes it."""
    path = home / "token"
    if not path.exists():
        write_whole(path, secrets.token_urlsafe(32) + "\n", 0o600)
    if path.stat().st_mode & 0o077 or path.stat().st_uid != os.getuid():
        raise BadInput(f"{path} can be read by others", "delete it: tenbin up makes a new one")
    token = path.read_text().strip()
    if len(token) < LEAST_TOKEN or not token.isascii():
        raise BadInput(f"{path} holds no token", "delete it: tenbin up makes a new one")
    return token


def own_names(names: Iterable[str]) -> set[str]:
    """Return the names of this machine as ``is_here`` compares them; ``localhost`` is always one."""
    return {"localhost", *(name.lower().rstrip(".") for name in names)}


def is_here(host: bytes, names: set[str]) -> bool:
    """Return True if a Host header names this machine, by an address (no page can rebind it) or a name."""
    match = re.fullmatch(r"(?:\[([^\]]*)\]|([^:]*))(?::\d*)?", host.decode("latin-1"))
    name = (match[1] or match[2] or "") if match else ""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name.lower().rstrip(".") in names
    return True


class Listener(socket.socket):
    """A listening socket of which asyncio takes few connections in one turn.

    It would take as many as come, before one of them is counted. When no file is left it would fail for each
    that waits; here once.
    """

    _left = AT_ONCE

    def accept(self) -> tuple[socket.socket, Any]:
        if not self._left:
            raise BlockingIOError
        if self._left == AT_ONCE:
            asyncio.get_running_loop().call_soon(self._next_turn)
        self._left -= 1
        try:
            return super().accept()
        except OSError:
            self._left = 0
            raise

    def _next_turn(self) -> None:
        self._left = AT_ONCE


PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>tenbin</title>
<link rel="icon" href="data:,">
{head}</head>
<body>
<header><h1>tenbin</h1></header>
<main>
{paragraphs}
</main>
</body>
</html>
"""


def refuse(headers: Mapping[bytes, bytes], code: int, detail: str, *advice: str, head: str = "") -> Response:
    """Return a refusal: a page with ``advice`` (HTML) for a browser that opens an address, else JSON."""
    if b"text/html" not in headers.get(b"accept", b""):
        return JSONResponse({"detail": detail}, code)
    paragraphs = "\n".join(f"<p>{text}</p>" for text in (f"Refused: {html.escape(detail)}.", *advice))
    return HTMLResponse(PAGE.format(head=head, paragraphs=paragraphs), code)


TO_THE_PAGE = (
    "This is the address of the API, which programs use. To see the queue in a browser, type on that "
    "machine: <code>tenbin page</code>, and open the address that it prints."
)


def recognise(scope: Scope) -> None:
    """Note that the caller of this request is no stranger."""
    connection = scope.get("state", {}).get(CONNECTION)
    if connection is not None:
        connection.recognise()


class Guard:
    """Lets calls through that came by the Unix socket, or that know the token.

    Args:
        unix: path of the Unix socket; calls that came another way are checked.
        names: of this machine, besides its addresses and ``localhost``.
    """

    def __init__(self, app: App, unix: Path, token: str, names: Iterable[str] = ()) -> None:
        self._app, self._unix, self._token = app, str(unix), token.encode()
        self._names = own_names(names)

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope.get("server") == (self._unix, None):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            headers = dict(scope["headers"])
            if not is_here(headers.get(b"host", b""), self._names):
                detail = "this coordinator does not answer to that name; call it by its address"
                await refuse(headers, 403, detail)(scope, receive, send)
            elif not self._knows(headers.get(b"authorization", b"")):
                detail = (
                    "the token is missing or wrong; export TENBIN_TOKEN=..., from the file token in its home"
                )
                answer = refuse(headers, 401, detail, TO_THE_PAGE)
                answer.headers["WWW-Authenticate"] = "Bearer"
                await answer(scope, receive, send)
            else:
                recognise(scope)
                await self._app(scope, receive, send)

    def _knows(self, authorization: bytes) -> bool:
        scheme, _, token = authorization.partition(b" ")
        return scheme.lower() == b"bearer" and secrets.compare_digest(token.strip(), self._token)


# -- limits of connections, so that callers without the token stop nobody else -----------------------------
#
# Whoever reaches the port can open connections. A caller is a stranger until it has shown the token (the
# cookie of the page); callers by the Unix socket are the server's own user. Each kind has a share of the
# files that the process may open, and what is left is for the journal and for jobs. Strangers are let in
# all the same while their share is in use: the one that has been there longest goes. So a call that knows
# the token, which is sent at once, is heard among any number of silent ones.


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
