"""GPUs that jobs ask for: so many, of a kind, with so much memory.

A kind is all GPUs of one name, and a resource of the node: ``gpu`` where there is one kind, else
``gpu:NAME``. A job has GPUs of one kind. Users name a kind by a part of its name: ``a100``, ``1g.10gb``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from profiles.errors import BadInput
from scheduler.jobs.literals import memory_text
from scheduler.jobs.specs import JobSpec

# By vendor, what tells a program which GPUs it sees, and what tells it of none. Intel's ignores an empty one.
VARIABLES = {
    "NVIDIA": ("CUDA_VISIBLE_DEVICES", ""),
    "AMD": ("ROCR_VISIBLE_DEVICES", ""),
    "Intel": ("ZE_AFFINITY_MASK", "255"),
}
PART = "_mig_"  # in the name of a kind: parts of divided GPUs


@dataclass(frozen=True)
class GpuKind:
    """A kind of GPU of a node, or of the nodes of a cluster.

    Attributes:
        resource: name among the resources of the node. number: how many there are.
        memory_mb: of each one; 0: not known, as Slurm does not count it.
        at_most: on one node of a cluster; None: they are all on one.
        numbers: of its GPUs, on this machine.
    """

    resource: str
    name: str
    memory_mb: float
    number: int
    at_most: int | None = None
    numbers: tuple[int, ...] = ()

    @property
    def on_one_node(self) -> int:
        return self.number if self.at_most is None else self.at_most

    def __str__(self) -> str:
        memory = f" ({memory_text(self.memory_mb)})" if self.memory_mb else ""
        of_node = "" if self.at_most is None else f", {self.at_most} on a node"
        return f"{self.number} {self.name}{memory}{of_node}"


def kind_name(device: str) -> str:
    """Turn the name of a device into a name as Slurm's types of resources are: ``nvidia_h100_80gb``."""
    return re.sub(r"[^a-z0-9]+", "_", device.lower()).strip("_")


def kinds_for(spec: JobSpec, kinds: Sequence[GpuKind]) -> list[GpuKind]:
    """Choose the kinds that will do for a job; parts of GPUs only where they are named, or nothing else is.

    Raises:
        BadInput: none will do.
    """
    word = f"_{kind_name(spec.gpu_kind)}_" if spec.gpu_kind else "_"
    named = [kind for kind in kinds if word == f"_{kind.name}_"]
    named = named or [kind for kind in kinds if word in f"_{kind.name}_"]
    if not spec.gpu_kind:
        named = [kind for kind in kinds if PART not in kind.name] or named
    able = [kind for kind in named if kind.memory_mb >= (spec.gpu_memory_mb or 0.0)]
    able = [kind for kind in able if kind.on_one_node >= spec.gpus_on_node]
    if not able and spec.gpu_memory_mb and not any(kind.memory_mb for kind in kinds):
        raise BadInput(
            f"{_option_text(spec)}: Slurm does not tell their memory", "name a kind: --gpus KIND:NUMBER"
        )
    if not able:
        there = "; ".join(map(str, kinds))
        raise BadInput(f"{_option_text(spec)}: jobs may have {there}", "ask for fewer, or for another kind")
    return able


def settle_kind(spec: JobSpec, kinds: Sequence[GpuKind], requested: Counter[str]) -> JobSpec:
    """Fix the kind of a job for which several will do: the one of which least is asked for.

    Args:
        requested: how many of each resource are asked for; those of this job are added.

    Raises:
        BadInput: none will do.
    """
    if not spec.gpus_asked or len(kinds) < 2:
        return spec
    best = min(kinds_for(spec, kinds), key=lambda kind: requested[kind.resource] / kind.number)
    requested[best.resource] += spec.gpus_asked
    return spec.model_copy(update={"gpu_kind": best.name})


def _option_text(spec: JobSpec) -> str:
    kind = f"{spec.gpu_kind}:" if spec.gpu_kind else ""
    memory = f" with {memory_text(spec.gpu_memory_mb)} each" if spec.gpu_memory_mb else ""
    return f"--gpus {kind}{spec.gpus_asked}{memory}"
