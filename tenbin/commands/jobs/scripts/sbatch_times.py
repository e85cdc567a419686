"""Times as sbatch takes them: limits (``--time``), and instants (``--begin``, ``--deadline``)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from datetime import time as clock_time

from scheduler.jobs.literals import duration_s

UNLIMITED = {"-1", "0", "infinite", "unlimited"}
LIMITS = "write minutes, minutes:seconds, hours:minutes:seconds or days-hours:minutes:seconds"
WORDS = {"midnight": 0, "noon": 12, "fika": 15, "teatime": 16}
NOW = re.compile(r"now(?:\s*\+\s*(\d+\s*(?:(?:second|minute|hour|day|week)s?)?))?", re.IGNORECASE)
TOKENS = re.compile(
    r"""(?P<word>midnight|noon|fika|teatime) | (?P<day>today|tomorrow)
    | (?P<year>\d{4})-(?P<month>\d{2})-(?P<date>\d{2})(?:T(?=\d))?
    | (?P<m>\d{1,2})(?P<by>[/.])(?P<d>\d{1,2})(?:(?P=by)(?P<y>\d{2}))?-?
    | (?P<clock>\d{1,2}:\d{2}(?::\d{2})?)\s*(?P<half>[AaPp][Mm])?
    | (?P<digits>\d{4}(?:\d{2})?)(?![\d:])""",
    re.VERBOSE | re.IGNORECASE,
)


def limit_s(text: str) -> float | None:
    """Read a limit (``30`` are minutes); None: unlimited. Seconds are rounded up to minutes, as sbatch does.

    Raises:
        ValueError: the text is no limit.
    """
    if text.lower() in UNLIMITED:
        return None
    if not re.fullmatch(r"[\d:-]+", text):
        raise ValueError(LIMITS)
    try:
        return math.ceil(duration_s(text, slurm=True) / 60) * 60.0 or None
    except ValueError:
        raise ValueError(LIMITS) from None


def instant_s(text: str, now: datetime) -> float | None:
    """Read an instant in local time as seconds since 1970; None: it is now or has passed.

    Raises:
        ValueError: the text is no instant.
    """
    if found := NOW.fullmatch(text.strip()):
        later_s = duration_s(found[1]) if found[1] else 0.0
        return math.floor(now.timestamp()) + later_s if later_s else None
    return next(_after(_date_and_time(text.strip(), now), now), None)


def _after(given: tuple[date | None, bool, clock_time], now: datetime) -> Iterator[float]:
    """Yield the instants after now at which local calendars and clocks show this.

    Where clocks are set back, they show an hour twice.
    """
    day, yearless, hour = given
    for later in (False, True):
        if later and day is not None and not yearless:
            return
        shown = day.replace(year=day.year + later) if day else now.date() + timedelta(days=later)
        for fold in (0, 1):
            at_s = datetime.combine(shown, hour.replace(fold=fold)).timestamp()
            if at_s > now.timestamp():
                yield at_s


def _date_and_time(text: str, now: datetime) -> tuple[date | None, bool, clock_time]:
    """Put together the parts of an instant, which may come in any order.

    Returns: the date, if one is given; whether it is without a year; the time of day.
    """
    hour = clock_time()
    day: date | None = None
    yearless = False
    while text:
        found = TOKENS.match(text)
        if not found:
            raise ValueError("write for instance 16:00, now+1hour, 2030-01-20T12:34:00 or tomorrow")
        text = text[found.end() :].lstrip()
        if found["word"]:
            hour = clock_time(WORDS[found["word"].lower()])
        elif found["clock"]:
            hour = _clock(found["clock"], (found["half"] or "").lower())
        elif found["day"]:
            day = now.date() + timedelta(days=found["day"].lower() == "tomorrow")
        elif found["year"]:
            day = date(int(found["year"]), int(found["month"]), int(found["date"]))
        else:
            month, day_of_month, year = _month_and_day(found)
            yearless = year is None
            day = date(now.year if year is None else year, month, day_of_month)
    return day, yearless, hour


def _month_and_day(found: re.Match[str]) -> tuple[int, int, int | None]:
    parts = [found["m"], found["d"], found["y"] or ""]
    if digits := found["digits"]:
        parts = [digits[:2], digits[2:4], digits[4:]]
    return int(parts[0]), int(parts[1]), 2000 + int(parts[2]) if parts[2] else None


def _clock(text: str, half: str) -> clock_time:
    hours, minutes, seconds = (*map(int, text.split(":")), 0)[:3]
    if half and not 1 <= hours <= 12:
        raise ValueError(f"{text} {half}: there is no such hour")
    if half:
        hours = hours % 12 + (12 if half == "pm" else 0)
    return clock_time(hours, minutes, seconds)
