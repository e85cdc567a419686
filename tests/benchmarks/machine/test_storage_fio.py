"""The storage probe's operations against fio: the same files, block sizes and core, in turns.

fio runs one job at queue depth 1 (``psync``), direct but for the writes that end with fsync, as the probe
does. Its buffers lie in huge pages, as the probe's, where glibc can do so (2.35); large
blocks are compared with fio as it comes, too.
``TENBIN_BENCHMARK_FOLDER`` chooses the folder.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probes.storage import BLOCK, KINDS, LOG, PAGE, WORDS, Batch, Limits, Place, pinned, prepared
from profiles.errors import Unavailable
from profiles.fits.storage import SEQUENTIAL
from tests.benchmarks import amount
from tests.support.labs.components import require

REPETITIONS, SECONDS = amount((15, 0.3), (15, 0.3), (2, 0.05))  # of each side in a turn
FILE_BYTES = amount(256, 256, 64) << 20  # of which half is the file
FIO_OF = {
    "write": ("write", BLOCK, "--direct=1"),
    "read": ("read", BLOCK, "--direct=1"),
    "random_read": ("randread", PAGE, "--direct=1"),
    "random_write": ("randwrite", PAGE, "--direct=1"),
    "fsync": ("write", PAGE, "--fsync=1"),
}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    require(shutil.which("fio"), "fio")
    folder = Path(os.environ.get("TENBIN_BENCHMARK_FOLDER", tmp_path))
    with pinned():
        try:
            with prepared(folder, FILE_BYTES, 60.0, np.random.default_rng(1)) as place:
                place.room = 1 << 50
                yield place
        except Unavailable as error:
            require(False, str(error))


def ours(place: Place, kind: str) -> dict[str, float]:
    """Measure for ``SECONDS`` by the probe's batches."""
    batches: list[Batch] = []
    while (left_s := SECONDS - sum(batch.seconds for batch in batches)) > 0:
        batches.append(place.batch(kind, Limits(left_s, 1, left_s)))
    each_s = np.concatenate([batch.each_s for batch in batches])
    whole_s = sum(batch.seconds for batch in batches)
    both = Batch(whole_s, each_s)
    return {
        "per second": len(each_s) / whole_s,
        "p50": both.percentile_s(50),
        "p99": both.percentile_s(99),
        "loop": (whole_s - each_s.sum()) / len(each_s),
    }


def fio(place: Place, kind: str, *, huge_pages: bool = True, seconds: float = SECONDS) -> dict[str, float]:
    """Measure by fio, on the same file; longer where the disk was too slow for a single fsync."""
    pattern, block, how = FIO_OF[kind]
    file, size = ("log", LOG) if kind == "fsync" else ("data", place.size)
    options = {
        "name": kind,
        "filename": place.inside / file,
        "size": size,
        "bs": block,
        "rw": pattern,
        "ioengine": "psync",
        "iodepth": 1,
        "numjobs": 1,
        "time_based": 1,
        "runtime": f"{seconds * 1000:.0f}ms",
        "cpus_allowed": next(iter(os.sched_getaffinity(0))),
        "iomem": "malloc",
        "iomem_align": 1 << 21 if huge_pages else PAGE,
        "scramble_buffers": 0,  # the probe changes its data outside of the time too
        "randrepeat": 0,
        "norandommap": 1,
        "percentile_list": "50:99",
        "output-format": "json",
    }
    command = ["fio", *(f"--{name}={value}" for name, value in options.items()), how]
    environment = os.environ | {"GLIBC_TUNABLES": f"glibc.malloc.hugetlb={huge_pages:d}"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    (job,) = json.loads(done.stdout)["jobs"]
    side: dict[str, Any] = job["read" if "read" in pattern else "write"]
    assert side["total_ios"] > 0
    times = {name: side["clat_ns"]["percentile"][f"{name[1:]}.000000"] / 1e9 for name in ("p50", "p99")}
    if kind == "fsync":  # fio times the write and its fsync apart; the write is the far shorter one
        synced = job["sync"]["lat_ns"].get("percentile")
        if synced is None:
            return fio(place, kind, huge_pages=huge_pages, seconds=2 * seconds)
        times = {name: times["p50"] + synced[f"{name[1:]}.000000"] / 1e9 for name in times}
    return {"per second": side["iops"], **times}


@pytest.mark.benchmark
@pytest.mark.parametrize("kind", KINDS)
def test_the_figures_are_those_of_fio(place: Place, kind: str) -> None:
    rivals = {"fio": True} if kind not in SEQUENTIAL else {"fio": True, "fio, small pages": False}
    seen: dict[str, list[dict[str, float]]] = {name: [] for name in ("tenbin", *rivals)}
    for repetition in range(REPETITIONS + 1):
        turns: list[str] = sorted(seen, reverse=bool(repetition % 2))
        for name in turns:
            found = ours(place, kind) if name == "tenbin" else fio(place, kind, huge_pages=rivals[name])
            if repetition:  # the first is the warm-up
                seen[name].append(found)
    for name in rivals:
        for figure in ("per second", "p50", "p99"):
            pairs = zip(seen["tenbin"], seen[name], strict=True)
            low, middle, high = np.quantile([a[figure] / b[figure] for a, b in pairs], [0.25, 0.5, 0.75])
            theirs = statistics.median(value[figure] for value in seen[name])
            print(
                f"BENCH storage/{name}: {WORDS[kind]} {figure} ratio {middle:.3f} (median of {REPETITIONS}, "
                f"quartiles {low:.3f}-{high:.3f}, fio {theirs:.4g})"
            )
            assert middle > 0
    loop_us = statistics.median(value["loop"] for value in seen["tenbin"]) * 1e6
    print(f"BENCH storage: {WORDS[kind]}: {loop_us:.2f} us of Python between two operations")
