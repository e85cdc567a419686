"""The coordinator's HTTP API: what the command line and ``tenbin.Client`` speak."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import FastAPI, HTTPException, Query, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import PlainTextResponse
from pydantic import AfterValidator, Base64Bytes, BaseModel, ConfigDict, Field, model_validator

from profiles.errors import UserError
from scheduler.coordinator.coordinator import Coordinator, Update
from scheduler.coordinator.earlier_starts import Prospect, earlier_starts, prospects, question, rehearsal
from scheduler.coordinator.job_table import select as selected
from scheduler.engines.common.job_folders import PIECE
from scheduler.jobs.dependencies import Kind, WaitsByPlace
from scheduler.jobs.entry import Entry
from scheduler.jobs.files import check_commands, check_paths
from scheduler.jobs.job_list import LeftOut
from scheduler.jobs.sizes import why_fewest
from scheduler.jobs.specs import Int, JobSpec, check_variables
from scheduler.model.jobs import Pool
from tenbin.fields import descriptions
from tenbin.server import bodies
from tenbin.server.descriptions import brief, describe, known, node_table, prometheus, summary
from tenbin.server.job_list import add_history, add_lists, array_summary

LONGEST_HOLD_S = 3600.0
MOST_JOBS, MOST_WAITS = 100_000, 1_000_000  # of one submission
LARGEST_SCRIPT = 4 << 20  # bytes
SOONER_PAUSE = 100  # what would start a job sooner is good for so many times as long as it took
SOONER_LONGEST_S = 10.0
SOONER_KEPT = 1000  # answers


Indices = Annotated[
    list[Annotated[Int, Field(ge=0, le=bodies.LARGEST)]], Field(min_length=1, max_length=MOST_JOBS)
]


class Submission(BaseModel):
    """Jobs to take in, all or none, with the environment of their commands.

    Each of ``specs`` is one job, or an array: ``arrays`` has the index of each of its members, by the spec's
    place from 0 on. ``waits_for``: which of the specs wait for which others, by their places: a list
    (``after``), or lists by kind, ``{"after_any": [0]}``.
    ``script``: in base64, a script that begins with ``#!`` and that all jobs run. It is kept, and its place
    stands in each command in place of the first word, which is its name.
    """

    model_config = ConfigDict(extra="forbid")
    specs: Annotated[list[JobSpec], Field(min_length=1, max_length=MOST_JOBS)]
    environment: Annotated[dict[str, str], AfterValidator(check_variables)] = {}
    waits_for: dict[int, list[Int] | dict[Kind, list[Int]]] = {}
    arrays: dict[int, Indices] = {}
    script: Annotated[Base64Bytes, Field(max_length=LARGEST_SCRIPT)] | None = None

    @model_validator(mode="after")
    def _arrays(self) -> Submission:
        if not self.arrays.keys() <= set(range(len(self.specs))):
            raise ValueError(f"arrays: of {len(self.specs)} specs the places are 0 to {len(self.specs) - 1}")
        limited = [place for place, spec in enumerate(self.specs) if spec.array_limit is not None]
        if not set(limited) <= self.arrays.keys():
            raise ValueError(f"specs.{min(set(limited) - self.arrays.keys())}.array_limit: it is no array")
        for place, indices in self.arrays.items():
            if len(set(indices)) < len(indices):
                raise ValueError(f"arrays: {place}: an index stands there twice")
        if len(self.specs) + sum(len(members) - 1 for members in self.arrays.values()) > MOST_JOBS:
            raise ValueError(f"more than {MOST_JOBS:,} jobs; submit them in parts")
        lists = [of if isinstance(of, list) else chain(*of.values()) for of in self.waits_for.values()]
        if sum(1 for _ in chain(*lists)) > MOST_WAITS:
            raise ValueError(f"waits_for: more than {MOST_WAITS:,} in all; submit the jobs in parts")
        return self


class SubmittedJobs(BaseModel):
    """The numbers of all jobs, in the order of their specs, and those of the arrays.

    ``remarks``: what will probably not go as its owner wants, a sentence each.
    """

    ids: list[int]
    arrays: list[int]
    remarks: list[str]


class Forecast(BaseModel):
    """The prospects of the first jobs of a submission, and remarks on them."""

    jobs: list[Prospect]
    remarks: list[str]


class Output(Response):
    """The output of a job: any bytes."""

    media_type = "application/octet-stream"


class JobEnds:
    """The signal to requests that wait for the end of a job.

    Args:
        on_signal: called at each signal.

    Attributes:
        over: the coordinator ends; requests must not wait any more.
    """

    def __init__(self, on_signal: Callable[[], None] = lambda: None) -> None:
        self._waiting: dict[asyncio.Event, Callable[[], bool]] = {}
        self._on_signal = on_signal
        self.over = False

    def tell(self) -> None:
        for event, enough in self._waiting.items():
            if self.over or enough():
                event.set()
        self._on_signal()

    def end(self) -> None:
        self.over = True
        self.tell()

    async def wait(self, timeout_s: float, enough: Callable[[], bool]) -> None:
        """Wait until a signal finds it enough, which is asked without waking whoever waits."""
        if self.over or enough():
            return
        event = asyncio.Event()
        self._waiting[event] = enough
        try:
            async with asyncio.timeout(timeout_s):
                await event.wait()
        except TimeoutError:
            pass
        finally:
            del self._waiting[event]


class EarlierStarts:
    """The one place where is asked what would start a job sooner; an answer is given again for a while."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._lock = asyncio.Lock()
        self._kept: dict[int, tuple[float, list[dict[str, Any]]]] = {}

    async def of(self, job_id: int) -> list[dict[str, Any]]:
        """Return the changes that would let a waiting job start sooner."""
        async with self._lock:
            situation = question(self._coordinator, job_id)
            if situation is None:
                return []
            until_s, rows = self._kept.get(job_id, (0.0, []))
            began_s = time.monotonic()
            if began_s >= until_s:
                starts = await asyncio.to_thread(earlier_starts, situation)
                rows = [start._asdict() for start in starts]
                took_s = time.monotonic() - began_s
                if len(self._kept) >= SOONER_KEPT:
                    self._kept.clear()
                self._kept[job_id] = time.monotonic() + min(SOONER_PAUSE * took_s, SOONER_LONGEST_S), rows
            return [start for start in rows if start["expected_start_s"] < situation.expected_start_s]


class Api(FastAPI):
    """The application, whose description says what each field of a job is for."""

    def openapi(self) -> dict[str, Any]:
        schema = super().openapi()
        properties = schema["components"]["schemas"]["JobSpec"]["properties"]
        for field, text in descriptions():
            properties[field]["description"] = text
        return schema


def make_api(
    coordinator: Coordinator, news: JobEnds, stop: Callable[[], None], url: str | None = None
) -> FastAPI:
    """Make the application over one coordinator; ``stop`` ends its server, which is also at ``url``."""
    from importlib.metadata import version

    api = Api(title="tenbin", version=version("tenbin"), description=__doc__ or "", responses=bodies.OF_ALL)
    api.add_middleware(bodies.BodyLimit)
    api.add_exception_handler(RequestValidationError, bodies.refuse_invalid)
    api.add_exception_handler(UserError, bodies.refuse)
    _changes(api, coordinator, news)
    add_lists(api, coordinator)
    _questions(api, coordinator, news)
    add_history(api, coordinator)

    @api.get("/status")
    async def status() -> dict[str, Any]:
        return {**summary(coordinator), "url": url}

    @api.get("/nodes")
    async def nodes() -> list[dict[str, Any]]:
        return node_table(coordinator)

    @api.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        return Response(prometheus(coordinator), media_type="text/plain; version=0.0.4")

    @api.post("/down", responses=bodies.OF_VALUES)
    async def down(let_go: bool = False) -> dict[str, int]:
        guests = coordinator.let_external_jobs_go(let_go)
        asyncio.get_running_loop().call_soon(stop)
        return {"pid": os.getpid(), "guests": guests}

    return api


def _on_sizes(pool: Pool, specs: Sequence[JobSpec]) -> list[str]:
    """Say of which jobs with a range of sizes nobody chooses the size, each range once."""
    return list(dict.fromkeys(filter(None, (why_fewest(spec, pool) for spec in specs))))


def _changes(api: FastAPI, coordinator: Coordinator, news: JobEnds) -> None:
    """Add the routes that change jobs."""

    def change(what: Callable[..., Any], *arguments: Any) -> Any:
        result = what(*arguments)
        news.tell()
        return result

    Given = tuple[list[JobSpec], dict[str, str], WaitsByPlace, dict[int, Indices]]

    async def checked(submission: Submission) -> tuple[Given, list[str]]:
        """Check what needs no state; return what the coordinator takes, and remarks on it."""
        checks = coordinator.engine.checks
        check = partial(check_commands, script=submission.script is not None)
        await asyncio.to_thread(check, submission.specs, submission.environment)
        specs = submission.specs
        if submission.script is not None:
            specs = await asyncio.to_thread(_with_script, coordinator, specs, submission.script)
        await asyncio.to_thread(checks.prepare, specs)
        given = specs, submission.environment, submission.waits_for, submission.arrays
        await asyncio.to_thread(check_paths, checks.check_paths, *given[:3])
        path = specs[0].env.get("PATH") or submission.environment.get("PATH")
        faults = [] if submission.script is None else checks.remarks(submission.script, path)
        on_sizes = _on_sizes(coordinator.cluster.cluster.pools[0], specs)
        return given, [f"{submission.specs[0].command[0]}, {fault}" for fault in faults] + on_sizes

    @api.post("/jobs", responses=bodies.OF_SUBMISSIONS)
    async def submit(submission: Submission) -> SubmittedJobs:
        given, remarks = await checked(submission)
        entries: list[Entry] = change(coordinator.submit, *given)
        arrays = list(dict.fromkeys(entry.array for entry in entries if entry.array is not None))
        return SubmittedJobs(ids=[entry.id for entry in entries], arrays=arrays, remarks=remarks)

    @api.post("/forecast", responses=bodies.OF_SUBMISSIONS)
    async def forecast(submission: Submission) -> Forecast:
        """Check jobs as if they were submitted, and say of the first ones when they would start."""
        (specs, _, waits_for, arrays), remarks = await checked(submission)
        query = rehearsal(coordinator, specs, waits_for, arrays)
        return Forecast(jobs=await asyncio.to_thread(prospects, query), remarks=remarks)

    def of_jobs(verb: Callable[..., dict[int, LeftOut]]) -> Callable[[bodies.Change], Any]:
        async def call(which: bodies.Change) -> bodies.Changed:
            return changed(which, change(verb, which.ids, which.where_possible))

        return call

    def of_queue(verb: Callable[..., dict[int, LeftOut]]) -> Callable[[bodies.QueueChange], Any]:
        async def call(which: bodies.QueueChange) -> bodies.Changed:
            if which.queue:
                change(coordinator.suspend_queue, verb == coordinator.suspend)
            return changed(which, change(verb, which.ids, which.where_possible))

        return call

    calls = [(coordinator.cancel, of_jobs), (coordinator.suspend, of_queue), (coordinator.resume, of_queue)]
    for verb, of in calls:
        name, said = verb.__name__, verb.__doc__
        api.post(f"/{name}", name=name, description=said, responses=bodies.OF_CHANGES)(of(verb))

    @api.post("/retry", responses=bodies.OF_CHANGES)
    async def retry(which: bodies.Change) -> bodies.Changed:
        """Run jobs that did not succeed again, under the same number; of an array those of its members.

        Jobs that were cancelled because one of these failed run again only if they are named too.
        """
        entries, left_out = change(coordinator.retry, which.ids, which.where_possible)
        return answer_of([entry.id for entry in entries], left_out)

    @api.post("/hold", responses=bodies.OF_VALUES)
    async def hold(seconds: Annotated[float, Query(ge=0, le=LONGEST_HOLD_S)]) -> dict[str, str]:
        """Start no job on this machine for so long, as for a check of it; 0: go on."""
        return {"reason": change(coordinator.hold, seconds)}

    @api.post("/migrate", responses=bodies.OF_CHANGES)
    async def migrate(move: bodies.Move) -> bodies.Changed:
        return changed(move, change(coordinator.migrate, move.ids, move.to, move.where_possible))

    @api.post("/priority", responses=bodies.OF_CHANGES)
    async def priority(new: bodies.NewPriority) -> bodies.Reprioritized:
        """Change the priority of jobs that wait, run or are held, as if submitted so."""
        given = new.ids, new.priority, new.where_possible
        before, left_out = change(coordinator.set_priority, *given)
        return bodies.Reprioritized(**dict(changed(new, left_out)), before=before)

    @api.post("/update", responses=bodies.OF_CHANGES)
    async def update(new: bodies.Update) -> bodies.Changed:
        """Change the limit of run time, or the priority, of jobs that wait, run or are held."""
        unlimited = new.time_s is None and "time_s" in new.model_fields_set
        what = Update(math.inf if unlimited else new.time_s, new.more_s, new.priority)
        return changed(new, change(coordinator.update, new.ids, what, new.where_possible))


def _with_script(coordinator: Coordinator, specs: list[JobSpec], script: bytes) -> list[JobSpec]:
    """Keep a script, and name its place in the commands of the jobs that run it."""
    if not script.startswith(b"#!"):
        raise HTTPException(
            422, "script: the first line does not begin with #!; write for instance #!/bin/sh"
        )
    names = [Path(spec.command[0]).name for spec in specs]
    for place, name in enumerate(names):
        if name in ("", ".."):
            raise HTTPException(422, f"specs.{place}.command: the script has no name; name a file first")
    try:
        paths = [coordinator.folders.keep_script(name, script) for name in names]
    except (OSError, ValueError) as error:
        raise HTTPException(507, f"script: it cannot be kept: {error}") from error
    return [
        spec.model_copy(update={"command": (str(path), *spec.command[1:])})
        for path, spec in zip(paths, specs, strict=True)
    ]


def changed(which: bodies.Change, left_out: Mapping[int, LeftOut]) -> bodies.Changed:
    """Make the answer to a change."""
    ids = dict.fromkeys((*which.ids, *which.where_possible))
    return answer_of([job_id for job_id in ids if job_id not in left_out], left_out)


def answer_of(ids: list[int], left_out: Mapping[int, LeftOut]) -> bodies.Changed:
    """Make the answer to a change of these jobs."""
    reasons: dict[str, list[str]] = {}
    for omitted in left_out.values():
        reasons.setdefault(omitted.reason, []).append(omitted.label)
    sentences = {job_id: omitted.sentence for job_id, omitted in left_out.items()}
    return bodies.Changed(ids=ids, left_out=sentences, reasons=reasons)


def _questions(api: FastAPI, coordinator: Coordinator, news: JobEnds) -> None:
    """Add the routes that read jobs."""
    earlier = EarlierStarts(coordinator)

    @api.post("/select", responses=bodies.OF_BODIES)
    async def select(which: bodies.Selectors) -> dict[str, list[Any]]:
        """Find the jobs that words mean.

        ``named``: by a number, an index or ``last``. ``among``: by a range or ``all``; changes leave out
        those that have ended. ``notes``: sentences for the user.
        """
        return asdict(selected(coordinator.job_table, which.words, members=which.members))

    @api.get("/jobs/{job_id}", responses=bodies.OF_JOBS)
    async def job(
        job_id: int,
        wait_s: Annotated[float, Query(ge=0, le=bodies.LONGEST_WAIT_S)] = 0.0,
        sooner: bool = False,
    ) -> dict[str, Any]:
        """Describe a job; of an array: how many of its members are in each stage.

        ``sooner``: also what would start it sooner, if it waits; this takes up to half a second.
        """
        await ends(coordinator, news, [job_id], wait_s=wait_s)
        if job_id in coordinator.job_table.arrays:
            return array_summary(coordinator, job_id)
        starts = {"sooner": await earlier.of(job_id)} if sooner else {}
        return {**describe(coordinator, job_id), **starts}

    @api.get("/jobs/{job_id}/samples", responses=bodies.OF_JOBS)
    async def samples(job_id: int) -> list[dict[str, Any]]:
        entry = known(coordinator, job_id)
        return [sample._asdict() for sample in coordinator.folders.samples(entry.id, entry.attempt)]

    @api.get("/jobs/{job_id}/{stream}", response_class=Output, responses=bodies.OF_JOBS)
    async def output(
        job_id: int,
        stream: Literal["stdout", "stderr"],
        start: Annotated[int, Query(ge=0, le=bodies.LARGEST)] = 0,
        last: Annotated[int | None, Query(ge=1, le=PIECE)] = None,
    ) -> Response:
        """Its output, from a byte on, or only its last bytes; at most 4 MiB at once."""
        path = coordinator.folders.output(known(coordinator, job_id), stream)
        try:
            content = await asyncio.to_thread(coordinator.folders.piece, path, start, last)
        except OSError as error:
            raise HTTPException(422, f"{stream} of job {job_id}: {path}: {error.strerror}") from error
        return Output(content)

    @api.post(
        "/wait",
        description="Those that have ended, as soon as one has, or all have.",
        responses=bodies.OF_JOBS | bodies.OF_BODIES,
    )
    async def wait(which: bodies.Wait) -> list[dict[str, Any]]:
        ended = await ends(coordinator, news, which.ids, wait_s=which.wait_s, all=which.all)
        arrays = coordinator.job_table.arrays
        return [
            array_summary(coordinator, job_id)
            if job_id in arrays
            else brief(coordinator, known(coordinator, job_id))
            for job_id in ended
        ]


async def ends(
    coordinator: Coordinator, news: JobEnds, job_ids: list[int], *, wait_s: float, all: bool = False
) -> list[int]:
    """Wait until one of the jobs has ended, or all have; return those that have ended."""
    settled, waiting = coordinator.job_table.settled, job_ids.copy()

    def enough() -> bool:
        while all and waiting and settled(waiting[-1]):
            waiting.pop()  # at each signal only one is looked at, however many there are
        return not waiting or (not all and any(map(settled, waiting)))

    await news.wait(wait_s, enough)
    return [job_id for job_id in job_ids if settled(job_id)]
