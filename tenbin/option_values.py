"""Times, sizes, ranges and lists as users write them on the command line and in job files.

Each function raises BadOption if a text is not of the form that its docstring shows. Those that read a field
of a job (``tenbin/fields.py``) also take a value as TOML has it, and raise TypeError for one of
another type.
"""

from __future__ import annotations

import math
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import date, datetime, timedelta
from datetime import time as clock_time
from pathlib import Path
from typing import Any

from profiles.errors import BadInput
from scheduler.jobs import literals

MOST_IN_ARRAY = 100_000
TIMES = "write for instance 16:00, tomorrow, now+1h or 2026-12-24T08:00"


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


def expected(value: Any, option: str = "--expect") -> dict[str, float]:
    """Read ``gpu=1m,cpu=10m`` as seconds by device; ``10m``, wherever it runs, by ""."""
    if not isinstance(value, str):
        return {str(device): seconds(text, option) for device, text in dict(value).items()}
    if "=" not in value:
        with suppress(BadInput):
            return {"": duration_s(value, option)}
    by_device = {}
    for part in value.split(","):
        device, sign, text = part.partition("=")
        if not sign or not device:
            remedy = "write for instance 10m, or gpu=1m,cpu=10m"
            raise BadOption(option, f"{value!r} is no list of times", remedy)
        by_device[device.strip()] = duration_s(text, option)
    return by_device


def size_mb(text: str, option: str = "--memory") -> float:
    """Read ``500``, ``500M``, ``2g``, ``1T``, ``2GiB`` in MB (10^6 bytes), at least 1."""
    try:
        size = literals.size_bytes(text) / 1e6
    except ValueError as error:
        raise BadOption(option, f"{text!r} is no size", literals.SIZES) from error
    if size < literals.LEAST_MEMORY_MB:
        raise BadOption(option, f"{text!r} is too little", f"write at least {literals.LEAST_MEMORY_MB:g}M")
    return size


def array_and_limit(value: Any, option: str = "--array") -> tuple[list[int], int | None]:
    """Read ``1-4,8`` or ``0-10:5`` as numbers, each once; after ``%`` how many run at once (None: all)."""
    if isinstance(value, list) and value and all(whole(index) >= 0 for index in value):
        return list(dict.fromkeys(value)), None
    indices: dict[int, None] = {}
    body, sign, most = (value if isinstance(value, str) else "").partition("%")
    if sign and not re.fullmatch(r"[1-9]\d{0,5}", most):
        raise BadOption(option, f"{value!r}: {most!r} is no limit", "write for instance 1-1000%8")
    for part in body.split(","):
        bounds = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?", part.strip())
        step = int(bounds[3] or 1) if bounds else 0
        if not bounds or step < 1 or int(bounds[2] or bounds[1]) < int(bounds[1]):
            remedy = "write for instance 1-10 or 0-20:5,31"
            raise BadOption(option, f"{value!r} is no list of numbers", remedy)
        part_of_it = range(int(bounds[1]), int(bounds[2] or bounds[1]) + 1, step)
        if len(part_of_it) <= MOST_IN_ARRAY:
            indices |= dict.fromkeys(part_of_it)
        if max(len(part_of_it), len(indices)) > MOST_IN_ARRAY:
            remedy = f"submit it in parts of at most {MOST_IN_ARRAY:,}"
            raise BadOption(option, f"{value!r}: more than {MOST_IN_ARRAY:,} jobs", remedy)
    return list(indices), int(most) if sign else None


def account_and_share(text: str, option: str = "--user-share") -> tuple[str, float | None]:
    """Read ``NAME`` or ``NAME=WEIGHT``."""
    name, sign, weight = words(text).partition("=")
    try:
        share = float(weight) if sign else None
    except ValueError:
        share = math.nan
    if not name or (share is not None and not 0 < share < math.inf):
        remedy = "write NAME or NAME=WEIGHT, for instance blast=2"
        raise BadOption(option, f"{text!r} is no share", remedy)
    return name, share


def count_range(value: Any, option: str) -> tuple[int, int | None]:
    """Read ``4`` or ``1-4`` as the fewest and the most (None: exactly so many)."""
    if not isinstance(value, str):
        return whole(value), None
    bounds = re.fullmatch(r"([1-9]\d{0,5})(?:-(\d{1,6}))?", value.strip())
    if not bounds or int(bounds[2] or bounds[1]) < int(bounds[1]):
        raise BadOption(option, f"{value!r} is no number or range", "write for instance 4 or 1-4")
    return int(bounds[1]), int(bounds[2]) if bounds[2] else None


def gpus_and_kind(value: Any, option: str = "--gpus") -> tuple[int, str]:
    """Read ``2``, ``a100:1`` or ``a100`` as a number of GPUs and their kind ("": any)."""
    if not isinstance(value, str):
        return whole(value), ""
    name = re.sub(r"\s+", "_", value.strip())  # nvidia-smi prints names with blanks
    words = re.fullmatch(r"(?:([\w.-]+):)?([1-9]\d{0,3})|([\w.-]*[a-zA-Z][\w.-]*)", name)
    if not words:
        raise BadOption(option, f"{value!r} is no number of GPUs", "write for instance 2, or a100:1")
    return int(words[2] or 1), words[1] or words[3] or ""


def alternatives(value: Any, option: str = "--or") -> list[dict[str, Any]]:
    """Read ``cores=16,time=3h`` ..., or tables with such keys, as what a job may take instead."""
    return [_alternative(way, option) for way in (value if isinstance(value, list | tuple) else [value])]


def _alternative(value: Any, option: str) -> dict[str, Any]:
    parts = value.split(",") if isinstance(value, str) else ()
    pairs = [(key, text) for key, _, text in (part.partition("=") for part in parts)]
    taken: dict[str, Any] = {}
    for key, text in pairs if isinstance(value, str) else dict(value).items():
        name = key.strip()
        fields, read = ALTERNATIVE.get(name, ("", words))
        if not fields:
            fault = f"{value!r}: {name!r} is nothing that a job may have otherwise"
            raise BadOption(option, fault, f"there are {', '.join(ALTERNATIVE)}: cores=16,time=3h")
        if len([key for key, _ in pairs if key.strip() == name]) > 1:
            raise BadOption(option, f"{value!r}: {name} stands there twice", "leave one out")
        counts = name in ("tasks", "cores", "gpus")
        is_number = counts and isinstance(text, str) and text.strip().isdecimal()
        try:
            content = read(int(text) if is_number else text, option)
        except TypeError:
            raise BadOption(
                option, f"{value!r}: {name} is no number", "write for instance cores=16"
            ) from None
        least = content[0] if name == "gpus" else content
        if counts and least < 1:
            remedy = "leave it out: then it has none" if name == "gpus" else "write for instance cores=16"
            raise BadOption(option, f"{value!r}: {name} must be at least 1", remedy)
        taken |= dict(zip(fields.split(), content if " " in fields else (content,), strict=True))
    return {field: content for field, content in taken.items() if content != ""}


def names(text: str | None, option: str) -> tuple[str, ...]:
    """Read ``a,b``; None, the option is not given: empty."""
    if text is None:
        return ()
    if given := tuple(name.strip() for name in text.split(",") if name.strip()):
        return given
    raise BadOption(option, f"{text!r} names nothing", "write for instance a,b, or leave the option out")


def counts(text: str | None) -> tuple[int, ...]:
    """Read ``1,2,4`` as numbers; none: empty."""
    if text is None:
        return ()
    if not re.fullmatch(r"[1-9]\d{0,5}(,[1-9]\d{0,5})*", text.replace(" ", "")):
        raise BadOption("--scale", f"{text!r} is no list of counts", "write for instance 1,2,4")
    return tuple(int(part) for part in text.split(","))


def speedups(value: Any, option: str = "--speedup") -> dict[int, float]:
    """Read ``1=1,2=1.9,4=3.5`` as speed by number."""
    text = value if isinstance(value, str) else ",".join(f"{k}={v}" for k, v in dict(value).items())
    by_number = {}
    for part in text.split(","):
        pair = re.fullmatch(r"\s*([1-9]\d{0,5})\s*=\s*(\d+(?:\.\d+)?)\s*", part)
        if not pair or float(pair[2]) <= 0:
            raise BadOption(option, f"{text!r} is no list of speeds", "write for instance 1=1,2=1.9,4=3.5")
        by_number[int(pair[1])] = float(pair[2])
    return by_number


def cap_curve(value: Any, option: str = "--cap-curve") -> list[float]:
    """Read ``120,0.004`` as the watts of full speed, and the share of it that each watt below takes."""
    if not isinstance(value, str):
        return list(map(number, value))
    pair = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*,\s*(\d+(?:\.\d+)?)\s*", value)
    if not pair:
        raise BadOption(option, f"{value!r} is no curve", "write watts and share: 120,0.004")
    return [float(pair[1]), float(pair[2])]


def variables(value: Any, option: str = "--env") -> dict[str, str]:
    """Read ``NAME=VALUE`` ... as variables."""
    if isinstance(value, dict):
        return {name: words(text) for name, text in value.items()}
    by_name = {}
    for text in value:
        name, sign, content = text.partition("=")
        if not name or not sign:
            raise BadOption(option, f"{text!r} is no variable", "write NAME=VALUE")
        by_name[name] = content
    return by_name


def signal_number(value: Any, option: str = "--checkpoint-signal") -> int:
    """Read ``USR1``, ``SIGUSR1`` or ``10``."""
    if not isinstance(value, str):
        return whole(value)
    name = value.strip().upper().removeprefix("SIG")
    with suppress(KeyError, ValueError):
        number = int(name) if name.isdecimal() else signal.Signals[f"SIG{name}"]
        if number in signal.valid_signals():
            return int(number)
    raise BadOption(option, f"{value!r} is no signal", "write for instance USR1, or 10")


def exit_codes(value: Any, option: str = "--retry-on") -> list[int]:
    """Read ``1,137`` as exit codes."""
    if not isinstance(value, str):
        value = ",".join(str(whole(code)) for code in (value if isinstance(value, list) else [value]))
    codes = [int(part) if re.fullmatch(r"\s*\d{1,3}\s*", part) else 0 for part in value.split(",")]
    if not all(1 <= code <= 255 for code in codes):
        remedy = "write numbers from 1 to 255: 1,137"
        raise BadOption(option, f"{value!r} is no list of exit codes", remedy)
    return codes


def job_numbers(value: Any, option: str) -> list[int]:
    """Take numbers of jobs, each once."""
    return list(dict.fromkeys(map(whole, value)))


def begin_s(value: Any, option: str = "--begin") -> float | None:
    """Read an instant as seconds since 1970; None: at once."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.timestamp()
    if isinstance(value, datetime | clock_time):
        value = value.replace(microsecond=0)
    text = value.isoformat() if isinstance(value, date | clock_time) else value
    return _instant_s(text, option) if isinstance(text, str) else number(text)


def deadline_s(value: Any, option: str = "--deadline") -> float:
    """Read an instant as seconds since 1970; it must not have passed."""
    at = begin_s(value, option)
    if at is None:
        raise BadOption(option, f"{value!r} has passed", "name a later time, for instance now+1h")
    return at


def _instant_s(text: str, option: str) -> float | None:
    """Read an instant as sbatch does, and ``now+`` any duration; None: it is now or has passed."""
    if text.startswith("now+"):
        with suppress(BadOption):
            if (at_s := time.time() + duration_s(text.removeprefix("now+"))) <= literals.LATEST_S:
                return at_s
    try:
        return literals.instant_s(text, datetime.now())
    except (ValueError, OverflowError) as error:
        raise BadOption(option, f"{text!r} is no time", TIMES) from error


def seconds(value: Any, option: str) -> float:
    """Read a duration of more than 0; a number of TOML is in seconds."""
    return duration_s(value, option) if isinstance(value, str) else number(value)


def grace_s(value: Any, option: str = "--grace") -> float:
    """Read a duration, which may be 0; a number of TOML is in seconds."""
    return duration_s(value, option, least=0) if isinstance(value, str) else number(value)


def megabytes(value: Any, option: str) -> float:
    """Read a size of memory; a number of TOML is in MB."""
    return size_mb(value, option) if isinstance(value, str) else number(value)


def number(value: Any, option: str = "") -> float:
    """Take a number as it is."""
    return float(_typed(value, int, float))


def whole(value: Any, option: str = "") -> int:
    """Take a whole number as it is."""
    return int(_typed(value, int))


def words(value: Any, option: str = "") -> str:
    """Take a text as it is; a path as text."""
    return str(_typed(value, str, Path))


def flag(value: Any, option: str = "") -> bool:
    """Take a yes or no as it is."""
    return bool(_typed(value, bool))


def notification(value: Any, option: str = "--notify") -> str:
    """Take a URL, ``mail``, ``mail:ADDRESS`` or a command."""
    text = re.sub(r"^mailto:", "mail:", words(value).strip())
    kind, sign, address = text.partition(":")
    if kind == "mail" and sign and not re.fullmatch(r"[^\s@-][^\s@]*(@[^\s@]+)?", address):
        raise BadOption(option, f"{text!r} has no address", "write for instance mail:me@example.org, or mail")
    if address.startswith("//") and not re.match(r"https?://[^\s/]", text):
        raise BadOption(option, f"{text!r} is no URL that can be told", "write http://... or https://...")
    command, *_ = text.split(maxsplit=1) or [""]
    if not text or (re.fullmatch(r"[\w.+-]+", command) and kind != "mail" and not _is_command(command)):
        remedy = "write mail, a URL, or a command of the shell"
        raise BadOption(option, f"{text!r}: there is no such command", remedy)
    return text


def _is_command(word: str) -> bool:
    """Whether the shell knows a word: a program, or what it does itself."""
    if shutil.which(word):
        return True
    call = ["sh", "-c", 'command -v "$1"', "sh", word]
    return not subprocess.run(call, capture_output=True, check=False).returncode


def checkpoint_signal(value: Any, option: str = "") -> int | None:
    """Make the signal of ``tenbin.Checkpoint`` of a yes."""
    return int(signal.SIGURG) if flag(value) else None


def _typed(value: Any, *types: type) -> Any:
    """Return a value of one of these types; yes and no are no numbers."""
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise TypeError(value)
    return value


def past_instant(text: str, option: str) -> float:
    """Read ``2h`` (ago), ``today``, ``yesterday`` or ``2026-11-20[T08:30]`` in seconds since 1970."""
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


# What a job may have otherwise: fields, and how they are read.
ALTERNATIVE: dict[str, tuple[str, Callable[[Any, str], Any]]] = {
    "tasks": ("tasks", whole),
    "cores": ("cores", whole),
    "memory": ("memory_mb", megabytes),
    "gpus": ("gpus gpu_kind", gpus_and_kind),
    "gpus-memory": ("gpu_memory_mb", megabytes),
    "time": ("time_s", seconds),
    "expect": ("expect_s", expected),
}
