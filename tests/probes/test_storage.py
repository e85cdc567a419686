"""The storage probe on this machine: its clock, its bytes, its files, and folders that it cannot measure."""

from __future__ import annotations

import errno
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from agent.node_profile.profiler import FULL_ROUNDS
from probes import storage
from probes.run import Event, Run, collect
from probes.storage import (
    BLOCK,
    FULL_BYTES,
    KINDS,
    PAGE,
    QUICK_BYTES,
    Batch,
    Limits,
    Place,
    cached_ratio,
    measure,
    prepared,
    run_batch,
)
from profiles.errors import Unavailable
from profiles.files import direct_io
from profiles.records import Absent, Settings
from tests.support.labs.components import require

MEMORY = Path("/dev/shm")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make an empty folder on a disk."""
    disk = tmp_path / "disk"
    disk.mkdir()
    require(direct_io.try_write(disk) == "direct", "a file system with direct I/O")
    return disk


@pytest.fixture
def place(folder: Path) -> Iterator[Place]:
    try:
        with prepared(folder, 64 << 20, 60.0, np.random.default_rng(1)) as place:
            yield place
    except Unavailable as error:
        require(False, str(error))


def quick(*folders: Path, budget_s: float = 1.5) -> tuple[pd.DataFrame, list[Absent]]:
    return collect("storage", Settings(quick=True, storage=folders, budget_s=budget_s), measure)


# --- the clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Put a clock of the test's own into the loop; a reading takes nothing."""
    now = [0]
    monkeypatch.setattr(storage, "time", SimpleNamespace(perf_counter_ns=lambda: now[0]))
    return lambda seconds: now.__setitem__(0, now[0] + round(seconds * 1e9))


@pytest.mark.parametrize(
    ("limits", "operations"),
    [
        (Limits(0.010, 1, 1.0), 10),  # the time
        (Limits(0.010, 40, 1.0), 40),  # operations enough
        (Limits(0.010, 40, 0.020), 20),  # the longest time
        (Limits(1.0, 1, 1.0), 50),  # the end of the places
    ],
)
def test_a_batch_ends_in_time_and_times_each_operation(
    clock: Callable[[float], None], limits: Limits, operations: int
) -> None:
    seen: list[int] = []

    def operation(buffers: list[memoryview], offset: int) -> int:
        seen.append(offset)
        clock(0.001)
        return 512

    batch = run_batch(operation, [([], offset) for offset in range(50)], 512, limits)
    assert seen == list(range(operations))
    assert batch.each_s == pytest.approx(np.full(operations, 0.001))
    assert batch.seconds == pytest.approx(0.001 * operations)


def test_a_transfer_cut_short_is_an_error() -> None:
    with pytest.raises(OSError, match="511 bytes of 512 moved"):
        run_batch(lambda buffers, offset: 511, [([], 0)], 512, Limits(1, 1, 1))


def test_percentiles_are_type_8_of_hyndman_and_fan() -> None:
    n = 100
    batch = Batch(1.0, np.random.default_rng(1).permutation(np.arange(1.0, n + 1)))
    assert batch.percentile_s(50) == pytest.approx((n + 1) / 2)
    assert batch.p99_s == pytest.approx((n + 1 / 3) * 0.99 + 1 / 3)  # of 1, 2 ... n
    assert Batch(1.0, np.ones(99)).p99_s is None


# --- bytes and files


def counted(name: str) -> int:
    """Read how many bytes the kernel has moved to or from storage for this process."""
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise KeyError(name)


def test_the_kernel_counts_the_bytes_that_the_rows_tell(folder: Path) -> None:
    written, read = counted("write_bytes"), counted("read_bytes")
    table, absent = quick(folder)
    written, read = counted("write_bytes") - written, counted("read_bytes") - read
    require(written, "a kernel that counts I/O")
    assert set(table["kind"]) == set(KINDS)
    assert not [a for a in absent if not a.what.startswith("p99")]
    last = int(table["written_bytes"].max())
    assert last <= QUICK_BYTES
    assert written == pytest.approx(last, rel=0.2)  # besides: blocks of the file system itself
    reads = table[table["kind"].isin(["read", "random_read"])]
    moved = int((reads["operations"] * reads["block_bytes"]).sum())
    assert read >= moved  # all came from the storage, and none from memory
    assert (table["p50_s"] <= table["slowest_s"]).all() and (table["p50_s"] > 0).all()
    assert not list(folder.iterdir())


def test_a_full_profile_writes_at_most_a_gibibyte() -> None:
    assert FULL_ROUNDS * FULL_BYTES == 1 << 30
    assert QUICK_BYTES == 192 << 20


def test_the_file_is_whole_and_cannot_be_compressed(place: Place) -> None:
    file = place.inside / "data"
    assert os.fstat(place.data).st_size == place.size == 32 << 20
    assert os.fstat(place.data).st_blocks * 512 >= place.size
    place.batch("random_write", Limits(0.0, 50, 1.0))
    whole = file.read_bytes()
    pages = {whole[at : at + PAGE] for at in range(0, len(whole), PAGE)}
    assert len(pages) == place.size // PAGE
    assert len(zlib.compress(whole[:BLOCK])) > 0.99 * BLOCK


def test_each_kind_of_operation_goes_where_it_should(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    went: list[tuple[str, int, int, int]] = []

    def pretend(name: str) -> Callable[[int, list[memoryview], int], int]:
        def call(descriptor: int, buffers: list[memoryview], offset: int) -> int:
            went.append((name, descriptor, len(buffers[0]), offset))
            return len(buffers[0])

        return call

    for name in ("pwritev", "preadv"):
        monkeypatch.setattr(os, name, pretend(name))
    limits = Limits(0.0, 300, 60.0)
    monkeypatch.setattr(storage, "MOST_RANDOM_READS", 300)
    for kind, call, descriptor, size in (
        ("write", "pwritev", place.data, BLOCK),
        ("read", "preadv", place.data, BLOCK),
        ("random_read", "preadv", place.data, PAGE),
        ("random_write", "pwritev", place.data, PAGE),
        ("fsync", "pwritev", place.log, PAGE),
    ):
        went.clear()
        room = place.room
        for _ in range(20):
            place.batch(kind, limits)
        offsets = [offset for *_, offset in went]
        assert {step[:3] for step in went} == {(call, descriptor, size)}
        end = storage.LOG if kind == "fsync" else place.size
        assert all(offset % size == 0 and 0 <= offset < end for offset in offsets)
        if kind.startswith("random"):  # 6000 of 8192 blocks, drawn: 1 - exp(-6000 / 8192) of them met
            assert len(set(offsets)) / (end // size) == pytest.approx(0.519, abs=0.03)
        else:
            assert offsets == [i * size % end for i in range(len(offsets))]
        assert room - place.room == (len(went) * size if call == "pwritev" else 0)


# --- what goes wrong


def test_memory_is_no_storage() -> None:
    require(os.access(MEMORY, os.W_OK), "a file system in memory")
    events: list[Event] = []
    with pytest.raises(Unavailable, match="no storage folder can be measured"):
        measure(Run("storage", Settings(storage=(MEMORY,), budget_s=1), events.append))
    (absent,) = [event["absent"] for event in events if event["event"] == "absent"]
    assert absent["what"] == f"storage {MEMORY}"
    assert "direct I/O" in absent["reason"] and "--storage DIR" in absent["remedy"]
    assert not list(MEMORY.glob(f".tenbin-*-{os.getpid()}"))


def test_the_page_cache_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(64 * PAGE))
    with file.open("r+b") as opened:
        assert cached_ratio(opened.fileno(), 64 * PAGE) == 1.0


def test_a_folder_that_fails_costs_its_own_part_only(folder: Path, tmp_path: Path) -> None:
    for budget_s in (1.0, 10.0, 60.0):  # the longer ones where this machine is busy
        table, absent = quick(tmp_path / "nowhere", folder, budget_s=budget_s)
        if len(table):
            break
    assert set(table["storage"]) == {str(folder)}
    (first,) = [a for a in absent if a.what == f"storage {tmp_path / 'nowhere'}"]
    assert "is missing" in first.reason and first.remedy.startswith("mkdir -p")


@pytest.mark.parametrize("free", [90 << 20, 120 << 20])
def test_less_is_written_where_little_room_is_free(
    folder: Path, free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage.direct_io, "free_bytes", lambda folder: float(free))
    if free < storage.LEAST_FREE:
        with pytest.raises(Unavailable, match="94 MB free, which is too little; free 101 MB in"):
            prepared(folder, QUICK_BYTES, 1.0, np.random.default_rng(1)).__enter__()
    else:
        table, _ = quick(folder, budget_s=1.0)
        assert table["written_bytes"].max() <= free / 2
    assert not list(folder.iterdir())


def test_a_kind_that_fails_is_absent_and_the_others_go_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Place.batch

    def batch(self: Place, kind: str, limits: Limits) -> Batch:
        if kind == "random_write":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return whole(self, kind, Limits(0.0, 1, 0.0))  # one operation: on a busy disk all have their turn

    monkeypatch.setattr(Place, "batch", batch)
    table, absent = quick(folder, budget_s=3.0)
    assert set(table["kind"]) == set(KINDS) - {"random_write"}
    (failure,) = [a for a in absent if a.failed]
    assert failure.what == f"random write in {folder}" and "Input/output error" in failure.reason


def test_too_few_operations_have_no_p99(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "FEWEST_FOR_P99", 10**9)
    table, absent = quick(folder, budget_s=1.0)
    assert table["p99_s"].isna().all()
    assert f"p99 of a random read in {folder}" in {a.what for a in absent}
