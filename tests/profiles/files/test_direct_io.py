"""Direct I/O: every byte arrives, tails included; full, refusing and shrinking storage is told apart."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from probes.folders import scratch
from profiles.errors import Unavailable
from profiles.files import direct_io
from profiles.files.direct_io import ALIGNMENT
from tests.support.labs.components import require

Bytes = NDArray[np.uint8]


def save(path: Path, data: Bytes, slots: list[memoryview]) -> direct_io.Io:
    def fill(view: Bytes, offset: int) -> None:
        view[:] = data[offset : offset + len(view)]

    return direct_io.write(path, len(data), slots, fill)


def load(path: Path, size: int, slots: list[memoryview]) -> Bytes:
    data = np.zeros(size, dtype=np.uint8)

    def take(view: Bytes, offset: int) -> None:
        data[offset : offset + len(view)] = view

    direct_io.read(path, size, slots, take)
    return data


def random_bytes(size: int, seed: int = 1) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """Make a folder over which a test may mount; unmount it at the end."""
    require(os.geteuid() == 0, "mounting needs root")
    folder = tmp_path / "mounted"
    folder.mkdir()
    yield folder
    subprocess.run(["umount", str(folder)], check=False, capture_output=True)


def mount(folder: Path, kind: str, options: str = "") -> None:
    extra = ["-o", options] if options else []
    done = subprocess.run(["mount", "-t", kind, *extra, kind, str(folder)], check=False, capture_output=True)
    require(done.returncode == 0, f"{kind} cannot be mounted here")


@settings(max_examples=40)
@given(size=st.integers(1, 300_000), chunks=st.integers(1, 5), slots=st.integers(1, 5))
def test_every_byte_comes_back(tmp_path: Path, size: int, chunks: int, slots: int) -> None:
    path = tmp_path / "file"
    buffers = direct_io.staging(slots, chunks * ALIGNMENT)
    data = random_bytes(size)
    try:
        save(path, data, buffers)
        assert path.stat().st_size == size
        assert np.array_equal(np.fromfile(path, dtype=np.uint8), data)
        assert np.array_equal(load(path, size, buffers), data)
    finally:
        path.unlink(missing_ok=True)


@given(size=st.integers(1, 1 << 36))
def test_layouts_are_aligned_and_overlap_what_they_can(size: int) -> None:
    chunk, slots = direct_io.layout(size)
    assert chunk % ALIGNMENT == 0
    assert chunk <= direct_io.CHUNK
    assert 1 <= slots <= direct_io.THREADS + 2
    assert (slots - 1) * chunk < size
    if size >= 8 << 20:
        assert -(-size // chunk) >= 8


def test_the_file_on_disk_bypasses_the_page_cache(tmp_path: Path) -> None:
    with scratch(tmp_path) as folder:
        require(direct_io.try_write(folder) == "direct", "this file system has no direct I/O")
        size = 8 << 20
        save(folder / "file", random_bytes(size), direct_io.staging(2, 1 << 20))
        script = (
            "import mmap,sys,ctypes,os\n"
            "f=open(sys.argv[1],'r+b'); n=os.path.getsize(sys.argv[1]); m=mmap.mmap(f.fileno(),n)\n"
            "v=(ctypes.c_ubyte*(n//4096))(); a=ctypes.addressof(ctypes.c_char.from_buffer(m))\n"
            "assert ctypes.CDLL(None).mincore(ctypes.c_void_p(a),ctypes.c_size_t(n),v)==0\n"
            "print(sum(b&1 for b in v)/len(v))"
        )
        done = subprocess.run(
            [sys.executable, "-c", script, str(folder / "file")], check=True, capture_output=True, text=True
        )
        assert float(done.stdout) < 0.1


def test_a_file_system_without_direct_io_is_used_buffered(mounted: Path) -> None:
    mount(mounted, "ramfs")
    assert direct_io.try_write(mounted) == "buffered"
    data = random_bytes(100_001)
    slots = direct_io.staging(2, 4 * ALIGNMENT)
    assert save(mounted / "file", data, slots) == "buffered"
    assert np.array_equal(load(mounted / "file", len(data), slots), data)


def test_too_little_space_is_said_before_anything_is_written(mounted: Path) -> None:
    mount(mounted, "tmpfs", "size=4m")
    with pytest.raises(OSError, match="No space") as caught:
        save(mounted / "file", random_bytes(8 << 20), direct_io.staging(2, 1 << 20))
    assert caught.value.errno == errno.ENOSPC
    assert not (mounted / "file").exists()


def test_a_storage_that_fills_up_meanwhile_is_an_error_and_not_a_short_file(mounted: Path) -> None:
    mount(mounted, "ramfs")  # reserves nothing up front
    slots = direct_io.staging(2, 1 << 20)
    # LLVM, which PoCL loads, catches the signal once. That of the second writer would end all tests.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 20, before[1]))
    try:
        with pytest.raises(OSError, match="too large") as caught:
            save(mounted / "file", random_bytes(8 << 20), slots)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.errno == errno.EFBIG


def test_a_shortened_file_is_an_error(tmp_path: Path) -> None:
    slots = direct_io.staging(2, 1 << 20)
    save(tmp_path / "file", random_bytes(3 << 20), slots)
    os.truncate(tmp_path / "file", 2 << 20)
    with pytest.raises(OSError, match="the file ends at byte 2097152"):
        load(tmp_path / "file", 3 << 20, slots)


def test_what_the_caller_raises_while_filling_comes_through(tmp_path: Path) -> None:
    def fill(view: Bytes, offset: int) -> None:
        raise LookupError("lost")

    with pytest.raises(LookupError, match="lost"):
        direct_io.write(tmp_path / "file", 1 << 20, direct_io.staging(1, ALIGNMENT), fill)


def test_scratch_folders_go_also_those_of_killed_probes(tmp_path: Path) -> None:
    script = (
        "import os,sys,pathlib\nfrom probes.folders import scratch\n"
        "with scratch(pathlib.Path(sys.argv[1])) as f:\n (f/'big').write_text('x'); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert len(list(tmp_path.iterdir())) == 1
    with scratch(tmp_path) as folder:
        assert list(tmp_path.iterdir()) == [folder]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("what", ["missing", "a file", "read-only"])
def test_unusable_folders_are_named_with_a_remedy(
    tmp_path: Path, request: pytest.FixtureRequest, what: str
) -> None:
    folder = tmp_path / "folder"
    if what == "a file":
        folder.touch()
    elif what == "read-only":
        folder = request.getfixturevalue("mounted")
        mount(folder, "tmpfs", "ro")
    with pytest.raises(Unavailable, match=str(folder)) as caught, scratch(folder):
        pass
    assert caught.value.remedy
