"""What readers of files share: lines of plain or compressed files, and arrivals put in order."""

from __future__ import annotations

import gzip
import math
import zlib
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from pathlib import Path

from profiles.errors import BadInput
from scheduler.trace import Arrival

WINDOW = 4096  # jobs that may be out of order


def lines_of(path: Path) -> Iterator[str]:
    """Lines of a plain or compressed file; bytes that are no text become replacement characters."""
    try:
        with path.open("rb") as file:
            compressed = file.read(2) == b"\x1f\x8b"
        opened = gzip.open if compressed else open
        with opened(path, "rt", encoding="utf-8", errors="replace") as lines:
            yield from lines
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BadInput(
            f"{path}: the compressed file is damaged or cut short ({error})", "fetch it again"
        ) from error
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or error}", "name a file that can be read") from error


def in_order(arrivals: Iterable[Arrival], skipped: Counter[str]) -> Iterator[Arrival]:
    """The arrivals sorted by submission, ties in their order, within a window of ``WINDOW`` jobs."""
    held: deque[Arrival] = deque()  # sorted
    newest = last = -math.inf
    for arrival in arrivals:
        submit = arrival.job.submit_s
        if submit >= newest:
            newest = submit
            held.append(arrival)
        elif submit < last:
            skipped[f"out of order by more than {WINDOW} jobs"] += 1
            continue
        else:
            held.insert(bisect_right(held, submit, key=_submission), arrival)
        if len(held) > WINDOW:
            first = held.popleft()
            last = first.job.submit_s
            yield first
    yield from held


def _submission(arrival: Arrival) -> float:
    return arrival.job.submit_s
