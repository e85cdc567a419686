"""The needs that a script's ``#SBATCH`` lines state, as fields of a JobSpec."""

from __future__ import annotations

import os
import platform
import pwd
import subprocess
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from agent.users import user_name
from profiles.errors import BadInput
from scheduler.jobs.specs import JobSpec
from tenbin.commands.jobs.scripts import sbatch_values as values
from tenbin.commands.jobs.scripts.sbatch_options import (
    LEFT_OUT,
    REFUSED,
    SILENT,
    TAKEN,
    Given,
    options,
    remedy,
)
from tenbin.commands.jobs.scripts.sbatch_times import instant_s, limit_s
from tenbin.commands.jobs.scripts.script import SBATCH, Script

T = TypeVar("T")
LOGIN_S = 10.0  # for a login shell to say its variables


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
    array: values.Indices | None = None
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
            if spec["nodes"] and "mem" in self.given:
                raise self.given["mem"].wrong("of whole nodes; say what each task needs: #TENBIN --memory")
            if (mem := self._taken("mem", values.size_mib)) is not None:
                if not mem:
                    raise self.given["mem"].wrong(
                        "tenbin does not give all memory of a node without its size"
                    )
                size["memory_mb"] = round(mem * values.MB_IN_MIB / tasks, 6)
            elif mem := self._taken("mem-per-cpu", values.size_mib):
                size["memory_mb"] = round(mem * values.MB_IN_MIB * cores, 6)
        return size

    def _size(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        cores = self._taken("cpus-per-task", values.count) if "cores" not in self.overruled else None
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
        asked = self._taken("ntasks", values.count)
        nodes = self._taken("nodes", values.nodes)
        each = self._taken("ntasks-per-node", values.count)
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
            count = self._taken(name, values.gres if name == "gres" else values.gpus) or 0
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
            found["SLURM_CPUS_PER_TASK"] = str(self._taken("cpus-per-task", values.count))
        for name, variable, read in (
            ("ntasks-per-node", "SLURM_NTASKS_PER_NODE", values.count),
            ("mem", "SLURM_MEM_PER_NODE", values.size_mib),
            ("mem-per-cpu", "SLURM_MEM_PER_CPU", values.size_mib),
        ):
            if name in self.given and TAKEN[name].overruled_by not in self.overruled:
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


def _fill(needs: SbatchNeeds, name: str) -> None:
    """Add the fields of one option, unless an option of tenbin's own goes before it."""
    option = TAKEN[name].overruled_by
    if option and option in needs.overruled:
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
    needs.array = values.array(text)
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
    every, named = (False, {}) if none else values.variables(text, os.environ)
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


READERS: dict[str, Callable[[str, SbatchNeeds], dict[str, Any]]] = {
    "array": _array,
    "begin": _instant("begin_s"),
    "chdir": lambda text, _: {"folder": str(Path.cwd() / text)},
    "deadline": _instant("deadline_s"),
    "dependency": lambda text, _: dict(values.dependency(text)),
    "error": lambda text, _: {"stderr": values.output_pattern(text, _user())},
    "export": _export,
    "job-name": lambda text, _: {"name": text},
    "nice": lambda text, _: {"priority": -values.adjustment(text or None)},
    "no-requeue": lambda text, _: {"requeue": False},
    "output": lambda text, _: {"stdout": values.output_pattern(text, _user())},
    "requeue": lambda text, _: {"requeue": True},
    "time": lambda text, _: {"time_s": limit_s(text)},
}
