"""The files of jobs, the same under each engine that runs real jobs."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Container
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from agent.attempts import phases
from agent.attempts.folder import Attempt
from agent.attempts.records import RunState
from agent.processes.samples import Sample, parse, read
from profiles.files.safe_files import write_whole
from scheduler.engines.common.packed_jobs import PackedJobs
from scheduler.engines.common.supervisor_orders import Files
from scheduler.jobs.entry import Entry
from scheduler.jobs.files.output_patterns import expand

SCRIPTS = "scripts"  # folder of the store
_one_at_a_time = threading.Lock()  # keeps or drops a script


class JobFolders:
    """The files of jobs; job 7 has ``store/jobs/7``, until its files are packed."""

    def __init__(self, store: Path) -> None:
        self.store, self.packed = store, PackedJobs(store)

    def folder(self, job_id: int) -> Path:
        """Return the folder of a job's output and attempts."""
        return self.store / "jobs" / str(job_id)

    def keep_script(self, name: str, content: bytes) -> Path:
        """Keep a script that jobs run, once for each content and name, until ``drop_scripts``.

        Raises:
            OSError: the script cannot be written.
        """
        path = self.store / SCRIPTS / sha256(content).hexdigest()[:32] / name
        with _one_at_a_time:
            if path.exists():
                os.utime(path)
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(path, content, mode=0o700)
        return path

    def drop_scripts(self, but: Container[str], before_s: float) -> None:
        """Remove kept scripts, all names of a content, that were last submitted before a time.

        Args:
            but: names of the folders that stay.
        """
        for folder in (self.store / SCRIPTS).glob("*/"):
            with _one_at_a_time:
                last_s = max((path.lstat().st_mtime for path in folder.iterdir()), default=0.0)
                if folder.name not in but and last_s < before_s:
                    shutil.rmtree(folder)

    def attempt(self, job: Entry) -> Attempt:
        """Return the folder of the current attempt."""
        return self._attempt(job.id, job.attempt)

    def _attempt(self, job_id: int, number: int) -> Attempt:
        return Attempt(self.folder(job_id) / f"attempt-{number}")

    def files(self, job: Entry) -> Files:
        """Name the files of a job for its supervisor."""
        return Files(self.folder(job.id), self.output(job, "stdout"), self.output(job, "stderr"))

    def output(self, job: Entry, stream: Literal["stdout", "stderr"]) -> Path:
        """Name the file with the job's output."""
        named: str = getattr(job.spec, stream)
        return Path(job.spec.folder, expand(named, job)) if named else self.folder(job.id) / stream

    def state(self, job: Entry) -> RunState | None:
        """Return what runs of the current attempt, None before it has started."""
        return self.attempt(job).state()

    def samples(self, job_id: int, attempt: int) -> list[Sample]:
        """Return what an attempt has used over time."""
        path = self._attempt(job_id, attempt).samples
        rows = read(path)
        with suppress(OSError):
            rows = rows or parse(self.packed.content(path) or b"")
        return rows

    def order(self, job_id: int, attempt: int) -> dict[str, Any]:
        """Return the order of an attempt; empty if it cannot be read."""
        path = self._attempt(job_id, attempt).path / "order.json"
        with suppress(OSError, ValueError):
            try:
                content = path.read_bytes()
            except FileNotFoundError:
                content = self.packed.content(path) or b""
            found = json.loads(content)
            return found if isinstance(found, dict) else {}
        return {}

    def phases(self, job: Entry) -> list[phases.Phase]:
        """Return what the job's program has noted of its checkpoints, in all attempts."""
        return phases.read(self.folder(job.id))
