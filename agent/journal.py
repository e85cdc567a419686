"""The restore journal: whatever is changed on a node is put back, however the process that changed it ends.

A power cap outlives the process that set it. If that process is killed, the machine stays slow until somebody
wonders why, and every measurement meanwhile is of another machine. So no control file is written before its
value lies on disk (fsync, rename), with the owner's process id, start time and boot id. The values are
written back in reverse order

- by the owner itself: at the end of ``with Journal(folder)``, after an exception, Ctrl-C, SIGTERM, at exit;
- by a watchdog process, if the owner is killed (SIGKILL, out of memory);
- by ``restore_leftovers(folder)``, at the next start or by ``tenbin profile restore``, if both were killed.

Three ways, because each covers what the one before cannot: an exit handler does not run after SIGKILL, and a
cgroup that is killed takes the watchdog with it.

A process id alone does not name an owner, because ids come again. With the start time it does, and with the
boot id also after a reboot. Then nothing is written back, because the machine has set its own values, and
yesterday's would be the change.

The first value counts. Whoever finds a file in the journal of a dead process takes the original from there
and not from the file, which still has the dead process's value: two crashes in a row must not make a cap the
original. So a journal that a crash left is never overwritten, and a file has one living owner. A second one
is told ``Busy``, because of two that put back in turn the last would put back the first one's cap. Who claims
or restores holds the folder's lock, so that watchdog and ``profile restore`` do not both carry out a journal.

What cannot be put back stays in the journal and is told, with one exception: a file that is gone (a device
that was removed) is dropped, because no later attempt can succeed. A journal says which files to write, and
root may restore a user's, so one that others could have written is not followed.

After GEOPM's ``restorable_file_writer``.
"""

from __future__ import annotations

import atexit
import errno
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Self

from profiles.errors import Busy, Unavailable
from profiles.files.safe_files import make_folder, open_own, open_plain, write_whole

# -- controls: what can be changed on a node ---------------------------------------------------------------
#
# Control files, and limits of GPUs named like files: ``nvml/<uuid>/power_limit_mw`` is the power limit of an
# NVIDIA GPU.


def read_control(path: Path) -> str:
    """Read the present value.

    Raises:
        OSError: there is no such control, or it cannot be read.
    """
    if path.parts[0] == "nvml":
        return str(_nvml("nvmlDeviceGetPowerManagementLimit", path))
    return path.read_text().strip()


def write_control(path: Path, value: str) -> None:
    """Set ``value``: in one write call, as sysfs wants it; never makes a file that is not there.

    Raises:
        OSError: there is no such control, or it refuses.
    """
    if path.parts[0] == "nvml":
        _nvml("nvmlDeviceSetPowerManagementLimit", path, int(value))
        return
    handle = os.open(path, os.O_WRONLY | os.O_TRUNC)
    try:
        os.write(handle, f"{value.strip()}\n".encode())
    finally:
        os.close(handle)


def _nvml(function: str, path: Path, *arguments: int) -> Any:
    """Call an NVML function on the GPU that ``path`` names."""
    from probes import nvml

    try:
        library = nvml.load()
    except Unavailable as error:
        raise FileNotFoundError(errno.ENOENT, error.what, str(path)) from None
    try:
        handle = library.nvmlDeviceGetHandleByUUID(path.parts[1])
        return getattr(library, function)(handle, *arguments)
    except library.NVMLError as error:
        raise OSError(errno.EPERM, str(error), str(path)) from None
    finally:
        library.nvmlShutdown()


# -- the journal -------------------------------------------------------------------------------------------


VERSION = 1
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
GONE = "it is gone"


@dataclass(frozen=True)
class Restored:
    """The outcome of restoring one changed file."""

    path: Path
    value: str  # the original
    done: bool
    why: str = ""  # why it was not put back

    def __str__(self) -> str:
        return f"{self.path} = {self.value}" if self.done else f"{self.path}: not restored: {self.why}"


@dataclass(frozen=True)
class _Owner:
    pid: int
    started: int  # clock ticks after boot
    boot: str

    def lives(self) -> bool:
        return self.boot == _boot_id() and _start_of(self.pid) == self.started


class Journal:
    """Changes control files and remembers how they were; a context manager.

    Args:
        folder: folder of the journals of this node's users; made if missing. It must outlive the process, and
            be the same for all users who change this node.
        watchdog: start the process that restores if this one is killed.
    """

    def __init__(self, folder: Path, *, watchdog: bool = True) -> None:
        self.folder = folder
        self._owner = _Owner(os.getpid(), _start_of(os.getpid()) or 0, _boot_id())
        self._file = folder / f"{self._owner.pid}-{self._owner.started}.json"
        self._originals: dict[Path, str] = {}
        self._watchdog = watchdog
        self._watcher: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def control(self, path: Path, value: str) -> None:
        """Write ``value`` to ``path``, having journalled the original; satisfies ``probes.run.Control``.

        A value that is there already is journalled and not written.

        Raises:
            Unavailable: the file cannot be read or written.
            Busy: another living process has changed it.
        """
        try:
            with self._lock:
                current = read_control(path)
                if path not in self._originals:
                    self._remember(path, current)
                if value.strip() != current:
                    write_control(path, value)
        except OSError as error:
            raise Unavailable(
                f"{path}: {error.strerror}", "run as root; a firmware may also lock it"
            ) from None

    def restore(self) -> list[Restored]:
        """Put back every original, the last changed first; a second call does nothing."""
        if os.getpid() != self._owner.pid:  # a forked child must not restore files that its parent still uses
            return []
        if not self._originals:
            return []
        with self._lock, _deaf(), _locked(self.folder):
            done = _put_back(self._file)
            self._originals = _undone(done)
            if self._watcher:
                self._watcher.kill()
                self._watcher.wait()
                self._watcher = None
            return done

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.getsignal(signal.SIGTERM)
            if self._before == signal.SIG_DFL:
                signal.signal(signal.SIGTERM, _leave)
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()
        atexit.unregister(self.restore)
        if signal.getsignal(signal.SIGTERM) == _leave:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _remember(self, path: Path, current: str) -> None:
        """Journal the original of ``path`` on disk."""
        try:
            with _locked(self.folder):
                original = self._claim(path, current)
                originals = {**self._originals, path: original}
                _store(self._file, self._owner, originals)
        except OSError as error:
            remedy = "set XDG_STATE_HOME to a folder that may be written: no change without a journal"
            raise Unavailable(f"journal {self.folder}: {error.strerror}", remedy) from None
        self._originals = originals
        if self._watchdog and not self._watcher:
            self._watcher = _start_watchdog(self._file)
        atexit.unregister(self.restore)
        atexit.register(self.restore)

    def _claim(self, path: Path, current: str) -> str:
        """Return the original of ``path``, from the journal of a crash if that names it, else its value now.

        Raises:
            Busy: a living process has changed it.
        """
        for file in _journals(self.folder):
            with suppress(OSError, ValueError):
                owner, originals = _load(file)
                if path not in originals or file == self._file:
                    continue
                if owner.lives():
                    raise Busy(f"{path} is in use by process {owner.pid}", "wait until it has ended")
                if owner.boot == _boot_id():
                    return originals[path]
        return current


def restore_leftovers(folder: Path) -> list[Restored]:
    """Put back what dead processes left changed, and return the outcome for each file.

    The journal of a living process is left alone. A journal is deleted when nothing is left to do; a journal
    that could not be carried out (no permission, unreadable) is kept.
    """
    result: list[Restored] = []
    if not folder.is_dir():
        return result
    try:
        with _locked(folder):
            for file in _journals(folder):
                result += _restore_leftover(file)
    except OSError as error:
        result.append(Restored(folder, "", False, f"{error.strerror}; look who may write there"))
    return result


def watch(file: Path) -> None:
    """Wait until the owner of ``file`` is gone, then put back what it left; run by the watchdog."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a signal to the owner's group must not end both
    try:
        owner, _ = _load(file)
        _wait_for_end(owner)
        with _locked(file.parent):
            _restore_leftover(file)
    except FileNotFoundError:
        return  # the owner has restored everything itself


def _restore_leftover(file: Path) -> list[Restored]:
    try:
        owner, originals = _load(file)
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        closes = "close it (chown, chmod go-w) or " if isinstance(error, PermissionError) else ""
        why = f"this journal cannot be read ({error}); look at it, then {closes}delete it"
        return [Restored(file, "", False, why)]
    if owner.lives():
        return []
    if owner.boot != _boot_id():
        file.unlink()
        why = "the machine was restarted since, which set its own values"
        return [Restored(path, value, False, why) for path, value in originals.items()]
    return _put_back(file)


def _put_back(file: Path) -> list[Restored]:
    """Write the originals in ``file`` back, the last changed first; failures stay in the journal."""
    owner, originals = _load(file)
    result = []
    for path, value in reversed(originals.items()):
        why = _try_write(path, value)
        result.append(Restored(path, value, not why, why))
    if left := _undone(result):
        _store(file, owner, left)
    else:
        file.unlink(missing_ok=True)
    return result


def _undone(result: list[Restored]) -> dict[Path, str]:
    """Return what should be tried again later, in the order of its first change."""
    return {r.path: r.value for r in reversed(result) if not r.done and r.why != GONE}


def _try_write(path: Path, value: str) -> str:
    """Write an original back; return why that failed, or nothing."""
    try:
        write_control(path, value)
        now = read_control(path)
    except FileNotFoundError:
        return GONE
    except OSError as error:
        return f"{error.strerror}; type 'tenbin profile restore' as root"
    return "" if now == value else f"it reads back {now}, not {value}"


def _journals(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.json"))


def _load(file: Path) -> tuple[_Owner, dict[Path, str]]:
    """Read owner and originals, in the order of their first change.

    A journal says which files to write, so what another user has laid is not followed (root may have the home
    of a user).

    Raises:
        ValueError: not a journal of this version. OSError: it cannot be read, or others may write to it.
    """
    with os.fdopen(open_own(file, os.O_RDONLY)) as opened:
        data: dict[str, Any] = json.loads(opened.read())
    try:
        if data["version"] != VERSION:
            raise ValueError(f"version {data['version']}, this program knows {VERSION}")
        owner = _Owner(int(data["pid"]), int(data["started"]), str(data["boot"]))
        return owner, {Path(e["path"]): str(e["value"]) for e in data["originals"]}
    except (KeyError, TypeError) as error:
        raise ValueError(f"field missing or wrong: {error}") from None


def _store(file: Path, owner: _Owner, originals: dict[Path, str]) -> None:
    """Replace ``file`` so that a power failure leaves the old or the new file whole."""
    data = {
        "version": VERSION,
        "pid": owner.pid,
        "started": owner.started,
        "boot": owner.boot,
        "originals": [{"path": str(p), "value": v} for p, v in originals.items()],
    }
    write_whole(file, json.dumps(data, indent=1))


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, so that one process at a time claims or restores."""
    make_folder(folder)
    with os.fdopen(open_plain(folder / "lock", os.O_WRONLY | os.O_CREAT), "w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextmanager
def _deaf() -> Iterator[None]:
    """Block SIGINT and SIGTERM, which only the main thread receives, during a restore."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)  # unwinds, so that every ``finally`` and this journal's exit run


def _start_watchdog(file: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "agent.journal", str(file)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )


def _wait_for_end(owner: _Owner) -> None:
    """Return when ``owner`` has ended; at once through a pidfd, within 0.2 s where the kernel has none."""
    try:
        handle = os.pidfd_open(owner.pid)
    except (OSError, AttributeError):
        while owner.lives():
            time.sleep(0.2)
        return
    try:
        if owner.lives():
            select.select([handle], [], [])
    finally:
        os.close(handle)


def _boot_id() -> str:
    return BOOT_ID.read_text().strip()


def _start_of(pid: int) -> int | None:
    """Read when a process started, in clock ticks after boot; None if it has ended, also as a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


if __name__ == "__main__":
    watch(Path(sys.argv[1]))
