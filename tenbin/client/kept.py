"""Jobs as their coordinator has left them, where none runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from profiles.errors import BadInput
from scheduler.coordinator.journal.journal_file import FILE
from scheduler.coordinator.journal.reader import jobs_named
from scheduler.engines.common.job_folders import JobFolders
from tenbin.client.client import pieces
from tenbin.errors import TenbinError
from tenbin.text import remark

if TYPE_CHECKING:
    from scheduler.jobs.entry import Entry


class KeptJob(NamedTuple):
    """A job of the journal, and the files of jobs."""

    entry: Entry
    folders: JobFolders

    def info(self) -> dict[str, Any]:
        """Give what its label is made of."""
        return {name: getattr(self.entry, name) for name in ("id", "array", "array_index")}

    def output(
        self, stream: Literal["stdout", "stderr"], follow: bool = False, tail: int | None = None
    ) -> Iterator[bytes]:
        """Yield what the job has written so far, in pieces, or its last lines."""
        path = self.folders.output(self.entry, stream)
        try:
            yield from pieces(lambda start: self.folders.piece(path, start), lambda: True, tail=tail)
        except OSError as error:
            raise BadInput(f"{stream} of job {self.entry.id}: {path}: {error.strerror}") from error


class KeptJobs:
    """The jobs that a word means in the folder of a coordinator that does not answer.

    Raises:
        TenbinError: ``silence``, because no journal is there.
        BadInput: there is no such job, or the journal cannot be read.
    """

    def __init__(self, home: Path, word: str, silence: TenbinError) -> None:
        if not (home / FILE).exists():
            raise silence
        folders = JobFolders(home)
        self._jobs = {entry.id: KeptJob(entry, folders) for entry in jobs_named(home, word)}
        if any(not job.entry.stage.final for job in self._jobs.values()):
            remark("no coordinator answers: this is what is written so far")

    @property
    def ids(self) -> list[int]:
        return list(self._jobs)

    def job(self, job_id: int) -> KeptJob:
        return self._jobs[job_id]
