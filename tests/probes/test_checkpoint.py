"""The checkpoint probe on this machine's own devices: complete, verified, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest

from probes import checkpoint, checkpoint_session, opencl
from probes.checkpoint import FULL, QUICK, affordable_mb, cache_environment, ladder, measure
from probes.device_process import DeviceProcess, Failure, ForkServer
from probes.folders import scratch
from probes.run import Event, Run, samples_of
from profiles.errors import Unavailable
from profiles.files import direct_io
from profiles.fits.checkpoint import fit
from profiles.records import MB, Absent, Settings
from tests.support.amounts import sweep
from tests.support.labs.components import require
from tests.support.programs import lost_device, opencl_layer

NOT_AVAILABLE = -2


@pytest.fixture(scope="module")
def device(key: str) -> str:
    return key


@pytest.fixture(scope="module")
def fork_server(device: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    with ForkServer(cache_environment(tmp_path_factory.mktemp("caches"))) as fork_server:
        yield fork_server


@pytest.fixture
def process(fork_server: ForkServer, device: str) -> Iterator[DeviceProcess]:
    with fork_server.fork(device) as process:
        process.call("open", device)
        yield process


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Save 16 MB at most, so that a test takes a moment."""
    monkeypatch.setattr(checkpoint, "QUICK", QUICK._replace(largest_mb=16))
    monkeypatch.setattr(checkpoint, "_PILOTS_MB", (1, 4, 16))


class Enough(Exception):
    """Raised by a listener that has seen what a test waits for."""


def probe(
    storage: list[Path], enough: Callable[[list[Event]], bool] = lambda events: False, budget_s: float = 40.0
) -> tuple[pd.DataFrame, list[Absent], list[Event]]:
    """Run the probe until ``enough`` of its events; so that no test depends on how fast this machine is."""
    events: list[Event] = []

    def emit(event: Event) -> None:
        events.append(event)
        if enough(events):
            raise Enough

    with suppress(Enough):
        measure(Run("checkpoint", Settings(quick=True, storage=tuple(storage), budget_s=budget_s), emit))
    absent = [Absent(**event["absent"]) for event in events if event["event"] == "absent"]
    return samples_of(events), absent, events


def saw(kind: str, times: int = 1) -> Callable[[list[Event]], bool]:
    return lambda events: kinds(events).count(kind) >= times


def kinds(events: list[Event]) -> list[str]:
    return [event["row"]["kind"] for event in events if event["event"] == "sample"]


def children() -> list[psutil.Process]:
    """Device processes of anybody's that descend from this one."""
    return [child for child in psutil.Process().children(recursive=True) if _is_ours(child)]


def _is_ours(child: psutil.Process) -> bool:
    try:
        return "probes.device_process" in child.cmdline()
    except psutil.Error:
        return False


def test_everything_is_measured_and_nothing_is_left(device: str, tmp_path: Path) -> None:
    before = len(children())
    kinds = {"phase", "checkpoint", "restart", "compile", "drain"}
    if len(opencl.devices()) > 1 or device.startswith("pocl"):  # a lone PoCL has a logical twin
        kinds.add("migration")
    phases = {"context", "copy_out", "copy_in", "copy_new", "write", "read"}

    def complete(events: list[Event]) -> bool:
        rows = [event["row"] for event in events if event["event"] == "sample"]
        return kinds <= {row["kind"] for row in rows} and phases <= {row.get("phase") for row in rows}

    table, absent, events = probe([tmp_path], complete, budget_s=60)
    assert complete(events)
    assert not list(tmp_path.iterdir())
    assert len(children()) == before
    assert (table["seconds"] >= 0).all()
    assert not [a for a in absent if "differ" in a.reason]
    assert [event for event in events if event["event"] == "progress"]
    if "migration" in kinds:
        moves = table[table["kind"] == "migration"]
        assert (moves["device"] != moves["to_device"]).all()


@pytest.mark.slow
def test_a_budget_that_is_too_short_still_gives_the_lines_of_a_device(device: str, tmp_path: Path) -> None:
    table, _, _ = probe([tmp_path], budget_s=1.0)
    lines = {model.quantity for model in fit(table) if model.labels.get("device", device) == device}
    assert {"checkpoint_s", "restart_s", "copy_out_s", "write_s", "compile_s"} <= lines
    assert not list(tmp_path.iterdir())


def test_migration_brings_every_byte(
    fork_server: ForkServer, device: str, process: DeviceProcess, tmp_path: Path
) -> None:
    size, path = 5 * MB, str(tmp_path / "file")
    process.call("fill_device", size, 7)
    process.call("checkpoint", path, size)
    expected = process.call("digest", size)
    assert (tmp_path / "file").stat().st_size == size
    with fork_server.fork(device) as other:
        other.call("open", device)
        other.call("restart", path, size)
        assert other.call("digest", size) == expected
    raw = bytearray((tmp_path / "file").read_bytes())
    for change in (lambda: raw.__setitem__(size - 1, raw[-1] ^ 1), lambda: _swap(raw, MB)):
        change()
        (tmp_path / "file").write_bytes(raw)
        with fork_server.fork(device) as other:
            other.call("open", device)
            other.call("restart", path, size)
            assert other.call("digest", size) != expected


def _swap(raw: bytearray, size: int) -> None:
    raw[:size], raw[size : 2 * size] = raw[size : 2 * size], raw[:size]


def test_measuring_copies_leaves_the_data_as_they_were(process: DeviceProcess) -> None:
    size = 3 * MB
    process.call("fill_device", size, 1)
    before = process.call("digest", size)
    times = process.call("copy", size)
    assert set(times) == {"copy_out_s", "copy_in_s", "copy_new_s"}
    assert process.call("digest", size) == before


def test_data_larger_than_one_buffer(device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = checkpoint_session.DeviceSession(device)
    whole.fill_device(3 * MB, 1)
    pieces = checkpoint_session.DeviceSession(device)
    with monkeypatch.context() as small:
        small.setattr(checkpoint_session, "MAX_PIECE", 1 << 20)
        pieces.fill_device(3 * MB, 1)
    assert len(pieces.pieces) == 3
    assert pieces.digest(3 * MB) == whole.digest(3 * MB)
    pieces.checkpoint(str(tmp_path / "file"), 3 * MB)
    whole.fill_device(3 * MB, 2)
    assert pieces.digest(3 * MB) != whole.digest(3 * MB)
    whole.restart(str(tmp_path / "file"), 3 * MB)
    assert pieces.digest(3 * MB) == whole.digest(3 * MB)


def test_a_longer_queue_takes_longer_to_drain(process: DeviceProcess) -> None:
    short = min(process.call("drain", 100) for _ in range(5))
    assert short >= 0
    assert min(process.call("drain", 4000) for _ in range(5)) > 3 * short


def test_a_queue_that_a_driver_says_too_early_is_empty(device: str, tmp_path: Path) -> None:
    """Its last kernel has ended when it is timed."""
    layer = {"OPENCL_LAYERS": opencl_layer("early_finish", tmp_path)}
    own = {**cache_environment(tmp_path / "caches"), **layer}
    with ForkServer(own) as fork_server, fork_server.fork(device) as process:
        process.call("open", device)
        assert process.call("drain", 10) > 0


def test_more_than_the_device_has_is_refused_as_too_small(process: DeviceProcess) -> None:
    with pytest.raises(Failure, match="the device has") as caught:
        process.call("fill_device", 10**15, 1)
    assert caught.value.kind == "memory"


def test_only_the_first_compilation_is_cold(fork_server: ForkServer, device: str, tmp_path: Path) -> None:
    require(device.startswith("pocl"), "other drivers may keep caches where nobody can see them")
    kept = []
    for _ in range(2):
        with fork_server.fork(device, cache_environment(tmp_path)) as process:
            assert process.call("open", device)["compile_s"] > 0
        kept.append(set(tmp_path.rglob("*.so")))
    assert kept[0] == kept[1] != set()


def test_a_process_that_dies_or_hangs_is_a_failure_and_not_the_end(
    fork_server: ForkServer, device: str
) -> None:
    with fork_server.fork(device) as process:
        os.kill(process._pid, signal.SIGKILL)
        with pytest.raises(Failure, match="died in 'open'"):
            process.call("open", device)
    with fork_server.fork(device) as process:
        os.kill(process._pid, signal.SIGSTOP)
        with pytest.raises(Failure, match="no answer") as caught:
            process.call("open", device, timeout_s=0.1)
        assert caught.value.kind == "hung"
        assert caught.value.device == device
    with fork_server.fork(device) as process:
        assert process.call("open", device)["context_s"] > 0


@pytest.fixture(scope="module")
def layer(tmp_path_factory: pytest.TempPathFactory) -> str:
    return lost_device(tmp_path_factory.mktemp("layer"))


@pytest.mark.slow
def test_a_device_lost_in_the_middle_keeps_what_was_seen(
    device: str, layer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENCL_LAYERS", layer)
    monkeypatch.setenv("LOST_AFTER", "150")  # of each process; a restart reads little and is not hit
    monkeypatch.setenv("LOST_ERROR", str(NOT_AVAILABLE))
    table, absent, _ = probe([tmp_path], budget_s=60)  # not so long: it ends with the device
    lost = [a for a in absent if a.what == f"more of {device}"]
    assert len(lost) == 1
    assert "lost during" in lost[0].reason
    assert "clEnqueueReadBuffer" in lost[0].reason
    assert {"checkpoint", "restart", "compile"} <= set(table["kind"])
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_one_bad_folder_does_not_cost_the_other(device: str, tmp_path: Path) -> None:
    table, absent, _ = probe([tmp_path / "missing", tmp_path], saw("checkpoint"))
    assert absent[0].what == f"storage {tmp_path / 'missing'}"
    assert "mkdir" in absent[0].remedy
    assert set(table.loc[table["kind"] == "checkpoint", "storage"]) == {str(tmp_path)}
    with pytest.raises(Unavailable, match="no storage folder"):
        probe([tmp_path / "missing"])


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 12 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(folder)], check=False, capture_output=True
    )
    require(mounted.returncode == 0, "mounting needs root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.slow
def test_a_small_disk_is_measured_up_to_its_size(device: str, small_disk: Path) -> None:
    table, _, _ = probe([small_disk], saw("checkpoint", 6))
    saved = table[table["kind"] == "checkpoint"]
    assert len(saved)
    assert saved["memory_mb"].max() <= 8
    assert not list(small_disk.iterdir())


@pytest.mark.slow
def test_a_disk_that_is_filled_by_somebody_else_meanwhile(device: str, small_disk: Path) -> None:
    other = small_disk / "other"

    def refused(events: list[Event]) -> bool:
        if "checkpoint" in kinds(events) and not other.exists():
            other.write_bytes(b"x" * 11 * MB)
        return any(event["event"] == "absent" for event in events)

    _, absent, _ = probe([small_disk], refused)
    assert "No space left" in absent[0].reason
    assert "free space" in absent[0].remedy
    assert list(small_disk.iterdir()) == [other]


@pytest.mark.parametrize("sign", sweep((signal.SIGTERM, signal.SIGKILL), {signal.SIGTERM}))
def test_a_killed_probe_leaves_no_process_and_after_sigterm_no_file(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sign: signal.Signals
) -> None:
    storage, caches = tmp_path / "storage", tmp_path / "tmp"
    storage.mkdir()
    caches.mkdir()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("TMPDIR", str(caches))
    settings = Settings(quick=True, storage=(storage,), budget_s=60)
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "agent.node_profile.probe_process", "checkpoint"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(settings.model_dump_json())
    child.stdin.close()
    for line in child.stdout:
        if '"kind": "checkpoint"' in line:
            break
    family = psutil.Process(child.pid).children(recursive=True)
    assert family
    child.send_signal(sign)
    child.stdout.read()
    child.wait(20)
    _, alive = psutil.wait_procs(family, timeout=20)
    assert not alive
    if sign != signal.SIGKILL:
        assert not list(storage.iterdir())
        assert not list(caches.iterdir())
        return
    with scratch(storage):  # what a killed probe leaves, the next one removes
        assert len(list(storage.iterdir())) == 1
    assert not list(storage.iterdir())


def test_no_opencl_at_all_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCL_ICD_VENDORS", str(tmp_path))
    with pytest.raises(Unavailable, match="no OpenCL platform") as caught:
        probe([tmp_path])
    assert caught.value.remedy
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("limits", [QUICK, FULL])
def test_sizes_double_and_grow_with_time_and_room(limits: Any) -> None:
    fast = affordable_mb(limits, 1e9, per_mb_s=1e-6, each_s=1e-3, left_s=40)
    slow = affordable_mb(limits, 1e9, per_mb_s=0.05, each_s=0.1, left_s=40)
    assert fast == limits.largest_mb
    assert 4 <= slow < fast
    assert affordable_mb(limits, 100, per_mb_s=1e-6, each_s=1e-3, left_s=40) == 64
    assert affordable_mb(limits, 0.5, per_mb_s=1e-6, each_s=1e-3, left_s=40) == 0
    assert ladder(64, 4) == [8, 16, 32, 64]
    assert ladder(2, 6) == [1, 2]
    assert ladder(0, 6) == []


def test_sizes_are_whole_words_for_the_checksum() -> None:
    assert MB % checkpoint_session.WORD == 0
    assert direct_io.ALIGNMENT % checkpoint_session.WORD == 0
