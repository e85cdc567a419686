"""The tally beside the journal: the count of commits and jobs that the journal must hold.

The journal counts its commits in a table; here the count is written again after each commit, before anybody
is told of it. So the journal never holds less, unless it was damaged: after a crash at any instant it holds
as much, or one commit more. The file need not be as durable as the journal: one that is behind is lawful.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from profiles.errors import BadInput
from profiles.files.safe_files import write_whole

FILE = "journal.tally"
WIDTH = 96  # bytes, always the same: it is written over the one before, within a sector


class Tally(NamedTuple):
    """Commits so far, jobs in the journal, and the highest number that a job has had."""

    commits: int = 0
    jobs: int = 0
    last: int = 0


class TallyFile:
    """The tally beside the journal of a store, to write."""

    def __init__(self, store: Path, tally: Tally) -> None:
        """Write the file for the first time, or again.

        Raises:
            BadInput: it cannot be written.
        """
        path = store / FILE
        try:
            if not path.exists():
                write_whole(path, _line(tally), 0o600)
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            self.note(tally)
        except OSError as error:
            raise BadInput(f"{path}: {error.strerror}", "free some space there") from error

    def note(self, tally: Tally) -> None:
        """Write the tally, not yet durably. If that raises OSError, the last tally stays, which is lawful."""
        os.pwrite(self._descriptor, _line(tally), 0)

    def settle(self) -> None:
        """Make the last tally durable."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


def read_tally(store: Path) -> Tally | None:
    """Read the tally of a store, None if it has none.

    Raises:
        BadInput: it is damaged.
    """
    path = store / FILE
    try:
        words = path.read_bytes().split()
        tally = Tally(*map(int, words[:3]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise BadInput(f"{path} cannot be read: {error}") from None
    if words != _line(tally).split():
        raise BadInput(f"{path} is damaged")
    return tally


def _line(tally: Tally) -> bytes:
    text = f"{tally.commits} {tally.jobs} {tally.last}"
    return f"{text} {crc32(text.encode()):08x}".encode().ljust(WIDTH - 1) + b"\n"
