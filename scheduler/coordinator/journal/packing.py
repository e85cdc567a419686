"""Packs the files of jobs that ended long ago, in a thread beside the coordinator, and drops their scripts.

Only of jobs that have succeeded: the others may be run again, in the same folder.
"""

from __future__ import annotations

import json
import logging
import re
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from profiles.errors import BadInput
from scheduler.coordinator.journal.journal import as_it_is
from scheduler.engines.common.job_folders import SCRIPTS, JobFolders, PackedJobs, folders_on_disk
from scheduler.jobs.entry import Stage
from scheduler.jobs.rows import COLUMNS

KEEP = 1000  # folders of jobs that have succeeded
SETTLED_S = 60.0  # so long ago a job has ended whose files nobody writes any more
LOOKS_S = 10.0
AT_ONCE = 50  # jobs in one transaction
SHARE = 0.2  # of the time, after a burst of jobs
SCRIPTS_S = 3600.0  # between two looks at the kept scripts
RECENT_S = 86400.0  # a script that was kept since then may be of a job that is not in the journal yet
KEPT = re.compile(f"/{SCRIPTS}/([0-9a-f]+)/")
log = logging.getLogger("tenbin")


class Packer:
    """Packs the files of the jobs of a store that have succeeded, but for the last ones.

    Args:
        keep: so many of them, those with the highest numbers, keep their folders.
    """

    def __init__(self, store: Path, keep: int) -> None:
        self.store, self.keep = store, keep
        self._packed = PackedJobs(store)
        self._looked_at: set[int] = set()  # whose folders have files of their programs, which stay
        self._scripts_at = 0.0  # by the monotonic clock
        self.over = threading.Event()  # set: no more now

    def pack(self) -> None:
        """Pack what is due.

        Raises:
            OSError, sqlite3.Error: there is no room, for instance.
            BadInput: the journal cannot be read.
        """
        folders = folders_on_disk(self.store).keys() - self._looked_at
        due = self._due(sorted(folders)) if len(folders) > self.keep else []
        rest_s = 0.0
        while due and not self.over.wait(rest_s):
            began, numbers, due = time.monotonic(), due[:AT_ONCE], due[AT_ONCE:]
            self._packed.pack(self._rows(numbers))
            self._looked_at.update(numbers)
            rest_s = (time.monotonic() - began) * (1 / SHARE - 1)
        if time.monotonic() >= self._scripts_at:
            self._scripts_at = time.monotonic() + SCRIPTS_S
            self._drop_scripts()

    def _drop_scripts(self) -> None:
        """Remove the kept scripts that only jobs name whose files are packed."""
        folders = folders_on_disk(self.store).keys() - self._packed.numbers()
        query = (
            "SELECT spec FROM jobs WHERE (stage <> ? OR id IN (SELECT value FROM json_each(?))) "
            f"AND instr(spec, '/{SCRIPTS}/')"
        )
        with as_it_is(self.store) as db:
            specs = db.execute(query, (Stage.DONE, json.dumps(sorted(folders))))
            needed = {name for (spec,) in specs for name in KEPT.findall(spec)}
        JobFolders(self.store).drop_scripts(needed, time.time() - RECENT_S)

    def _due(self, folders: list[int]) -> list[int]:
        query = (
            "SELECT id, end_s FROM jobs WHERE stage = ? "
            "AND id IN (SELECT value FROM json_each(?)) ORDER BY id"
        )
        with as_it_is(self.store) as db:
            ended = db.execute(query, (Stage.DONE, json.dumps(folders))).fetchall()
        before = time.time() - SETTLED_S
        return [number for number, end_s in ended[: max(len(ended) - self.keep, 0)] if (end_s or 0) < before]

    def _rows(self, numbers: list[int]) -> dict[int, str]:
        query = f"SELECT {', '.join(COLUMNS)} FROM jobs WHERE id IN (SELECT value FROM json_each(?))"
        with as_it_is(self.store) as db:
            rows = db.execute(query, (json.dumps(numbers),)).fetchall()
        return {row[0]: json.dumps(dict(zip(COLUMNS, row, strict=True))) for row in rows}


@contextmanager
def packing(store: Path, keep: int) -> Iterator[None]:
    """Pack what becomes due as long as the block lasts."""
    packer = Packer(store, keep)

    def work() -> None:
        trouble = ""
        while not packer.over.wait(LOOKS_S):
            try:
                packer.pack()
            except (OSError, sqlite3.Error, BadInput) as error:
                if str(error) != trouble:
                    log.warning("files of ended jobs are not packed: %s", error)
                trouble = str(error)

    thread = threading.Thread(target=work, name="packing", daemon=True)
    thread.start()
    try:
        yield
    finally:
        packer.over.set()
        thread.join()
