"""Costs to checkpoint a job on one OpenCL device and to restart it on the same or another device.

Paper A, eq. 2-5: checkpoint ``C = alpha_C * M + beta_C``, restart ``R = alpha_R * M + beta_R + K``; the
coefficients belong to device and storage, K, the compile time, to the program. Measured here, for every
device and storage folder and over sizes that double:

- each phase by itself: draining the queue (also one with thousands of short kernels, the paper's exception),
  device to host, write and sync, read, host to device, context, program build with a cold and a warm cache;
- checkpoint and restart as a job does them: copies and file overlapped, the restart in a new process;
- whole migrations between every ordered pair of devices, against which predictions can be tested, because
  the fits of checkpoint and restart do not use them.

After every restart a checksum compares the data on the device with the data at the checkpoint; each device
computes the checksum over its own memory.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from math import inf
from pathlib import Path

from probes.checkpoint.device_process import ForkServer
from probes.checkpoint.items import FULL, QUICK, CheckpointBench, Extent, Item, Place, affordable_mb, ladder
from probes.checkpoint.subjects import cache_environment, find_devices, start
from probes.run import Run
from probes.scratch import scratch
from probes.visits import Point, Visits
from profiles.errors import Unavailable
from profiles.files.direct_io import free_bytes
from profiles.records import MB

_MIGRATIONS = 4  # of all pairs, folders and sizes, in one turn
_PILOTS_MB = (4, 16, 64)
_PILOT_SHARE = 0.03  # of the budget: a longer pilot is not followed by a larger one


def measure(run: Run) -> None:
    """Measure as much as ``run.settings.budget_s`` allows, every part once before any is repeated.

    What the lines of every device need is measured even if that takes longer.

    Raises:
        Unavailable: no OpenCL device, or no storage folder that can be used.
    """
    with ExitStack() as stack:
        places = _places(run, stack)
        caches = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tenbin-opencl-")))
        fork_server = stack.enter_context(ForkServer(cache_environment(caches / "warm")))
        bench = CheckpointBench(run, fork_server, caches, places)
        fork_server.waiting = bench.say
        _start_subjects(bench)
        per_mb_s, each_s = _choose_sizes(bench)
        _warm_up(bench)
        _repeat(bench, lambda size_mb: per_mb_s * size_mb + each_s)


def _places(run: Run, stack: ExitStack) -> dict[str, Place]:
    """Prepare the folders that can be used, each with a folder inside that ``stack`` removes."""
    places = {}
    for folder in run.settings.storage or (Path(tempfile.gettempdir()),):
        try:
            inside = stack.enter_context(scratch(folder))
        except Unavailable as error:
            run.absent(f"storage {folder}", error.what, error.remedy)
            continue
        room_mb = 0.8 * free_bytes(inside) / MB
        places[str(folder)] = Place(str(folder), inside, room_mb)
    if not places:
        raise Unavailable("no storage folder can be used", "name one that can be written with --storage DIR")
    return places


def _start_subjects(bench: CheckpointBench) -> None:
    for record in find_devices(bench.run, bench.fork_server):
        bench.say(f"starting {record.key}")
        subject = start(bench.run, bench.fork_server, record, list(bench.subjects.values()))
        if subject is not None:
            bench.subjects[record.key] = subject


def _choose_sizes(bench: CheckpointBench) -> tuple[float, float]:
    """Choose sizes for every place, as large as time and room allow, by trips that are not recorded.

    Returns:
        seconds per MB, and seconds, of the slowest trip.
    """
    extent = _extent(bench)
    # Cost of one size in trips: the trips themselves, copies, write and read, a share of the migrations.
    share = _MIGRATIONS / extent.sizes if len(bench.subjects) > 1 else 0
    weight = 1.3 * len(bench.measured()) + 0.6 + share
    slowest = (0.0, 0.0)
    for place in list(bench.places.values()):
        for subject in bench.measured():
            cost = _pilot(bench, Item("trip", subject.key, subject.key, place.folder))
            slowest = max(slowest, cost)
        per_mb_s, each_s = weight * slowest[0], weight * slowest[1]
        room_mb = min(place.room_mb, max((s.room_mb for s in bench.subjects.values()), default=0))
        share_s = 0.9 * bench.run.left_s() / len(bench.places)
        place.sizes = ladder(
            affordable_mb(extent, room_mb, per_mb_s=per_mb_s, each_s=each_s, left_s=share_s), extent.sizes
        )
    return slowest


def _pilot(bench: CheckpointBench, item: Item) -> tuple[float, float]:
    """Estimate seconds per MB and seconds of a trip, from small trips that grow while they are quick."""
    bench.fill_device(bench.subjects[item.device], _PILOTS_MB[-1])
    seconds: dict[int, float] = {}
    for size_mb in _PILOTS_MB:  # twice, because the first in a process or folder may be slow
        seconds[size_mb] = min(_unrecorded(bench, item._replace(size_mb=size_mb)) for _ in range(2))
        if seconds[size_mb] > _PILOT_SHARE * bench.run.settings.budget_s:
            break
    (smallest, first_s), (largest, last_s) = min(seconds.items()), max(seconds.items())
    if smallest == largest:
        return first_s / smallest, 0.0
    per_mb_s = max(last_s - first_s, 0.0) / (largest - smallest)
    return per_mb_s, max(first_s - per_mb_s * smallest, 0.0)


def _unrecorded(bench: CheckpointBench, item: Item) -> float:
    """Time ``item`` in seconds, all included, without a record."""
    began = time.monotonic()
    if bench.possible(item):
        bench.recording = False
        try:
            bench.attempt(item)
        finally:
            bench.recording = True
    return time.monotonic() - began


def _warm_up(bench: CheckpointBench) -> None:
    """Put data of the largest size on every device, and that size once through every folder."""
    largest = max((place.sizes[-1] for place in bench.places.values() if place.sizes), default=0)
    for subject in list(bench.subjects.values()):
        bench.fill_device(subject, largest)
    for place in list(bench.places.values()):
        for subject in bench.measured():
            for size_mb in place.sizes[-1:]:
                _unrecorded(bench, Item("trip", subject.key, subject.key, place.folder, size_mb))


def _repeat(bench: CheckpointBench, cost_s: Callable[[int], float]) -> None:
    """Measure everything in turns, until nothing fits into the time left; ``cost_s``: by size."""
    run, extent = bench.run, _extent(bench)
    all_migrations = [Point(item) for item in _migrations(bench)]
    migrations = iter(Visits(all_migrations, run.rng, possible=bench.possible))
    items = _items(bench) + [Item("migration", size_mb=max(_all_sizes(bench), default=0))] * min(
        _MIGRATIONS, len(all_migrations)
    )
    points = [
        Point(
            item,
            least=extent.whole,
            most=extent.builds if item.kind == "compile" else inf,
            cost_s=cost_s(item.size_mb),
        )
        for item in items
    ]
    for visit in Visits(points, run.rng, run.left_s, possible=bench.possible):
        chosen = _choose(bench, visit.key, migrations)
        if chosen is None:
            points.remove(visit)
        else:
            bench.repetition = visit.count - 1
            bench.attempt(chosen)


def _choose(bench: CheckpointBench, item: Item, migrations: Iterator[Point[Item]]) -> Item | None:
    """Choose the next migration, or the device that writes and reads; None where there is none any more."""
    if item.kind == "migration":
        return next((point.key for point in migrations), None)
    if item.kind == "io":
        return next((item._replace(device=subject.key) for subject in bench.measured()), None)
    return item


def _items(bench: CheckpointBench) -> list[Item]:
    """List every item once, without the migrations."""
    items = []
    for subject in bench.measured():
        key = subject.key
        items += [Item("drain", key), Item("compile", key)]
        items += [Item("copy", key, size_mb=size) for size in _all_sizes(bench)]
    for place in bench.places.values():
        for size in place.sizes:
            items += [Item("trip", s.key, s.key, place.folder, size) for s in bench.measured()]
            items.append(Item("io", storage=place.folder, size_mb=size))
    return items


def _migrations(bench: CheckpointBench) -> list[Item]:
    return [
        Item("migration", start.key, end.key, place.folder, size)
        for start, end in itertools.permutations(bench.subjects.values(), 2)
        for place in bench.places.values()
        for size in place.sizes
    ]


def _all_sizes(bench: CheckpointBench) -> list[int]:
    return sorted({size for place in bench.places.values() for size in place.sizes})


def _extent(bench: CheckpointBench) -> Extent:
    return QUICK if bench.run.settings.quick else FULL
