"""Checkpoint and restore against what ``dd`` reaches with direct I/O of as many bytes on the same folder.

The checkpoint copies from the device besides, the restore to it. Both sides go on in turns within one run,
each by its own clock (dd's without the start of its process). dd reads zeros as its input; the stricter
ratio takes that time off as well. ``TENBIN_BENCHMARK_FOLDER`` and ``TENBIN_BENCHMARK_MB`` choose folder and
size.
"""

from __future__ import annotations

import os
import re
import shutil
import statistics
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from probes import opencl
from probes.checkpoint import cache_environment
from probes.device_process import ForkServer
from probes.folders import scratch
from profiles.errors import Unavailable
from profiles.files import direct_io
from profiles.records import MB
from tests.benchmarks import amount
from tests.support.labs.components import require

REPETITIONS = amount(9, 9, 1)
SIZE = int(os.environ.get("TENBIN_BENCHMARK_MB", amount("512", "512", "64"))) * MB


def device_keys() -> list[str]:
    try:
        return [device.key for device in opencl.devices()]
    except Unavailable:
        return []


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with scratch(Path(os.environ.get("TENBIN_BENCHMARK_FOLDER", tmp_path))) as folder:
        require(shutil.which("dd"), "dd")
        require(direct_io.try_write(folder) == "direct", "a file system with direct I/O")
        require(direct_io.free_bytes(folder) > 3 * SIZE, f"{3 * SIZE / MB:.0f} MB of free storage")
        yield folder


def dd(source: Path, target: Path, *flags: str) -> float:
    """Seconds by dd's own clock, the fsync included."""
    command = ["dd", f"if={source}", f"of={target}", "bs=32M", f"count={SIZE}", *flags]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env=os.environ | {"LC_ALL": "C"}
    )
    found = re.search(r"copied, ([\d.e-]+) s", done.stderr)
    assert found, done.stderr
    return float(found[1])


@pytest.mark.benchmark
@pytest.mark.parametrize("key", device_keys() or ["none"])
def test_checkpoint_and_restore_are_as_fast_as_dd(key: str, folder: Path, tmp_path: Path) -> None:
    require(key != "none", "an OpenCL device")
    zero, null = Path("/dev/zero"), Path("/dev/null")
    ours, theirs = folder / "ours", folder / "dd"
    ratios: dict[str, list[float]] = {"checkpoint": [], "restore": [], "checkpoint, strict": []}
    speeds: dict[str, list[float]] = {"checkpoint": [], "restore": []}
    with ForkServer(cache_environment(tmp_path / "caches")) as fork_server, fork_server.fork(key) as process:
        process.call("open", key)
        process.call("fill_device", SIZE, 1)
        digest = process.call("digest", SIZE)
        for repetition in range(REPETITIONS + 1):
            write_s = process.call("checkpoint", str(ours), SIZE)["seconds"]
            dd_write_s = dd(zero, theirs, "iflag=count_bytes", "oflag=direct", "conv=fsync")
            read_s = process.call("restore", str(ours), SIZE)["seconds"]
            dd_read_s = dd(theirs, null, "iflag=direct,count_bytes")
            input_s = dd(zero, null, "iflag=count_bytes")
            assert ours.stat().st_size == theirs.stat().st_size == SIZE
            ours.unlink()
            theirs.unlink()
            if repetition == 0:  # warm-up
                continue
            ratios["checkpoint"].append(dd_write_s / write_s)
            ratios["restore"].append(dd_read_s / read_s)
            ratios["checkpoint, strict"].append((dd_write_s - input_s) / write_s)
            speeds["checkpoint"].append(SIZE / write_s / 1e9)
            speeds["restore"].append(SIZE / read_s / 1e9)
        assert process.call("digest", SIZE) == digest
    for name, values in ratios.items():
        speed = statistics.median(speeds[name.split(",")[0]])
        middle, low, high = statistics.median(values), min(values), max(values)
        print(
            f"BENCH {name}/dd direct on {key} ratio {middle:.2f} "
            f"(median of {len(values)}, {low:.2f}-{high:.2f}, {SIZE / MB:.0f} MB, {speed:.2f} GB/s)"
        )
