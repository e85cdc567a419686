"""The page's process: HTTP on one port, until it is told to stop; and who may call."""

from __future__ import annotations

import asyncio
import secrets
import signal
import socket
from collections.abc import Callable
from contextlib import closing
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from tenbin.page.app import Page, make_app
from tenbin.server import tcp
from tenbin.server.serve import Server
from tenbin.server.tcp import App, Scope, configure, is_here, own_names, recognise

# -- access: who may call, and what the browser may do with the answers ------------------------------------
#
# A one-time token, printed by ``tenbin page``, is exchanged for a cookie by a redirect, so it stays out of
# the browser's history. Calls by another host name are refused (DNS rebinding). What changes something
# needs the page's own origin and a header that other pages cannot send without asking first.


POLICY = (
    "default-src 'none'; script-src 'self'; connect-src 'self'; img-src 'self' data:; style-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
OWN_HEADER = b"x-tenbin-page"
ENTRY, OPEN = "/enter", ("/", "/static/")
MOST_SESSIONS = 100
ENTER = "open the address that tenbin page has printed; each address works once, and it prints the next one"

REFUSAL = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>tenbin</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/static/page.css">
</head>
<body>
<header><h1>tenbin</h1></header>
<main>
<p>Refused: {}.</p>
<p><a href="/">Go to the page</a>, if it was opened in this browser before.</p>
</main>
</body>
</html>
"""


class Gate:
    """Lets calls through that come from a browser which has shown the token.

    Args:
        names: of this machine, besides its addresses and ``localhost``.
        port: part of the cookie's name, because browsers keep one set of cookies for all ports.
        used: called with the next token when one was used.
    """

    def __init__(
        self, app: App, names: set[str], port: int, used: Callable[[str], None] = lambda token: None
    ) -> None:
        self._app, self._names, self._used = app, own_names(names), used
        self._cookie = f"tenbin-page-{port}"
        self._sessions: dict[str, None] = {}
        self.token = secrets.token_urlsafe(32)

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        answer = self._refusal(scope)
        if answer is None and scope["path"] == ENTRY:
            answer = self._enter(scope)

        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message.get("headers", ()),
                    *((name.lower().encode(), value.encode()) for name, value in HEADERS.items()),
                ]
            await send(message)

        await (answer or self._app)(scope, receive, with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        """Return the refusal of a call; None: it may pass."""
        headers = dict(scope["headers"])
        if not is_here(headers.get(b"host", b""), self._names):
            detail = "this page does not answer to that host name; call it by its address"
            return _refuse(headers, 403, detail)
        path = scope["path"]
        if path != ENTRY and path != OPEN[0] and not path.startswith(OPEN[1]):
            if not self._knows(headers.get(b"cookie", b"")):
                return _refuse(headers, 401, ENTER)
            recognise(scope)
            if headers.get(b"sec-fetch-site", b"none") not in (b"same-origin", b"none"):
                return _refuse(headers, 403, "another site asked for this; it is refused")
        return None if scope["method"] in ("GET", "HEAD") else _not_from_page(headers)

    def _enter(self, scope: Scope) -> Response:
        """Exchange the token for a cookie; a token works once, and who has a cookie needs none."""
        headers = dict(scope["headers"])
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if scope["method"] != "GET" or not secrets.compare_digest(given.encode(), self.token.encode()):
            if self._knows(headers.get(b"cookie", b"")):
                return RedirectResponse("/", 303)
            return _refuse(headers, 401, ENTER)
        self.token, session = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        self._sessions[session] = None
        if len(self._sessions) > MOST_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        self._used(self.token)
        answer = RedirectResponse("/", 303)
        answer.set_cookie(self._cookie, session, path="/", httponly=True, samesite="strict")
        return answer

    def _knows(self, cookies: bytes) -> bool:
        try:
            cookie = SimpleCookie(cookies.decode("latin-1")).get(self._cookie)
        except CookieError:
            return False
        given = cookie.value.encode() if cookie else b""
        return any(secrets.compare_digest(given, session.encode()) for session in self._sessions)


def _not_from_page(headers: dict[bytes, bytes]) -> Response | None:
    """Return the refusal of a change that another page may have made the browser send; None: it may pass."""
    host = headers.get(b"host", b"")
    if headers.get(b"origin", b"") not in (b"http://" + host, b"https://" + host):
        return _refuse(headers, 403, "the request does not come from this page (Origin)")
    if OWN_HEADER not in headers:
        return _refuse(headers, 403, f"the request lacks the header {OWN_HEADER.decode()}")
    return None


def _refuse(headers: dict[bytes, bytes], code: int, detail: str) -> Response:
    """Return a refusal: a page for a browser that opens an address, JSON for programs."""
    if b"text/html" in headers.get(b"accept", b""):
        return HTMLResponse(REFUSAL.format(detail), code)
    return JSONResponse({"detail": detail}, code)


# -- the process -------------------------------------------------------------------------------------------


def serve(store: Path, listener: socket.socket, name: str, tell: Callable[[str, bool], None]) -> None:
    """Serve the page of a coordinator's folder until SIGINT or SIGTERM.

    Args:
        listener: closed at the end. name: of this machine, as callers may know it.
        tell: called with the address to open, and False for the ones after the first.

    Raises:
        BadInput: the journal cannot be read.
    """
    try:
        page = Page(store)
        with closing(page.mirror):  # after ``run``, which waits for the threads that read it
            page.warm()
            asyncio.run(_serve(page, listener, name, tell))
    finally:
        listener.close()


async def _serve(page: Page, listener: socket.socket, name: str, tell: Callable[[str, bool], None]) -> None:
    url = tcp.url_of(listener)
    names = {name, socket.gethostname(), socket.getfqdn()}

    def address(token: str) -> str:
        return f"{url}/enter?token={token}"

    gate = Gate(make_app(page), names, listener.getsockname()[1], lambda token: tell(address(token), False))
    # A log of calls would have the token.
    server = Server(configure(gate))

    def end() -> None:
        server.should_exit, server.force_exit = True, server.should_exit
        page.streams.end()  # else the server would wait for them

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end)
    tasks = [asyncio.create_task(page.streams.run()), asyncio.create_task(page.explainer.run())]
    for task in tasks:
        task.add_done_callback(lambda _: end())  # one that fails must not leave a page that stands still
    try:
        tell(address(gate.token), True)
        await server.serve(sockets=[listener])
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    for error in ended:
        if not isinstance(error, asyncio.CancelledError) and error is not None:
            raise error
