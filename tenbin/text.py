"""Numbers and records as people read them; shared by the terminal and the report."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import cleandoc
from itertools import groupby
from json import dumps
from typing import TYPE_CHECKING, Any

from profiles.quantities import duration, file_size, memory, number, readable_unit

if TYPE_CHECKING:
    from profiles.jobs import JobProfile
    from profiles.records import Coefficient, Inventory, Model, Profile

UNIT_WORDS = {"": "", "ratio": "", "1": ""}

BARS = "▁▂▃▄▅▆▇█"


def label(job: Mapping[str, Any]) -> str:
    """Name a job as people do: ``12``, or ``7[3]`` for the member 3 of array 7."""
    member = job["array"] is not None and job["array_index"] is not None
    return f"{job['array']}[{job['array_index']}]" if member else str(job["id"])


def ranges(ids: Iterable[int]) -> str:
    """Write numbers as people do: ``1-3, 7``."""
    parts = []
    for _, group in groupby(enumerate(sorted(ids)), key=lambda pair: pair[1] - pair[0]):
        numbers = [identifier for _, identifier in group]
        parts.append(str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}")
    return ", ".join(parts)


def readable(coefficient: Coefficient, *beside: Coefficient | None) -> Coefficient:
    """Change the unit to the one in which people read it, and the coefficients ``beside``: s to us."""
    values = [c.value for c in (coefficient, *beside) if c is not None]
    factor, unit = readable_unit(coefficient.unit, *values)
    if factor == 1.0:
        return coefficient
    low, high = (None if limit is None else factor * limit for limit in (coefficient.low, coefficient.high))
    scaled = {"value": factor * coefficient.value, "low": low, "high": high, "unit": unit}
    return coefficient.model_copy(update=scaled)


def value(coefficient: Coefficient) -> str:
    """Write ``12.3``; of a number bounded on one side the bound: ``at least 12.3``, or not known."""
    if not is_known(coefficient):
        return "not known"
    return bounded(coefficient.value, coefficient.low, coefficient.high)


def is_known(coefficient: Coefficient) -> bool:
    """Tell if the samples say anything of a number: one side of a poor one says nothing."""
    from profiles.records import Quality  # an error message, which needs this module too, comes without it

    bounds = (coefficient.low, coefficient.high)
    return bounds.count(None) != 1 or coefficient.quality is not Quality.POOR


def bounded(value: float, low: float | None, high: float | None) -> str:
    """Write a number; of one that is bounded on one side the bound: ``at least 12.3``."""
    if (low is None) == (high is None):
        return number(value)
    return f"at least {number(low)}" if high is None else f"at most {number(high)}"


def value_with_unit(coefficient: Coefficient) -> str:
    """Write ``12.3 GB/s``, ``at least 48.7 us``, or not known."""
    coefficient = readable(coefficient)
    if not is_known(coefficient):
        return value(coefficient)
    return f"{value(coefficient)} {UNIT_WORDS.get(coefficient.unit, coefficient.unit)}".rstrip()


def interval(coefficient: Coefficient) -> str:
    """Write the 95 % interval ``12.1 .. 12.6``, in the unit of ``value_with_unit``, one-sided or unknown."""
    coefficient = readable(coefficient)
    return limits(coefficient.low, coefficient.high)


def limits(low: float | None, high: float | None) -> str:
    """Write ``12.1 .. 12.6``, one-sided or unknown where it is."""
    if low is None and high is None:
        return "unknown"
    if low is None or high is None:
        return (
            f"{number(low) if low is not None else ''} .. {number(high) if high is not None else ''}".strip()
        )
    return f"{number(low)} .. {number(high)}"


def subject(model: Model) -> str:
    """Write the labels of a model: ``device=pocl-0 storage=/scratch``."""
    return " ".join(f"{key}={value}" for key, value in model.labels.items())


def printable(text: str) -> str:
    """Put text from elsewhere on one line, harmless to a terminal: other characters as ``\\n``, ``\\x1b``."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "replace").decode() for c in text)


def printable_lines(text: str) -> str:
    """Make text from elsewhere harmless to a terminal; its lines are kept."""
    return text if text.isprintable() else "\n".join(map(printable, text.split("\n")))


def unwrapped(text: str) -> str:
    """Join the lines of each paragraph and item of a docstring; examples, indented alike, stay."""
    lines: list[str] = []
    last = 0
    for line in cleandoc(text).replace("``", "").splitlines():
        indent = len(line) - len(line.lstrip())
        before = lines[-1] if lines else ""
        deeper = indent > last and not before.endswith(":")
        if line and before and (deeper or indent == last == 0) and not re.match(r" *(-|\d+\.) ", line):
            lines[-1] += f" {line.lstrip()}"
        else:
            lines.append(line)
            last = indent
    return "\n".join(lines)


def described(docstring: str | None) -> tuple[str, dict[str, str]]:
    """Return what a docstring says, and what it says of arguments or attributes, by name."""
    whole = cleandoc(docstring or "").replace("``", "")
    text, *below = re.split(r"\n\n(?:Args|Attributes):\n", whole, maxsplit=1)
    paragraphs = re.findall(r"^    ([\w, ]+): (.*(?:\n {8}.*)*)", "".join(below), re.M)
    return unwrapped(text), {name: re.sub(r"\s*\n\s*", " ", said) for name, said in paragraphs}


def say(text: str, *, error: bool = False) -> None:
    """Print lines with control characters escaped; ``error``: to standard error."""
    print(printable_lines(text), file=sys.stderr if error else sys.stdout, flush=error)


def remark(text: str) -> None:
    """Print beside the result, to standard error, after the name of the program."""
    say(f"tenbin: {text}", error=True)


def print_json(value: object) -> None:
    """Print for programs; every character outside ASCII is escaped."""
    print(dumps(value, indent=1))


def print_answer(value: object, words: str | Callable[[], object], json: bool) -> None:
    """Print the answer of a command: for programs its value, a record or what JSON has; else in words.

    Args:
        words: the text; or what prints it.
    """
    if json:
        print(as_json(value) if hasattr(value, "model_dump_json") else dumps(value, indent=1))
    elif isinstance(words, str):
        say(words)
    else:
        words()


def as_json(record: Any) -> str:
    """Format a record as JSON in which every control character is escaped (JSON itself leaves C1 codes)."""
    text = record.model_dump_json(indent=1)
    return "".join(c if c.isprintable() or c == "\n" else dumps(c)[1:-1] for c in text)


def headline(profile: Profile) -> str:
    """Write one line on what a profile is."""
    kind = "quick" if profile.settings.quick else "full"
    return making(profile, f"{profile.node}: {kind} profile", profile.origin)


def making(profile: Profile | JobProfile, what: str, origin: str = "") -> str:
    """Write one line on when and how a profile was made."""
    marks = [origin, "EMULATED" * profile.emulated, "interrupted" * profile.interrupted]
    made = profile.created.astimezone().strftime("%Y-%m-%d %H:%M")
    text = f"{what} {profile.id}, made {made} in {duration(round(profile.duration_s))}"
    return f"{text} ({', '.join(filter(None, marks))})" if any(marks) else text


def machine_lines(inventory: Inventory) -> list[tuple[str, str]]:
    """Write the inventory as (topic, text) lines."""
    cpu = inventory.cpu
    cores = f"{cpu.cores} core{'s' * (cpu.cores != 1)}, {cpu.threads} thread{'s' * (cpu.threads != 1)}"
    caches = ", ".join(
        f"L{c.level}{'' if c.kind == 'unified' else ' ' + c.kind} {c.size_kb:g} KiB x {c.instances}"
        for c in cpu.caches
    )
    nodes = f" in {len(inventory.numa)} NUMA nodes" if len(inventory.numa) > 1 else ""
    kernel = f"kernel {inventory.kernel}, virtualisation: {inventory.virtualisation}"
    lines = [
        ("processor", f"{cpu.model}, {cpu.sockets} socket{'s' * (cpu.sockets != 1)}, {cores}"),
        ("caches", caches or "not shown by this machine"),
        ("memory", f"{memory(inventory.memory_mb)}{nodes}"),
        ("system", f"{inventory.distribution}, {kernel}"),
    ]
    for s in inventory.storage:
        free = f"{file_size(s.free_mb)} free, {'direct' if s.direct_io else 'buffered'} I/O"
        lines.append(("storage", f"{s.folder}: {s.filesystem} on {s.device} ({s.kind}), {free}"))
    for n in inventory.network:
        speed = f"{n.speed_mbit:g} Mbit/s" if n.speed_mbit else "speed not told"
        lines.append(("network", f"{n.name}: {speed}, driver {n.driver or 'not told'}"))
    lines += [
        ("OpenCL", f"{d.key}: {d.name} ({d.kind}, {d.compute_units} units), {d.platform}, driver {d.driver}")
        for d in inventory.opencl
    ] or [("OpenCL", "none")]
    lines += [("GPU", f"{g.name}, {memory(g.memory_mb)}, driver {g.driver}") for g in inventory.gpus]
    lines.append(("MPI", inventory.mpi.library if inventory.mpi else "none"))
    lines += [
        ("power zone", f"{z.name}: cap {number(z.cap_w)} W" if z.cap_w else f"{z.name}: no cap")
        for z in inventory.power
    ]
    return lines


def sparkline(values: Sequence[float | None]) -> str:
    """Write a row of bars, the lowest value the lowest bar; a dot where nothing is known."""
    known = [value for value in values if value is not None]
    low, span = (min(known), max(known) - min(known)) if known else (0.0, 0.0)
    heights = [None if value is None else (value - low) / (span or 1.0) for value in values]
    return "".join("·" if height is None else BARS[round(height * (len(BARS) - 1))] for height in heights)
