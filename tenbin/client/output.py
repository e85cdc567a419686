"""The output of a job, as it is written."""

from __future__ import annotations

import codecs
import time
from collections.abc import Callable, Iterable, Iterator

LOOK_S = 0.2  # between two looks at the output of a job that runs


def pieces(
    read: Callable[[int], bytes], has_ended: Callable[[], bool], follow: bool = False
) -> Iterator[bytes]:
    """Yield what a job has written.

    Args:
        read: reads a piece from a byte on; empty where there is no more.
        has_ended: whether the job has ended.
        follow: go on until it has.
    """
    start = 0
    while True:
        is_last = not follow or has_ended()
        while found := read(start):
            start += len(found)
            yield found
        if is_last:
            return
        time.sleep(LOOK_S)


def lines(parts: Iterable[bytes]) -> Iterator[str]:
    """Yield the lines of UTF-8 text, each with its end; what is not UTF-8 is replaced."""
    decoder, rest = codecs.getincrementaldecoder("utf-8")("replace"), ""
    for part in parts:
        *whole, rest = (rest + decoder.decode(part)).split("\n")
        yield from (f"{line}\n" for line in whole)
    if rest := rest + decoder.decode(b"", final=True):
        yield rest
