"""Durations and sizes of memory in words: as users write them, and as Slurm does.

The command line, job files, the lines of scripts, the options of ``tenbin up`` and the answers of Slurm are
all read here.
"""

from __future__ import annotations

import re

DURATIONS = "write for instance 90s, 10m, 1h30m, 1:30:00 or 2-12:00:00"
SIZES = "write for instance 500M, 2G, 2GiB or 1T"
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
