"""Limits of jobs that the kernel holds in control groups: memory, and the device files that they may open.

Of memory (version 1 or 2) it counts every page once, also those of processes that fork away, and kills within
the group at the limit. If this process may not make a group, the supervisor watches the resident memory
instead.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Literal

from agent.processes import tree
from profiles.errors import Unavailable

PREFIX = "tenbin-"
UNLIMITED = "max"
Version = Literal["cgroup v1", "cgroup v2"]


@dataclass(frozen=True)
class Group:
    """A control group that holds a memory limit.

    Attributes:
        path: the group's folder, which ``make`` makes.
        home: the folder of the group that this process is in.
    """

    path: Path
    version: Version
    home: Path

    def make(self, limit_mb: float | None) -> None:
        """Make the group with its limit, if it has one; OSError if it cannot be made."""
        self.path.mkdir()
        if limit_mb is not None:
            self.limit(limit_mb)

    def limit(self, limit_mb: float) -> None:
        """Set the limit of an existing group, without swap."""
        limit = str(round(limit_mb * 1e6))
        if self.version == "cgroup v1":
            _write(self.path / "memory.limit_in_bytes", limit)
            swap, value = "memory.memsw.limit_in_bytes", limit
        else:
            _write(self.path / "memory.max", limit)
            swap, value = "memory.swap.max", "0"
        with suppress(FileNotFoundError):  # a kernel that counts no swapped pages
            _write(self.path / swap, value)

    def enter(self) -> None:
        """Move this process into the group; OSError if it may not enter, or could not leave again."""
        _write(self.home / "cgroup.procs", "0")  # moves nothing, but fails if there is no way back
        _write(self.path / "cgroup.procs", "0")

    def leave(self) -> None:
        """Move this process back to its own group; its children stay."""
        _write(self.home / "cgroup.procs", "0")

    def kills(self) -> int:
        """Count the processes that the kernel has killed at the limit."""
        name = "memory.oom_control" if self.version == "cgroup v1" else "memory.events"
        with suppress(OSError):
            for line in (self.path / name).read_text().splitlines():
                key, _, value = line.partition(" ")
                if key == "oom_kill":
                    return int(value)
        return 0

    def peak_mb(self) -> float:
        """Read the peak use, with page cache; 0 if the kernel does not tell it."""
        name = "memory.max_usage_in_bytes" if self.version == "cgroup v1" else "memory.peak"
        with suppress(OSError):
            return int((self.path / name).read_text()) / 1e6
        return 0.0


def confine(
    limit_mb: float | None, name: str, tell: Callable[[Path], None], closed: Sequence[str] = ()
) -> Group | None:
    """Make a group with a memory limit, if there is one; None if this process may not.

    Args:
        closed: device files that its processes may not open.
        tell: called with the group's folder before it is made, so that it is found whatever happens.
    """
    group = place(name)
    if group is None:
        return None
    try:
        tell(group.path)
        group.make(limit_mb)
        if closed:
            refuse(group.path, map(Path, closed))
    except OSError:
        remove(group.path)
        return None
    return group


def why_files_stay_open() -> Unavailable | None:
    """Say why device files cannot be closed to jobs here, and what to do; None if they can."""
    group = place("files")
    if group is None:
        return Unavailable("this process may make no control group", ROOT)
    if group.version == "cgroup v1":
        return Unavailable(
            "control groups of version 1 hold the memory limits", "mount those of version 2 alone"
        )
    return trouble()


def place(name: str, root: Path = Path("/")) -> Group | None:
    """Find a place where this process may make a group with a memory limit; None if there is none.

    Args:
        name: name of the group, without its prefix.
        root: root of the file system with ``proc`` and the mount points.
    """
    here = _own_folders(root)
    if "cgroup v1" in here:  # the memory controller is bound to one version only
        folder, _ = here["cgroup v1"]
        allowed = os.access(folder, os.W_OK)
        return Group(folder / (PREFIX + name), "cgroup v1", folder) if allowed else None
    if "cgroup v2" not in here:
        return None
    home, top = here["cgroup v2"]
    folder = home
    # A group with processes may have no groups below it, so the new one is made beside this process's own.
    while True:
        if "memory" in _words(folder / "cgroup.subtree_control"):
            allowed = all(os.access(path, os.W_OK) for path in (folder, folder / "cgroup.procs"))
            return Group(folder / (PREFIX + name), "cgroup v2", home) if allowed else None
        if folder == top or _words(folder / "memory.max") not in ([], [UNLIMITED]):
            return None  # a group beside it would escape that limit
        folder = folder.parent


def known(group: Path, root: Path = Path("/")) -> bool:
    """Return whether the path is in a control group file system; other folders may name any process."""
    mounts = (line.partition(" - ") for line in _lines(root / "proc/self/mountinfo"))
    points = [mount.split(" ")[4] for mount, _, kind in mounts if kind.startswith("cgroup")]
    return ".." not in group.parts and any(
        group.is_relative_to(root / mounted.lstrip("/")) for mounted in points
    )


def remove(group: Path, limit_s: float = 1.0) -> bool:
    """Kill what is left in a group and those below it, and remove them; return whether it is gone."""
    deadline = time.monotonic() + limit_s
    while group.name.startswith(PREFIX):
        for folder in _below(group):
            with suppress(OSError):
                folder.rmdir()
        if not group.exists():
            return True
        if time.monotonic() > deadline:
            return False
        for folder in _below(group):
            tree.send(_members(folder), signal.SIGKILL)
        time.sleep(0.002)
    return False


def _own_folders(root: Path) -> dict[Version, tuple[Path, Path]]:
    """Find, by version with a memory controller, the folders of this process's group and of the topmost."""
    paths: dict[Version, str] = {}
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            paths["cgroup v1"] = path
        elif not controllers:
            paths["cgroup v2"] = path
    folders: dict[Version, tuple[Path, Path]] = {}
    for line in _lines(root / "proc/self/mountinfo"):
        mount, _, system = line.partition(" - ")
        kind, _, options = system.split(" ", 2)
        version: Version = "cgroup v1" if kind == "cgroup" else "cgroup v2"
        if kind not in ("cgroup", "cgroup2") or version not in paths:
            continue
        if kind == "cgroup" and "memory" not in options.split(","):
            continue
        shown, point = mount.split(" ")[3:5]
        if PurePath(paths[version]).is_relative_to(shown):
            top = root / point.lstrip("/")
            folders[version] = (top / PurePath(paths[version]).relative_to(shown), top)
    return folders


def _write(file: Path, value: str) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC)  # never created
    try:
        os.write(descriptor, value.encode())
    finally:
        os.close(descriptor)


def _below(group: Path) -> Iterator[Path]:
    """Yield a group and all below it, the lowest first."""
    for folder, _, _ in os.walk(group, topdown=False):
        yield Path(folder)


def _members(group: Path) -> list[int]:
    return [int(word) for word in _words(group / "cgroup.procs")]


def _words(path: Path) -> list[str]:
    return " ".join(_lines(path)).split()


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


# -- device files that a group may not open: the GPUs that a job did not get -------------------------------
#
# Variables such as ``CUDA_VISIBLE_DEVICES`` hide GPUs from programs that read them, and any program can set
# them anew. A control group of version 2 can refuse device files: by a small program (eBPF) that the kernel
# runs whenever a process of the group opens one, and which stays as long as the group. It needs root. Seen on
# an H200: where ``/dev/nvidia0`` is refused, CUDA finds no device, OpenCL no platform, NVML no GPU;
# ``nvidiactl`` and ``nvidia-uvm`` may stay open.

ROOT = "run the coordinator as root"
BPF = {"x86_64": 321, "aarch64": 280}  # number of the system call bpf(2)
PROG_LOAD, PROG_ATTACH = 5, 8
CGROUP_DEVICE_PROGRAM, ATTACH_DEVICE = 15, 6
BESIDE_OTHERS = 2  # BPF_F_ALLOW_MULTI: what others refuse stays refused
LICENCE = b"GPL\0"
# Instructions: a word of the context (access, major, minor) into a register; a constant; a jump; the end.
LOAD, SET, JUMP_UNLESS, EXIT = 0x61, 0xB7, 0x55, 0x95
ANSWER, CONTEXT, MAJOR, MINOR = 0, 1, 2, 3  # registers


def refuse(group: Path, files: Iterable[Path]) -> None:
    """Keep the processes of a group of version 2 from opening these device files.

    What they have open stays open. A file that is not there (its GPU has been lost) refuses itself.

    Raises:
        OSError: a file is no character device, or this process may not.
    """
    numbers = []
    for file in files:
        with suppress(FileNotFoundError):
            numbers.append(_number(file))
    program = _load(_program(numbers))
    try:
        folder = os.open(group, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _bpf(PROG_ATTACH, struct.pack("<IIII", folder, program, ATTACH_DEVICE, BESIDE_OTHERS))
        finally:
            os.close(folder)
    finally:
        os.close(program)


def trouble() -> Unavailable | None:
    """Return why no device file can be refused here, and what to do; None if it can."""
    if platform.machine() not in BPF:
        return Unavailable(f"on {platform.machine()} that is not known")
    try:
        os.close(_load(_program([])))
    except OSError as error:
        if error.errno == errno.EPERM:
            return Unavailable("that takes root", ROOT)
        return Unavailable(f"the kernel has no eBPF for device files ({error.strerror})")
    return None


def _number(file: Path) -> tuple[int, int]:
    status = file.stat()
    if not status.st_rdev or not file.is_char_device():
        raise OSError(errno.ENODEV, "no character device", str(file))
    return os.major(status.st_rdev), os.minor(status.st_rdev)


def _program(numbers: list[tuple[int, int]]) -> bytes:
    """Write the program: 0 (refused) for these devices, 1 for all others."""
    parts = [
        _instruction(LOAD, MAJOR, CONTEXT, offset=4),
        _instruction(LOAD, MINOR, CONTEXT, offset=8),
    ]
    for major, minor in numbers:
        parts += [
            _instruction(JUMP_UNLESS, MAJOR, offset=3, constant=major),
            _instruction(JUMP_UNLESS, MINOR, offset=2, constant=minor),
            _instruction(SET, ANSWER, constant=0),
            _instruction(EXIT),
        ]
    return b"".join([*parts, _instruction(SET, ANSWER, constant=1), _instruction(EXIT)])


def _instruction(code: int, to: int = 0, source: int = 0, *, offset: int = 0, constant: int = 0) -> bytes:
    return struct.pack("<BBhi", code, to | source << 4, offset, constant)


def _load(program: bytes) -> int:
    """Give the kernel the program, and return its descriptor."""
    code, licence = (ctypes.create_string_buffer(text, len(text)) for text in (program, LICENCE))
    addresses = ctypes.addressof(code), ctypes.addressof(licence)
    return _bpf(PROG_LOAD, struct.pack("<IIQQ", CGROUP_DEVICE_PROGRAM, len(program) // 8, *addresses))


def _bpf(command: int, attributes: bytes) -> int:
    call = BPF.get(platform.machine())
    if call is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    buffer = ctypes.create_string_buffer(attributes, 128)
    libc = ctypes.CDLL(None, use_errno=True)
    answer = int(libc.syscall(call, command, buffer, len(buffer)))
    if answer < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return answer
