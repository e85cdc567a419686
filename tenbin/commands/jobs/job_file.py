"""Job files: what does not fit on a line, as TOML; ``tenbin submit --file jobs.toml``.

Fields have the names of the options of ``tenbin submit``, and their values are written as there.
"""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from profiles.errors import BadInput
from profiles.quantities import clock
from scheduler.jobs.dependencies import KINDS, Kind, check_places
from scheduler.jobs.specs import JobRefused, JobSpec, fault
from scheduler.model.parameters import unknown
from tenbin.commands.options import read_input
from tenbin.errors import TenbinError
from tenbin.fields import KEY_OF, OPTIONS
from tenbin.option_values import BadOption
from tenbin.text import printable, ranges

PAGE = "see docs/job-files.md"
LARGEST = 64 << 20  # bytes, as of a submission
TomlTable = Mapping[str, Any]
KEYS = ("command", *OPTIONS)
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
    batch, numbers = Batch(), dict[str, list[int]]()
    waits: list[dict[Kind, list[str]]] = []
    for number, table in enumerate(tables, 1):
        label = f"{path}, job {number}"
        if not isinstance(table, dict):
            raise BadInput(f"{label} is no table", "begin each job with [[job]]")
        whole = _merged(defaults, table)
        name = whole.get("name")
        if isinstance(name, str):
            label += f" ({name})"
        spec, indices, names = _spec(whole, label, folder)
        if isinstance(name, str) and name:
            numbers.setdefault(name, []).append(number)
        if indices:
            batch.arrays[len(batch.specs)] = indices
        batch.specs.append(spec)
        batch.labels.append(label)
        waits.append(names)
    for place, by_kind in enumerate(waits):
        for kind, job_names in by_kind.items():
            others = sorted({_place_of(name, batch.labels[place], numbers) for name in job_names})
            batch.waits_for.setdefault(place, {})[kind] = others
    try:
        check_places(batch.waits_for, batch.arrays, len(batch.specs))
    except JobRefused as error:
        raise BadInput(f"{batch.labels[error.place]}: {error.reason}") from error
    except BadInput as error:
        raise _at(str(path), error) from error
    return batch


def _place_of(name: str, label: str, numbers: Mapping[str, list[int]]) -> int:
    """Return the place of the job of that name, from 0 on; ``numbers``: from 1 on, by name."""
    if name not in numbers:
        raise _at(label, unknown("job to wait for, by name:", name, numbers))
    if len(numbers[name]) > 1:
        which = " and ".join(map(str, numbers[name]))
        raise BadInput(f"{label}: after {name!r}: jobs {which} have that name", "give each its own")
    return numbers[name][0] - 1


def _load(path: Path) -> tuple[list[Any], TomlTable, Path]:
    """Read the tables of jobs, the defaults, and the folder that paths in the file start from."""
    file = None if str(path) == "-" else path
    remedies = {"remedy": "name a job file", "too_large": "submit it in parts"}
    content = read_input(f"--file {path}", file, LARGEST, **remedies)
    try:
        document = tomllib.loads(content.decode("utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is no TOML: {error}", PAGE) from error
    for key in document:
        if key not in ("job", "defaults"):
            raise _at(str(path), unknown("table", key, ("job", "defaults")))
    jobs, defaults = document.get("job"), document.get("defaults", {})
    if not isinstance(jobs, list) or not jobs:
        raise BadInput(f"{path} has no jobs", "begin each job with [[job]]")
    if not isinstance(defaults, dict):
        raise BadInput(f"{path}: defaults is no table", "write [defaults]")
    for key in ("name", "array"):
        if key in defaults:
            raise BadInput(f"{path}, defaults: {key} is each job's own", "move it to [[job]]")
    return jobs, defaults, path.absolute().parent


def _merged(defaults: TomlTable, table: TomlTable) -> dict[str, Any]:
    """Put the job's own fields before the defaults; merge tables (env, expect) entry by entry."""
    whole: dict[str, Any] = {key.replace("_", "-"): value for key, value in defaults.items()}
    for name, value in table.items():
        key = name.replace("_", "-")
        before = whole.get(key)
        whole[key] = {**before, **value} if isinstance(before, dict) and isinstance(value, dict) else value
    return whole


def _spec(
    table: dict[str, Any], label: str, folder: Path
) -> tuple[dict[str, Any], list[int], dict[Kind, list[str]]]:
    """Make the JobSpec of one table, with the indices of an array, and the jobs of the file to wait for."""
    spec: dict[str, Any] = {"folder": str(folder)}
    for name in table:
        if name not in KEYS:
            raise _at(label, unknown("field", name, KEYS))
    for name in KEYS:
        if name not in table or name in WAITS:
            continue
        value = table[name]
        try:
            spec.update({"command": _command(value)} if name == "command" else OPTIONS[name].values(value))
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
    indices = spec.pop("array", [])
    return checked(spec, label).model_dump(mode="json"), indices, names


def checked(spec: Mapping[str, Any], label: str) -> JobSpec:
    """Make the JobSpec, or name the field that cannot be so."""
    try:
        return JobSpec.model_validate(spec)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise BadInput(f"{label}: {KEY_OF.get(where, where)}: {fault(first)}", PAGE) from error


def _at(label: str, error: BadInput) -> BadInput:
    return BadInput(f"{label}: {error.what}", error.remedy)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _command(value: Any) -> list[str]:
    words = shlex.split(value) if isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise TypeError(value)
    return words


UNSAID = {
    *("command", "folder", "tasks", "max_tasks", "cores", "nodes", "max_nodes", "memory_mb", "time_s"),
    *("gpus", "gpu_kind", "gpu_memory_mb", "alternatives", "slurm_variables"),
}


def show(
    specs: Iterable[JobSpec],
    waits_for: Mapping[int, Mapping[Any, Sequence[int]]],
    arrays: Mapping[int, Sequence[int]],
    forecast: Sequence[Mapping[str, Any]],
) -> str:
    """Write some lines for each job, or array of jobs, that would be submitted: size, other fields, start."""
    from tenbin.commands.jobs.account import prospect_words, ways_words

    lines = []
    for place, spec in enumerate(specs):
        fields = spec.model_dump(mode="json", exclude_defaults=True)
        env = {name: text for name, text in spec.env.items() if not name.startswith("SLURM_")}
        words = [f"array of {len(arrays[place])}: {ranges(arrays[place])}"] if place in arrays else []
        for kind, others in waits_for.get(place, {}).items():
            numbers = ", ".join(str(other + 1) for other in others)
            words.append(
                f"{kind.replace('_', '-')} {'jobs' if len(others) > 1 else 'job'} {numbers} of these"
            )
        words += [
            f"{KEY_OF.get(key, key)} {_value(key, value)}"
            for key, value in (fields | {"env": env}).items()
            if key not in UNSAID and value not in ([], {})
        ]
        lines += [
            f"{place + 1}: {shlex.join(spec.command)}",
            f"   {ways_words(spec.model_dump(mode='json'))}",
        ]
        lines += [f"   {', '.join(words)}"] if words else []
        lines += [f"   {prospect_words(row)}" for row in forecast[place : place + 1]]
    return "\n".join(map(printable, lines))


def _value(key: str, value: Any) -> str:
    """Write the value of a field: ``A=1 B=2``, ``1 2``, ``fit``."""
    if key in ("begin_s", "deadline_s"):
        return clock(value, date=True)
    if isinstance(value, dict):
        return " ".join(f"{name}={text}" for name, text in value.items())
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
