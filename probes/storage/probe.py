"""Speed of each storage folder as programs meet it: MB/s, latencies, operations per second.

Measured by direct I/O (``O_DIRECT``), one operation at a time, from one core: sequential writes and reads in
blocks of 4 MiB, random writes and reads of 4 KiB, and writes of 4 KiB that end with fsync. Every row is a
batch, with the median and the 99th percentile of its operations. The kinds take turns in rounds, in random
order, until the time is up or the bytes are written.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from probes.run import Run
from probes.scratch import is_full, storage_remedy
from probes.storage.place import BLOCK, PAGE, Place, prepared
from probes.storage.timing import FEWEST_FOR_P99, Batch, Limits
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
        _Rounds(run, places).run()


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


class _Rounds:
    """Batches of all kinds in all folders, in turns."""

    def __init__(self, run: Run, places: list[Place]) -> None:
        self._run = run
        self._places = places
        self._last_s: dict[tuple[str, str], float] = {}
        self._tails: set[tuple[str, str]] = set()  # those whose p99 is known
        share_s = max(run.left_s(), 0.1) / len(places)
        kinds = max(len(place.kinds) for place in places)
        self._limits = Limits(share_s / (_ROUNDS * kinds), FEWEST_FOR_P99, _LONGEST * share_s)

    def run(self) -> None:
        """Measure round after round, until the time is up or the bytes are written."""
        repetition = 0
        while self._round(repetition):
            repetition += 1
        self._say_what_is_missing()

    def _round(self, repetition: int) -> bool:
        """Measure everything once that fits into the time left; tell whether anything did."""
        items = [(p, kind) for p in self._places if not p.used_up for kind in p.kinds]
        # The first round goes in the order of the kinds, so that slow ones leave time for quick ones.
        order = self._run.rng.permutation(len(items)) if repetition else range(len(items))
        done = False
        for index in order:
            place, kind = items[index]
            expected_s = self._last_s.get((place.folder, kind), 0.0)
            if place.can(kind) and expected_s <= self._run.left_s():
                self._attempt(place, kind, repetition)
                done = True
        return done

    def _attempt(self, place: Place, kind: str, repetition: int) -> None:
        """Measure and record one batch; a kind that fails is left out from then on."""
        self._run.progress(f"{WORDS[kind]} in {place.folder}")
        subject = (place.folder, kind)
        try:
            if subject not in self._last_s:
                place.batch(kind, _WARM)
            began = time.monotonic()
            batch = place.batch(kind, self._limits)
            self._last_s[subject] = time.monotonic() - began
        except OSError as error:
            place.kinds.remove(kind)
            remedy = storage_remedy(error, Path(place.folder))
            what, reason = f"{WORDS[kind]} in {place.folder}", f"it failed ({error.strerror})"
            self._run.absent(what, reason, remedy, failed=not is_full(error))
            return
        if batch.p99_s is not None:
            self._tails.add(subject)
        self._record(place, kind, batch, repetition)

    def _record(self, place: Place, kind: str, batch: Batch, repetition: int) -> None:
        self._run.sample(
            kind=kind,
            storage=place.folder,
            repetition=repetition,
            block_bytes=BLOCK if kind in _SEQUENTIAL else PAGE,
            operations=len(batch.each_s),
            seconds=batch.seconds,
            p50_s=batch.percentile_s(50),
            p99_s=batch.p99_s,
            slowest_s=float(batch.each_s.max()),
            file_bytes=place.size,
            written_bytes=place.written,
        )

    def _say_what_is_missing(self) -> None:
        remedy = "measure one folder at a time: --storage DIR" if len(self._places) > 1 else ""
        for place in self._places:
            for kind in place.kinds:
                what, subject = f"{WORDS[kind]} in {place.folder}", (place.folder, kind)
                if subject not in self._last_s:
                    self._run.absent(what, "the storage is so slow that no time was left", remedy)
                elif kind not in _SEQUENTIAL and subject not in self._tails:
                    reason = f"fewer than {FEWEST_FOR_P99} operations fit into the time"
                    self._run.absent(f"p99 of a {what}", reason, remedy)
