"""The HTTP API of the page, which only the page itself uses, and its stream of events."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Header, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, StreamingResponse
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel, ConfigDict, Field

from profiles.errors import UserError
from scheduler.coordinator.journal.reader import job_record
from scheduler.jobs.entry import Entry
from tenbin.client.client import Client
from tenbin.errors import TenbinError
from tenbin.page import jobs as job_view
from tenbin.page.explainer import Explainer
from tenbin.page.gantt import Gantt, Window
from tenbin.page.jobs import Lists, ListWindow
from tenbin.page.mirror import Mirror
from tenbin.page.nodes import Measured, NodeView
from tenbin.page.truth import Truth
from tenbin.server.bodies import LARGEST, BodyLimit, refuse_invalid
from tenbin.server.tcp import Scope

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
        state = {name: status.get(name) for name in ("policy", "power")}
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


# -- the API -----------------------------------------------------------------------------------------------


STATIC = Path(__file__).parent / "static"
PICTURES = Path(__file__).parents[1] / "report" / "pictures"
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
        return FileResponse(PICTURES / "picture.css")

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
        window["reasons"] = {job: page.explainer.told(job) for job in waiting}
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
        shown = page.lists.told(row)
        if shown["asks"] is not None:
            page.explainer.watch([job_id], sooner=True)
        return account | shown | {"reason": page.explainer.told(job_id), "now_s": time.time()}

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
            raise HTTPException(503 if error.exit_code == 4 else 422, str(error)) from error
        return answer
