"""Files written so that no reader meets a half-written file: aside, fsync, rename. And files as locks."""

from __future__ import annotations

import errno
import fcntl
import os
import stat

from profiles.files.own_files import new_file, open_plain

TYPE_CHECKING = False  # without the module typing, because every job waits for this import
if TYPE_CHECKING:
    from pathlib import Path


def read_regular(path: Path) -> bytes:
    """Read a file; a pipe or a device, which may never end, is refused.

    Raises:
        OSError: the file cannot be read, or is no regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "no regular file", str(path))
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(descriptor)


def sync(path: Path) -> None:
    """Force a file's content, or a folder's entries, to storage."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def try_lock(path: Path | str) -> int | None:
    """Lock a file, made if need be; return the descriptor to keep open, None if another process holds it."""
    descriptor = open_plain(path, os.O_CREAT | os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def is_locked(path: Path | str) -> bool:
    """Tell whether a process holds the lock on a file."""
    descriptor = try_lock(path)
    if descriptor is None:
        return True
    os.close(descriptor)
    return False


def read_plain(path: Path | str, most: int, last: bool = False) -> bytes:
    """Read a plain file without ever waiting.

    Args:
        last: of a file with more than ``most`` bytes, read the last ones.

    Raises:
        OSError: there is no such file, or only a pipe, a folder or a link; or it is longer, or unreadable.
    """
    descriptor = open_plain(path, os.O_RDONLY)
    try:
        about = os.fstat(descriptor)
        if about.st_size > most and not last:
            raise OSError(errno.EFBIG, f"longer than {most} bytes", str(path))
        return os.pread(descriptor, min(most, about.st_size), max(0, about.st_size - most))
    finally:
        os.close(descriptor)


def overwrite(path: Path, text: str, width: int) -> None:
    """Write a word over the word before; the next reader gets it, over NFS too. A full disk has room for it.

    Args:
        width: bytes, always the same for a file; longer than any word.

    Raises:
        OSError: the file cannot be written.
    """
    descriptor = open_plain(path, os.O_WRONLY | os.O_CREAT)
    try:
        os.pwrite(descriptor, text.encode().ljust(width), 0)
    finally:
        os.close(descriptor)  # which writes the file over NFS


def write_whole(path: Path, content: str | bytes, mode: int | None = None) -> None:
    """Replace ``path`` by ``content`` atomically and durably; on an error the old file stays.

    Args:
        mode: permissions; None: by the umask, and others may not write.

    Raises:
        OSError: the file cannot be written, or is a folder.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        aside.unlink(missing_ok=True)
        with os.fdopen(new_file(aside, 0o644 if mode is None else mode), "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
    sync(path.parent)


def is_special(path: Path) -> bool:
    """Tell whether a device or a pipe has that name."""
    return path.exists() and not path.is_file() and not path.is_dir()


def write_chosen(path: Path, content: str) -> None:
    """Write a file that a user named; a link is followed.

    A device or a pipe (/dev/null, /dev/stdout) is written to. Root could replace it, for all programs.

    Raises:
        OSError: the file cannot be written, or is a folder.
    """
    if is_special(path):
        path.write_text(content)
    else:
        write_whole(path.resolve(), content)
