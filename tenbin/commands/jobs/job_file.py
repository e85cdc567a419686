"""Job files: what does not fit on a line, as TOML; ``tenbin submit --file jobs.toml``.

Fields have the names of the options of ``tenbin submit``, and their values are written as there.
"""

from __future__ import annotations

import re
import shlex
import signal
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from profiles.errors import BadInput
from scheduler.jobs.specs import JobSpec, check_order, fault
from scheduler.model.parameters import unknown
from tenbin.commands.quantities import (
    account_and_share,
    array_indices,
    count_range,
    duration_s,
    expected,
    size_mb,
    speedups,
)

PAGE = "see docs/job-files.md"
TomlTable = Mapping[str, Any]
REFUSED = re.compile(r"job (\d+) of \d+: (.*)", re.DOTALL)  # as the coordinator says it


@dataclass
class Batch:
    """The jobs of a file.

    Attributes:
        specs: each a JobSpec. labels: where each is from, for messages.
        waits_for: which of them wait for which others, by their places.
    """

    specs: list[dict[str, Any]] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    waits_for: dict[int, list[int]] = field(default_factory=dict)

    def explain(self, refusal: str) -> str:
        """Name the table of the file that the coordinator's refusal is about."""
        found = REFUSED.fullmatch(refusal)
        return f"{self.labels[int(found[1]) - 1]}: {found[2]}" if found else refusal


def read(path: Path) -> Batch:
    """Read all jobs of a file (``-``: standard input)."""
    tables, defaults, folder = _load(path)
    batch, named = Batch(), _Names()
    waits: list[list[Any]] = []
    for number, table in enumerate(tables, 1):
        label = f"{path}, job {number}"
        if not isinstance(table, dict):
            raise BadInput(f"{label} is no table", "begin each job with [[job]]")
        whole = _merged(defaults, table)
        if isinstance(whole.get("name"), str):
            label += f" ({whole['name']})"
        specs, after = _specs(whole, label, folder)
        named.add(whole.get("name"), number, range(len(batch.specs), len(batch.specs) + len(specs)))
        batch.specs += specs
        batch.labels += [label] * len(specs)
        waits += [after] * len(specs)
    for place, after in enumerate(waits):
        names = [name for name in after if isinstance(name, str)]
        others = {other for name in names for other in named.find(name, batch.labels[place])}
        if others:
            batch.waits_for[place] = sorted(others)
    try:
        check_order(batch.waits_for, len(batch.specs))
    except BadInput as error:
        raise _at(str(path), error) from error
    return batch


class _Names:
    """The jobs of a file by name: an array has several."""

    def __init__(self) -> None:
        self._places: dict[str, range] = {}
        self._twice: dict[str, list[int]] = {}

    def add(self, name: object, number: int, places: range) -> None:
        if isinstance(name, str) and name:
            self._places[name] = places
            self._twice.setdefault(name, []).append(number)

    def find(self, name: str, label: str) -> range:
        if name not in self._places:
            raise _at(label, unknown("job to wait for, by name:", name, self._places))
        if len(self._twice[name]) > 1:
            which = " and ".join(map(str, self._twice[name]))
            raise BadInput(f"{label}: after {name!r}: jobs {which} have that name", "give each its own")
        return self._places[name]


def _load(path: Path) -> tuple[list[Any], TomlTable, Path]:
    """Read the tables of jobs, the defaults, and the folder that paths in the file start from."""
    try:
        if str(path) == "-":
            text, folder = sys.stdin.read(), Path.cwd()
        else:
            text, folder = path.read_text(), path.absolute().parent
        found = tomllib.loads(text)
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


def _specs(table: dict[str, Any], label: str, folder: Path) -> tuple[list[dict[str, Any]], list[Any]]:
    """Make the JobSpecs of one table, and list the jobs they wait for."""
    spec: dict[str, Any] = {"folder": str(folder)}
    for name, value in table.items():
        if name not in FIELDS:
            raise _at(label, unknown("field", name, FIELDS))
        if name in ("array", "after"):
            continue
        try:
            spec.update(FIELDS[name](value))
        except BadInput as error:
            raise BadInput(f"{label}: {error.what.removeprefix('--')}", error.remedy) from error
        except (TypeError, ValueError) as error:
            raise BadInput(f"{label}: {name} = {value!r} is not what it should be", PAGE) from error
    if "command" not in spec:
        raise BadInput(f"{label}: command is missing", 'write for instance command = ["./fit", "--fast"]')
    spec["folder"] = str(folder / spec["folder"])
    after = table.get("after", [])
    after = after if isinstance(after, list) else [after]
    if not all(isinstance(other, str) or _whole(other) for other in after):
        raise BadInput(f"{label}: after = {table['after']!r}", "give names of jobs in the file, or numbers")
    spec["after"] = [other for other in after if not isinstance(other, str)]
    spec = _checked(spec, label).model_dump(mode="json")
    return [{**spec, "array_index": i} for i in _array(table, label)], after


def _checked(spec: Mapping[str, Any], label: str) -> JobSpec:
    try:
        return JobSpec.model_validate(spec)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise BadInput(f"{label}: {SAID_AS.get(where, where)}: {fault(first)}", PAGE) from error


def _array(table: TomlTable, label: str) -> list[int | None]:
    given = table.get("array")
    if given is None:
        return [None]
    if isinstance(given, list) and given and all(_whole(i) and i >= 0 for i in given):
        return list(given)
    try:
        return list(array_indices(given if isinstance(given, str) else ""))
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
    take = _number_or(duration_s, "s")
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
    "priority": _as(int, "priority"),
    "user-share": _user_share,
    "after": lambda value: {},
    "array": lambda value: {},
    "env": _env,
    "chdir": _as(str, "folder"),
    "output": _as(str, "stdout"),
    "error": _as(str, "stderr"),
    "requeue": _as(bool, "requeue"),
}
SAID_AS = {"memory_mb": "memory", "time_s": "time", "folder": "chdir", "stdout": "output", "stderr": "error"}


def show(specs: Iterable[Mapping[str, Any]], waits_for: Mapping[int, list[int]]) -> str:
    """Write a line for each job that would be submitted."""
    lines = []
    for place, spec in enumerate(specs):
        asked = _checked(spec, f"job {place + 1}").model_dump(mode="json", exclude_defaults=True)
        unsaid = {"command", "folder", *(key for key, value in asked.items() if value in ([], {}))}
        words = [f"{key}={value}" for key, value in asked.items() if key not in unsaid]
        if others := waits_for.get(place):
            words.append(f"after {', '.join(str(other + 1) for other in others)} of these")
        said = f"  ({', '.join(words)})" if words else ""
        lines.append(f"{place + 1}: {shlex.join(spec['command'])}{said}")
    return "\n".join(lines)
