"""The journal held against the jobs' folders; and a new journal, of what can be read of both.

Whatever an engine places is in the journal before. So a folder of which the journal knows nothing tells of a
journal that was lost, in part or whole. A folder has its job's row, as it was when the attempt was placed.

A recovery may be killed anywhere, and begun again. The old journal is copied before anything else, and is not
touched until the new one lies whole beside it, in a folder that gets its name last. From then on no journal
is opened there until a recovery has put that one in its place.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from agent.attempts.folder import Attempt
from profiles.errors import BadInput, UserError
from profiles.files.safe_files import sync, write_whole
from scheduler.coordinator.journal import journal_file
from scheduler.coordinator.journal.journal import LAYOUT, Journal
from scheduler.coordinator.journal.journal_file import TALLY, read_tally
from scheduler.engines.common.job_folders import PackedJobs, attempts_on_disk, folders_on_disk
from scheduler.jobs.entry import Entry, Stage
from scheduler.jobs.rows import COLUMNS, Damaged, entry_of
from scheduler.jobs.specs import JobSpec
from scheduler.model.jobs import Region
from scheduler.prediction.predictions import TrackedPrediction

REMEDY = "take these jobs into the journal: tenbin up --recover"
UNKNOWN = "its folder does not tell what it was"
OUTCOME = "outcome"  # beside the new journal: what was done, as a sentence
HEADER_BYTES = 100  # of a file of SQLite, see www.sqlite.org/fileformat.html
LOG_HEADER_BYTES, FRAME_HEADER_BYTES = 32, 24  # of its log, and of each page in it
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
    folders, known = folders_on_disk(journal.store), journal.ids()
    packed = PackedJobs(journal.store).numbers()  # of jobs that have ended
    lost = {number for number, folder in folders.items() if number not in known and attempts_on_disk(folder)}
    lost |= packed - known
    for number, attempt in journal.open_attempts().items():  # of one that has ended none can be missing
        folder = folders.get(number)
        if number in packed or (folder is not None and (folder / f"attempt-{attempt + 1}").exists()):
            lost.add(number)
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
    timers: list[tuple[float, object]] = field(default_factory=list)
    regions: dict[str, list[Region]] = field(default_factory=dict)
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
    replacement = store / journal_file.REPLACEMENT
    if not replacement.exists():
        with suppress(Damaged), closing(Journal(store)) as journal:
            journal.open_jobs()  # all of them are readable
            if not unknown(journal):
                return f"{store}: the journal is whole; there is nothing to recover"
    lock = journal_file.hold(store)
    try:
        if not replacement.exists():
            _make(store, journal_file.set_aside(store, _free_name(store)))
        return _replace(store)
    except OSError as error:
        raise BadInput(f"{store}: {error.strerror or error}", "free some space there, then again") from error
    finally:
        os.close(lock)


def _free_name(store: Path) -> str:
    name = time.strftime("journal-%Y%m%d-%H%M%S")
    while (store / name).exists():
        name += "x"
    return name


# -- of the old journal -------------------------------------------------------------------------------------


def _read(folder: Path, empty: Path) -> Found:
    """Read all that is readable of the journal in a folder.

    Args:
        empty: the folder of a new journal.
    """
    readable = Found()
    with suppress(BadInput):
        tally = read_tally(folder)
        if tally is not None:
            readable.jobs, readable.last = tally.jobs, tally.last
    tables: dict[str, dict[int, Any]] = {table: {} for table in ("jobs", *journal_file.BROKEN)}
    for path in _readings(folder, empty):
        with suppress(*journal_file.UNREADABLE), closing(journal_file.read_only(path)) as db:
            journal_file.functions(db)
            for table, before in tables.items():
                tables[table] = _rows(db, table) | before
    rows_of = {table: [whole[place] for place in sorted(whole)] for table, whole in tables.items()}
    entries = _those_that_fit(lambda row: entry_of(row[: len(COLUMNS)]), rows_of["jobs"])
    readable.entries = {entry.id: entry for entry in entries}
    readable.environments = _those_that_fit(lambda row: dict(json.loads(row[0])), rows_of["environments"])
    readable.events = rows_of["events"]
    readable.predictions = _those_that_fit(journal_file.prediction_of, rows_of["forecasts"])
    readable.timers = _those_that_fit(
        lambda row: (row[0], journal_file.thaw(json.loads(row[1]))), rows_of["timers"]
    )
    for pool, *region in rows_of["regions"]:
        readable.regions.setdefault(pool, []).append(Region(*region))
    return readable


def _readings(folder: Path, empty: Path) -> Iterator[Path]:
    """Yield files to read the journal of a folder from, that with the most first.

    SQLite reads nothing under a damaged header, and drops all that its log has from a damaged place on. So
    the pages of both are put together here, under the header of an empty journal: checksums say which rows
    are whole. Last, the empty journal's first page says where each table begins.
    """
    head = (empty / journal_file.FILE).read_bytes()
    size = int.from_bytes(head[16:18])
    pages = _pages(folder, size)
    for kept in (HEADER_BYTES, size):
        pages[:kept] = head[:kept]
        pages[18:20] = b"\1\1"  # no log
        pages[28:32] = (len(pages) // size).to_bytes(4)
        reading = empty / "reading"
        reading.write_bytes(pages)
        yield reading
        reading.unlink()
        if kept == HEADER_BYTES:
            yield folder / journal_file.FILE


def _pages(folder: Path, size: int) -> bytearray:
    """Return the pages of a journal, those of its log up to its last commit in the place of older ones."""
    path = folder / journal_file.FILE
    pages, log = (
        bytearray(file.read_bytes()) if file.exists() else bytearray()
        for file in (path, path.with_name(f"{path.name}-wal"))
    )
    starts = range(LOG_HEADER_BYTES, len(log) - size - FRAME_HEADER_BYTES + 1, size + FRAME_HEADER_BYTES)
    # Frames that an earlier log has left behind have another salt; this log's header has its own, too.
    salts = log[16:24], log[LOG_HEADER_BYTES + 8 : LOG_HEADER_BYTES + 16]
    commits = [at for at in starts if log[at + 8 : at + 16] in salts and any(log[at + 4 : at + 8])]
    for at in starts[: starts.index(commits[-1]) + 1] if commits else ():
        begin = (int.from_bytes(log[at : at + 4]) - 1) * size
        if 0 <= begin <= len(pages) + len(log):
            pages.extend(bytes(max(0, begin + size - len(pages))))
            pages[begin : begin + size] = log[at + FRAME_HEADER_BYTES :][:size]
    return pages


def _rows(db: sqlite3.Connection, table: str) -> dict[int, Any]:
    """Those of a table's rows that are whole, by their place: from both ends, up to what cannot be read."""
    rows_by_place: dict[int, Any] = {}
    with suppress(*journal_file.UNREADABLE):
        if table == "jobs":
            broken, columns = "false", ", ".join(journal_file.columns_of(db, LAYOUT, older=True))
        else:
            broken, columns = (
                journal_file.broken(db, table),
                ", ".join(journal_file.SUMMED.get(table, ("variables",))),
            )
        query = f"SELECT rowid, {broken}, {columns} FROM {table} ORDER BY rowid"
        for order in ("ASC", "DESC"):
            with suppress(*journal_file.UNREADABLE):
                for place, is_broken, *row in db.execute(f"{query} {order}"):
                    if place in rows_by_place:
                        break
                    whole = not is_broken and (table != "jobs" or journal_file.sound(row, LAYOUT))
                    rows_by_place[place] = row if whole else None
    return {place: row for place, row in rows_by_place.items() if row is not None}


def _those_that_fit(make: Callable[[Any], T], rows: Iterable[Sequence[Any]]) -> list[T]:
    made = []
    for row in rows:
        with suppress(BadInput, ValueError, TypeError):
            made.append(make(row))
    return made


# -- of the jobs' folders -----------------------------------------------------------------------------------


def _look_into_folders(store: Path, readable: Found) -> None:
    """Add what the folders tell: jobs and attempts that the journal does not know, and environments.

    Of jobs whose folders are packed, their last row is known. Another one is held until it is known what
    became of it: its owner says whether it is to begin anew.
    """
    for row in PackedJobs(store).rows().values():
        values = json.loads(row)
        known = readable.entries.get(values["id"])
        if known is None or not known.stage.final:
            readable.entries[values["id"]] = entry_of([values.get(name) for name in COLUMNS])
    keys = {journal_file.key_of(json.dumps(variables, sort_keys=True)) for variables in readable.environments}
    for number, folder in sorted(folders_on_disk(store).items()):
        entry, attempts = readable.entries.get(number), attempts_on_disk(folder)
        is_known = entry is not None and (
            entry.stage.final or (entry.environment in keys and entry.attempt >= max(attempts, default=0))
        )
        if attempts and not is_known:
            made, environment = _from_folder(number, folder, max(attempts))
            if entry is not None and entry.attempt >= max(attempts):
                made = entry  # only its environment is taken from there
            readable.entries[number], readable.sources[number] = made, environment
    taken: set[tuple[str, int]] = set()
    for entry in readable.entries.values():
        if not entry.stage.final and entry.environment not in keys and entry.id not in readable.sources:
            entry.stage, entry.held_by_user = Stage.HELD, True
            readable.sources[entry.id] = {}
        if entry.stage.placed:
            place = {("core", core) for core in entry.cores} | {
                ("device", device) for device in entry.devices
            }
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


def _make(store: Path, old: Path) -> None:
    """Make the new journal, whole, beside the old one, of which ``old`` is a copy."""
    beside = store / f".{journal_file.REPLACEMENT}"
    shutil.rmtree(beside, ignore_errors=True)
    with closing(Journal(beside)) as journal:
        readable = _read(old, beside)
        _look_into_folders(store, readable)
        for variables in readable.environments:
            journal.keep_environment(variables)
        for number, environment in readable.sources.items():
            readable.entries[number].environment = journal.keep_environment(environment)
        now = time.time()
        whence = {True: "from its folder", False: "without its environment"}
        history = [(now, number, "recovered", whence[bool(env)]) for number, env in readable.sources.items()]
        entries = [readable.entries[number] for number in sorted(readable.entries)]
        journal.reserve(readable.last)
        events = [*readable.events, *history]
        journal.commit(
            (), events, entries, readable.timers, regions=readable.regions, predictions=readable.predictions
        )
    write_whole(beside / OUTCOME, _told(store, readable, old))
    beside.rename(store / journal_file.REPLACEMENT)
    sync(store)


def _replace(store: Path) -> str:
    """Put the new journal in the place of the old one; return what was done."""
    made = store / journal_file.REPLACEMENT
    if (made / journal_file.FILE).exists():
        for name in ("-wal", "-shm"):
            (store / f"{journal_file.FILE}{name}").unlink(missing_ok=True)
        sync(store)  # with the old log the new file would be another
        if (made / TALLY).exists():
            (made / TALLY).replace(store / TALLY)
        (made / journal_file.FILE).replace(store / journal_file.FILE)
        sync(store)
    done = (made / OUTCOME).read_text()
    gone = made.rename(store / f".{made.name}")
    sync(store)
    shutil.rmtree(gone)
    return done


def _told(store: Path, readable: Found, aside: Path) -> str:
    kept = len(readable.entries) - len(readable.sources)
    from_folders = [readable.entries[number] for number in sorted(readable.sources)]
    held = [
        entry.id for entry in from_folders if entry.held_by_user and not _result_file(store, entry).exists()
    ]
    others = f"{len(from_folders)} are as their folders tell"
    words = [f"the journal is made anew: {kept} of its jobs could be read, {others}"]
    if readable.jobs > len(readable.entries):
        known = readable.entries.keys() | {entry.array for entry in readable.entries.values()}
        numbers = [number for number in range(1, readable.last + 1) if number not in known]
        words.append(f"lost, because no folder tells of them: {spans(numbers)}")
    if held:
        words.append(f"nobody knows how far {spans(held)} came: held, until you say tenbin resume, or cancel")
    return "; ".join([*words, f"the old journal is in {aside}"])


def _result_file(store: Path, entry: Entry) -> Path:
    return store / "jobs" / str(entry.id) / f"attempt-{entry.attempt}" / "result.json"


def spans(numbers: Sequence[int]) -> str:
    """Numbers of jobs as people write them: jobs 1-3, 7."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1][1:] = [number]
        else:
            ranges.append([number])
    words = ["-".join(map(str, span)) for span in ranges]
    more = f" and {len(words) - 8} more" if len(words) > 8 else ""
    return f"job{'s' if len(numbers) > 1 else ''} {', '.join(words[:8])}{more}"
