"""Store of checks: one line of JSON a check, in the node's folder of the store.

    <root>/<node>/checks.jsonl

A line is appended in one write. A torn last line (a full disk, a lost power) is passed over, and the next
check begins a line of its own.
"""

from __future__ import annotations

import fcntl
import os
from datetime import datetime
from pathlib import Path

from pydantic import ValidationError

from profiles.checks.check import Check
from profiles.errors import BadInput
from profiles.files.own_files import make_folder, open_plain, shared_mode
from profiles.files.store import default_root
from profiles.files.whole_files import read_regular

FILE = "checks.jsonl"
KEEP = 2000  # checks of a node that are read at most, the last ones


class CheckStore:
    """The checks of all nodes under a folder."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or default_root()

    def path(self, node: str) -> Path:
        """Name the file of a node's checks."""
        return self.root / node / FILE

    def append(self, check: Check) -> Path:
        """Append a check, durably.

        Raises:
            BadInput: the store cannot be written.
        """
        path = self.path(check.node)
        try:
            make_folder(path.parent)
            mode = shared_mode(path.parent, 0o644)
            descriptor = open_plain(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, mode)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                size = os.fstat(descriptor).st_size
                torn = size and os.pread(descriptor, 1, size - 1) != b"\n"
                line = check.model_dump_json() + "\n"
                os.write(descriptor, (("\n" if torn else "") + line).encode())
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise BadInput(
                f"store {path}: {error.strerror}", "free space there, or choose --store"
            ) from error
        return path

    def of_node(self, node: str, last: int = KEEP) -> list[Check]:
        """Read the last checks of a node, oldest first, without lines that are torn or of another version.

        Raises:
            BadInput: the file is there and cannot be read.
        """
        path = self.path(node)
        try:
            lines = read_regular(path).decode(errors="replace").splitlines()[-last:]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise BadInput(f"{path}: {error.strerror}", "see who may read it") from error
        checks = []
        for line in filter(str.strip, lines):
            try:
                checks.append(Check.model_validate_json(line))
            except ValidationError:
                continue
        return sorted(checks, key=lambda check: check.created)

    def nodes(self) -> list[str]:
        """Name the nodes that have checks."""
        return sorted(path.parent.name for path in self.root.glob(f"[!.]*/{FILE}"))


def stamp(when: datetime) -> str:
    """Make the id of a check: its time to the microsecond, because quick ones may follow within a second."""
    return when.strftime("%Y%m%dT%H%M%S.%fZ")
