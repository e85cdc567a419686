"""Speed of each storage folder as programs meet it: MB/s, latencies, operations per second.

Measured by direct I/O (``O_DIRECT``), one operation at a time, from one core: sequential writes and reads in
blocks of 4 MiB, random writes and reads of 4 KiB, and writes of 4 KiB that end with fsync. Every row is a
batch, with the median and the 99th percentile of its operations. The kinds take turns, until the time is
up or the bytes are written.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from probes.run import Run
from probes.scratch import is_full, storage_remedy
from probes.storage.place import BLOCK, PAGE, Place, prepared
from probes.storage.timing import FEWEST_FOR_P99, Limits
from probes.visits import Point, Visits
from profiles.errors import Unavailable

# Most bytes written to a folder in one visit. A full profile has four visits: 1 GiB; a quick one has one.
FULL_BYTES = 256 << 20
QUICK_BYTES = 192 << 20

WORDS = {
    "write": "sequential write",
    "read": "sequential read",
    "random_read": "random read",
    "random_write": "random write",
    "fsync": "write with fsync",
}
_SEQUENTIAL = ("write", "read")
_FILL = 0.25  # share of a folder's time in which its file is written
_ROUNDS = 5  # at which a batch's time aims
_LONGEST = 0.4  # of a folder's time: a batch of slow storage, which needs many operations for its p99
_WARM = Limits(0.0, 8, 0.1)


def measure(run: Run) -> None:
    """Measure every folder as long as ``run.settings.budget_s`` allows, every kind once before any again.

    Raises:
        Unavailable: no folder can be used.
    """
    with ExitStack() as stack:
        stack.enter_context(pinned())
        places = _places(run, stack)
        repeat(run, places)


@contextmanager
def pinned() -> Iterator[None]:
    """Keep to the last core, because the first one often serves the machine's interrupts."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _places(run: Run, stack: ExitStack) -> list[Place]:
    """Prepare the folders that can be used; ``stack`` removes what is in them."""
    folders = run.settings.storage or (Path(tempfile.gettempdir()),)
    most = QUICK_BYTES if run.settings.quick else FULL_BYTES
    limit_s = _FILL * run.settings.budget_s / len(folders)
    places = []
    for folder in folders:
        run.progress(f"writing a file in {folder}")
        try:
            places.append(stack.enter_context(prepared(folder, most, limit_s, run.rng)))
        except Unavailable as error:
            run.absent(f"storage {folder}", error.what, error.remedy)
        except OSError as error:
            reason = f"{folder} cannot be written ({error.strerror})"
            run.absent(f"storage {folder}", reason, storage_remedy(error, folder), failed=not is_full(error))
    if not places:
        raise Unavailable(
            "no storage folder can be measured", "name one on a disk that can be written: --storage DIR"
        )
    return places


class Subject(NamedTuple):
    """A kind of operation in a folder."""

    place: Place
    kind: str

    @property
    def title(self) -> str:
        return f"{WORDS[self.kind]} in {self.place.folder}"

    @property
    def possible(self) -> bool:
        """True while it works, and bytes are left to write."""
        return not self.place.used_up and self.place.can(self.kind)


def repeat(run: Run, places: list[Place]) -> None:
    """Take batches in turns, until the time is up or the bytes are written.

    The first turn goes in the order of the kinds, so that slow ones leave time for quick ones.
    """
    share_s = max(run.left_s(), 0.1) / len(places)
    kinds = max(len(place.kinds) for place in places)
    limits = Limits(share_s / (_ROUNDS * kinds), FEWEST_FOR_P99, _LONGEST * share_s)
    points = [Point(Subject(place, kind), least=0) for place in places for kind in place.kinds]
    for visit in Visits(
        points, run.rng, run.left_s, first_in_order=True, possible=lambda subject: subject.possible
    ):
        observe(run, visit, limits)
    say_missing(run, points, several=len(places) > 1)


def observe(run: Run, visit: Point[Subject], limits: Limits) -> None:
    """Measure and record one batch; a kind that fails is left out from then on."""
    place, kind = subject = visit.key
    run.progress(subject.title)
    try:
        if visit.count == 1:
            place.batch(kind, _WARM)
        batch = place.batch(kind, limits)
    except OSError as error:
        place.kinds.remove(kind)
        reason, remedy = f"it failed ({error.strerror})", storage_remedy(error, Path(place.folder))
        run.absent(subject.title, reason, remedy, failed=not is_full(error))
        return
    if batch.p99_s is not None:
        visit.values.append(batch.p99_s)
    run.sample(
        kind=kind,
        storage=place.folder,
        repetition=visit.count - 1,
        block_bytes=BLOCK if kind in _SEQUENTIAL else PAGE,
        operations=len(batch.each_s),
        seconds=batch.seconds,
        p50_s=batch.percentile_s(50),
        p99_s=batch.p99_s,
        slowest_s=float(batch.each_s.max()),
        file_bytes=place.size,
        written_bytes=place.written,
    )


def say_missing(run: Run, points: list[Point[Subject]], *, several: bool) -> None:
    """Say which kinds had no batch, or none of enough operations."""
    remedy = "measure one folder at a time: --storage DIR" if several else ""
    for point in points:
        place, kind = point.key
        if kind not in place.kinds:  # it failed, and that was said
            continue
        if not point.count:
            run.absent(point.key.title, "the storage is so slow that no time was left", remedy)
        elif kind not in _SEQUENTIAL and not point.values:
            reason = f"fewer than {FEWEST_FOR_P99} operations fit into the time"
            run.absent(f"p99 of a {point.key.title}", reason, remedy)
