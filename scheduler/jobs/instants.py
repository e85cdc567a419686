"""Instants as people read them."""

from __future__ import annotations

import time


def clock(at_s: float, *, date: bool = False) -> str:
    """Write an instant (seconds since 1970) in local time, with or without its date."""
    return time.strftime("%Y-%m-%d %H:%M:%S" if date else "%H:%M:%S", time.localtime(at_s))
