"""Files and folders that users name on the command line."""

from __future__ import annotations

from pathlib import Path

from profiles.errors import BadInput, Unavailable

WRITABLE = "choose a file in a folder you may write"


def storage_folder(folder: Path) -> Path:
    """Resolve links in a ``--storage`` folder; a folder that does not answer is reported by its reader."""
    from probes.folders import inspect_folder

    try:
        seen = inspect_folder(folder)
    except Unavailable:
        return folder.absolute()
    if not seen.is_folder:
        raise BadInput(f"--storage {folder}: not a folder", f"mkdir -p {folder}")
    return Path(seen.there)


def ensure_writable(option: str, file: Path) -> None:
    """See that ``file`` could be written, before the work whose result is to go there.

    Raises:
        BadInput: it could not; names ``option``.
    """
    from tempfile import TemporaryFile

    from profiles.files.safe_files import is_special

    try:
        if file.is_dir():
            raise IsADirectoryError(None, "is a folder")
        if is_special(file):
            return
        with TemporaryFile(dir=file.parent):
            pass
    except OSError as error:
        raise BadInput(f"{option} {file}: {error.strerror}", WRITABLE) from error


def write_output(option: str, file: Path, text: str) -> None:
    """Write a whole file, or leave it as it was."""
    from profiles.files.safe_files import write_chosen

    try:
        write_chosen(file, text)
    except OSError as error:
        raise BadInput(f"{option} {file}: {error.strerror}", WRITABLE) from error
