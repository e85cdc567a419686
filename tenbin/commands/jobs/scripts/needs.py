"""The needs that a script's ``#SBATCH`` lines state, as fields of a JobSpec.

Functions that read a value of an option raise ValueError, with what to write, if they cannot read it.
"""

from __future__ import annotations

import math
import os
import platform
import pwd
import re
import subprocess
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from agent.users import user_name
from profiles.errors import BadInput
from scheduler.jobs.literals import instant_s, limit_s, size_bytes
from scheduler.jobs.specs import JobSpec
from tenbin.commands.jobs.scripts.sbatch_options import (
    LEFT_OUT,
    REFUSED,
    SILENT,
    Given,
    options,
    remedy,
)
from tenbin.commands.jobs.scripts.script import SBATCH, Script
from tenbin.fields import SBATCH_WORDS
from tenbin.option_values import array_and_limit

T = TypeVar("T")
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
LOGIN_S = 10.0  # for a login shell to say its variables


class Indices(NamedTuple):
    """Indices of an array, and how many of its jobs may run at a time (None: all)."""

    indices: list[int]
    limit: int | None


@dataclass
class SbatchNeeds:
    """The needs that the lines state.

    Attributes:
        fields: of a JobSpec, but for its size and memory, which ``sized`` gives.
        array: its indices and limit, if it is an array.
        environment: variables in place of those of this process; None: those of this process.
        wait, dry_run: as the options of ``tenbin submit``.
        left_out: a line for each option that tenbin leaves out.
    """

    fields: dict[str, Any] = field(default_factory=dict)
    array: Indices | None = None
    environment: dict[str, str] | None = None
    wait: bool = False
    dry_run: bool = False
    left_out: list[str] = field(default_factory=list)
    given: dict[str, Given] = field(default_factory=dict)
    overruled: frozenset[str] = frozenset()

    def sized(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        """Return tasks, cores and memory, where ``spec`` has what tenbin's own options say.

        Raises:
            BadInput: names the line that tenbin cannot take.
        """
        size = self._size(spec)
        tasks, cores = size.get("tasks", spec["tasks"]), size.get("cores", spec["cores"])
        if "memory" not in self.overruled:
            if spec.get("nodes") and "mem" in self.given:
                raise self.given["mem"].wrong("of whole nodes; say what each task needs: #TENBIN --memory")
            if (mem := self._taken("mem", size_mib)) is not None:
                if not mem:
                    raise self.given["mem"].wrong(
                        "tenbin does not give all memory of a node without its size"
                    )
                size["memory_mb"] = round(mem * MB_IN_MIB / tasks, 6)
            elif mem := self._taken("mem-per-cpu", size_mib):
                size["memory_mb"] = round(mem * MB_IN_MIB * cores, 6)
        return size

    def _size(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        cores = self._taken("cpus-per-task", whole_number) if "cores" not in self.overruled else None
        size: dict[str, Any] = {} if cores is None else {"cores": cores}
        if "tasks" in self.overruled:
            return size
        tasks, together = self._tasks()
        gpus = self._gpus(tasks)
        if gpus:
            return size | {"tasks": tasks, "device": "gpu"}
        if together:  # a task never lies across nodes
            return {"tasks": 1, "cores": tasks * size.get("cores", spec["cores"])}
        return size | {"tasks": tasks}

    def _tasks(self) -> tuple[int, bool]:
        """Return the number of tasks, and whether all must be on one node."""
        asked = self._taken("ntasks", whole_number)
        nodes = self._taken("nodes", node_range)
        each = self._taken("ntasks-per-node", whole_number)
        least = nodes[0] if nodes else 1
        tasks = asked or (each or 1) * least
        needed = min(least, tasks)
        if each and asked:
            needed = max(needed, -(-asked // each))
        if needed > 1:
            at = self.given["nodes" if least > 1 else "ntasks-per-node"]
            raise BadInput(
                f"{at.where}: {SBATCH} {at}: {needed} nodes, which tenbin does not count out for a script",
                "add #TENBIN --nodes N for whole nodes, or #TENBIN -n TASKS wherever there is room",
            )
        return tasks, bool(nodes or each) and tasks > 1

    def _gpus(self, tasks: int) -> int:
        if "device" in self.overruled:
            return 0
        found = 0
        for name in ("gres", "gpus", "gpus-per-node", "gpus-per-task"):
            count = self._taken(name, gres_count if name == "gres" else gpu_count) or 0
            count *= tasks if name == "gpus-per-task" else 1
            if count and count != tasks:
                raise self.given[name].wrong(
                    f"{count} GPUs for {tasks} tasks: tenbin gives each task one device"
                )
            found = found or count
        return found

    def variables(self, spec: Mapping[str, Any]) -> dict[str, str]:
        """Return the variables that Slurm would set and that are known before the start."""
        found = {"SLURM_SUBMIT_DIR": str(Path.cwd()), "SLURM_SUBMIT_HOST": platform.node()}
        asked = {"ntasks", "nodes", "ntasks-per-node"} & self.given.keys()
        tasks = self._tasks()[0] if asked and "tasks" not in self.overruled else spec["tasks"]
        if asked or "tasks" in self.overruled:
            found |= {"SLURM_NTASKS": str(tasks), "SLURM_NPROCS": str(tasks)}
        found["SLURM_TASKS_PER_NODE"] = str(tasks)
        if "cores" in self.overruled:
            found["SLURM_CPUS_PER_TASK"] = str(spec["cores"])
        elif "cpus-per-task" in self.given:
            found["SLURM_CPUS_PER_TASK"] = str(self._taken("cpus-per-task", whole_number))
        for name, variable, read in (
            ("ntasks-per-node", "SLURM_NTASKS_PER_NODE", whole_number),
            ("mem", "SLURM_MEM_PER_NODE", size_mib),
            ("mem-per-cpu", "SLURM_MEM_PER_CPU", size_mib),
        ):
            if name in self.given and overruled_by(name) not in self.overruled:
                found[variable] = str(self._taken(name, read))
        if "export" in self.given:
            found["SLURM_EXPORT_ENV"] = str(self.given["export"].value)
        return found

    def _taken(self, name: str, read: Callable[[str], T]) -> T | None:
        """Read the value of an option, if it is given."""
        given = self.given.get(name)
        if given is None:
            return None
        try:
            return read(given.value or "")
        except (ValueError, OverflowError) as error:
            raise given.wrong(str(error)) from error


def needs_of(script: Script, *, overruled: Collection[str], ignored: Collection[str]) -> SbatchNeeds:
    """Read all ``#SBATCH`` lines.

    Args:
        overruled: parameters of ``tenbin submit`` that are given, which go before those of sbatch.
        ignored: options of sbatch to leave out.

    Raises:
        BadInput: names the line that cannot be read, or that tenbin refuses.
    """
    needs = SbatchNeeds(overruled=frozenset(overruled))
    for directive in script.of(SBATCH):
        for given in options(directive.words, script.at(directive.line)):
            if given.name not in ignored and given.name not in SILENT:
                _sort(needs, given)
    for name, message in (("mem-per-cpu", "mem"), ("mem", "mem-per-cpu")):
        if name in needs.given and message in needs.given and "memory" not in overruled:
            raise needs.given[name].wrong(f"with --{message}: sbatch takes one of them")
    for name in list(needs.given):
        _fill(needs, name)
    needs.wait, needs.dry_run = "wait" in needs.given, "test-only" in needs.given
    if "stdout" in needs.fields and "error" not in overruled:
        needs.fields.setdefault("stderr", needs.fields["stdout"])  # one file for both, as sbatch has it
    return needs


def _sort(needs: SbatchNeeds, given: Given) -> None:
    """Keep an option that is taken, say that one is left out, or refuse it."""
    if given.name in LEFT_OUT:
        needs.left_out.append(
            f"{given.where}: {SBATCH} --{given.name} is left out: {LEFT_OUT[given.name][2]}"
        )
    elif given.name in REFUSED:
        if given.name == "exclusive" and "nodes" in needs.overruled:
            return
        if given.name == "input" and given.value == "/dev/null":
            return
        if given.name == "kill-on-invalid-dep" and given.value == "yes":
            return
        raise BadInput(
            f"{given.where}: {SBATCH} --{given.name}: {REFUSED[given.name][2]}", remedy(given.name)
        )
    else:
        if given.name in ("requeue", "no-requeue"):  # the last of the two counts
            needs.given.pop("requeue", None), needs.given.pop("no-requeue", None)
        needs.given[given.name] = given


def overruled_by(name: str) -> str | None:
    """Return the parameter of ``tenbin submit`` that goes before an option of sbatch."""
    return SBATCH_WORDS[name].parameter if name in SBATCH_WORDS else None


def _fill(needs: SbatchNeeds, name: str) -> None:
    """Add the fields of one option, unless an option of tenbin's own goes before it."""
    if overruled_by(name) in needs.overruled:
        return
    read = READERS.get(name)
    if read is None:
        return
    found = needs._taken(name, lambda text: read(text, needs))
    for field_name in found or {}:
        if field_name not in JobSpec.model_fields:
            raise needs.given[name].wrong("this tenbin cannot do that")
    needs.fields |= found or {}


def _array(text: str, needs: SbatchNeeds) -> dict[str, Any]:
    needs.array = array_indices(text)
    return {} if needs.array.limit is None else {"array_limit": needs.array.limit}


def array_variables(indices: list[int]) -> dict[str, str]:
    """Return the variables of an array that Slurm would set, but for those of each member."""
    step = indices[1] - indices[0] if len(indices) > 1 else 1
    regular = indices == list(range(indices[0], indices[-1] + 1, step))
    return {
        "SLURM_ARRAY_TASK_COUNT": str(len(indices)),
        "SLURM_ARRAY_TASK_MIN": str(min(indices)),
        "SLURM_ARRAY_TASK_MAX": str(max(indices)),
        "SLURM_ARRAY_TASK_STEP": str(step if regular else 1),
    }


def _export(text: str, needs: SbatchNeeds) -> dict[str, Any]:
    none = text.upper() in ("NONE", "NIL")
    every, named = (False, {}) if none else exported_variables(text, os.environ)
    if not every:
        own = {name: value for name, value in os.environ.items() if name.startswith("SLURM_")}
        needs.environment = {**_login_variables(), **own}
    return {"env": named}


def _login_variables() -> dict[str, str]:
    """Return what a login shell has, as sbatch asks ``su - USER -c env``; the bare minimum if it fails."""
    name, home, shell = user_name(os.getuid()), "/", "/bin/sh"
    with suppress(KeyError):  # a container may be given any user number
        user = pwd.getpwuid(os.getuid())
        home, shell = user.pw_dir, user.pw_shell or shell
    bare = {
        "HOME": home,
        "LOGNAME": name,
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "SHELL": shell,
        "USER": name,
    }
    try:
        told = subprocess.run(
            [bare["SHELL"], "-l", "-c", "env -0"],
            env=bare,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LOGIN_S,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return bare
    pairs = (os.fsdecode(entry).partition("=") for entry in told.split(b"\0") if b"=" in entry)
    return bare | {name: value for name, _, value in pairs if name}


def _instant(field_name: str) -> Callable[[str, SbatchNeeds], dict[str, Any]]:
    def read(text: str, _: SbatchNeeds) -> dict[str, Any]:
        at = instant_s(text, datetime.now())
        if at is None and field_name == "deadline_s":
            raise ValueError("the deadline has passed")
        return {} if at is None else {field_name: at}

    return read


def _user() -> str:
    return user_name(os.getuid())


def whole_number(text: str) -> int:
    """Read a number of 1 or more."""
    if not re.fullmatch(r"\+?\d{1,9}", text) or int(text) < 1:
        raise ValueError("write a whole number from 1 on")
    return int(text)


def node_range(text: str) -> tuple[int, int]:
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


def array_indices(text: str) -> Indices:
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


def dependencies(text: str) -> dict[str, list[int]]:
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


def gpu_count(text: str) -> int:
    """Read ``gpu:2`` of ``--gres``, or ``2`` of ``--gpus``; a type of GPU is refused."""
    parts = text.split(":")
    if parts[0] in ("gpu", "gres/gpu"):
        parts = parts[1:] or ["1"]
    if len(parts) > 1 or not parts[0].isdecimal():
        raise ValueError(f"{text}: tenbin gives GPUs by number only, not by type or by other resources")
    return int(parts[0])


def gres_count(text: str) -> int:
    """Read a list of generic resources, of which tenbin has GPUs only; return how many."""
    entries = [entry for entry in text.split(",") if entry not in ("", "none")]
    for entry in entries:
        if entry.split(":")[0] not in ("gpu", "gres/gpu"):
            raise ValueError(f"{entry}: of generic resources tenbin knows GPUs only")
    return sum(map(gpu_count, entries))


def adjustment(text: str | None) -> int:
    """Read the value of ``--nice``; without one it is 100."""
    if text is None:
        return 100
    if not re.fullmatch(r"[+-]?\d{1,7}", text) or abs(int(text)) > 1_000_000:
        raise ValueError("write a whole number of at most 1,000,000")
    return int(text)


def exported_variables(text: str, environment: Mapping[str, str]) -> tuple[bool, dict[str, str]]:
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


READERS: dict[str, Callable[[str, SbatchNeeds], dict[str, Any]]] = {
    "array": _array,
    "begin": _instant("begin_s"),
    "chdir": lambda text, _: {"folder": str(Path.cwd() / text)},
    "deadline": _instant("deadline_s"),
    "dependency": lambda text, _: dict(dependencies(text)),
    "error": lambda text, _: {"stderr": output_pattern(text, _user())},
    "export": _export,
    "job-name": lambda text, _: {"name": text},
    "nice": lambda text, _: {"priority": -adjustment(text or None)},
    "no-requeue": lambda text, _: {"requeue": False},
    "output": lambda text, _: {"stdout": output_pattern(text, _user())},
    "requeue": lambda text, _: {"requeue": True},
    "time": lambda text, _: {"time_s": limit_s(text)},
}
