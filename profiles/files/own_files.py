"""Files, folders and sockets of this user alone, where others may write too (/tmp, shared folders).

Others may have laid a link, a pipe or a file of theirs under any name there, or hold a folder of that name.
So what is opened there is opened here, and looked at by its descriptor, because a name can change hands.
"""

from __future__ import annotations

import errno
import os
import stat

from ..errors import BadInput

TYPE_CHECKING = False  # without the module typing, because every job waits for this import
if TYPE_CHECKING:
    import socket
    from pathlib import Path

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def open_plain(path: Path | str, flags: int, mode: int = 0o600, *, folder: int | None = None) -> int:
    """Open a regular file without ever waiting; a link, a pipe or a device is refused.

    Args:
        folder: descriptor of the folder in which ``path`` is a name.

    Raises:
        OSError: the file cannot be opened, or is no regular file.
    """
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "no plain file", str(path))
    return descriptor


def open_own(path: Path | str, flags: int, mode: int = 0o600, *, folder: int | None = None) -> int:
    """Open a regular file of this user to which nobody else may write.

    Args:
        folder: as for ``open_plain``.

    Raises:
        OSError: the file cannot be opened, or is none of that kind; it was not changed.
    """
    descriptor = open_plain(path, flags & ~os.O_TRUNC, mode, folder=folder)
    try:
        if why := not_own(os.fstat(descriptor)):
            raise OSError(errno.EPERM, why, str(path))
        if flags & os.O_TRUNC:
            os.ftruncate(descriptor, 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def new_file(path: Path | str, mode: int = 0o600) -> int:
    """Create a file to write to; what has its name, be it a link, is left alone.

    Raises:
        FileExistsError: something has that name. OSError: it cannot be created.
    """
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)


def not_own(about: os.stat_result) -> str:
    """Say why a file or folder is not of this user alone; "" if it is.

    A group without other members may write: where each user has a group, a umask of 002 is usual.
    """
    if about.st_uid != os.geteuid():
        return "it belongs to somebody else"
    others = about.st_mode & OTHERS_WRITE
    if others == stat.S_IWGRP and _is_of_this_user(about.st_gid):
        return ""
    return "others may write to it" if others else ""


def _is_of_this_user(group: int) -> bool:
    """Tell whether a group was made for this user: their first one, with their name, and no other member."""
    import grp  # late: not in a job
    import pwd

    try:
        user, about = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    own = user.pw_gid == group and user.pw_name == about.gr_name
    return own and set(about.gr_mem) <= {user.pw_name}


def shared_mode(folder: Path, mode: int) -> int:
    """Return the mode of what is made in a folder: a group that shares the folder may write what it may read.

    That it does is said by setgid, with its right to write there. The umask counts as ever.
    """
    shares = stat.S_ISGID | stat.S_IWGRP
    is_shared = mode & stat.S_IRGRP and folder.stat().st_mode & shares == shares
    return mode | stat.S_IWGRP if is_shared else mode


def make_folder(folder: Path, mode: int = 0o755) -> None:
    """Make a folder with at most this mode, and those above it, to which others may not write either.

    A group may that shares the folder in which they are made.

    Raises:
        OSError: it cannot be made.
    """
    for part in (*reversed(folder.parents), folder):
        if not part.is_dir():
            try:
                part.mkdir(shared_mode(part.parent, mode if part == folder else 0o755), exist_ok=True)
            except FileNotFoundError as error:  # in /proc, for instance
                raise OSError(errno.EROFS, "no folder can be made there", str(part)) from error


def own_folder(folder: Path, remedy: str) -> Path:
    """Make the folder, for this user alone, or see that it is.

    Raises:
        BadInput: it is no folder, belongs to somebody else, or others may write to it; with ``remedy``.
    """
    try:
        make_folder(folder, 0o700)
        about = folder.lstat()
    except OSError as error:
        raise BadInput(f"{folder}: {error.strerror}", remedy) from error
    if why := not_own(about) if stat.S_ISDIR(about.st_mode) else "it is no folder":
        raise BadInput(f"{folder}: not a folder of yours alone ({why})", remedy)
    return folder


def closed_folder(folder: Path) -> Path:
    """Make a folder with code that this user's programs load, or close it if others may write to it.

    Raises:
        OSError: it cannot be made.
        BadInput: it belongs to somebody else, or everybody could put another in its place.
    """
    make_folder(folder)
    about = folder.stat()
    if about.st_uid != os.geteuid():
        raise BadInput(f"{folder} belongs to somebody else", "set XDG_CACHE_HOME to a folder of your own")
    if about.st_mode & OTHERS_WRITE:
        folder.chmod(stat.S_IMODE(about.st_mode) & ~OTHERS_WRITE)
    for part in dict.fromkeys((*folder.absolute().parents, *folder.resolve().parents)):
        if part.stat().st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH:
            raise BadInput(f"everybody could exchange what is in {part}", f"chmod o-w {part}")
    return folder


def credentials_of_peer(line: socket.socket) -> tuple[int, int, int]:
    """Return process, user and group that made the socket to which a Unix socket is connected."""
    import socket  # late: not in a job
    import struct

    size = struct.calcsize("3i")
    process, user, group = struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return process, user, group
