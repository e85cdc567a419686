"""Bodies of requests about many jobs and of their answers, and requests that are refused at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, model_validator

from profiles.errors import BadInput, Unavailable, UserError
from scheduler.jobs.specs import JobRefused, Name, Priority, Seconds, fault
from tenbin.server.tcp import App, Scope
from tenbin.text import printable

LARGEST = (1 << 63) - 1  # what SQLite counts with
# Of the bodies of requests: true and "3" are no numbers. In a query all values are text.
BODY = ConfigDict(extra="forbid", strict=True)
LONGEST_WAIT_S = 300.0
MOST_IDS = 100_000  # of one request; each is looked up before anything else goes on
JobIds = Annotated[list[int], Field(max_length=MOST_IDS)]


class Ids(BaseModel):
    """Jobs by number."""

    model_config = BODY
    ids: JobIds


class Wait(Ids):
    """Jobs, and the longest time to wait for the first of them to end, or all."""

    wait_s: Annotated[float, Field(ge=0, le=LONGEST_WAIT_S)] = 0.0
    all: bool = False


class Change(Ids):
    """Jobs to change, all or none.

    ``where_possible``: more jobs. Those that have ended, or that the request does not apply to, are left out;
    the answer names each with the reason.
    """

    ids: JobIds = []
    where_possible: JobIds = []


class QueueChange(Change):
    """Jobs to suspend or resume. ``queue``: until the queue is resumed no job starts; what runs goes on."""

    queue: bool = False


class Move(Change):
    """Jobs to move, and the class of device or node."""

    to: Name


class NewPriority(Change):
    """Jobs, and their priority from now on."""

    priority: Priority


class Update(Change):
    """Jobs, and what changes of them.

    ``time_s``: their limit of run time; null: none. ``more_s``: seconds that each has more, or less.
    ``priority``: as of ``/priority``.
    """

    time_s: Seconds | None = None
    more_s: Annotated[float, Field(ge=-1e12, le=1e12)] = 0.0
    priority: Priority | None = None

    @model_validator(mode="after")
    def _one_limit(self) -> Update:
        if "time_s" in self.model_fields_set and self.more_s:
            raise ValueError("more_s: time_s is given too; give one of them")
        if not self.more_s and not self.model_fields_set & {"time_s", "priority"}:
            raise ValueError("nothing is to change; give time_s, more_s or priority")
        return self


class Selectors(BaseModel):
    """Words that select jobs: ``7``, ``7[3]``, ``7[1,5-9]``, ``3-9``, ``last``, ``all``.

    ``members``: give the members of an array in place of its number.
    """

    model_config = BODY
    words: Annotated[list[Annotated[str, Field(max_length=1_000_000)]], Field(max_length=MOST_IDS)]
    members: bool = False


class Changed(BaseModel):
    """The jobs that were changed, and why others of ``where_possible`` were not.

    ``reasons``: the same by the reason, with the names of the jobs: ``{"has ended (done)": ["3", "7[2]"]}``.
    """

    ids: list[int]
    left_out: dict[int, str]
    reasons: dict[str, list[str]]


class Reprioritized(Changed):
    """The jobs that were given another priority; ``before``: their numbers by the priority they had."""

    before: dict[int, list[int]]


# -- refusals: too large, or not as the schema says --------------------------------------------------------


MOST_BODY, MOST_SUBMITTED = 8 << 20, 64 << 20  # bytes; the latter of jobs
NAMED = 3  # faults of a request that are told, of many
LONGEST_PLACE, LONGEST_FAULT = 100, 300  # characters


def refusals(**described: str) -> dict[int | str, dict[str, Any]]:
    """Describe the answers of these codes (``http_404="There is no such job."``) for OpenAPI."""
    return {
        int(code.removeprefix("http_")): {"description": text, "content": {"application/json": SENTENCE}}
        for code, text in described.items()
    }


DETAIL = {"detail": {"type": "string", "description": "What is wrong, as a sentence."}}
SENTENCE = {
    "schema": {
        "type": "object",
        "properties": DETAIL,
        "required": ["detail"],
    }
}
OF_ONE_JOB = {
    "place": {
        "type": "integer",
        "description": "Of jobs that are submitted together: which one is refused, from 0 on.",
    },
    "reason": {"type": "string", "description": "The sentence without that place."},
}
OF_ALL = refusals(
    http_401="Over TCP: the token is missing or wrong.",
    http_403="Over TCP: the coordinator does not answer to that host name.",
    http_413=f"The body is larger than {MOST_BODY >> 20} MiB, of a submission {MOST_SUBMITTED >> 20} MiB.",
)
OF_VALUES = refusals(http_422="A value cannot be used.")
OF_JOBS = OF_VALUES | refusals(http_404="There is no such job.")
OF_BODIES = refusals(
    http_400="The body cannot be read.",
    http_422="A value cannot be used, or what was asked cannot be done; the sentence says why.",
)
OF_CHANGES = OF_BODIES | refusals(
    http_507="The journal cannot be written; the change is made when it can, unless tenbin up ends before."
)

_OF_JOB: dict[str, Any] = {**SENTENCE["schema"], "properties": {**DETAIL, **OF_ONE_JOB}}
OF_SUBMISSIONS = OF_BODIES | refusals(http_507="The journal cannot be written; nothing was taken in.")
OF_SUBMISSIONS[422] = {**OF_BODIES[422], "content": {"application/json": {"schema": _OF_JOB}}}


class BodyLimit:
    """Refuses bodies that are too large, whether their length is stated or they come in chunks."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        read, most = 0, MOST_SUBMITTED if scope["path"] == "/jobs" else MOST_BODY
        too_large = f"the request is larger than {most >> 20} MiB; send it in several"

        async def counted() -> Any:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > most:
                raise HTTPException(413, too_large)
            return message

        length = dict(scope["headers"]).get(b"content-length", b"")
        if length.isdigit() and int(length) > most:
            await JSONResponse({"detail": too_large}, 413)(scope, receive, send)
        else:
            await self._app(scope, counted, send)


async def refuse(_request: Request, error: Exception) -> JSONResponse:
    """Answer what cannot be done: a sentence; of jobs that are submitted together also which one it is."""
    assert isinstance(error, UserError)
    body: dict[str, Any] = {"detail": str(error)}
    if isinstance(error, JobRefused):
        body |= {"place": error.place, "reason": error.reason}
    return JSONResponse(body, 422 if isinstance(error, BadInput | Unavailable) else 507)


async def refuse_invalid(_request: Request, error: Exception) -> JSONResponse:
    """Answer a request that does not fit its schema; nothing that was sent is sent back.

    Where the first fault is of one of the jobs that are submitted together, also which one, and its faults.
    """
    assert isinstance(error, RequestValidationError)
    errors = error.errors()
    body: dict[str, Any] = {"detail": sentence(errors)}
    of, place = errors[0]["loc"][:2], errors[0]["loc"][2:3]
    if of == ("body", "specs") and place:
        own = [fault for fault in errors if fault["loc"][:3] == (*of, *place)]
        body |= {"place": place[0], "reason": sentence([{**f, "loc": f["loc"][2:]} for f in own])}
    return JSONResponse(body, 422)


def sentence(errors: Sequence[Mapping[str, Any]]) -> str:
    """Format what does not fit, as ``specs.0.cores: must be at least 1``."""
    faults = [_fault_sentence(error) for error in errors[:NAMED]]
    more = len(errors) - len(faults)
    return "; ".join(faults) + (f"; and {more} more" if more else "")


def _fault_sentence(error: Mapping[str, Any]) -> str:
    """Describe one fault; the names of fields may be the client's own text."""
    loc = error["loc"]
    if error["type"] == "json_invalid":
        return f"the body is no JSON: {error['ctx']['error']}, at character {loc[-1]}"
    place = printable(".".join(str(part)[:LONGEST_PLACE] for part in loc[1:] or loc))[:LONGEST_PLACE]
    return f"{place}: {printable(fault(error))[:LONGEST_FAULT]}"
