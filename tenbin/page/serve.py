"""The page's process: its HTTP API and stream of events, who may call, and HTTP on one port until it ends."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import parse_qs

from fastapi import FastAPI, Header, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import (
    FileResponse,
    JSONResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel, ConfigDict, Field

from profiles.errors import UserError
from scheduler.coordinator.journal.reader import job_record
from scheduler.jobs.entry import Entry
from tenbin.client.client import Client
from tenbin.errors import NO_ANSWER, TenbinError
from tenbin.page import jobs as job_view
from tenbin.page.explainer import Explainer
from tenbin.page.gantt import Gantt, Window
from tenbin.page.jobs import Lists, ListWindow
from tenbin.page.mirror import Mirror
from tenbin.page.nodes import Measured, NodeView
from tenbin.page.truth import Truth
from tenbin.server import tcp
from tenbin.server.bodies import LARGEST, BodyLimit, refuse_invalid
from tenbin.server.serve import Server
from tenbin.server.tcp import App, Scope, configure, is_here, own_names, recognise

# -- messages to viewers as things happen: ``text/event-stream``, at most one a second for each ------------
#
# The id of a message is the number of the journal's last event, so a viewer that comes back is told every
# event since the last one it has.


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
                changes = _news(mirror, number, None if anew else version, anew=anew)
                number, version, epoch = changes["to"], read, mirror.epoch
                yield _message("changes", changes, number)
            if (now := self._state()) != state:
                state = now
                yield _message("coordinator", state)
            if explainer.version != answers:
                reasons = explainer.changed_since(answers)
                answers = explainer.version
                if reasons:
                    yield _message("reasons", reasons)
            await asyncio.sleep(APART_S)
            while news is self._news and not self._over:
                try:
                    await asyncio.wait_for(news.wait(), COMMENT_S)
                except TimeoutError:
                    yield ": here\n\n"

    def _state(self) -> dict[str, Any]:
        """Return what is known of journal and coordinator."""
        status = self._explainer.status or {}
        state = {name: status.get(name) for name in ("policy", "power", "held")}
        explainer = self._explainer
        return {
            "journal": self.trouble,
            "trouble": explainer.trouble,
            "status": explainer.status_number,
        } | state


def _news(mirror: Mirror, number: int, version: int | None, *, anew: bool) -> dict[str, Any]:
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


# -- the API, which only the page itself uses --------------------------------------------------------------


STATIC = Path(__file__).parent / "static"
REPORT = Path(__file__).parents[1] / "report"
MOST_SELECTED = 100_000
Verb = Literal["cancel", "suspend", "resume", "retry", "migrate", "priority"]


class Change(BaseModel):
    """Jobs or arrays to change, those to which it applies.

    ``to``: where ``migrate`` moves them. ``priority``: what ``priority`` gives them.
    """

    model_config = ConfigDict(extra="forbid", strict=True)
    ids: Annotated[list[int], Field(min_length=1, max_length=MOST_SELECTED)]
    to: str | None = None
    priority: int | None = None


class Page:
    """The parts of the page's process.

    Attributes:
        streams: to be ended before the server waits for its requests.
    """

    def __init__(self, store: Path) -> None:
        self.store = store
        self.mirror = Mirror(store)
        self.lists = Lists(self.mirror)
        self.explainer = Explainer(store, self.mirror)
        self.gantt = Gantt(self.mirror, self.explainer)
        self.nodes = NodeView(self.mirror, self.explainer)
        self.measured = Measured()
        self.truth = Truth(self.mirror, self.explainer)
        self.streams = Streams(self.mirror, self.explainer)
        self.client = Client(store)

    def warm(self) -> None:
        """Read the journal, and make what the first viewer would wait for.

        Raises:
            BadInput: the journal cannot be read.
        """
        self.mirror.refresh()
        self.lists.find(ListWindow())
        now_s = time.time()
        self.gantt.find(Window(from_s=now_s - 3600.0, until_s=now_s), [])


def make_app(page: Page) -> FastAPI:
    """Make the application over the journal of one coordinator, which is read already."""
    app = FastAPI(title="tenbin page", openapi_url=None, docs_url=None, redoc_url=None)
    app.add_middleware(BodyLimit)
    app.add_exception_handler(RequestValidationError, refuse_invalid)
    app.add_exception_handler(UserError, _unreadable)
    _questions(app, page)
    _of_job(app, page)
    _changes(app, page)

    @app.get("/")
    async def shell() -> FileResponse:
        return FileResponse(STATIC / "page.html")

    @app.get("/static/picture.css")
    async def pictures() -> FileResponse:
        return FileResponse(REPORT / "picture.css")

    app.mount("/static", StaticFiles(directory=STATIC))
    return app


def _unreadable(request: Request, error: Exception) -> JSONResponse:
    """Say that the journal cannot be read."""
    return JSONResponse({"detail": str(error)}, 503)


def _questions(app: FastAPI, page: Page) -> None:
    """Add the routes that tell of many jobs."""

    @app.get("/api/session")
    async def session() -> dict[str, Any]:
        return {
            "home": str(page.store),
            "host": socket.gethostname(),
            "now_s": time.time(),
        }

    @app.get("/api/jobs")
    async def jobs(query: Annotated[ListWindow, Query()]) -> dict[str, Any]:
        """List the rows of a window; those of them that wait are explained from now on."""
        window = await asyncio.to_thread(page.lists.window, query)
        waiting = [row["asks"] for row in window["rows"] if row["asks"] is not None]
        page.explainer.watch(waiting, sooner=True)
        window["reasons"] = {job: page.explainer.answer_of(job) for job in waiting}
        return window | {"now_s": time.time()}

    @app.get("/api/gantt")
    async def gantt(window: Annotated[Window, Query()]) -> dict[str, Any]:
        """Return the rectangles of a part of the time."""
        planned = await asyncio.to_thread(page.gantt.head)
        page.explainer.watch(planned)
        return await asyncio.to_thread(page.gantt.find, window, planned)

    @app.get("/api/nodes")
    async def nodes() -> dict[str, Any]:
        """Tell what each node is and has."""
        return await asyncio.to_thread(page.nodes.find)

    @app.get("/api/measured/{node}")
    async def measured(node: str) -> dict[str, Any]:
        """Return the pictures of what was measured of a node, or of a pool of this machine."""
        name = page.nodes.measured_as(node)
        pictures = await asyncio.to_thread(page.measured.find, name)
        return {"node": name, "measured": pictures}

    @app.get("/api/truth")
    async def truth() -> dict[str, Any]:
        """Tell how good the predictions were."""
        return await asyncio.to_thread(page.truth.find)

    @app.get("/api/ids")
    async def ids(query: Annotated[ListWindow, Query()]) -> dict[str, list[int]]:
        """List the numbers of all rows of a list, to be selected."""
        rows = await asyncio.to_thread(page.lists.find, query)
        return {"ids": [row.id for row in rows[:MOST_SELECTED]]}

    @app.get("/api/events")
    async def events(
        after: Annotated[int | None, Query(ge=0, le=LARGEST)] = None,
        last_event_id: Annotated[str | None, Header(max_length=19, pattern="^[0-9]*$")] = None,
    ) -> StreamingResponse:
        """Stream what happens, from the last message on that the viewer has."""
        last = int(last_event_id) if last_event_id else after
        return _Viewing(page.streams, last)


class _Viewing(StreamingResponse):
    """A stream, or the refusal of one too many: nothing happens between look and count."""

    def __init__(self, streams: Streams, last: int | None) -> None:
        super().__init__(streams.stream(last), media_type="text/event-stream")
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if self._streams.viewers >= MOST_VIEWERS:
            detail = f"{MOST_VIEWERS} viewers are here already; close a window"
            await JSONResponse({"detail": detail}, 503)(scope, receive, send)
            return
        self._streams.viewers += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._streams.viewers -= 1


def _of_job(app: FastAPI, page: Page) -> None:
    """Add the routes that tell of one job."""

    def entry_of(job_id: int) -> Entry:
        record = job_record(page.store, job_id)
        if record is None:
            raise HTTPException(404, f"there is no job {job_id}")
        return record.entry

    @app.get("/api/jobs/{job_id}")
    async def job(job_id: int) -> dict[str, Any]:
        account = await asyncio.to_thread(job_view.account, page.store, job_id)
        row = page.mirror.rows.get(job_id)
        if account is None or row is None:
            if any(row.array == job_id for row in list(page.mirror.rows.values())):
                return {"array": True}
            raise HTTPException(404, f"there is no job {job_id}")
        shown = page.lists.row_as_json(row)
        if shown["asks"] is not None:
            page.explainer.watch([job_id], sooner=True)
        more = {"reason": page.explainer.answer_of(job_id), "gpus": page.explainer.gpus_of(job_id)}
        return account | shown | more | {"now_s": time.time()}

    @app.get("/api/jobs/{job_id}/output")
    async def output(
        job_id: int,
        stream: job_view.Stream,
        start: Annotated[int | None, Query(ge=0, le=LARGEST)] = None,
    ) -> dict[str, Any]:
        try:
            return await asyncio.to_thread(
                lambda: job_view.output(page.store, entry_of(job_id), stream, start)
            )
        except OSError as error:
            raise HTTPException(422, f"{stream} of job {job_id}: {error.strerror}") from error

    @app.get("/api/jobs/{job_id}/samples")
    async def samples(job_id: int) -> list[dict[str, Any]]:
        return await asyncio.to_thread(lambda: job_view.samples(page.store, entry_of(job_id)))


def _changes(app: FastAPI, page: Page) -> None:
    """Add the route that changes jobs: the coordinator is asked, with the rights of this process's user."""

    @app.post("/api/change/{verb}")
    async def change(verb: Verb, request: Change) -> dict[str, Any]:
        body: dict[str, Any] = {"ids": [], "where_possible": request.ids}
        if verb == "migrate":
            if not request.to:
                raise HTTPException(422, "to: name a device or a node")
            body["to"] = request.to
        if verb == "priority":
            body["priority"] = request.priority
        try:
            answer: dict[str, Any] = await asyncio.to_thread(page.client.call, "POST", f"/{verb}", body)
        except TenbinError as error:
            raise HTTPException(503 if error.exit_code == NO_ANSWER else 422, str(error)) from error
        return answer


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

ADVICE = (
    "<code>tenbin page</code> has printed the next address where it runs: "
    "<em>tenbin: for another browser: http://...</em>. Of <code>tenbin up --page</code> it is in the file "
    "<code>page-address</code> of the coordinator's folder.",
    '<a href="/">Go to the page</a>, if it was opened in this browser before.',
)
HEAD = '<link rel="stylesheet" href="/static/page.css">\n'


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
    return tcp.refuse(headers, code, detail, *ADVICE if code == 401 else ADVICE[1:], head=HEAD)


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
