"""Checks of a job's paths on this machine, before the job is accepted."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from agent.attempts.launch import interpreter
from profiles.errors import BadInput
from scheduler.jobs.specs import JobSpec

REMEDY = "make it, or name another with --{}: paths are those of the coordinator's machine"


def check_here(spec: JobSpec) -> None:
    """Refuse a job that could not be started in its working directory, or could not open its output.

    And a script whose interpreter is not here.

    Raises:
        BadInput: names the path, and what is wrong with it.
    """
    folder = Path(spec.folder)
    try:
        _enter(folder)
    except (OSError, ValueError) as error:
        raise BadInput(f"working directory {folder}: {_reason(error)}", REMEDY.format("chdir")) from error
    for stream, option in ((spec.stdout, "output"), (spec.stderr, "error")):
        try:
            if stream and "%" not in str(Path(stream).parent):  # else known at the start only
                _open_to_write(folder / stream)
        except (OSError, ValueError) as error:
            what = f"{option} {folder / stream}: {_reason(error)}"
            raise BadInput(what, REMEDY.format(option)) from error
    program = spec.command[0]
    name = interpreter(str(folder / program)) if "/" in program else None
    if name == "":
        raise BadInput(
            f"the first line of {Path(program).name} (#!) names no program", "write #!/bin/sh there"
        )
    if name is not None:
        try:
            (folder / name).stat()
            _need(folder / name, os.X_OK)
        except (OSError, ValueError) as error:
            what = f"{name}: {_reason(error)}; the first line of {Path(program).name} (#!) names it"
            raise BadInput(what, "install it, or correct that line") from error


def _enter(folder: Path) -> None:
    """OSError if this user could not work there."""
    if not os.path.isdir(folder):  # noqa: PTH112 (a Path hides why it cannot be looked at)
        folder.stat()
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    _need(folder, os.X_OK)


def _open_to_write(file: Path) -> None:
    """OSError if this user could not append to the file, or make it; it is not opened."""
    if file.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if file.exists():
        _need(file, os.W_OK)
    else:
        _enter(file.parent)
        _need(file.parent, os.W_OK)


def _need(path: Path, mode: int) -> None:
    if not os.access(path, mode):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else "") or str(error)
