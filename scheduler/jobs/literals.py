"""Durations, instants and sizes of memory in words: as users write them, as Slurm does, and for people.

The command line, job files, the lines of scripts, the options of ``tenbin up`` and the answers of Slurm are
all read here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from datetime import time as clock_time

DURATIONS = "write for instance 90s, 10m, 1h30m, 1:30:00 or 2-12:00:00"
SIZES = "write for instance 500M, 2G, 2GiB or 1T"
LEAST_MEMORY_MB = 1.0  # no program starts in less
LATEST_S = 253_402_300_000  # seconds since 1970: the year 9999
UNITS_S = {
    word: seconds
    for seconds, words in (
        (1.0, "s sec secs second seconds"),
        (60.0, "m min mins minute minutes"),
        (3600.0, "h hr hrs hour hours"),
        (86_400.0, "d day days"),
        (604_800.0, "w week weeks"),
    )
    for word in words.split()
}
NUMBER = r"\d{1,12}(?:\.\d{1,12})?"
PARTS = re.compile(rf"(?:{NUMBER}\s*[a-z]+\s*)+")
PART = re.compile(rf"({NUMBER})\s*([a-z]+)")
CLOCK = re.compile(r"(?:(\d{1,9})-)?(\d{1,12}(?::\d{1,12}){0,2})?")
IN_CLOCK = ((60, 1.0), (60, 60.0), (24, 3600.0), (0, 86_400.0))  # how many there are, and the seconds of each
SIZE = re.compile(rf"({NUMBER})\s*(?:([kmgt])(i?)b?)?", re.IGNORECASE)
POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}
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


def duration_s(text: str, *, slurm: bool = False) -> float:
    """Read ``90``, ``45s``, ``1.5h``, ``1h30m``, ``2 days``, ``1:30:00``, ``1-12``, ``2-12:30`` in seconds.

    Args:
        slurm: a limit of Slurm: a number alone is in minutes, and ``0:90`` is taken for ``1:30``.

    Raises:
        ValueError: the text is none of these; it says what to write.
    """
    text = text.strip().lower()
    if re.fullmatch(NUMBER, text):
        return float(text) * (60.0 if slurm else 1.0)
    if PARTS.fullmatch(text):
        return _in_parts(PART.findall(text))
    clock = CLOCK.fullmatch(text)
    if not text or not clock:
        raise ValueError(DURATIONS)
    days, rest = clock.groups()
    numbers = [int(part) for part in (rest or "0").split(":")]
    if days is not None:
        numbers = [int(days), *numbers, 0, 0][:4]
    counted = list(zip(reversed(numbers), IN_CLOCK, strict=False))
    if not slurm and any(number >= most for number, (most, _) in counted[:-1]):
        raise ValueError(DURATIONS)
    return sum(number * seconds for number, (_, seconds) in counted)


def _in_parts(parts: list[tuple[str, str]]) -> float:
    """Add parts, each in a smaller unit than the one before."""
    if not all(unit in UNITS_S for _, unit in parts):
        raise ValueError(DURATIONS)
    units = [UNITS_S[unit] for _, unit in parts]
    if units != sorted(set(units), reverse=True):
        raise ValueError(DURATIONS)
    return sum(float(number) * seconds for (number, _), seconds in zip(parts, units, strict=True))


def size_bytes(text: str, *, slurm: bool = False) -> float:
    """Read ``500`` (M), ``500K``, ``2g``, ``1.5TB``, ``2Gi``, ``2GiB`` in bytes.

    Args:
        slurm: as Slurm has it: K, M, G and T are powers of 1024.

    Raises:
        ValueError: the text is none of these; it says what to write.
    """
    size = SIZE.fullmatch(text.strip())
    if not size:
        raise ValueError(SIZES)
    base = 1024.0 if slurm or size[3] else 1000.0
    return float(size[1]) * base ** POWERS[(size[2] or "m").lower()]


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
    if words := NOW.fullmatch(text.strip()):
        later_s = duration_s(words[1]) if words[1] else 0.0
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
    yearless, token = False, None
    while text or not token:  # an empty text is none
        token = TOKENS.match(text)
        if not token:
            raise ValueError("write for instance 16:00, now+1hour, 2030-01-20T12:34:00 or tomorrow")
        text = text[token.end() :].lstrip()
        if token["word"]:
            hour = clock_time(WORDS[token["word"].lower()])
        elif token["clock"]:
            hour = _clock(token["clock"], (token["half"] or "").lower())
        elif token["day"]:
            day = now.date() + timedelta(days=token["day"].lower() == "tomorrow")
        elif token["year"]:
            day = date(int(token["year"]), int(token["month"]), int(token["date"]))
        else:
            month, day_of_month, year = _month_and_day(token)
            yearless = year is None
            day = date(now.year if year is None else year, month, day_of_month)
    return day, yearless, hour


def _month_and_day(token: re.Match[str]) -> tuple[int, int, int | None]:
    parts = [token["m"], token["d"], token["y"] or ""]
    if digits := token["digits"]:
        parts = [digits[:2], digits[2:4], digits[4:]]
    return int(parts[0]), int(parts[1]), 2000 + int(parts[2]) if parts[2] else None


def _clock(text: str, half: str) -> clock_time:
    hours, minutes, seconds = (*map(int, text.split(":")), 0)[:3]
    if half and not 1 <= hours <= 12:
        raise ValueError(f"{text} {half}: there is no such hour")
    if half:
        hours = hours % 12 + (12 if half == "pm" else 0)
    return clock_time(hours, minutes, seconds)


def resource_text(resource: str, amount: float, of: float | None = None, *, named: bool = True) -> str:
    """Write ``"1 core"``, ``"2 of 4 GPUs"``, ``"24.7 of 25.3 GB memory"``; not ``named``: ``"2 of 4"``."""
    whole = amount if of is None else of
    kind, _, model = resource.partition(":")
    if kind == "memory_mb":
        scale = 1e3 if whole >= 1e3 else 1.0
        text, name = memory_text(whole), "memory"
        text = text if of is None else f"{amount / scale:.4g} of {text}"
    else:
        text = f"{amount:,.10g}" if of is None else f"{amount:,.10g} of {of:,.10g}"
        several = {"gpu": f"{model} GPUs".lstrip(), "core": "cores", "cores": "cores", "node": "nodes"}
        name = several.get(kind, resource)
        name = name.removesuffix("s") if whole == 1 and name in several.values() else name
    return f"{text} {name}" if named else text


def memory_text(mb: float) -> str:
    """``"20 GB"``, ``"500 MB"``: for people."""
    return f"{mb / 1e3:.4g} GB" if mb >= 1e3 else f"{mb:.4g} MB"
