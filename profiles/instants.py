"""Instants as people read them: in the time zone of who reads, with the date where that is not today.

A sentence is often shown by another process than the one that made it, in another zone, or much later. So
sentences carry stamps (``stamp``), and who shows them calls ``local``.
"""

from __future__ import annotations

import re
import time
from datetime import datetime

STAMP = re.compile(r"(?<![\w/.-])\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ(?![\w/.-]*[\w/])")  # no part of a path


def clock(at_s: float, *, date: bool = False) -> str:
    """Write an instant (seconds since 1970) in local time; ``date``: with its date, though that is today."""
    when = time.localtime(at_s)
    today = not date and when[:3] == time.localtime()[:3]
    return time.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M:%S", when)


def stamp(at_s: float) -> str:
    """Write an instant for a sentence that is shown elsewhere: ``2026-11-20T08:30:00Z``."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at_s))


def local(sentence: str) -> str:
    """Write the stamps in a sentence as ``clock`` does."""

    def shown(match: re.Match[str]) -> str:
        try:
            return clock(datetime.fromisoformat(match[0]).timestamp())
        except ValueError:  # no stamp of ours
            return match[0]

    return STAMP.sub(shown, sentence)
