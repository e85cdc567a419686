"""Kernels and copies on this machine's own device: right results pass, wrong ones are found."""

from __future__ import annotations

from itertools import groupby
from types import SimpleNamespace
from typing import Any

import pyopencl as cl
import pytest

from probes import device_session
from probes.device_session import BLOCK, DeviceBench, array_bytes
from probes.opencl import DeviceMemoryTooSmall, WrongResult
from tests.probes.odd_sessions import SMALL_SIZES

MIB = 1 << 20


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make arrays small and batches short."""
    for name, value in SMALL_SIZES.items():
        monkeypatch.setattr(device_session, name, value)


@pytest.mark.usefixtures("small")
def test_work_and_time_of_every_operation(key: str) -> None:
    bench = DeviceBench(key)
    for kernel, factor in (("read", 1), ("write", 1), ("copy", 2)):
        row = bench.bandwidth(kernel)
        assert row["bytes"] == factor * 2 * BLOCK * row["launches"] and row["seconds"] > 0
        assert row["timer"] == ("device" if bench.profiled else "host")
    for precision in ("single", *(["double"] if bench.opened()["double"] else [])):
        row = bench.arithmetic(precision)
        assert row["flops"] % (2 * 8 * 1024 * row["width"]) == 0 and row["seconds"] > 0
    row = bench.launches()
    assert row["seconds"] > 0 and (row["queued_s"] is None or row["queued_s"] >= 0)
    for memory in ("pinned", "pageable"):
        row = bench.copies(memory)
        assert row["bytes"] == 2 * BLOCK * row["launches"] and row["to_s"] > 0 and row["from_s"] > 0
    assert bench.copies_at_once()["both_s"] > 0


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    "changes",
    [
        {
            ("bandwidth", "read"): ("VECTOR sum = in[i];", "VECTOR sum = in[i] + (VECTOR)(i == 48);"),
            ("bandwidth", "write"): ("first + (REAL)(i & 255)", "first + (REAL)(i & 254)"),
            ("bandwidth", "copy"): ("out[i] = in[i];", "if (i != 77777) out[i] = in[i];"),
            ("arithmetic", "single"): ("n < rounds", "n < rounds - 1"),
            ("launches",): ("cell[0] += 1", "cell[0] = 1"),
        },
        {
            ("bandwidth", "read"): ("int n = 1; n < FETCHES", "int n = 2; n < FETCHES"),
            ("arithmetic", "single"): ("DO(6) DO(7)", "DO(6)"),
        },
    ],
)
def test_a_wrong_result_is_found(
    key: str, monkeypatch: pytest.MonkeyPatch, changes: dict[tuple[str, ...], tuple[str, str]]
) -> None:
    """One kernel of each operation is wrong; they share a source, which takes long to compile."""
    source = device_session.SOURCE
    for change in changes.values():
        assert change[0] in source
        source = source.replace(*change)
    monkeypatch.setattr(device_session, "SOURCE", source)
    bench = DeviceBench(key)
    for method, *arguments in changes:
        with pytest.raises(WrongResult):
            getattr(bench, method)(*arguments)


@pytest.mark.usefixtures("small")
def test_a_changed_or_missing_copy_is_found(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = DeviceBench(key)
    bench.copies("pinned")
    bench.copies_at_once()
    monkeypatch.setattr(bench._copies, "_to_device", lambda memory, queue: [])
    with pytest.raises(WrongResult, match="pinned"):
        bench.copies("pinned")
    with pytest.raises(WrongResult, match="two copies"):
        bench.copies_at_once()


@pytest.mark.usefixtures("small")
def test_copies_are_queued_together_and_waited_for_by_events(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither is a copy waited for before the next, nor does the end of a queue count that may come early."""
    bench = DeviceBench(key)
    bench.copies_at_once()
    copies, steps = bench._copies, list[str]()
    copies._times["pinned"] = 3

    class Watched:
        def __init__(self, event: cl.Event) -> None:
            self.event = event
            steps.append("queued")

        def wait(self) -> None:
            steps.append("awaited")
            self.event.wait()

    for name in ("_to_device", "_from_device"):
        queue_copy = getattr(copies, name)

        def watched(*of: Any, queue_copy: Any = queue_copy) -> list[Watched]:
            return [Watched(event) for event in queue_copy(*of)]

        monkeypatch.setattr(copies, name, watched)
    bench.copies_at_once()
    assert [(step, len(list(run))) for step, run in groupby(steps)] == [
        ("queued", 3),
        ("awaited", 3),
        ("queued", 3),
        ("awaited", 3),
        ("queued", 6),
        ("awaited", 6),
    ]


@pytest.mark.parametrize(
    ("kind", "mib", "wanted_mib"),
    [
        ("gpu", (50, 80_000, 20_000), 512),  # an NVIDIA H100
        ("gpu", (256, 192_000, 48_000), 1024),
        ("gpu", (1, 2_000, 500), 240),
        ("accelerator", (0, 800, 64), 64),
    ],
)
def test_arrays_are_beyond_the_caches_and_leave_room(
    kind: str, mib: tuple[int, int, int], wanted_mib: int
) -> None:
    names = ("global_mem_cache_size", "global_mem_size", "max_mem_alloc_size")
    handle = SimpleNamespace(**{name: size * MIB for name, size in zip(names, mib, strict=True)})
    assert array_bytes(handle, kind) == wanted_mib * MIB


def test_a_device_without_room_is_refused() -> None:
    handle = SimpleNamespace(global_mem_cache_size=0, global_mem_size=64 * MIB, max_mem_alloc_size=64 * MIB)
    with pytest.raises(DeviceMemoryTooSmall, match="16 MiB"):
        array_bytes(handle, "gpu")
