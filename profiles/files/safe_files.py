"""Files that are safe to open, whole, and of whom they should be; and the folders of a user.

Where others may write too (/tmp, shared folders) they may have laid a link, a pipe or a file of theirs under
any name, or hold a folder of that name. So what is opened there is opened here, and looked at by its
descriptor, because a name can change hands. And a reader never meets a half-written file: it is written
aside, forced to storage, and renamed.

Every job waits for this import. So typing, pathlib, pwd and socket are imported where they are needed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat

from ..errors import BadInput

TYPE_CHECKING = False
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
            except FileExistsError as error:
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(part)) from error
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


# -- whole files, and files as locks -----------------------------------------------------------------------


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


# -- a user: folders that the environment names, else those below the home; the name ----------------------


class NoFolder(BadInput):
    """A folder of the user that is not known, or cannot be used."""


def user_folder(variable: str, below_home: str) -> Path:
    """Return the folder that an environment variable names, else one below the user's home.

    Raises:
        NoFolder: it names none, and this user has no home, as in a container with any user number; or the
            name is not UTF-8.
    """
    import pwd  # late: not in a job
    from pathlib import Path

    if named := named_folder(variable):
        return named
    try:
        home = os.environ.get("HOME") or pwd.getpwuid(os.getuid()).pw_dir  # empty: as if it were not set
    except KeyError:
        what = f"no home folder: HOME is not set, and user {os.getuid()} is not known here"
        raise NoFolder(what, f"set HOME, or {variable}") from None
    return in_utf8(Path(home), "HOME") / below_home


def named_folder(variable: str) -> Path | None:
    """Return the folder that an environment variable names; None: it names none. NoFolder: as ``in_utf8``."""
    from pathlib import Path

    named = os.environ.get(variable)
    return in_utf8(Path(named), variable) if named else None


def in_utf8(folder: Path, source: str) -> Path:
    """Refuse, by NoFolder, a folder whose name is not UTF-8, because files and answers name it."""
    try:
        str(folder).encode()
    except UnicodeEncodeError:
        raise NoFolder(f"{source} {os.fsencode(folder)!r} is not UTF-8", "name another folder") from None
    return folder


def state_dir() -> Path:
    """``$XDG_STATE_HOME/tenbin`` or ``~/.local/state/tenbin``: the restore journal."""
    return user_folder("XDG_STATE_HOME", ".local/state") / "tenbin"


def node_states() -> Path:
    """Return the folder with a folder for each node, because nodes share home folders."""
    return state_dir() / "nodes"


def node_journal(states: Path, node: str) -> Path:
    """Return the restore journal of a node of a cluster."""
    return states / node / "tenbin" / "journal"


def default_storage() -> Path:
    """``$XDG_CACHE_HOME/tenbin`` or ``~/.cache/tenbin``: the checkpoint folder when none is named."""
    return user_folder("XDG_CACHE_HOME", ".cache") / "tenbin"


def user_name(uid: int | None = None) -> str:
    """Return the name of a user (None: of this process, as its environment says), else the number.

    A container may be given any user number.
    """
    import getpass  # late: not in a job
    import pwd

    try:
        return getpass.getuser() if uid is None else pwd.getpwuid(uid).pw_name
    except (KeyError, OSError):
        return str(os.getuid() if uid is None else uid)
