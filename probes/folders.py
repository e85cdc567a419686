"""Storage folders: inspected before they are used, and scratch folders in them while a probe runs.

A folder is inspected in a process of its own (``folder_state``), because a lost network file system blocks
its callers. A process that waits for dead storage may not even be killed; the caller of ``inspect_folder``
then goes on without it.
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from ast import literal_eval
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from profiles.errors import Unavailable
from profiles.files import direct_io
from profiles.files.safe_files import not_own

PROGRAM = Path(__file__).with_name("folder_state.py")
ANSWER_S = 10.0  # a server that wakes its disks takes seconds
GONE_S = 1.0
LEAST_FREE = 96 << 20  # bytes to measure with: half for the file, and for two batches of each kind


@dataclass(frozen=True)
class FolderState:
    """State of a folder; of a folder that does not exist yet, the state of its nearest parent."""

    is_folder: bool | None  # None: nothing is there, or access is refused
    there: str  # the folder, or its nearest existing parent, without links
    size_bytes: int | None  # of its file system; None: unknown
    free_bytes: int
    writable: bool
    direct_io: bool


def inspect_folder(folder: Path, timeout_s: float | None = None) -> FolderState:
    """Inspect ``folder``, for at most ``timeout_s`` (else ``ANSWER_S``).

    Raises:
        Unavailable: there was no answer.
    """
    limit_s = ANSWER_S if timeout_s is None else timeout_s
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", str(PROGRAM), str(folder.absolute())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        answer, errors = child.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        child.kill()
        with suppress(subprocess.TimeoutExpired):  # dead storage may keep it from dying
            child.wait(timeout=GONE_S)
        raise Unavailable(
            f"the file system of {folder} has not answered within {limit_s:g} s",
            "see whether its server can be reached, or name another folder: --storage DIR",
        ) from None
    if child.returncode != 0:
        words = (errors.strip().splitlines() or [f"exit code {child.returncode}"])[-1]
        raise Unavailable(f"{folder} cannot be looked at ({words})", "name another folder: --storage DIR")
    return FolderState(*literal_eval(answer))


# -- folders for files that exist while a probe runs: tried first, removed afterwards ----------------------


_PREFIX = ".tenbin-probe-"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def scratch(folder: Path) -> Iterator[Path]:
    """Make a new folder inside ``folder``; removed at the end, with those that a killed probe left there.

    Raises:
        Unavailable: ``folder`` does not answer, is missing, cannot be written, or is full; with the remedy.
    """
    seen = inspect_folder(folder)
    if not seen.is_folder:
        state = "missing" if seen.is_folder is None else "not a folder"
        raise Unavailable(f"{folder} is {state}", f"mkdir -p {folder}, or name another folder")
    _remove_leftovers(folder)
    mine: Path | None = None
    try:
        mine = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{socket.gethostname()}-{os.getpid()}-", dir=folder))
        direct_io.try_write(mine)
    except OSError as error:
        if mine is not None:
            shutil.rmtree(mine, ignore_errors=True)
        raise Unavailable(
            f"{folder} cannot be written ({error.strerror})", storage_remedy(error, folder)
        ) from error
    try:
        yield mine
    finally:
        shutil.rmtree(mine, ignore_errors=True)


def is_full(error: OSError) -> bool:
    """Tell whether a smaller file might have succeeded."""
    return error.errno in _FULL


def storage_remedy(error: OSError, folder: Path) -> str:
    """Say how to mend a failed write in ``folder``."""
    if error.errno == errno.EFBIG:
        return "raise the limit on file sizes (ulimit -f), or the file system's"
    if is_full(error):
        return f"free space in {folder} or raise your quota, or name another folder"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"make {folder} writable for you, or name another folder"
    return f"check the storage behind {folder} (dmesg), or name another folder"


def _remove_leftovers(folder: Path) -> None:
    """Remove the folders of killed probes of this host; probes of another host may be alive."""
    import psutil  # late, because an inspection does not need it

    start = f"{_PREFIX}{socket.gethostname()}-"
    for path in folder.glob(f"{start}*"):
        owner = path.name.removeprefix(start).partition("-")[0]
        if owner.isdecimal() and not psutil.pid_exists(int(owner)):
            with suppress(OSError):
                if not not_own(path.lstat()):
                    shutil.rmtree(path)
