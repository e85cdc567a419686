"""Job files: what does not fit on a line, as TOML; ``tenbin submit --file jobs.toml``.

Fields have the names of the options of ``tenbin submit``, and their values are written as there.
"""

from __future__ import annotations

import shlex
import signal
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from profiles.errors import BadInput
from scheduler.jobs.dependencies import KINDS, Kind
from scheduler.jobs.order_checks import check_places
from scheduler.jobs.specs import JobRefused, JobSpec, fault
from scheduler.model.parameters import unknown
from tenbin.commands.jobs.order import begin_s, deadline_s, exit_codes, retry_pause_s
from tenbin.commands.jobs.selection import ranges
from tenbin.commands.quantities import (
    BadOption,
    account_and_share,
    array_and_limit,
    count_range,
    duration_s,
    expected,
    size_mb,
    speedups,
)
from tenbin.errors import TenbinError

PAGE = "see docs/job-files.md"
LARGEST = 64 << 20  # bytes, as of a submission
TomlTable = Mapping[str, Any]
WAITS: dict[str, Kind] = {kind.replace("_", "-"): kind for kind in KINDS}


@dataclass
class Batch:
    """The jobs of a file.

    Attributes:
        specs: each a JobSpec. labels: where each is from, for messages.
        waits_for: which of them wait for which others, by their places and the kind.
        arrays: the indices of those that are arrays, by their places.
    """

    specs: list[dict[str, Any]] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    waits_for: dict[int, dict[Kind, list[int]]] = field(default_factory=dict)
    arrays: dict[int, list[int]] = field(default_factory=dict)

    def explain(self, refusal: TenbinError) -> str:
        """Name the table of the file that the coordinator's refusal is about."""
        return str(refusal) if refusal.place is None else f"{self.labels[refusal.place]}: {refusal.reason}"


def read(path: Path) -> Batch:
    """Read all jobs of a file (``-``: standard input)."""
    tables, defaults, folder = _load(path)
    batch, named = Batch(), _Names()
    waits: list[dict[Kind, list[str]]] = []
    for number, table in enumerate(tables, 1):
        label = f"{path}, job {number}"
        if not isinstance(table, dict):
            raise BadInput(f"{label} is no table", "begin each job with [[job]]")
        whole = _merged(defaults, table)
        if isinstance(whole.get("name"), str):
            label += f" ({whole['name']})"
        spec, names = _spec(whole, label, folder)
        named.add(whole.get("name"), number)
        indices, limit = _array(whole, label)
        if indices:
            batch.arrays[len(batch.specs)] = indices
        if limit is not None:
            spec["array_limit"] = limit
        batch.specs.append(spec)
        batch.labels.append(label)
        waits.append(names)
    for place, by_kind in enumerate(waits):
        for kind, wanted in by_kind.items():
            others = sorted({named.find(name, batch.labels[place]) for name in wanted})
            batch.waits_for.setdefault(place, {})[kind] = others
    try:
        check_places(batch.waits_for, batch.arrays, len(batch.specs))
    except JobRefused as error:
        raise BadInput(f"{batch.labels[error.place]}: {error.reason}") from error
    except BadInput as error:
        raise _at(str(path), error) from error
    return batch


class _Names:
    """The numbers of the jobs of a file by name, from 1 on."""

    def __init__(self) -> None:
        self._numbers: dict[str, list[int]] = {}

    def add(self, name: object, number: int) -> None:
        if isinstance(name, str) and name:
            self._numbers.setdefault(name, []).append(number)

    def find(self, name: str, label: str) -> int:
        """Return the place of the job of that name, from 0 on."""
        if name not in self._numbers:
            raise _at(label, unknown("job to wait for, by name:", name, self._numbers))
        if len(self._numbers[name]) > 1:
            which = " and ".join(map(str, self._numbers[name]))
            raise BadInput(f"{label}: after {name!r}: jobs {which} have that name", "give each its own")
        return self._numbers[name][0] - 1


def _load(path: Path) -> tuple[list[Any], TomlTable, Path]:
    """Read the tables of jobs, the defaults, and the folder that paths in the file start from."""
    try:
        if str(path) == "-":
            content, folder = sys.stdin.buffer.read(LARGEST + 1), Path.cwd()
        else:
            with path.open("rb") as file:
                content, folder = file.read(LARGEST + 1), path.absolute().parent
        if len(content) > LARGEST:
            raise BadInput(f"--file {path} has more than {LARGEST >> 20} MiB", "submit it in parts")
        found = tomllib.loads(content.decode("utf-8-sig"))
    except OSError as error:
        raise BadInput(f"--file {path}: {error.strerror}", "name a job file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is no TOML: {error}", PAGE) from error
    for key in found:
        if key not in ("job", "defaults"):
            raise _at(str(path), unknown("table", key, ("job", "defaults")))
    jobs, defaults = found.get("job"), found.get("defaults", {})
    if not isinstance(jobs, list) or not jobs:
        raise BadInput(f"{path} has no jobs", "begin each job with [[job]]")
    if not isinstance(defaults, dict):
        raise BadInput(f"{path}: defaults is no table", "write [defaults]")
    for key in ("name", "array"):
        if key in defaults:
            raise BadInput(f"{path}, defaults: {key} is each job's own", "move it to [[job]]")
    return jobs, defaults, folder


def _merged(defaults: TomlTable, table: TomlTable) -> dict[str, Any]:
    """Put the job's own fields before the defaults; merge tables (env, expect) entry by entry."""
    whole: dict[str, Any] = {key.replace("_", "-"): value for key, value in defaults.items()}
    for name, value in table.items():
        key = name.replace("_", "-")
        before = whole.get(key)
        whole[key] = {**before, **value} if isinstance(before, dict) and isinstance(value, dict) else value
    return whole


def _spec(table: dict[str, Any], label: str, folder: Path) -> tuple[dict[str, Any], dict[Kind, list[str]]]:
    """Make the JobSpec of one table, and list the jobs of the file that it waits for, by kind."""
    spec: dict[str, Any] = {"folder": str(folder)}
    for name, value in table.items():
        if name not in FIELDS:
            raise _at(label, unknown("field", name, FIELDS))
        if name == "array" or name in WAITS:
            continue
        try:
            spec.update(FIELDS[name](value))
        except BadOption as error:
            raise BadInput(
                f"{label}: {error.option.removeprefix('--')} {error.fault}", error.remedy
            ) from error
        except (TypeError, ValueError) as error:
            raise BadInput(f"{label}: {name} = {value!r} is not what it should be", PAGE) from error
    if "command" not in spec:
        raise BadInput(f"{label}: command is missing", 'write for instance command = ["./fit", "--fast"]')
    spec["folder"] = str(folder / spec["folder"])
    names: dict[Kind, list[str]] = {}
    for name in WAITS.keys() & table.keys():
        others = table[name] if isinstance(table[name], list) else [table[name]]
        if not all(isinstance(other, str) or _whole(other) for other in others):
            remedy = "give names of jobs in the file, or numbers"
            raise BadInput(f"{label}: {name} = {table[name]!r}", remedy)
        spec[WAITS[name]] = [other for other in others if not isinstance(other, str)]
        if of_file := [other for other in others if isinstance(other, str)]:
            names[WAITS[name]] = of_file
    return _checked(spec, label).model_dump(mode="json"), names


def _checked(spec: Mapping[str, Any], label: str) -> JobSpec:
    try:
        return JobSpec.model_validate(spec)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise BadInput(f"{label}: {SAID_AS.get(where, where)}: {fault(first)}", PAGE) from error


def _array(table: TomlTable, label: str) -> tuple[list[int], int | None]:
    """Return the indices of an array (empty: it is none), and how many may run at once (None: all)."""
    given = table.get("array")
    if given is None:
        return [], None
    if isinstance(given, list) and given and all(_whole(i) and i >= 0 for i in given):
        return list(dict.fromkeys(given)), None
    try:
        return array_and_limit(given if isinstance(given, str) else "")
    except BadInput as error:
        raise BadInput(f"{label}: array = {given!r} is no list of numbers", error.remedy) from error


def _at(label: str, error: BadInput) -> BadInput:
    return BadInput(f"{label}: {error.what}", error.remedy)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _command(value: Any) -> dict[str, Any]:
    words = shlex.split(value) if isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise TypeError(value)
    return {"command": words}


def _as(kind: type, name: str) -> Callable[[Any], dict[str, Any]]:
    """Take a field as it is, if it is of that type."""

    def take(value: Any) -> dict[str, Any]:
        if type(value) is not kind:
            raise TypeError(value)
        return {name: value}

    return take


def _number_or(words: Callable[[str], float], name: str) -> Callable[[Any], dict[str, Any]]:
    """Take a number in the unit of the JobSpec (seconds, MB), or words as on the command line."""

    def take(value: Any) -> dict[str, Any]:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise TypeError(value)
        return {name: words(value) if isinstance(value, str) else float(value)}

    return take


def _range(name: str) -> Callable[[Any], dict[str, Any]]:
    """Take a number, or a range in words."""

    def take(value: Any) -> dict[str, Any]:
        if not _whole(value) and not isinstance(value, str):
            raise TypeError(value)
        least, most = count_range(name, value) if isinstance(value, str) else (value, None)
        return {name: least, f"max_{name}": most}

    return take


def _speedup(value: Any) -> dict[str, Any]:
    text = value if isinstance(value, str) else ",".join(f"{k}={v}" for k, v in dict(value).items())
    return {"speedup": speedups(text)}


def _expect(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        return {"expect_s": expected(value)}
    take = _number_or(partial(duration_s, option="--expect"), "s")
    return {"expect_s": {str(device): take(time)["s"] for device, time in dict(value).items()}}


def _user_share(value: Any) -> dict[str, Any]:
    account, share = account_and_share(value)
    return {"account": account, "share": share}


def _checkpoint(value: Any) -> dict[str, Any]:
    return {"checkpoint_signal": int(signal.SIGURG) if _as(bool, "on")(value)["on"] else None}


def _env(value: Any) -> dict[str, Any]:
    if not all(isinstance(text, str) for text in dict(value).values()):
        raise TypeError(value)
    return {"env": dict(value)}


def _instant(name: str, words: Callable[[str], float | None]) -> Callable[[Any], dict[str, Any]]:
    """Take an instant: in words, as TOML writes dates and times, or in seconds since 1970."""

    def take(value: Any) -> dict[str, Any]:
        if isinstance(value, datetime) and value.tzinfo is not None:
            return {name: value.timestamp()}
        if isinstance(value, datetime | time):
            value = value.replace(microsecond=0)
        if isinstance(value, date | time):
            value = value.isoformat()
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise TypeError(value)
        return {name: words(value) if isinstance(value, str) else float(value)}

    return take


def _retry_on(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        return {"retry_codes": exit_codes(value)}
    codes = value if isinstance(value, list) else [value]
    if not all(map(_whole, codes)):
        raise TypeError(value)
    return {"retry_codes": exit_codes(",".join(map(str, codes)))}


FIELDS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "command": _command,
    "name": _as(str, "name"),
    "tasks": _range("tasks"),
    "cores": _as(int, "cores"),
    "nodes": _range("nodes"),
    "speedup": _speedup,
    "load": _as(str, "load"),
    "mpi": _as(bool, "mpi"),
    "job-profile": _as(str, "job_profile"),
    "memory": _number_or(size_mb, "memory_mb"),
    "time": _number_or(duration_s, "time_s"),
    "device": _as(str, "device"),
    "expect": _expect,
    "checkpoint": _checkpoint,
    "move": _as(bool, "move"),
    "priority": _as(int, "priority"),
    "user-share": _user_share,
    **dict.fromkeys(WAITS, lambda value: {}),
    "begin": _instant("begin_s", begin_s),
    "deadline": _instant("deadline_s", deadline_s),
    "retries": _as(int, "retries"),
    "retry-on": _retry_on,
    "retry-pause": _number_or(retry_pause_s, "retry_pause_s"),
    "array": lambda value: {},
    "env": _env,
    "chdir": _as(str, "folder"),
    "output": _as(str, "stdout"),
    "error": _as(str, "stderr"),
    "requeue": _as(bool, "requeue"),
}
SAID_AS = {
    "memory_mb": "memory",
    "time_s": "time",
    "begin_s": "begin",
    "deadline_s": "deadline",
    "retry_codes": "retry-on",
    "retry_pause_s": "retry-pause",
    "folder": "chdir",
    "stdout": "output",
    "stderr": "error",
    **{str(kind): name for name, kind in WAITS.items()},
}


def show(
    specs: Iterable[Mapping[str, Any]],
    waits_for: Mapping[int, Mapping[Any, Sequence[int]]],
    arrays: Mapping[int, Sequence[int]],
) -> str:
    """Write a line for each job, or array of jobs, that would be submitted."""
    lines = []
    for place, spec in enumerate(specs):
        asked = _checked(spec, f"job {place + 1}").model_dump(mode="json", exclude_defaults=True)
        unsaid = {"command", "folder", *(key for key, value in asked.items() if value in ([], {}))}
        words = [f"{key}={value}" for key, value in asked.items() if key not in unsaid]
        if place in arrays:
            words.append(f"array of {len(arrays[place])}: {ranges(arrays[place])}")
        for kind, others in waits_for.get(place, {}).items():
            numbers = ", ".join(str(other + 1) for other in others)
            words.append(f"{kind.replace('_', '-')} {numbers} of these")
        said = f"  ({', '.join(words)})" if words else ""
        lines.append(f"{place + 1}: {shlex.join(spec['command'])}{said}")
    return "\n".join(lines)
