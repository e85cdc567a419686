"""The paths that jobs name, looked at before the jobs are taken in."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path

from profiles.errors import BadInput
from scheduler.jobs.specs import JobSpec, of_several

REMEDY = "make it, or name another with --{}: paths are those of the coordinator's machine"


def check_all(
    check: Callable[[JobSpec], None],
    specs: Sequence[JobSpec],
    waits_for: Mapping[int, Sequence[int]],
    arrays: Mapping[int, Sequence[int]],
) -> None:
    """Check the paths of all jobs but those that wait for others, which may make what they need.

    The arguments are those of ``Coordinator.submit``.

    Raises:
        BadInput: names the job and the path.
    """
    seen: set[tuple[str, str, str]] = set()
    counts = [len(arrays.get(place, "-")) for place in range(len(specs))]
    for spec, count, end in zip(specs, counts, accumulate(counts), strict=True):
        paths, places = (spec.folder, spec.stdout, spec.stderr), range(end - count, end)
        if paths in seen or spec.after or any(map(waits_for.get, places)):
            continue
        seen.add(paths)
        try:
            check(spec)
        except BadInput as error:
            raise of_several(error, places[0], sum(counts)) from error


def check_here(spec: JobSpec) -> None:
    """Refuse a job that could not be started in its working directory, or could not open its output.

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
            if stream:
                _open_to_write(folder / stream)
        except (OSError, ValueError) as error:
            what = f"{option} {folder / stream}: {_reason(error)}"
            raise BadInput(what, REMEDY.format(option)) from error


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
