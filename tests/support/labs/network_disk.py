"""A disk as over a network: its client remembers what it has seen, and its server can be out of reach.

    python -P -m tests.support.labs.network_disk BEHIND MOUNT      (Linux, root)

shows the folder BEHIND at MOUNT. Attributes, names, and that there is no such name, are remembered for a
minute, as NFS clients may. Lines on its standard input: ``cut``: what is asked from now on waits, and who has
asked cannot even be killed; ``join``: all of it is done, in its order; ``count``. It answers each with the
number of calls that programs wait in.

It speaks the kernel's own protocol (linux/fuse.h); what a test has no need of it does not know (ENOSYS).
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.paths import ROOT

REMEMBERED_S = 60
HEADER = struct.Struct("<IIQQIIIHH")
LARGEST = 1 << 17
FORGET, BATCH_FORGET, INTERRUPT = 2, 42, 36  # have no answer
RELEASE, RELEASE_FOLDER = 18, 29  # nobody waits for their answer
ATTRIBUTES = struct.Struct("<6Q10I")
MODE, SIZE, ATIME, MTIME, HANDLE = 1, 8, 16, 32, 64  # what SETATTR sets


class Asked(NamedTuple):
    """One request."""

    code: int
    number: int
    node: int
    body: bytes


class Disk:
    """The server: nodes are paths, handles are descriptors."""

    def __init__(self, behind: str) -> None:
        self._paths = {1: behind}
        self._nodes = {behind: 1}
        self._last = 1
        self._answers: dict[int, Callable[[Asked], bytes]] = {
            **{1: self._lookup, 3: self._getattr, 4: self._setattr, 9: self._mkdir, 10: self._unlink},
            **{12: self._rename, 13: self._link, 14: self._open, 15: self._read, 16: self._write},
            **{17: self._statfs, 18: self._release, 20: self._fsync, 25: lambda _: b"", 26: self._init},
            **{27: lambda _: bytes(16), 28: self._readdir, 29: lambda _: b"", 30: lambda _: b""},
            **{35: self._create, 43: self._fallocate, 45: self._rename2},
        }

    def answer(self, asked: Asked) -> bytes:
        """Return the whole answer, as the kernel takes it."""
        error, body = 0, b""
        try:
            body = self._answers[asked.code](asked)
        except KeyError:
            error = errno.ENOSYS
        except OSError as trouble:
            error = trouble.errno or errno.EIO
        return struct.pack("<IiQ", 16 + len(body), -error, asked.number) + body

    def _child(self, node: int, name: bytes) -> str:
        return os.path.join(self._paths[node], os.fsdecode(name.split(b"\0")[0]))  # noqa: PTH118

    def _node(self, path: str) -> int:
        if path not in self._nodes:
            self._last += 1
            self._nodes[path], self._paths[self._last] = self._last, path
        return self._nodes[path]

    def _entry(self, path: str) -> bytes:
        found = _attributes(os.lstat(path))
        return struct.pack("<4Q2I", self._node(path), 0, REMEMBERED_S, REMEMBERED_S, 0, 0) + found

    def _init(self, asked: Asked) -> bytes:
        major, _, ahead, _ = struct.unpack_from("<4I", asked.body)
        return struct.pack("<4I2HII2HII", major, 31, ahead, 0, 12, 9, 65536, 1, 16, 0, 0, 0).ljust(64, b"\0")

    def _lookup(self, asked: Asked) -> bytes:
        try:
            return self._entry(self._child(asked.node, asked.body))
        except FileNotFoundError:
            return struct.pack("<4Q2I", 0, 0, REMEMBERED_S, 0, 0, 0) + bytes(ATTRIBUTES.size)

    def _getattr(self, asked: Asked) -> bytes:
        flags, _, handle = struct.unpack_from("<2IQ", asked.body)
        return _told(os.fstat(handle) if flags & 1 else os.lstat(self._paths[asked.node]))

    def _setattr(self, asked: Asked) -> bytes:
        valid, _, handle, size = struct.unpack_from("<2I2Q", asked.body)
        mode = struct.unpack_from("<I", asked.body, 68)[0]
        target = handle if valid & HANDLE else self._paths[asked.node]
        if valid & MODE:
            os.chmod(target, mode & 0o7777)  # noqa: PTH101
        if valid & SIZE:
            os.truncate(target, size)
        if valid & (ATIME | MTIME):
            os.utime(target)
        return _told(os.stat(target))  # noqa: PTH116

    def _mkdir(self, asked: Asked) -> bytes:
        path = self._child(asked.node, asked.body[8:])
        os.mkdir(path, struct.unpack_from("<I", asked.body)[0] & 0o7777)  # noqa: PTH102
        return self._entry(path)

    def _unlink(self, asked: Asked) -> bytes:
        path = self._child(asked.node, asked.body)
        os.unlink(path)  # noqa: PTH108
        self._nodes.pop(path, None)
        return b""

    def _rename(self, asked: Asked, begin: int = 8) -> bytes:
        into = struct.unpack_from("<Q", asked.body)[0]
        source, target = asked.body[begin:].split(b"\0")[:2]
        old, new = self._child(asked.node, source), self._child(into, target)
        os.rename(old, new)  # noqa: PTH104
        node = self._nodes.pop(old, None)
        self._nodes.pop(new, None)
        if node is not None:
            self._nodes[new], self._paths[node] = node, new
        return b""

    def _rename2(self, asked: Asked) -> bytes:
        return self._rename(asked, 16)

    def _link(self, asked: Asked) -> bytes:
        path = self._child(asked.node, asked.body[8:])
        os.link(self._paths[struct.unpack_from("<Q", asked.body)[0]], path)
        return self._entry(path)

    def _open(self, asked: Asked) -> bytes:
        flags = struct.unpack_from("<I", asked.body)[0] & (os.O_ACCMODE | os.O_TRUNC)
        return _opened(os.open(self._paths[asked.node], flags))

    def _create(self, asked: Asked) -> bytes:
        flags, mode = struct.unpack_from("<2I", asked.body)
        path = self._child(asked.node, asked.body[16:])
        flags &= os.O_ACCMODE | os.O_TRUNC | os.O_EXCL
        handle = os.open(path, flags | os.O_CREAT, mode & 0o7777)
        return self._entry(path) + _opened(handle)

    def _read(self, asked: Asked) -> bytes:
        handle, at, size = struct.unpack_from("<2QI", asked.body)
        return os.pread(handle, size, at)

    def _write(self, asked: Asked) -> bytes:
        handle, at, size = struct.unpack_from("<2QI", asked.body)
        return struct.pack("<2I", os.pwrite(handle, asked.body[40 : 40 + size], at), 0)

    def _statfs(self, asked: Asked) -> bytes:
        s = os.statvfs(self._paths[asked.node])
        return struct.pack(
            "<5Q4I24x", s.f_blocks, s.f_bfree, s.f_bavail, s.f_files, s.f_ffree, s.f_bsize, 255, s.f_frsize, 0
        )

    def _release(self, asked: Asked) -> bytes:
        os.close(struct.unpack_from("<Q", asked.body)[0])
        return b""

    def _fsync(self, asked: Asked) -> bytes:
        os.fsync(struct.unpack_from("<Q", asked.body)[0])
        return b""

    def _fallocate(self, asked: Asked) -> bytes:
        handle, at, size, _ = struct.unpack_from("<3QI", asked.body)
        os.posix_fallocate(handle, at, size)
        return b""

    def _readdir(self, asked: Asked) -> bytes:
        _, at, most = struct.unpack_from("<2QI", asked.body)
        found = b""
        for number, name in enumerate(sorted(os.listdir(self._paths[asked.node])), 1):  # noqa: PTH208
            text = os.fsencode(name)
            one = struct.pack("<2Q2I", 1000 + number, number, len(text), 0) + text
            if number > at and len(found) + len(one) + 8 <= most:
                found += one.ljust(-(-len(one) // 8) * 8, b"\0")
        return found


def _attributes(s: os.stat_result) -> bytes:
    times = [time_ns // 10**9 for time_ns in (s.st_atime_ns, s.st_mtime_ns, s.st_ctime_ns)]
    rests = [time_ns % 10**9 for time_ns in (s.st_atime_ns, s.st_mtime_ns, s.st_ctime_ns)]
    about = (s.st_mode, s.st_nlink, s.st_uid, s.st_gid, 0, 4096, 0)
    return ATTRIBUTES.pack(s.st_ino, s.st_size, s.st_blocks, *times, *rests, *about)


def _told(s: os.stat_result) -> bytes:
    return struct.pack("<Q2I", REMEMBERED_S, 0, 0) + _attributes(s)


def _opened(handle: int) -> bytes:
    return struct.pack("<Q2I", handle, 1, 0)  # read and written directly: what others have written is seen


def main() -> None:
    behind, mount = sys.argv[1:]
    channel = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={channel},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tenbin-netdisk", mount.encode(), b"fuse", 6, options):
        sys.exit(os.strerror(ctypes.get_errno()))
    disk, waiting, cut = Disk(behind), list[Asked](), False
    print(0, flush=True)
    while True:
        ready = select.select([channel, sys.stdin], [], [])[0]
        if sys.stdin in ready:
            line = sys.stdin.readline()
            if not line:
                return
            cut = {"cut\n": True, "join\n": False}.get(line, cut)
            print(sum(asked.code not in (RELEASE, RELEASE_FOLDER) for asked in waiting), flush=True)
        if channel in ready:
            text = os.read(channel, LARGEST + 65536)
            _, code, number, node, *_ = HEADER.unpack_from(text)
            if code not in (FORGET, BATCH_FORGET, INTERRUPT):
                waiting.append(Asked(code, number, node, text[HEADER.size :]))
        while waiting and not cut:
            with suppress(FileNotFoundError):  # who asked is gone
                os.write(channel, disk.answer(waiting.pop(0)))


class Server:
    """The disk of a test."""

    def __init__(self, process: subprocess.Popen[str], path: Path) -> None:
        self._process, self.path = process, path

    def cut(self) -> None:
        self._say("cut")

    def join(self) -> None:
        self._say("join")

    def waiting(self) -> int:
        """Count the calls that wait for an answer."""
        return self._say("count")

    def _say(self, word: str) -> int:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


@contextmanager
def network_disk(behind: Path, mount: Path) -> Iterator[Server]:
    """Mount a network disk for one test; skip the test where this user may not mount."""
    behind.mkdir(exist_ok=True)
    mount.mkdir()
    command = [sys.executable, "-P", "-m", "tests.support.labs.network_disk", str(behind), str(mount)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    if not process.stdout.readline():
        process.wait()
        pytest.skip("no disk can be mounted: it takes root and /dev/fuse")
    try:
        yield Server(process, mount)
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=False)
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
