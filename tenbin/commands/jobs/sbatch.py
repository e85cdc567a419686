"""The ``#SBATCH`` lines of a script (Slurm 22.05): options of sbatch, and the needs that they state.

Of the options tenbin takes what it can do. It leaves out, with a line, what concerns the site or tells people
something, and silently what it does anyway. It refuses what would change the run.
"""

from __future__ import annotations

import math
import os
import platform
import pwd
import re
import shlex
import subprocess
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from profiles.errors import BadInput
from profiles.files.safe_files import user_name
from scheduler.jobs.literals import instant_s, limit_s, size_bytes
from scheduler.jobs.specs import JobSpec
from scheduler.model.parameters import near_misses
from tenbin.commands.jobs.scripts import SBATCH, Script
from tenbin.fields import SBATCH_WORDS
from tenbin.option_values import array_and_limit

# -- the options of sbatch, and what tenbin does with each -------------------------------------------------


Value = Literal["", "needed", "optional"]


class Entry(NamedTuple):
    """An option of sbatch: its letter, whether it takes a value, and what to say of it."""

    short: str
    value: Value
    words: str


def _table(groups: Mapping[str, str]) -> dict[str, Entry]:
    """Read ``name/letter`` of options by what to say; ``=``: with a value, ``[=]``: with or without one."""
    entries: dict[str, Entry] = {}
    for said, words in groups.items():
        for word in words.split():
            name, _, short = word.rstrip("[=]").partition("/")
            value: Value = "optional" if word.endswith("]") else "needed" if word.endswith("=") else ""
            entries[name] = Entry(short, value, said)
    return entries


# Options that tenbin can do, by what to write on its own command line; "": the option of the field, which
# ``scheduler/jobs/fields.py`` names.
TAKEN = _table(
    {
        "": "array/a= begin/b= chdir/D= cpus-per-task/c= deadline= error/e= job-name/J= ntasks/n= output/o= "
        "time/t=",
        "--after JOB, --after-any, --after-not-ok or --after-corr": "dependency/d=",
        "--env NAME=VALUE; all variables of this shell are handed on anyway": "export=",
        "--gpus, of the job": "gpus/G= gpus-per-node= gpus-per-task= gres=",
        "--memory, of each task": "mem= mem-per-cpu=",
        "--priority, with the sign turned": "nice[=]",
        "--no-requeue": "no-requeue",
        "--nodes for whole nodes, or -n TASKS": "nodes/N=",
        "-n, the number of all tasks": "ntasks-per-node=",
        "--requeue": "requeue",
        "--dry-run": "test-only",
        "--wait": "wait/W",
    }
)
SAME = {"tasks": "ntasks", "tasks-per-node": "ntasks-per-node"}
SILENT = _table({"": "help/h ignore-pbs parsable quiet/Q usage verbose/v version/V"})
LEFT_OUT = _table(
    {
        "of the site's Slurm only": (
            "account/A= clusters/M= cluster-constraint= delay-boot= mcs-label= network= partition/p= "
            "power= qos/q= reservation= wckey="
        ),
        "tenbin samples at its own times": "acctg-freq=",
        "tenbin has no burst buffers": "bb= bbf=",
        "tenbin keeps no such note": "comment=",
        "for jobs on several nodes only": (
            "contiguous no-kill/k[=] spread-job switches= use-min-nodes wait-all-nodes="
        ),
        "tenbin chooses the place itself": "distribution/m= gpu-bind= gres-flags= mem-bind=",
        "the job has the variables of this shell": "get-user-env[=]",
        "write #TENBIN --notify mail": "mail-type= mail-user=",
        "tenbin always appends to files of output": "open-mode=",
        "the job has its cores to itself all the same": "oversubscribe/s",
        "a wish, and tenbin knows no features of nodes": "prefer=",
        "numbers of Slurm's own; tenbin has --priority": "priority=",
        "tenbin info --samples shows what a job used": "profile=",
        "limits are those of whoever started tenbin up": "propagate[=]",
        "the limit is that of --time": "time-min=",
    }
)
REFUSED = _table(
    {
        "tenbin knows no features of nodes": "batch= constraint/C=",
        "tenbin starts no containers; start it in the script": "container=",
        "tenbin gives whole cores, and does not choose among sockets and threads": (
            "core-spec/S= cores-per-socket= extra-node-info/B= gpus-per-socket= hint= ntasks-per-core= "
            "ntasks-per-gpu= ntasks-per-socket= ntasks-per-tres= sockets-per-node= thread-spec= "
            "threads-per-core="
        ),
        "tenbin sets no frequencies for a job": "cpu-freq= gpu-freq=",
        "say how many cores a task needs: --cpus-per-task": "cpus-per-gpu= mincpus=",
        "tenbin chooses the nodes": "exclude/x= nodefile/F= nodelist/w=",
        "for whole nodes write #TENBIN --nodes": "exclusive[=]",
        "read the file in the script": "export-file=",
        "jobs run as whoever started tenbin up": "gid= uid=",
        "submit without it, then: tenbin suspend": "hold/H",
        "redirect the input in the script": "input/i=",
        "a job whose jobs before it fail is cancelled": "kill-on-invalid-dep=",
        "tenbin counts no licences": "licenses/L=",
        "say how much memory the job needs: --mem": "mem-per-gpu=",
        "tenbin gives each task cores of its own": "overcommit/O",
        "tenbin reboots no nodes": "reboot",
        "tenbin sends SIGTERM at the limit only, ten seconds before SIGKILL": "signal=",
        "tenbin does not count disk space": "tmp=",
        "say what a task needs: --cpus-per-task, --gpus-per-task": "tres-per-task=",
        "a command is given by itself: tenbin submit -- sh -c 'CMD'": "wrap=",
    }
)
KNOWN = TAKEN | LEFT_OUT | REFUSED | SILENT
KINDS: dict[str, Value] = {name: entry.value for name, entry in KNOWN.items()} | dict.fromkeys(SAME, "needed")
SHORT = {entry.short: name for name, entry in KNOWN.items() if entry.short}


def of_tenbin(option: str, words: Sequence[str] = ()) -> BadInput | None:
    """Make the error for an option of sbatch on tenbin's own command line; None: sbatch has none such.

    Args:
        option: as it was written, without its value: ``-t``, ``--gres``.
        words: of the command line.
    """
    written = option.lstrip("-")
    name = SHORT.get(written, "") if len(written) == 1 else SAME.get(written, written)
    what = f"{option} is an option of sbatch" + (f" (--{name})" if option != f"--{name}" else "")
    if taken := TAKEN.get(name):
        return BadInput(what, f"write {taken.words or _in_tenbin(name, option, words)}")
    if name in SILENT:
        return BadInput(what, "leave it out")
    if name not in KNOWN:
        return None
    more = ", or see --help" if name in REFUSED else ""
    return BadInput(f"{what}: {KNOWN[name].words}", f"leave it out{more}")


def _in_tenbin(name: str, option: str, words: Sequence[str]) -> str:
    """Write tenbin's own option with the value that sbatch's has."""
    values = [
        word.removeprefix(option).removeprefix("=") or after
        for word, after in pairwise([*words, ""])
        if word.startswith(option)
    ]
    value = values[0] if values else ""
    if name == "time":  # sbatch's is in minutes, or minutes:seconds
        minutes = re.fullmatch(r"(\d+)(?::(\d+))?", value)
        value = f"{minutes[1]}m" + (f"{minutes[2]}s" if minutes[2] else "") if minutes else value
    return f"{SBATCH_WORDS[name].spelling[-1]} {shlex.quote(value) if value else ''}".rstrip()


class Given(NamedTuple):
    """An option as a script gives it."""

    name: str
    value: str | None
    where: str

    def wrong(self, why: str) -> BadInput:
        """Make the error for a value that cannot be read or taken."""
        return BadInput(f"{self.where}: #SBATCH {self}: {why}", remedy(self.name))

    def __str__(self) -> str:
        return f"--{self.name}" + (f"={self.value}" if self.value is not None else "")


def remedy(name: str) -> str:
    """Name the ways on from an option that is refused."""
    return f"change or remove the line, or add: #TENBIN --ignore-sbatch {name}"


def options(words: Sequence[str], where: str) -> Iterator[Given]:
    """Read words as getopt_long does: ``-n 4``, ``-n4``, ``--ntasks=4``, ``--ntasks 4``, unique beginnings.

    Raises:
        BadInput: sbatch has no such option, or its value is missing.
    """
    left = list(words)
    while left:
        word = left.pop(0)
        if word.startswith("--") and word != "--":
            text, sign, value = word[2:].partition("=")
            name = _whole_name(text, where)
            yield _given(name, value if sign else None, left, where)
        elif word.startswith("-") and word not in ("-", "--"):
            yield from _short(word[1:], left, where)
        else:
            raise BadInput(
                f"{where}: #SBATCH: {word!r} is no option of sbatch",
                "write --option=value without blanks around =, and a comment after #",
            )


def _short(letters: str, left: list[str], where: str) -> Iterator[Given]:
    """Read short options that stand together; the first that takes a value takes the rest of the word."""
    while letters:
        if letters[0] not in SHORT:
            raise BadInput(f"{where}: #SBATCH -{letters[0]}: sbatch has no such option", "see: man sbatch")
        name, letters = SHORT[letters[0]], letters[1:]
        value, letters = (letters or None, "") if KINDS[name] else (None, letters)
        yield _given(name, value, left, where)


def _given(name: str, value: str | None, left: list[str], where: str) -> Given:
    if KINDS[name] == "needed" and value is None and left:
        value = left.pop(0)
    if (KINDS[name] == "needed" and not value) or (value is not None and not KINDS[name]):
        what = "needs a value" if KINDS[name] else "takes no value"
        raise BadInput(f"{where}: #SBATCH --{name} {what}", "see: man sbatch")
    return Given(SAME.get(name, name), value, where)


def _whole_name(text: str, where: str) -> str:
    """Find the option whose name is, or alone begins with, the text."""
    if text in KINDS:
        return text
    candidates = sorted({SAME.get(name, name) for name in KINDS if text and name.startswith(text)})
    if len(candidates) > 1:
        names = ", ".join(f"--{name}" for name in candidates)
        raise BadInput(f"{where}: #SBATCH --{text} may be {names}", "write the whole name")
    if not candidates:
        remedy = near_misses(text, KINDS) or "see: man sbatch"
        raise BadInput(f"{where}: #SBATCH --{text}: sbatch has no such option", remedy)
    return candidates[0]


# -- values: functions that read one -----------------------------------------------------------------------
#
# Functions that read a value of an option raise ValueError, with what to write, if they cannot read it.


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
            return size | self._gpus(spec["tasks"], spec.get("nodes") or 1)
        tasks, together = self._tasks()
        if gpus := self._gpus(tasks, 1):
            return size | {"tasks": tasks} | gpus
        if together:  # a task never lies across nodes
            return {"tasks": 1, "cores": tasks * size.get("cores", spec["cores"])}
        return size | {"tasks": tasks}

    def _tasks(self) -> tuple[int, bool]:
        """Return the number of tasks, and whether all must be on one node."""
        total = self._taken("ntasks", whole_number)
        nodes = self._taken("nodes", node_range)
        per_node = self._taken("ntasks-per-node", whole_number)
        least = nodes[0] if nodes else 1
        tasks = total or (per_node or 1) * least
        needed = min(least, tasks)
        if per_node and total:
            needed = max(needed, -(-total // per_node))
        if needed > 1:
            at = self.given["nodes" if least > 1 else "ntasks-per-node"]
            raise BadInput(
                f"{at.where}: {SBATCH} {at}: {needed} nodes, which tenbin does not count out for a script",
                "add #TENBIN --nodes N for whole nodes, or #TENBIN -n TASKS wherever there is room",
            )
        return tasks, bool(nodes or per_node) and tasks > 1

    def _gpus(self, tasks: int, nodes: int) -> dict[str, Any]:
        """Return the number of GPUs of all tasks together, and their kind; empty: none are asked for."""
        times = {"gpus": 1, "gpus-per-task": tasks}
        if "gpus" in self.overruled:
            return {}
        total, kind_of_all, first = 0, "", ""
        for name in ("gres", "gpus", "gpus-per-node", "gpus-per-task"):
            number, kind = self._taken(name, gres_of if name == "gres" else gpus_of) or (0, "")
            number *= times.get(name, nodes)
            if not number:
                continue
            if total and (number != total or (kind and kind_of_all and kind != kind_of_all)):
                raise self.given[name].wrong(f"{self.given[first]} asks for other GPUs; both are the job's")
            total, kind_of_all, first = number, kind_of_all or kind, first or name
        return {"gpus": total, "gpu_kind": kind_of_all} if total else {}

    def variables(self, spec: Mapping[str, Any]) -> dict[str, str]:
        """Return the variables that Slurm would set and that are known before the start."""
        variables = {"SLURM_SUBMIT_DIR": str(Path.cwd()), "SLURM_SUBMIT_HOST": platform.node()}
        counts = {"ntasks", "nodes", "ntasks-per-node"} & self.given.keys()
        tasks = self._tasks()[0] if counts and "tasks" not in self.overruled else spec["tasks"]
        if counts or "tasks" in self.overruled:
            variables |= {"SLURM_NTASKS": str(tasks), "SLURM_NPROCS": str(tasks)}
        variables["SLURM_TASKS_PER_NODE"] = str(tasks)
        if "cores" in self.overruled:
            variables["SLURM_CPUS_PER_TASK"] = str(spec["cores"])
        elif "cpus-per-task" in self.given:
            variables["SLURM_CPUS_PER_TASK"] = str(self._taken("cpus-per-task", whole_number))
        for name, variable, read in (
            ("ntasks-per-node", "SLURM_NTASKS_PER_NODE", whole_number),
            ("mem", "SLURM_MEM_PER_NODE", size_mib),
            ("mem-per-cpu", "SLURM_MEM_PER_CPU", size_mib),
        ):
            if name in self.given and overruled_by(name) not in self.overruled:
                variables[variable] = str(self._taken(name, read))
        if "export" in self.given:
            variables["SLURM_EXPORT_ENV"] = str(self.given["export"].value)
        return variables

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
            f"{given.where}: {SBATCH} --{given.name} is left out: {LEFT_OUT[given.name].words}"
        )
    elif given.name in REFUSED:
        if given.name == "exclusive" and "nodes" in needs.overruled:
            return
        if (given.name, given.value) in (("input", "/dev/null"), ("kill-on-invalid-dep", "yes")):
            return
        raise BadInput(
            f"{given.where}: {SBATCH} --{given.name}: {REFUSED[given.name].words}", remedy(given.name)
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
    fields = needs._taken(name, lambda text: read(text, needs))
    for field_name in fields or {}:
        if field_name not in JobSpec.model_fields:
            raise needs.given[name].wrong("this tenbin cannot do that")
    needs.fields |= fields or {}


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
        output = subprocess.run(
            [bare["SHELL"], "-l", "-c", "env -0"],
            env=bare,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LOGIN_S,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return bare
    pairs = (os.fsdecode(entry).partition("=") for entry in output.split(b"\0") if b"=" in entry)
    return bare | {name: value for name, _, value in pairs if name}


def _instant(field_name: str) -> Callable[[str, SbatchNeeds], dict[str, Any]]:
    def read(text: str, _: SbatchNeeds) -> dict[str, Any]:
        at = instant_s(text, datetime.now())
        if at is None and field_name == "deadline_s":
            raise ValueError("the deadline has passed")
        return {} if at is None else {field_name: at}

    return read


def whole_number(text: str) -> int:
    """Read a number of 1 or more."""
    if not re.fullmatch(r"\+?\d{1,9}", text) or int(text) < 1:
        raise ValueError("write a whole number from 1 on")
    return int(text)


def node_range(text: str) -> tuple[int, int]:
    """Read ``2``, ``1-4`` or ``1k`` as the fewest and the most nodes."""
    match = re.fullmatch(r"(\d{1,6})([km]?)(?:-(\d{1,6})([km]?))?", text.lower())
    least = int(match[1]) * MULTIPLES[match[2]] if match else 0
    most = int(match[3]) * MULTIPLES[match[4]] if match and match[3] else least
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
        for word in ids:
            if re.fullmatch(r"\d+_(\d+|\[.*\])", word):
                raise ValueError(f"{word}: name the member by its own number (tenbin jobs)")
            if not re.fullmatch(r"\d{1,18}(_\*)?", word):
                raise ValueError(f"{word!r} is no number of a job")
            numbers = waits.setdefault(DEPENDENCIES[kind], [])
            number = int(word.removesuffix("_*"))
            if number not in numbers:
                numbers.append(number)
    return waits


def gpus_of(text: str) -> tuple[int, str]:
    """Read ``2`` or ``a100:2`` of ``--gpus``: the number and the kind of GPUs."""
    if "," in text:
        raise ValueError(f"{text}: a job has GPUs of one kind")
    words = re.fullmatch(r"(?:([\w.-]+):)?(\d+)|([\w.-]+)", text)
    if not words:
        raise ValueError(f"{text}: it should be a number of GPUs, or a kind and a number: a100:2")
    return int(words[2] or 1), words[1] or words[3] or ""


def gres_of(text: str) -> tuple[int, str]:
    """Read ``gpu:2`` or ``gpu:a100:2`` of ``--gres``, likewise."""
    entries = [entry for entry in text.split(",") if entry not in ("", "none")]
    for entry in entries:
        if entry.split(":")[0] not in ("gpu", "gres/gpu"):
            raise ValueError(f"{entry}: of generic resources tenbin knows GPUs only")
    return gpus_of(",".join(entry.partition(":")[2] or "1" for entry in entries) or "0")


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
    words = shlex.shlex(text, posix=True)
    words.whitespace, words.whitespace_split, words.escape, words.commenters = ",", True, "", ""
    return [word for word in words if word]


def output_pattern(text: str, user: str) -> str:
    """Write a file name pattern of sbatch as tenbin's own; Slurm's name for no output is ``none``.

    In a batch script ``%J`` is the job, ``%s`` is "batch", ``%n`` and ``%t`` are 0; unknown letters stay.
    """
    if text.lower() == "none":
        return "/dev/null"
    if "\\" in text:
        return text.replace("\\", "").replace("%", "%%")

    def replace(match: re.Match[str]) -> str:
        width, letter = match[1], match[2]
        fixed = {"u": user.replace("%", "%%"), "n": "0", "t": "0", "s": "batch", "J": f"%{width}j", "%": "%%"}
        if letter in fixed:
            return fixed[letter]
        return match[0] if letter in ("A", "a", "j", "x", "N") else f"%{match[0]}"

    return re.sub(r"%(\d*)(.?)", replace, text)


READERS: dict[str, Callable[[str, SbatchNeeds], dict[str, Any]]] = {
    "array": _array,
    "begin": _instant("begin_s"),
    "chdir": lambda text, _: {"folder": str(Path.cwd() / text)},
    "deadline": _instant("deadline_s"),
    "dependency": lambda text, _: dict(dependencies(text)),
    "error": lambda text, _: {"stderr": output_pattern(text, user_name(os.getuid()))},
    "export": _export,
    "job-name": lambda text, _: {"name": text},
    "nice": lambda text, _: {"priority": -adjustment(text or None)},
    "no-requeue": lambda text, _: {"requeue": False},
    "output": lambda text, _: {"stdout": output_pattern(text, user_name(os.getuid()))},
    "requeue": lambda text, _: {"requeue": True},
    "time": lambda text, _: {"time_s": limit_s(text)},
}
