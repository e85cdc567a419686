"""The needs of a job of plain ``sbatch``, in the terms that tenbin schedules by."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from scheduler.engines.external_jobs import Needs
from scheduler.engines.slurm.client import parse
from scheduler.jobs.literals import size_bytes
from scheduler.jobs.specs import JobSpec, Origin

# What the words that tenbin does not schedule by say of a job that asks for nothing of the kind.
NOTHING = {
    **dict.fromkeys(("Features", "Reservation", "Licenses", "Network", "BurstBuffer", "Switches"), ("",)),
    **dict.fromkeys(("ReqNodeList", "ExcNodeList", "Deadline"), ("",)),
    **dict.fromkeys(("Contiguous", "MinTmpDiskNode"), ("0",)),
    **dict.fromkeys(("CoreSpec", "Socks/Node"), ("*",)),
    "ReqB:S:C:T": ("0:0:*:*",),
    "OverSubscribe": ("OK", "NO", "YES"),
}
TASK = "4294967294"  # stands for the task's number where an array is still one record


class Unclear(Exception):
    """A request by which tenbin does not schedule."""


class Shape(NamedTuple):
    """The units of the policy: whole nodes, nodes with their cores and memory, or parts of nodes.

    ``cores``: of the smallest node, or of a part.
    """

    kind: str
    cores: int


def needs_of(
    key: str, user: str, submitted_s: float, words: Mapping[str, str], *, partition: str, shape: Shape
) -> Needs:
    """Read Slurm's record of a waiting job.

    Tasks on one node count as one, because they stay together. On several nodes the job gets all cores in
    the cluster state, because Slurm decides how many tasks each node gets.

    Raises:
        Unclear: it asks for something that tenbin does not schedule by.
    """
    _check(words, partition)
    nodes, tasks = _number(words, "NumNodes"), _number(words, "NumTasks")
    each = _number(words, "CPUs/Task") if words.get("CPUs/Task", "").isdecimal() else 1
    cpus = max(_number(words, "NumCPUs"), tasks * each)
    memory_mb, whole = _memory_mb(words, nodes, cpus), words.get("OverSubscribe") == "NO"
    alone = nodes == 1 and cpus <= shape.cores
    size: dict[str, object]
    if alone and not (whole and shape.kind == "nodes"):
        if whole and shape.kind == "parts":
            raise Unclear("nodes of its own (--exclusive), and parts of nodes are scheduled")
        size = {"cores": cpus, "memory_mb": memory_mb}
    elif shape.kind == "parts":
        raise Unclear(f"{cpus} CPUs, and parts of nodes with {shape.cores} are scheduled")
    elif each > shape.cores:
        raise Unclear(f"tasks of {each} CPUs, and a node has {shape.cores}")
    else:
        nodes = max(nodes, math.ceil(tasks / (shape.cores // each)))
        per_task = None if memory_mb is None else memory_mb / (shape.cores // each)
        size = {"nodes": nodes, "cores": each, "memory_mb": per_task}
    task = key.partition("_")[2]
    command = words.get("Command") or words.get("JobName") or "sbatch"
    spec = JobSpec.model_validate(
        {
            **size,
            "command": (command,),
            "name": words.get("JobName", "")[:200],
            "time_s": _limit_s(words),
            "folder": words.get("WorkDir") or "/",
            "stdout": words.get("StdOut", "").replace(TASK, task),
            "stderr": words.get("StdErr", "").replace(TASK, task),
            "requeue": words.get("Requeue") == "1",
            "array_index": int(task) if task else None,
            "slurm": Origin(id=key, user=user, submitted_s=submitted_s),
        }
    )
    most = words.get("ArrayTaskThrottle") or words.get("ArrayTaskId", "").partition("%")[2]
    return Needs(spec, int(most) if most.isdecimal() and int(most) else None)


def _check(words: Mapping[str, str], partition: str) -> None:
    for name, value in words.items():
        if value not in NOTHING.get(name, (value,)) or (
            re.match("Tres|Gres|MemPerTres|CpusPerTres", name) and value
        ):
            raise Unclear(f"{name}={value}, by which tenbin does not schedule")
    if words.get("Partition") != partition:
        raise Unclear(f"partition {words.get('Partition')}, and tenbin has {partition}")
    spread = words.get("NtasksPerN:B:S:C", "0:0:*:*").split(":")[1:]
    if any(part not in ("0", "*") for part in spread):
        raise Unclear(f"NtasksPerN:B:S:C={words['NtasksPerN:B:S:C']}, by which tenbin does not schedule")


def _number(words: Mapping[str, str], name: str) -> int:
    found = re.match(r"\d+", words.get(name, ""))
    if found is None:
        raise parse.unknown("scontrol show job", f"{name}={words.get(name)}")
    return max(1, int(found[0]))


def _memory_mb(words: Mapping[str, str], nodes: int, cpus: int) -> float | None:
    """Return the memory on each node; None: not said, or all there is."""
    for name, times in (("MinMemoryNode", 1.0), ("MinMemoryCPU", math.ceil(cpus / nodes))):
        with suppress(ValueError):
            return size_bytes(words.get(name, ""), slurm=True) / 1e6 * times or None
    return None


def _limit_s(words: Mapping[str, str]) -> float | None:
    limit = parse.limit_s(words.get("TimeLimit", ""))
    return None if math.isinf(limit) else limit or None
