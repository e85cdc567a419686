"""The journal held against the jobs' folders; and a new journal, of what can be read of both.

Whatever an engine places is in the journal before. So a folder of which the journal knows nothing tells of a
journal that was lost, in part or whole. A folder has its job's row, as it was when the attempt was placed.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from agent.attempts.folder import Attempt
from profiles.errors import BadInput, UserError
from profiles.files.whole_files import sync
from scheduler.coordinator.journal import journal_file, rows
from scheduler.coordinator.journal.jobs_on_disk import attempts_of, job_folders
from scheduler.coordinator.journal.journal import LAYOUT, Journal
from scheduler.coordinator.journal.tally import FILE as TALLY
from scheduler.coordinator.journal.tally import read_tally
from scheduler.jobs.entry import Entry, Stage
from scheduler.jobs.rows import CHOICE, COLUMNS, entry_of
from scheduler.jobs.specs import JobSpec
from scheduler.prediction.predictions import TrackedPrediction

REMEDY = "take these jobs into the journal: tenbin up --recover"
PLACED = (Stage.RUNNING, Stage.STOPPING)
UNKNOWN = "its folder does not tell what it was"
T = TypeVar("T")


def check_folders(journal: Journal) -> None:
    """Hold the journal against the jobs' folders.

    Raises:
        BadInput: there are folders of jobs, or of attempts, of which it knows nothing.
    """
    lost = unknown(journal)
    if lost:
        what = f"{journal.store}: of {spans(lost)} there is more in jobs/ than in the journal"
        raise BadInput(what, REMEDY)


def unknown(journal: Journal) -> list[int]:
    """Find the jobs whose folder, or last attempt, the journal does not know."""
    folders, known = job_folders(journal.store), journal.ids()
    lost = [number for number, folder in folders.items() if number not in known and attempts_of(folder)]
    for entry in journal.open_jobs():  # of one that has ended no attempt can be missing
        folder = folders.get(entry.id)
        if folder is not None and (folder / f"attempt-{entry.attempt + 1}").exists():
            lost.append(entry.id)
    return sorted(lost)


@dataclass
class Found:
    """The readable part of a journal.

    Attributes:
        sources: of the jobs that their folders tell of, the environment of each.
    """

    entries: dict[int, Entry] = field(default_factory=dict)
    environments: list[dict[str, str]] = field(default_factory=list)
    events: list[tuple[float, int, str, str]] = field(default_factory=list)
    predictions: list[TrackedPrediction] = field(default_factory=list)
    jobs: int = 0
    last: int = 0
    sources: dict[int, dict[str, str]] = field(default_factory=dict)


def recover(store: Path) -> str:
    """Make a new journal of what can be read of the old one and of the jobs' folders; say what was done.

    The old one is kept in a folder beside it. Of a journal that is whole nothing is changed.

    Raises:
        Busy: a coordinator runs there.
        BadInput: the new one cannot be written.
    """
    try:
        with closing(Journal(store)) as journal:
            if not unknown(journal):
                return f"{store}: the journal is whole; there is nothing to recover"
    except BadInput as error:
        if error.remedy != CHOICE:
            raise
    lock = journal_file.hold(store)
    try:
        aside = _copy(store)
        found = _read(aside)
        _look_into_folders(store, found)
        _write(store, found)
    except OSError as error:
        raise BadInput(f"{store}: {error}", "free some space there, then again") from error
    finally:
        os.close(lock)
    return _told(store, found, aside)


def _copy(store: Path) -> Path:
    """Copy the journal to a folder of its own."""
    aside = store / time.strftime("journal-%Y%m%d-%H%M%S")
    while aside.exists():
        aside = aside.with_name(f"{aside.name}x")
    aside.mkdir(mode=0o700)
    for path in store.glob("journal.*"):
        shutil.copy2(path, aside / path.name)
        sync(aside / path.name)
    sync(aside)
    return aside


# -- of the old journal -------------------------------------------------------------------------------------


def _read(folder: Path) -> Found:
    """Read all that is readable of the journal in a folder."""
    found, path = Found(), folder / journal_file.FILE
    with suppress(BadInput):
        tally = read_tally(folder)
        if tally is not None:
            found.jobs, found.last = tally.jobs, tally.last
    if not path.exists():
        return found
    with suppress(*journal_file.UNREADABLE), closing(journal_file.read_only(path)) as db:
        columns = ", ".join(journal_file.columns_of(db, LAYOUT, older=True))
        whole = [row for row in _rows(db, "jobs", columns) if journal_file.sound(row, LAYOUT)]
        entries = _those_that_fit(lambda row: entry_of(row[: len(COLUMNS)]), whole)
        found.entries = {entry.id: entry for entry in entries}
        journal_file.functions(db)
        kept = _rows(db, "environments", "variables")
        found.environments = _those_that_fit(lambda row: dict(json.loads(row[0])), kept)
        found.events = _rows(db, "events", "at_s, job, kind, detail")
        told = _rows(db, "forecasts", ", ".join(rows.PREDICTION))
        found.predictions = _those_that_fit(rows.from_row, told)
    return found


def _rows(db: sqlite3.Connection, table: str, columns: str) -> list[Any]:
    """Those of a table's rows that can be read: from both ends, up to what cannot be."""
    found: dict[int, Any] = {}
    good = f"NOT ({journal_file.BROKEN[table]})" if table in journal_file.BROKEN else "true"
    for order in ("ASC", "DESC"):
        with suppress(*journal_file.UNREADABLE):
            query = f"SELECT rowid, {good}, {columns} FROM {table} ORDER BY rowid {order}"
            for place, is_good, *row in db.execute(query):
                if place in found:
                    break
                found[place] = row if is_good else None
    return [found[place] for place in sorted(found) if found[place] is not None]


def _those_that_fit(make: Callable[[Any], T], rows: Iterable[Sequence[Any]]) -> list[T]:
    made = []
    for row in rows:
        with suppress(BadInput, ValueError, TypeError):
            made.append(make(row))
    return made


# -- of the jobs' folders -----------------------------------------------------------------------------------


def _look_into_folders(store: Path, found: Found) -> None:
    """Add what the folders tell: jobs and attempts that the journal does not know, and environments.

    Such a job is held until it is known what became of it: its owner says whether it is to begin anew.
    """
    keys = {journal_file.key_of(json.dumps(each, sort_keys=True)) for each in found.environments}
    for number, folder in sorted(job_folders(store).items()):
        entry, attempts = found.entries.get(number), attempts_of(folder)
        known = entry is not None and (
            entry.stage.final or (entry.environment in keys and entry.attempt >= max(attempts, default=0))
        )
        if attempts and not known:
            made, environment = _from_folder(number, folder, max(attempts))
            if entry is not None and entry.attempt >= max(attempts):
                made = entry  # only its environment is taken from there
            found.entries[number], found.sources[number] = made, environment
    taken: set[tuple[str, int]] = set()
    for entry in found.entries.values():
        if not entry.stage.final and entry.environment not in keys and entry.id not in found.sources:
            entry.stage, entry.held_by_user = Stage.HELD, True
            found.sources[entry.id] = {}
        if entry.stage in PLACED:
            place = {("core", core) for core in entry.cores} | {("device", one) for one in entry.devices}
            if place & taken:
                entry.stage, entry.held_by_user = Stage.HELD, True
            taken |= place


def _from_folder(number: int, folder: Path, last: int) -> tuple[Entry, dict[str, str]]:
    """Make a job's entry, and its environment, from its last attempt."""
    attempt = Attempt(folder / f"attempt-{last}")
    try:
        order = json.loads((attempt.path / "order.json").read_bytes())
        environment = {str(name): str(value) for name, value in order["environment"].items()}
        entry = _as_placed(order) or _as_ordered(number, last, order, attempt.path.stat().st_mtime)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, UserError):
        spec = JobSpec(command=("unknown",), folder="/")
        at = folder.stat().st_mtime
        lost = Entry(number, spec, "", at, stage=Stage.FAILED, attempt=last, end_s=at, trouble=UNKNOWN)
        return lost, {}
    entry.id, entry.attempt, entry.alive = number, last, True
    if not _runs(attempt, entry):
        entry.stage, entry.held_by_user = Stage.HELD, True
    return entry, environment


def _runs(attempt: Attempt, entry: Entry) -> bool:
    """Check that the attempt runs where the job's row says; the row then knows the requests since."""
    try:
        state, request = attempt.state(), attempt.request()
        if request is not None:
            entry.request, entry.want = request.number, request.want
        moved = request is not None and (request.reserved or request.cores not in ((), entry.cores))
        runs = attempt.result() is None and state is not None and not state.paused and attempt.lives()
    except (OSError, ValueError, KeyError, TypeError, UserError):
        return False
    return runs and not moved and entry.want != "pause" and entry.placement is not None


def _as_placed(order: dict[str, Any]) -> Entry | None:
    """Read the job's row as journalled when the attempt was placed; None: an older tenbin did that."""
    row = order.get("journalled")
    return entry_of([row.get(name) for name in COLUMNS]) if row else None


def _as_ordered(number: int, last: int, order: dict[str, Any], at: float) -> Entry:
    """Make a job's entry from its order alone."""
    spec = JobSpec(
        command=tuple(order["command"]),
        folder=order["folder"],
        cores=max(1, len(order["cores"])),
        stdout=order["stdout"],
        stderr=order["stderr"],
        time_s=order["time_limit_s"],
        checkpoint_signal=order["checkpoint_signal"],
        checkpoint_code=order["checkpoint_code"],
        grace_s=order["grace_s"],
    )
    submitted = order["environment"].get("TENBIN_JOB_KEY", "").rpartition("-")[2]
    return Entry(number, spec, "", float(submitted) if submitted.isdecimal() else at, start_s=at, since_s=at)


# -- the new one --------------------------------------------------------------------------------------------


def _write(store: Path, found: Found) -> None:
    """Write the new journal beside the old one, then in its place."""
    beside = store / ".journal"
    shutil.rmtree(beside, ignore_errors=True)
    with closing(Journal(beside)) as journal:
        for each in found.environments:
            journal.keep_environment(each)
        for number, environment in found.sources.items():
            found.entries[number].environment = journal.keep_environment(environment)
        now = time.time()
        whence = {True: "from its folder", False: "without its environment"}
        told = [(now, number, "recovered", whence[bool(env)]) for number, env in found.sources.items()]
        entries = [found.entries[number] for number in sorted(found.entries)]
        journal.reserve(found.last)
        journal.commit((), [*found.events, *told], entries, predictions=found.predictions)
    for name in (f"{journal_file.FILE}-wal", f"{journal_file.FILE}-shm"):
        (store / name).unlink(missing_ok=True)
    for name in (TALLY, journal_file.FILE):  # in between it is refused: the journal has less than the tally
        (beside / name).replace(store / name)
    sync(store)
    shutil.rmtree(beside)


def _told(store: Path, found: Found, aside: Path) -> str:
    kept = len(found.entries) - len(found.sources)
    told = [found.entries[number] for number in sorted(found.sources)]
    held = [entry.id for entry in told if entry.held_by_user and not _result_file(store, entry).exists()]
    words = [
        f"the journal is made anew: {kept} of its jobs could be read, {len(told)} are as their folders tell"
    ]
    if found.jobs > len(found.entries):
        known = found.entries.keys() | {entry.array for entry in found.entries.values()}
        numbers = [number for number in range(1, found.last + 1) if number not in known]
        words.append(f"lost, because no folder tells of them: {spans(numbers)}")
    if held:
        words.append(f"nobody knows how far {spans(held)} came: held, until you say tenbin resume, or cancel")
    return "; ".join([*words, f"the old journal is in {aside}"])


def _result_file(store: Path, entry: Entry) -> Path:
    return store / "jobs" / str(entry.id) / f"attempt-{entry.attempt}" / "result.json"


def spans(numbers: Sequence[int]) -> str:
    """Numbers of jobs as people write them: jobs 1-3, 7."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][-1] + 1:
            found[-1][1:] = [number]
        else:
            found.append([number])
    words = ["-".join(map(str, span)) for span in found]
    more = f" and {len(words) - 8} more" if len(words) > 8 else ""
    return f"job{'s' if len(numbers) > 1 else ''} {', '.join(words[:8])}{more}"
