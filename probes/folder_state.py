"""The state of a storage folder, for ``probes.folders``: run as ``python -I -S FILE FOLDER``, prints a tuple.

Hardly anything is imported, because people wait for the commands that start it.
"""

import mmap
import os
import stat
import sys

State = tuple[bool | None, str, int | None, int, bool, bool]  # the fields of FolderState
BLOCK = 4096


def inspect(folder: str) -> State:
    """Look at a folder; of one that does not exist yet, at its nearest parent."""
    is_folder = _is_folder(folder)
    nearest = folder
    while not _is_folder(nearest):
        nearest = os.path.dirname(nearest)  # noqa: PTH120 (pathlib takes longer than all the rest)
    there = os.path.realpath(nearest)
    try:
        space = os.statvfs(there)
        size, free = space.f_blocks * space.f_frsize, space.f_bavail * space.f_frsize
    except OSError:
        size, free = None, 0
    writable = is_folder is not False and os.access(there, os.W_OK | os.X_OK)
    return is_folder, there, size, free, writable, _direct_io_works(there)


def _is_folder(path: str) -> bool | None:
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)  # noqa: PTH116
    except OSError:
        return None


def _direct_io_works(folder: str) -> bool:
    """Write one block past the page cache, into a file that is removed again."""
    path = f"{folder}/.tenbin-direct-{os.urandom(8).hex()}"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_DIRECT | os.O_CLOEXEC, 0o600)
        try:
            return os.write(descriptor, mmap.mmap(-1, BLOCK)) == BLOCK
        finally:
            os.close(descriptor)
    except OSError:  # not writable, no room, or no direct I/O
        return False
    finally:
        if os.access(path, os.F_OK):  # it may have been made before the flag was refused
            os.unlink(path)  # noqa: PTH108


if __name__ == "__main__":
    print(ascii(inspect(sys.argv[1])))
