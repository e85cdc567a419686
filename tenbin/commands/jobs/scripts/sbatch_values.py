"""Values of sbatch's options.

Each function raises ValueError, with what to write, if it cannot read a text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

from profiles.errors import BadInput
from scheduler.jobs.literals import size_bytes
from tenbin.commands.quantities import array_and_limit

MB_IN_MIB = 1.048576
MULTIPLES = {"": 1, "k": 1024, "m": 1024**2}
DEPENDENCIES = {
    "afterok": "after",
    "afterany": "after_any",
    "afternotok": "after_not_ok",
    "aftercorr": "after_corr",
}
LATER = {
    "after": "tenbin waits for the end of jobs, not for their start",
    "afterburstbuffer": "tenbin has no burst buffers",
    "expand": "tenbin does not resize running jobs",
    "singleton": "tenbin does not order jobs by their names",
}


class Indices(NamedTuple):
    """Indices of an array, and how many of its jobs may run at a time (None: all)."""

    indices: list[int]
    limit: int | None


def count(text: str) -> int:
    """Read a number of 1 or more."""
    if not re.fullmatch(r"\+?\d{1,9}", text) or int(text) < 1:
        raise ValueError("write a whole number from 1 on")
    return int(text)


def nodes(text: str) -> tuple[int, int]:
    """Read ``2``, ``1-4`` or ``1k`` as the fewest and the most nodes."""
    found = re.fullmatch(r"(\d{1,6})([km]?)(?:-(\d{1,6})([km]?))?", text.lower())
    least = int(found[1]) * MULTIPLES[found[2]] if found else 0
    most = int(found[3]) * MULTIPLES[found[4]] if found and found[3] else least
    if least < 1 or most < least:
        raise ValueError("write for instance 1 or 1-4")
    return least, most


def size_mib(text: str) -> int:
    """Read ``4G`` in MiB; without a unit it is MiB. 0 is all memory of a node."""
    if not re.fullmatch(r"\d{1,12}([kmgt]b?)?", text.lower()):
        raise ValueError("write a whole number, and K, M, G or T")
    return math.ceil(size_bytes(text, slurm=True) / 2**20)


def array(text: str) -> Indices:
    """Read ``0-15%4``, ``1,3,5-7``, ``0-100:4``; indices come in order, each once."""
    body, _, most = text.partition("%")
    most = most.lstrip("0")
    try:
        indices, limit = array_and_limit(
            body.removeprefix("[").removesuffix("]") + (f"%{most}" if most else "")
        )
    except BadInput as error:
        raise ValueError(error.remedy) from error
    return Indices(sorted(indices), limit)


def dependency(text: str) -> dict[str, list[int]]:
    """Read ``afterok:1:2,afterany:3`` as numbers of jobs, by the field of a JobSpec."""
    if "?" in text:
        raise ValueError("tenbin waits for all of several jobs, not for any of them (?)")
    waits: dict[str, list[int]] = {}
    for part in text.split(","):
        kind, *ids = part.split(":")
        if kind.isdecimal() and not ids:
            kind, ids = "afterany", [kind]
        kind = kind.lower()
        if kind in LATER:
            raise ValueError(f"{kind}: {LATER[kind]}")
        if kind not in DEPENDENCIES or not ids:
            raise ValueError("write for instance afterok:1:2,afterany:3")
        for each in ids:
            if re.fullmatch(r"\d+_(\d+|\[.*\])", each):
                raise ValueError(f"{each}: name the member by its own number (tenbin jobs)")
            if not re.fullmatch(r"\d{1,18}(_\*)?", each):
                raise ValueError(f"{each!r} is no number of a job")
            found = waits.setdefault(DEPENDENCIES[kind], [])
            number = int(each.removesuffix("_*"))
            if number not in found:
                found.append(number)
    return waits


def gpus(text: str) -> int:
    """Read ``gpu:2`` of ``--gres``, or ``2`` of ``--gpus``; a type of GPU is refused."""
    parts = text.split(":")
    if parts[0] in ("gpu", "gres/gpu"):
        parts = parts[1:] or ["1"]
    if len(parts) > 1 or not parts[0].isdecimal():
        raise ValueError(f"{text}: tenbin gives GPUs by number only, not by type or by other resources")
    return int(parts[0])


def gres(text: str) -> int:
    """Read a list of generic resources, of which tenbin has GPUs only; return how many."""
    entries = [entry for entry in text.split(",") if entry not in ("", "none")]
    for entry in entries:
        if entry.split(":")[0] not in ("gpu", "gres/gpu"):
            raise ValueError(f"{entry}: of generic resources tenbin knows GPUs only")
    return sum(map(gpus, entries))


def adjustment(text: str | None) -> int:
    """Read the value of ``--nice``; without one it is 100."""
    if text is None:
        return 100
    if not re.fullmatch(r"[+-]?\d{1,7}", text) or abs(int(text)) > 1_000_000:
        raise ValueError("write a whole number of at most 1,000,000")
    return int(text)


def variables(text: str, environment: Mapping[str, str]) -> tuple[bool, dict[str, str]]:
    """Read the value of ``--export``: whether all variables are handed on, and those named one by one."""
    every, named = False, {}
    for part in _quoted_list(text):
        name, sign, value = part.partition("=")
        if sign and name:
            named[name] = value
        elif part.upper() == "ALL":
            every = True
        elif part in environment:
            named[part] = environment[part]
    return every, named


def _quoted_list(text: str) -> list[str]:
    """Split at commas outside of quotation marks, which are taken off."""
    parts, quote = [""], ""
    for letter in text:
        if quote:
            parts[-1], quote = (parts[-1], "") if letter == quote else (parts[-1] + letter, quote)
        elif letter in "\"'":
            quote = letter
        elif letter == ",":
            parts.append("")
        else:
            parts[-1] += letter
    return [part for part in parts if part]


def output_pattern(text: str, user: str) -> str:
    """Write a file name pattern of sbatch as tenbin's own; Slurm's name for no output is ``none``.

    In a batch script ``%J`` is the job, ``%s`` is "batch", ``%n`` and ``%t`` are 0; unknown letters stay.
    """
    if text.lower() == "none":
        return "/dev/null"
    if "\\" in text:
        return text.replace("\\", "").replace("%", "%%")

    def replace(found: re.Match[str]) -> str:
        width, letter = found[1], found[2]
        fixed = {"u": user.replace("%", "%%"), "n": "0", "t": "0", "s": "batch", "J": f"%{width}j", "%": "%%"}
        if letter in fixed:
            return fixed[letter]
        return found[0] if letter in ("A", "a", "j", "x", "N") else f"%{found[0]}"

    return re.sub(r"%(\d*)(.?)", replace, text)
