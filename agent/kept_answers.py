"""Answers of drivers, MPI and compiler, kept in the user's cache for a day.

An answer is kept if nothing was amiss, with what it rests on: this process's variables, rights and kernel,
and size and time of each file (libraries, lists of drivers, launchers, headers, devices, tenbin's own code).
If any of it differs now, they are tried anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from profiles import records
from profiles.errors import BadInput
from profiles.files.safe_files import closed_folder, default_storage, open_own, write_whole

LONGEST_S = 86_400.0
OF_SHELLS = {"_", "COLUMNS", "LINES", "OLDPWD", "PWD", "SHLVL", "TERM"}  # they tell nothing of drivers
LINKER = Path("/etc/ld.so.cache")  # the dynamic linker's list of the system's libraries


class Answer(records.InventoryRecord):
    """The answer of what was tried; ``files``: the libraries that it turned out to rest on."""

    opencl: tuple[records.OpenCLDevice, ...] = ()
    gpus: tuple[records.Gpu, ...] = ()
    mpi: records.Mpi | None = None
    missing: tuple[records.Missing, ...] = ()
    files: tuple[str, ...] = ()


@dataclass
class KeptAnswers:
    """The answers of one examination.

    Attributes:
        keeps: keep answers; else everything is tried, and nothing written.
        again: try everything anew.
        kept_s: the instant of the trial of what was not tried anew.
    """

    keeps: bool = False
    again: bool = False
    kept_s: dict[str, float] = field(default_factory=dict)

    def answer(self, what: str, files: Iterable[Path], attempt: Callable[[], Answer], *about: str) -> Answer:
        """Return the kept answer if it still holds, else try.

        Args:
            files: it rests on these; what is not there is looked for again.
            about: further facts that it rests on.
        """
        if not self.keeps:
            return attempt()
        paths, basis, file = [str(path) for path in files], _basis(*about), None
        with suppress(OSError, ValueError, KeyError, TypeError, BadInput):
            folder = closed_folder(closed_folder(default_storage()) / "answers")
            file = folder / f"{os.uname().nodename}-{what}.json"
            kept = None if self.again else _read(file, paths, basis)
            if kept is not None:
                answer = Answer.model_validate(kept["answer"])
                self.kept_s[what] = kept["at_s"]
                return answer
        at_s, answer = time.time(), attempt()
        if file and not answer.missing and not answer.gpus:  # what GPUs say of themselves changes
            states = {path: _state(path) for path in (*paths, *answer.files)}
            text = {"at_s": at_s, "basis": basis, "files": states, "answer": answer.model_dump(mode="json")}
            with suppress(OSError):
                write_whole(file, json.dumps(text), mode=0o600)
        return answer


def _read(file: Path, paths: Iterable[str], basis: str) -> dict[str, Any] | None:
    """Read what was kept; None: something of it has changed, or it is too old.

    Raises:
        OSError: there is nothing. ValueError, KeyError, TypeError: it is damaged.
    """
    with os.fdopen(open_own(file, os.O_RDONLY), encoding="utf-8") as opened:
        kept: dict[str, Any] = json.load(opened)
    states = kept["files"]
    same = kept["basis"] == basis and 0 <= time.time() - kept["at_s"] < LONGEST_S
    same = same and all(path in states for path in paths)
    return kept if same and all(_state(path) == state for path, state in states.items()) else None


def _state(path: str) -> list[int] | None:
    """Return what tells a file from another one of its name; None: there is none."""
    try:
        about = Path(path).stat()
    except OSError:
        return None
    return [about.st_ino, about.st_size, about.st_mtime_ns, about.st_mode, about.st_uid, about.st_gid]


def _basis(*about: str) -> str:
    """Return a digest of this process's variables, rights, place and kernel."""
    variables = sorted((name, value) for name, value in os.environ.items() if name not in OF_SHELLS)
    boot = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    rights = os.geteuid(), os.getegid(), sorted(os.getgroups()), sorted(os.sched_getaffinity(0))
    facts = variables, boot, rights, tuple(os.uname()), sys.executable, sys.version, about
    return hashlib.sha256(repr(facts).encode(errors="surrogateescape")).hexdigest()
