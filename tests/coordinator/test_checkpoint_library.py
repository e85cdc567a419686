"""``tenbin.Checkpoint``: real OpenCL programs stopped and moved; files cut, damaged, foreign; disks full."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tenbin.checkpoint_file import CheckpointError, Part, read, read_header, write
from tests.conftest import require

STENCIL = Path(__file__).parents[2] / "examples" / "stencil.py"
CELLS, STEPS = 256, 40_000


def devices() -> int:
    """How many OpenCL devices two emulated ones give, asked in a process of its own."""
    code = "import pyopencl as cl; print(len(cl.get_platforms()[0].get_devices()))"
    environment = {**os.environ, "POCL_DEVICES": "pthread basic"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    return int(done.stdout or 0)


@pytest.fixture(scope="module")
def two_devices() -> dict[str, str]:
    require(devices() == 2, "two OpenCL devices (PoCL)")
    return {**os.environ, "POCL_DEVICES": "pthread basic"}


def start(folder: Path, environment: dict[str, str], device: str = "0") -> subprocess.Popen[str]:
    command = [sys.executable, str(STENCIL), "--cells", str(CELLS), "--steps", str(STEPS)]
    variables = {**environment, "TENBIN_DEVICE": device, "TENBIN_JOB_FOLDER": str(folder)}
    return subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def listens(pid: int) -> None:
    """Wait until the process handles SIGURG."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        caught = next(
            x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("SigCgt")
        )
        if int(caught.split()[1], 16) >> (signal.SIGURG - 1) & 1:
            return
        time.sleep(0.01)
    raise AssertionError("it does not listen")


def test_moved_five_times_the_result_is_the_same(two_devices: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "moved").mkdir()
    undisturbed = start(tmp_path, two_devices).communicate()[0]
    assert f"after {STEPS} steps" in undisturbed
    for move in range(5):
        process = start(tmp_path / "moved", two_devices, str(move % 2))
        if move % 2:
            listens(process.pid)
            time.sleep(0.3)
            process.send_signal(signal.SIGURG)
        else:
            (tmp_path / "moved" / "checkpoint.request").touch()
        assert process.wait(60) == 85, process.stderr and process.stderr.read()
    state, _ = read_header(tmp_path / "moved" / "checkpoint.tenbin", f"stencil-{CELLS}")
    assert 0 < state["step"] < STEPS
    assert start(tmp_path / "moved", two_devices, "1").communicate(timeout=90)[0] == undisturbed
    assert not (tmp_path / "moved" / "checkpoint.tenbin").exists()


def test_killed_while_it_saves_there_is_the_old_or_the_new(tmp_path: Path) -> None:
    """A program that saves over and over, killed at random: what is there is always whole."""
    code = (
        "import sys, itertools; from pathlib import Path; import numpy as np\n"
        "from tenbin.checkpoint_file import Part, write\n"
        "for n in itertools.count(int(sys.argv[2])):\n"
        "    data = np.full(3_000_000, n % 251, dtype='u1').data\n"
        "    def fill(memory, at): memory[:] = data[at : at + len(memory)]\n"
        "    write(Path(sys.argv[1]), 'p', {'n': n}, [Part('a', len(data))], [fill])\n"
        "    print(n, flush=True)\n"
    )
    path, chance, last = tmp_path / "c", random.Random(5), 0
    for _ in range(8):
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(path), str(last + 1)], stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(chance.uniform(0, 0.1))
        process.kill()
        process.wait()
        state, parts = read_header(path, "p")
        data = np.empty(parts["a"].bytes, dtype="u1")

        def take(memory: memoryview, at: int, data: np.ndarray = data) -> None:
            data.data[at : at + len(memory)] = memory

        read(path, [parts["a"]], [take])
        assert state["n"] > last and (data == state["n"] % 251).all()
        last = state["n"]


def save(path: Path, content: bytes = b"x" * 10_000) -> None:
    def fill(memory: memoryview, at: int) -> None:
        memory[:] = content[at : at + len(memory)]

    write(path, "p-1", {"step": 3}, [Part("empty", 0), Part("a", len(content))], [fill, fill])


def load(path: Path, program: str = "p-1") -> bytes:
    _, parts = read_header(path, program)
    found = bytearray(parts["a"].bytes)

    def take(memory: memoryview, at: int) -> None:
        found[at : at + len(memory)] = memory

    read(path, list(parts.values()), [take, take])
    return bytes(found)


@pytest.mark.parametrize("size", [1, 4095, 4096, 4097, (32 << 20) + 5])
def test_what_is_saved_comes_back(tmp_path: Path, size: int) -> None:
    content = random.Random(size).randbytes(size)
    save(tmp_path / "c", content)
    assert load(tmp_path / "c") == content
    assert [entry.name for entry in tmp_path.iterdir()] == ["c"]


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda b: b[:8], "is no checkpoint"),
        (lambda b: b"NOTTENBI" + b[8:], "is no checkpoint"),
        (lambda b: b[:40] + b"?" + b[41:], "damaged: its header"),
        (lambda b: b[:60], "damaged: its header"),
        (lambda b: b[:6000], "cut short"),
        (lambda b: b[:5000] + b"?" + b[5001:], "damaged in a"),
        (lambda b: b"", "is no checkpoint"),
    ],
)  # fmt: skip
def test_damage_is_named(tmp_path: Path, harm: object, message: str) -> None:
    path = tmp_path / "c"
    save(path)
    path.write_bytes(harm(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(CheckpointError, match=f"{message}.*remove"):
        load(path)


def test_another_program_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "c")
    with pytest.raises(CheckpointError, match="is of program 'p-1', this is 'p-2'"):
        load(tmp_path / "c", "p-2")


def test_no_room_leaves_the_old_one(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting needs root")
    try:
        save(small / "c", b"old" * 1000)
        with pytest.raises(OSError, match="No space"):
            save(small / "c", b"n" * 2_000_000)
        assert load(small / "c") == b"old" * 1000
        assert [entry.name for entry in small.iterdir()] == ["c"]
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)
