"""``tenbin.Checkpoint``: real OpenCL programs; files cut, damaged, foreign; disks full."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tenbin.checkpoint import CHUNK, Checkpoint, CheckpointError, Part, read, read_header, write
from tests.support.coordinator import Up
from tests.support.labs.components import require
from tests.support.programs import lost_device, opencl_devices, opencl_layer


@pytest.fixture(scope="module")
def two_devices() -> dict[str, str]:
    require(len(opencl_devices(POCL_DEVICES="pthread basic")) == 2, "two OpenCL devices (PoCL)")
    return {**os.environ, "POCL_DEVICES": "pthread basic"}


def test_killed_while_it_saves_there_is_the_old_or_the_new(tmp_path: Path) -> None:
    """A program that saves over and over, killed at random: what is there is always whole."""
    code = (
        "import sys, itertools; from pathlib import Path; import numpy as np\n"
        "from tenbin.checkpoint import Part, write\n"
        "for n in itertools.count(int(sys.argv[2])):\n"
        "    data = np.full(3_000_000, n % 251, dtype='u1').data\n"
        "    def fill(memory, at): memory[:] = data[at : at + len(memory)]\n"
        "    write(Path(sys.argv[1]), 'p', {'n': n}, [Part('a', len(data))], fill=[fill])\n"
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

    write(path, "p-1", {"step": 3}, [Part("empty", 0), Part("a", len(content))], fill=[fill, fill])


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


def mounted(folder: Path, kind: str, *options: str) -> Iterator[Path]:
    folder.mkdir()
    mount = ["mount", "-t", kind, *options, kind, str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """Make a folder with room for 1 MB."""
    yield from mounted(tmp_path / "small", "tmpfs", "-o", "size=1m")


@pytest.fixture
def simple(tmp_path: Path) -> Iterator[Path]:
    """Make a folder whose file system knows neither preallocation nor direct I/O."""
    yield from mounted(tmp_path / "simple", "ramfs")


def test_no_room_leaves_the_old_one(small: Path) -> None:
    save(small / "c", b"old" * 1000)
    with pytest.raises(OSError, match="No space"):
        save(small / "c", b"n" * 2_000_000)
    assert load(small / "c") == b"old" * 1000
    assert [entry.name for entry in small.iterdir()] == ["c"]


def test_a_simple_file_system_will_do(simple: Path) -> None:
    save(simple / "c", b"old" * 1000)
    save(simple / "c", b"new" * 10_000)
    assert load(simple / "c") == b"new" * 10_000


def test_copies_go_on_while_chunks_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first chunk is not written before the second has been copied: no copy waits for a write."""
    second, pwrite = threading.Event(), os.pwrite

    def patient(descriptor: int, data: Any, at: int) -> int:
        assert second.wait(60), "the second copy waits for the first write"
        return pwrite(descriptor, data, at)

    def fill(memory: memoryview, at: int) -> None:
        memory[:] = bytes(len(memory))
        if at == CHUNK:
            second.set()

    monkeypatch.setattr(os, "pwrite", patient)
    write(tmp_path / "c", "p-1", {}, [Part("a", 2 * CHUNK)], fill=[fill])
    assert (tmp_path / "c").stat().st_size > 2 * CHUNK


def test_numbers_of_numpy_are_numbers_other_things_are_named(tmp_path: Path) -> None:
    write(tmp_path / "c", "p", {"n": np.int64(3), "x": np.float32(0.5), "y": np.bool_(True)}, [], fill=[])
    assert read_header(tmp_path / "c", "p")[0] == {"n": 3, "x": 0.5, "y": True}
    for wrong in ({1, 2}, np.zeros(3), object()):
        with pytest.raises(CheckpointError, match=f"state holds a {type(wrong).__name__}"):
            write(tmp_path / "c", "p", {"wrong": wrong}, [], fill=[])
    assert read_header(tmp_path / "c", "p")[0]["n"] == 3
    assert [entry.name for entry in tmp_path.iterdir()] == ["c"]


# -- programs ---------------------------------------------------------------------------------------------

ADD = "kernel void add(global int *value) { value[get_global_id(0)] += 1; }"


def program(folder: Path, code: str, environment: dict[str, str]) -> subprocess.Popen[str]:
    head = "import sys, time, numpy as np, pyopencl as cl, tenbin, tenbin.checkpoint\n"
    return subprocess.Popen(
        [sys.executable, "-c", head + code],
        env={**environment, "TENBIN_JOB_FOLDER": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def said(folder: Path, code: str, environment: dict[str, str]) -> tuple[int, str, str]:
    """Exit code, output, errors."""
    process = program(folder, code, environment)
    out, err = process.communicate(timeout=90)
    return process.returncode, out, err


def test_a_file_asks_for_a_checkpoint(two_devices: dict[str, str], tmp_path: Path) -> None:
    code = (
        "check = tenbin.Checkpoint('p'); check.restore()\n"
        f"open({str(tmp_path / 'checkpoint.request')!r}, 'w').close()\n"
        "while True: check.safe_point()"
    )
    assert said(tmp_path, code, two_devices)[0] == 85
    assert (tmp_path / "checkpoint.tenbin").exists() and not (tmp_path / "checkpoint.request").exists()


def test_asked_before_it_has_restored_it_leaves_the_checkpoint_alone(
    two_devices: dict[str, str], tmp_path: Path
) -> None:
    code = (
        f"check = tenbin.Checkpoint('p'); check.build('{ADD}'); check.buffer('a', 4096)\n"
        "check.state['n'] = 0; check.restore(); check.state['n'] += 1; check.save()"
    )
    for asked in (True, False, True):
        before = read_or_nothing(tmp_path / "checkpoint.tenbin")
        if asked:
            (tmp_path / "checkpoint.request").touch()
        assert said(tmp_path, code, two_devices)[0] == (85 if asked else 0)
        assert (read_or_nothing(tmp_path / "checkpoint.tenbin") == before) is asked
        assert not (tmp_path / "checkpoint.request").exists()


def read_or_nothing(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


WRONG = {
    "check.safe_point()": "call restore() before the first safe_point()",
    "check.save()": "call restore() before the first",
    "check.restore(); check.buffer('a', 8)": "a comes after restore(); register everything before it",
    "check.buffer('a', 8); check.buffer('a', 8)": "a is registered already",
    "check.array('a', np.zeros((4, 4)).T[1:])": "a is not contiguous, writeable numbers",
    "check.array('a', np.broadcast_to(1.0, (1,)))": "a is not contiguous, writeable numbers",
    "check.buffer('a', 0)": "while making buffer a of 0 bytes: create_buffer failed: INVALID_BUFFER",
    "tenbin.Checkpoint('q', device=9)": "there is no OpenCL device 9; see: tenbin doctor",
}
EACH = """
for code in {codes!r}:
    try:
        check = tenbin.Checkpoint('p')
        exec(code)
        print('accepted')
    except tenbin.checkpoint.CheckpointError as error:
        print(error)
"""


def test_wrong_use_is_named(two_devices: dict[str, str], tmp_path: Path) -> None:
    _, out, _ = said(tmp_path, EACH.format(codes=list(WRONG)), two_devices)
    for message, line in zip(WRONG.values(), out.splitlines(), strict=True):
        assert message in line


def test_an_array_of_another_type_is_refused(two_devices: dict[str, str], tmp_path: Path) -> None:
    saved = "check.array('a', np.zeros({})); check.restore(); check.save()"
    shapes = ("(2, 4)", "(4, 2)", "(2, 4), 'i8'", "(2, 4), '>f8'", "9", "(2, 4)")
    codes = [saved.format(shape) for shape in shapes]
    _, out, _ = said(tmp_path, EACH.format(codes=codes), two_devices)
    first, *others, again = out.splitlines()
    assert first == again == "accepted" and len(others) == 4
    assert all("has other parts (a array <f8 (2, 4) 64 bytes)" in line for line in others)


def test_all_queues_are_drained(two_devices: dict[str, str], tmp_path: Path) -> None:
    """When it has saved, what another queue had to do is done."""
    long = (
        "kernel void spin(global uint *x, int n) { uint y = x[0]; "
        "for (int i = 0; i < n; ++i) y = 1664525 * y + 1013904223; x[0] = y; }"
    )
    code = (
        f"check = tenbin.Checkpoint('p'); spin = cl.Kernel(check.build('{long}'), 'spin'); check.restore()\n"
        "value = cl.Buffer(check.context, cl.mem_flags.READ_WRITE, 4); other = check.new_queue()\n"
        "event = spin(other, (1,), None, value, np.int32(300_000_000)); other.flush(); check.save()\n"
        "print(event.command_execution_status == cl.command_execution_status.COMPLETE)"
    )
    environment = {**two_devices, "POCL_DEVICES": "pthread"}  # "basic" has no queue of its own
    assert said(tmp_path, code, environment)[1] == "True\n"


def test_without_room_it_goes_on_and_tries_again(two_devices: dict[str, str], small: Path) -> None:
    code = (
        "tenbin.checkpoint.AGAIN_S = 0.05; check = tenbin.Checkpoint('p')\n"
        "check.buffer('a', 2 << 20)\n"
        "check.restore(); print('goes on', flush=True)\n"
        "while True: check.safe_point(); time.sleep(0.01)"
    )
    process = program(small, code, two_devices)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.readline()
    process.send_signal(signal.SIGURG)
    for _ in range(2):
        line = process.stderr.readline()
        assert "could not be written" in line and "No space left" in line and "goes on" in line
    assert not (small / "checkpoint.tenbin").exists()
    subprocess.run(["mount", "-o", "remount,size=8m", str(small)], check=True)
    process.communicate(timeout=60)
    assert process.returncode == 85
    assert read_header(small / "checkpoint.tenbin", "p")[1]["a"].bytes == 2 << 20


def test_a_job_that_finds_no_room_to_move_ends_where_it_is(
    two_devices: dict[str, str], up: Up, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked by the coordinator to move; its owner sees why it did not, and nothing is lost."""
    code = (
        f"import os, time, tenbin, tenbin.checkpoint\nsmall = {str(small)!r}\n"
        "tenbin.checkpoint.AGAIN_S = 0.05; check = tenbin.Checkpoint('p', path=small + '/c')\n"
        "check.buffer('a', 2 << 20); check.restore()\n"
        "while not os.path.exists(small + '/end'): check.safe_point(); time.sleep(0.01)\n"
        "check.finish(); print('whole')"
    )
    monkeypatch.setenv("POCL_DEVICES", two_devices["POCL_DEVICES"])
    up.start("--devices", "--policy", "fcfs")
    job = up.client.submit([sys.executable, "-c", code], checkpoint_signal=int(signal.SIGURG))
    up.until(lambda: job.info()["stage"] == "running", 60)
    assert up.run("migrate", str(job.id), "--to", "pocl-1").returncode == 0
    up.until(lambda: "No space left" in Path(job.info()["stderr"]).read_text(), 60)
    assert job.info()["stage"] == "stopping"
    (small / "end").touch()
    found = job.wait(60)
    assert (found["stage"], found["attempt"], found["migrations"]) == ("done", 1, 0)
    assert Path(found["stdout"]).read_text() == "whole\n"


def test_a_driver_that_says_too_early_that_a_queue_is_empty(
    two_devices: dict[str, str], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A checkpoint has what kernels write that were queued before."""
    library = opencl_layer("early_finish", tmp_path_factory.mktemp("layer"))
    code = (
        "check = tenbin.Checkpoint('p'); a = check.buffer('a', 4096); check.restore()\n"
        "source = 'kernel void one(global uint *a) { a[get_global_id(0)] = 1; }'\n"
        "program = check.build(source); queue = check.new_queue()\n"
        "program.one(queue, (1024,), None, a); queue.flush(); check.save()"
    )
    environment = {**two_devices, "POCL_DEVICES": "pthread", "OPENCL_LAYERS": library}
    assert said(tmp_path, code, environment)[0] == 0
    _, parts = read_header(tmp_path / "checkpoint.tenbin", "p")
    found = np.zeros(1024, np.uint32)

    def take(memory: Any, at: int) -> None:
        found.view(np.uint8)[at : at + len(memory)] = np.frombuffer(memory, np.uint8)

    read(tmp_path / "checkpoint.tenbin", list(parts.values()), [take])
    assert found.tolist() == [1] * 1024


@pytest.mark.parametrize("error", [-2, -5])  # not available; out of resources
def test_a_device_lost_while_saving(
    two_devices: dict[str, str], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, error: int
) -> None:
    """The second checkpoint fails: the first one is kept, and it is said."""
    library = lost_device(tmp_path_factory.mktemp("layer"))
    code = (
        "check = tenbin.Checkpoint('p'); check.buffer('a', 4096); check.state['n'] = 1; check.restore()\n"
        "check.save(); check.state['n'] = 2; check.save()"
    )
    environment = {**two_devices, "OPENCL_LAYERS": library, "LOST_AFTER": "1", "LOST_ERROR": str(error)}
    returned, _, err = said(tmp_path, code, environment)
    last = err.splitlines()[-1]
    assert returned == 1 and "failed while saving: clEnqueueReadBuffer" in last
    assert f"{tmp_path / 'checkpoint.tenbin'} is as it was before" in last
    assert read_header(tmp_path / "checkpoint.tenbin", "p")[0] == {"n": 1}
    assert not list(tmp_path.glob(".*"))


def test_what_a_killed_save_left_is_gone_at_the_end(two_devices: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / ".checkpoint.tenbin.part").write_bytes(b"half")
    code = "check = tenbin.Checkpoint('p'); check.restore(); check.save(); check.finish()"
    assert said(tmp_path, code, two_devices)[0] == 0
    assert [entry.name for entry in tmp_path.iterdir()] == ["checkpoint.phases.jsonl"]


@pytest.mark.parametrize("how", ["link", "pipe"])
def test_what_others_lay_beside_a_checkpoint_is_not_written_to(how: str, tmp_path: Path) -> None:
    """In a folder of several users; to open a pipe would wait for ever."""
    (tmp_path / "precious").write_text("precious")
    for name in (".checkpoint.part", "checkpoint.phases.jsonl"):
        if how == "link":
            (tmp_path / name).symlink_to(tmp_path / "precious")
        else:
            os.mkfifo(tmp_path / name)
    check = Checkpoint.__new__(Checkpoint)  # without a device
    check.log, check.phases = tmp_path / "checkpoint.phases.jsonl", [{"phase": "ready"}]
    check._record()
    write(tmp_path / "checkpoint", "p", {"n": 1}, [], fill=[])
    assert read_header(tmp_path / "checkpoint", "p")[0] == {"n": 1}
    assert (tmp_path / "precious").read_text() == "precious"
