"""Folders for files that exist while a probe runs: tried first, and removed afterwards."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from probes.folders import inspect_folder
from profiles.errors import Unavailable
from profiles.files import direct_io
from profiles.files.safe_files import not_own

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
    start = f"{_PREFIX}{socket.gethostname()}-"
    for path in folder.glob(f"{start}*"):
        owner = path.name.removeprefix(start).partition("-")[0]
        if owner.isdecimal() and not psutil.pid_exists(int(owner)):
            with suppress(OSError):
                if not not_own(path.lstat()):
                    shutil.rmtree(path)
