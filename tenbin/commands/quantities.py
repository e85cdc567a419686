"""Times, sizes, ranges and lists as users write them.

Each function raises BadOption if a text is not of the form that its docstring shows.
"""

from __future__ import annotations

import math
import re
from contextlib import suppress

from profiles.errors import BadInput
from scheduler.jobs import literals

MOST_IN_ARRAY = 100_000


class BadOption(BadInput):
    """The value of an option cannot be used.

    Attributes:
        option: its name, with hyphens. fault: the value, and what is wrong with it.
    """

    def __init__(self, option: str, fault: str, remedy: str) -> None:
        self.option, self.fault = option, fault
        super().__init__(f"{option} {fault}", remedy)


def duration_s(text: str, option: str = "--time", *, least: float | None = None) -> float:
    """Read ``90``, ``90s``, ``10m``, ``1h30m``, ``1:30:00`` or ``2-12:00:00`` in seconds.

    Args:
        least: the fewest seconds; None: more than 0.
    """
    try:
        seconds = literals.duration_s(text)
    except ValueError as error:
        raise BadOption(option, f"{text!r} is no duration", str(error)) from error
    if seconds < (least or 0.0) or (least is None and not seconds):
        raise BadOption(option, f"{text!r} is too short", f"write at least {least or 1:g}s")
    return seconds


def expected(text: str | None) -> dict[str, float]:
    """Read ``gpu=1m,cpu=10m`` as seconds by device; ``10m``, wherever it runs, by ""."""
    found = {}
    if text and "=" not in text:
        with suppress(BadInput):
            return {"": duration_s(text, "--expect")}
    for part in text.split(",") if text else ():
        device, sign, time = part.partition("=")
        if not sign or not device:
            remedy = "write for instance 10m, or gpu=1m,cpu=10m"
            raise BadOption("--expect", f"{text!r} is no list of times", remedy)
        found[device.strip()] = duration_s(time, "--expect")
    return found


def size_mb(text: str) -> float:
    """Read ``500``, ``500M``, ``2g``, ``1T``, ``2GiB`` in MB (10^6 bytes), more than 0."""
    with suppress(ValueError):
        if size := literals.size_bytes(text):
            return size / 1e6
    raise BadOption("--memory", f"{text!r} is no size", literals.SIZES)


def array_and_limit(text: str) -> tuple[list[int], int | None]:
    """Read ``1-4,8`` or ``0-10:5`` as numbers, each once; after ``%`` how many run at once (None: all)."""
    indices: dict[int, None] = {}
    body, sign, most = text.partition("%")
    if sign and not re.fullmatch(r"[1-9]\d{0,5}", most):
        raise BadOption("--array", f"{text!r}: {most!r} is no limit", "write for instance 1-1000%8")
    for part in body.split(","):
        found = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?", part.strip())
        step = int(found[3] or 1) if found else 0
        if not found or step < 1 or int(found[2] or found[1]) < int(found[1]):
            raise BadOption(
                "--array", f"{text!r} is no list of numbers", "write for instance 1-10 or 0-20:5,31"
            )
        part_of_it = range(int(found[1]), int(found[2] or found[1]) + 1, step)
        if len(part_of_it) <= MOST_IN_ARRAY:
            indices |= dict.fromkeys(part_of_it)
        if max(len(part_of_it), len(indices)) > MOST_IN_ARRAY:
            remedy = f"submit it in parts of at most {MOST_IN_ARRAY:,}"
            raise BadOption("--array", f"{text!r}: more than {MOST_IN_ARRAY:,} jobs", remedy)
    return list(indices), int(most) if sign else None


def account_and_share(text: str) -> tuple[str, float | None]:
    """Read ``NAME`` or ``NAME=WEIGHT``."""
    name, sign, weight = text.partition("=")
    try:
        share = float(weight) if sign else None
    except ValueError:
        share = math.nan
    if not name or (share is not None and not 0 < share < math.inf):
        raise BadOption(
            "--user-share", f"{text!r} is no share", "write NAME or NAME=WEIGHT, for instance blast=2"
        )
    return name, share


def count_range(option: str, text: str | None) -> tuple[int | None, int | None]:
    """Read ``4`` or ``1-4`` as the fewest and the most (None: exactly so many)."""
    if text is None:
        return None, None
    found = re.fullmatch(r"([1-9]\d{0,5})(?:-(\d{1,6}))?", text.strip())
    if not found or int(found[2] or found[1]) < int(found[1]):
        raise BadOption(option, f"{text!r} is no number or range", "write for instance 4 or 1-4")
    return int(found[1]), int(found[2]) if found[2] else None


def counts(text: str | None) -> tuple[int, ...]:
    """Read ``1,2,4`` as numbers; none: empty."""
    if text is None:
        return ()
    if not re.fullmatch(r"[1-9]\d{0,5}(,[1-9]\d{0,5})*", text.replace(" ", "")):
        raise BadOption("--scale", f"{text!r} is no list of counts", "write for instance 1,2,4")
    return tuple(int(part) for part in text.split(","))


def speedups(text: str | None) -> dict[int, float]:
    """Read ``1=1,2=1.9,4=3.5`` as speed by number."""
    found = {}
    for part in text.split(",") if text else ():
        pair = re.fullmatch(r"\s*([1-9]\d{0,5})\s*=\s*(\d+(?:\.\d+)?)\s*", part)
        if not pair or float(pair[2]) <= 0:
            raise BadOption(
                "--speedup", f"{text!r} is no list of speeds", "write for instance 1=1,2=1.9,4=3.5"
            )
        found[int(pair[1])] = float(pair[2])
    return found


def variables(given: list[str]) -> dict[str, str]:
    """Read ``NAME=VALUE`` ... as variables."""
    found = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not name or not sign:
            raise BadOption("--env", f"{text!r} is no variable", "write NAME=VALUE")
        found[name] = value
    return found


def past_instant(text: str, option: str) -> float:
    """Read ``2h`` (ago), ``today``, ``yesterday`` or ``2026-11-20[T08:30]`` in seconds since 1970."""
    from datetime import datetime, timedelta

    now = datetime.now()
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    named = {"now": now, "today": midnight, "yesterday": midnight - timedelta(days=1)}
    if text in named:
        return named[text].timestamp()
    with suppress(ValueError, OverflowError):
        return datetime.fromisoformat(text).timestamp()
    with suppress(BadInput):
        return now.timestamp() - duration_s(text, option)
    raise BadOption(option, f"{text!r} is no time", "write for instance 2h, yesterday or 2026-11-20T08:30")
