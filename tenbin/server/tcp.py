"""The API over TCP (``tenbin up --listen``): its address, and the check of callers.

Callers must know a token, which is in a file that only the coordinator's owner can read. A request whose Host
header is not a name of this machine is refused, because a web page could make a browser send such a request
(DNS rebinding).
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import re
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from pathlib import Path
from typing import Any

from starlette.responses import JSONResponse

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
    found = re.fullmatch(r"(?:(?:\[([0-9a-fA-F:.]+)\]|([^\s:\[\]/]+)):)?(\d{1,5})", text)
    if not found or int(found[3]) > 65535:
        remedy = "write PORT (only from this machine), 0.0.0.0:PORT (from everywhere) or HOST:PORT"
        raise BadInput(f"{option} {text!r} is no place to listen", remedy)
    return found[1] or found[2] or LOOPBACK, int(found[3])


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
    found = re.fullmatch(r"(?:\[([^\]]*)\]|([^:]*))(?::\d*)?", host.decode("latin-1"))
    name = (found[1] or found[2] or "") if found else ""
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
                await JSONResponse({"detail": detail}, 403)(scope, receive, send)
            elif not self._knows(headers.get(b"authorization", b"")):
                detail = (
                    "the token is missing or wrong; export TENBIN_TOKEN=..., from the file token in its home"
                )
                answer = JSONResponse({"detail": detail}, 401, {"WWW-Authenticate": "Bearer"})
                await answer(scope, receive, send)
            else:
                recognise(scope)
                await self._app(scope, receive, send)

    def _knows(self, authorization: bytes) -> bool:
        scheme, _, token = authorization.partition(b" ")
        return scheme.lower() == b"bearer" and secrets.compare_digest(token.strip(), self._token)
