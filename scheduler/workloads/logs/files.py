"""Lines of plain or compressed files, and arrivals put in order."""

from __future__ import annotations

import gzip
import math
import zlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from operator import attrgetter
from pathlib import Path

from profiles.errors import BadInput
from scheduler.simulator.trace import Arrival

WINDOW = 4096  # jobs that may be out of order
BLOCK = 2**18  # bytes of lines that are read at a time
SUBMISSION = attrgetter("job.submit_s")


def lines_of(path: Path) -> Iterator[str]:
    """Read lines of a plain or compressed file; bytes that are no text become replacement characters."""
    return chain.from_iterable(blocks_of(path))


def blocks_of(path: Path) -> Iterator[list[str]]:
    """Read many lines at a time: faster than line by line."""
    try:
        with path.open("rb") as file:
            compressed = file.read(2) == b"\x1f\x8b"
        opened = gzip.open if compressed else open
        with opened(path, "rt", encoding="utf-8-sig", errors="replace") as lines:
            while block := lines.readlines(BLOCK):
                yield block
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BadInput(
            f"{path}: the compressed file is damaged or cut short ({error})", "fetch it again"
        ) from error
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or error}", "name a file that can be read") from error


def whole(text: str) -> int:
    """Read a whole number, also one that is written as ``1.0``; ValueError for anything else."""
    if text.isdecimal():
        return int(text)
    value = float(text)
    if not value.is_integer():
        raise ValueError(text)
    return int(value)


def in_order(blocks: Iterable[list[Arrival]], skipped: Counter[str]) -> Iterator[Arrival]:
    """Sort the arrivals by submission, ties in their order, within a window of ``WINDOW`` jobs."""
    return chain.from_iterable(_sorted(blocks, skipped))


def _sorted(blocks: Iterable[list[Arrival]], skipped: Counter[str]) -> Iterator[list[Arrival]]:
    held: list[Arrival] = []
    last = -math.inf
    for block in blocks:
        held += block
        held.sort(key=SUBMISSION)  # in no time if they are in order
        late = bisect_left(held, last, key=SUBMISSION)
        if late:
            skipped[f"out of order by more than {WINDOW} jobs"] += late
        settled = held[late:-WINDOW]
        if settled:
            last = settled[-1].job.submit_s
            yield settled
            held = held[-WINDOW:]
        else:
            del held[:late]
    yield held
