"""Generations of a checkpoint: an old copy of a job cannot replace the checkpoint of a newer attempt.

A node may be cut off while a job writes a checkpoint, and the job starts again on another node. The old
copy may finish its write later. Therefore each attempt to run a job has its own file name, which ends in
the number of the attempt (its generation):

    checkpoint.tenbin.g3      in the job's own folder
    data.7-1795329565.g3      elsewhere; the job is named too, because other jobs may find the file later
    data                      of a program outside tenbin

An attempt takes up the checkpoint of the highest generation up to its own. It removes the others when its
own checkpoint is on the disk. Before that, it reads the file ``generation`` in the job's folder: the number
of the attempt that counts, written before each attempt from the second one on. A copy that was stopped
after this check, or whose rename arrives late, still changes only its own file.

Files of different jobs, or of no job, have no order but their times. The newest of them is taken up if the
job has no checkpoint of its own, so that a program can go on where another job ended.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tenbin.checkpoint.file import CheckpointError, Part, Transfer, aside_name, read, write

FILE = "generation"
Content = TypeVar("Content")


class Superseded(CheckpointError):
    """A later attempt to run this job has begun, so that this attempt must not write any more."""


class _Found(NamedTuple):
    """A file of this checkpoint: key of its job (None: of no job), and if the file is still being written."""

    path: Path
    key: str | None
    generation: int
    aside: bool


@dataclass(frozen=True)
class Generations:
    """The files of one checkpoint.

    Attributes:
        path: name of the files, without the generation.
        generation: attempt of this process; None: the process belongs to no job.
        folder: folder of the job; None: the process belongs to no job.
        key: name of the job in its files; empty in the job's own folder.
    """

    path: Path
    generation: int | None = None
    folder: Path | None = None
    key: str = ""

    @classmethod
    def here(cls, path: Path, variables: Mapping[str, str] = os.environ) -> Generations:
        """Take generation, folder and key from the environment, where tenbin has set them."""
        told = variables.get("TENBIN_GENERATION")
        if told is None:
            return cls(path)
        if not told.isdecimal():
            raise CheckpointError(f"TENBIN_GENERATION={told!r} is no number; leave it as tenbin sets it")
        home = variables.get("TENBIN_JOB_FOLDER")
        folder = None if home is None else Path(home)
        own = folder is not None and path.parent.resolve() == folder.resolve()
        return cls(path, int(told), folder, "" if own else variables.get("TENBIN_JOB_KEY", ""))

    @property
    def file(self) -> Path:
        """Return the path to which this process writes."""
        return self.path if self.generation is None else self._of(self.generation)

    def save(
        self, program: str, state: dict[str, Any], parts: Sequence[Part], fill: Sequence[Transfer]
    ) -> None:
        """Write this process's checkpoint, then remove those of lower generations."""
        self.check()
        try:
            write(self.file, program, state, parts, fill=fill, last_look=self.check)
        except FileNotFoundError:
            self.check()  # a later attempt has removed the file
            raise
        self._remove(lambda found: self._mine(found) and found.generation < (self.generation or 0))

    def take_up(self, look: Callable[[Path], Content]) -> tuple[Path, Content] | None:
        """Find the checkpoint to go on from, and apply ``look`` to it; None: there is no checkpoint.

        The checkpoint gets this process's name too, so that no old copy can replace or remove it. A
        checkpoint of another job, or of no job, is renamed.
        """
        self.check()
        # Unfinished files of killed attempts take room.
        self._remove(lambda found: found.aside and not self._later(found))
        while (source := self.newest()) is not None:
            with suppress(FileNotFoundError):  # an old copy has just replaced it by a later one
                look(source)  # an error message names the file as found
                path = self._adopt(source)
                return path, look(path)
        return None

    def read(self, path: Path, parts: Sequence[Part], take: Sequence[Transfer]) -> None:
        """Read the data of the checkpoint that was taken up."""
        try:
            read(path, parts, take)
        except FileNotFoundError:
            self.check()  # who runs the job now has a newer one already
            raise

    def clear(self) -> None:
        """Remove all checkpoints of this job, because its program has ended."""
        self.check()
        self.file.with_name(aside_name(self.file)).unlink(missing_ok=True)
        self._remove(lambda found: not self._later(found))
        self.file.unlink(missing_ok=True)

    def check(self) -> None:
        """See that this process may still write.

        Raises:
            CheckpointError: a later attempt has begun (``Superseded``), or the file does not say.
            OSError: it cannot be seen now.
        """
        if self.generation is None or self.folder is None:
            return
        try:
            newest = int((self.folder / FILE).read_text())
        except FileNotFoundError:
            return
        except ValueError:
            raise CheckpointError(f"{self.folder / FILE} is no number; remove it") from None
        if newest > self.generation:
            raise Superseded(
                f"attempt {newest} of this job has begun; this is attempt {self.generation}, "
                "of which nothing counts any more: nothing was written"
            )

    def newest(self) -> Path | None:
        """Find the checkpoint to take up; None: there is none. If it is gone when it is opened, ask again.

        Generations are tried upwards: an old copy that writes just now removes the lower one when the higher
        is there, and one of the two is seen.
        """
        if self.generation is None and self.path.exists():
            return self.path
        own = [self._of(g) for g in range(1, (self.generation or 0) + 1) if self._of(g).exists()]
        if own:
            return own[-1]
        times = []
        for other in self._found():
            with suppress(FileNotFoundError):
                if not other.aside and not self._mine(other):
                    times.append((other.path.stat().st_mtime_ns, other.path))
        return max(times, default=(0, None))[1]

    def _of(self, generation: int) -> Path:
        key = f".{self.key}" if self.key else ""
        return self.path.with_name(f"{self.path.name}{key}.g{generation}")

    def _adopt(self, source: Path) -> Path:
        """Give the checkpoint this process's name, if the file system has hard links; return its path."""
        if source == self.file:
            return source
        try:
            os.link(source, self.file)
        except FileNotFoundError:
            raise
        except OSError:
            return source
        self._remove(lambda found: found.path == source and not self._mine(found))
        return self.file

    def _mine(self, found: _Found) -> bool:
        return found.key == (None if self.generation is None else self.key)

    def _later(self, found: _Found) -> bool:
        """Return True for files of this attempt, or of later attempts."""
        return self._mine(found) and found.generation >= (self.generation or 0)

    def _remove(self, which: Callable[[_Found], bool]) -> None:
        """Remove files; those that cannot be removed stay."""
        for found in self._found():
            if which(found):
                with suppress(OSError):
                    found.path.unlink()

    def _found(self) -> Iterator[_Found]:
        """List the files under this name, of all jobs and generations."""
        name = re.compile(re.escape(self.path.name) + r"(?:(?:\.([\w-]+))?\.g(\d+))?")
        with suppress(FileNotFoundError):
            for entry in os.listdir(self.path.parent):  # noqa: PTH208
                aside = entry.startswith(".") and entry.endswith(".part")
                match = name.fullmatch(entry[1 : -len(".part")] if aside else entry)
                if match:
                    key = None if match[2] is None else match[1] or ""
                    yield _Found(self.path.with_name(entry), key, int(match[2] or 0), aside)
