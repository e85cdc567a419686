"""Device files that a control group may not open: the GPUs that a job did not get.

Variables such as ``CUDA_VISIBLE_DEVICES`` hide GPUs from programs that read them, and any program can set
them anew. A control group of version 2 can refuse device files: by a small program (eBPF) that the kernel
runs whenever a process of the group opens one, and which stays as long as the group. It needs root. Seen on
an H200: where ``/dev/nvidia0`` is refused, CUDA finds no device, OpenCL no platform, NVML no GPU;
``nvidiactl`` and ``nvidia-uvm`` may stay open.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from profiles.errors import Unavailable

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
