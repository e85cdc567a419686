"""The specification of a job: a command and what it needs."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, Strict, field_validator, model_validator

from profiles.errors import BadInput, plain
from scheduler.jobs.literals import LATEST_S

NO_ZERO_BYTE = r"^[^\x00]*$"
VARIABLE = r"^[^=\x00]+$"
ACCOUNT = r"^[^=\x00-\x1f]*$"
MISMATCH = {
    NO_ZERO_BYTE: "contains a zero byte",
    VARIABLE: "is no name of a variable: it is empty, or contains = or a zero byte",
    ACCOUNT: "contains = or a control character",
}
Text = Annotated[str, Field(max_length=4096, pattern=NO_ZERO_BYTE)]
LONGEST_ARGUMENT = 131_072  # of a program, with its end: Linux (MAX_ARG_STRLEN)
Argument = Annotated[str, Field(max_length=LONGEST_ARGUMENT, pattern=NO_ZERO_BYTE)]
Name = Annotated[str, Field(max_length=100, pattern=NO_ZERO_BYTE)]
# Strict: "3" and true, which pydantic would take for numbers, are refused, as the API's description says.
Int = Annotated[int, Strict()]
Float = Annotated[float, Strict()]
Bool = Annotated[bool, Strict()]
Jobs = Annotated[tuple[Int, ...], Field(max_length=100_000)]  # by number; each is looked up
Count = Annotated[Int, Field(ge=1, le=1_000_000)]
CountAsKey = Annotated[int, Field(ge=1, le=1_000_000)]  # keys are strings in JSON
Factor = Annotated[Float, Field(ge=1e-6, le=1e6)]
Watts = Annotated[Float, Field(gt=0, le=1e6)]
Megabytes = Annotated[Float, Field(gt=0, le=1e12)]
Gpus = Annotated[Int, Field(ge=1, le=1024)]
Seconds = Annotated[Float, Field(gt=0, le=1e12)]
Priority = Annotated[Int, Field(ge=-1_000_000, le=1_000_000)]
Instant = Annotated[Float, Field(ge=0, le=LATEST_S)]
FIRST_PAUSE_S = 10.0  # before a job that has failed is tried again


def _working_folder() -> str:
    """Return the working directory; "", which no job may have, if it does not exist any more."""
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        return ""


class Origin(BaseModel):
    """The job of plain ``sbatch`` that was taken over.

    Attributes:
        id: its number in Slurm, of a task of an array ``12_3``.
        user: whose it is.
        submitted_s: when it came there, in seconds since 1970.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    user: str
    submitted_s: Float


class Alternative(BaseModel):
    """Another way to run a job: all that it takes there, and memory and limit where they are others."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tasks: Count | None = None
    cores: Count | None = None
    memory_mb: Megabytes | None = None
    gpus: Gpus | None = None
    gpu_kind: Name | None = None
    gpu_memory_mb: Megabytes | None = None
    time_s: Seconds | None = None
    expect_s: dict[Name, Seconds] | None = None


# What an alternative does not have from the job.
TAKEN = ("tasks", "max_tasks", "cores", "nodes", "max_nodes", "gpus", "gpu_kind", "gpu_memory_mb")


class JobSpec(BaseModel):
    """A job as it is submitted.

    ``slurm``: the job of Slurm that it is, where tenbin has taken it over; nobody submits such a one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    # What each field is for: tenbin/fields.py
    command: Annotated[tuple[Argument, ...], Field(min_length=1)]
    name: Annotated[str, Field(max_length=200, pattern=NO_ZERO_BYTE)] = ""
    tasks: Count = 1
    cores: Count = 1
    max_tasks: Count | None = None
    nodes: Count | None = None
    max_nodes: Count | None = None
    speedup: dict[CountAsKey, Factor] = Field(default_factory=dict)
    cap_curve: tuple[Watts, Annotated[Float, Field(ge=0, le=1e6)]] | None = None
    load: Literal["compute", "memory"] = "compute"
    mpi: Bool = False
    memory_mb: Megabytes | None = None
    time_s: Seconds | None = None
    device: Name = "any"
    gpus: Gpus | None = None
    gpu_kind: Name = ""
    gpu_memory_mb: Megabytes | None = None
    expect_s: dict[Name, Seconds] = Field(default_factory=dict)
    alternatives: Annotated[tuple[Alternative, ...], Field(max_length=100)] = ()
    priority: Priority = 0
    account: Annotated[str, Field(max_length=100, pattern=ACCOUNT)] = ""
    share: Factor | None = None
    job_profile: Name = ""
    after: Jobs = ()
    after_any: Jobs = ()
    after_not_ok: Jobs = ()
    after_corr: Jobs = ()
    begin_s: Instant | None = None
    deadline_s: Instant | None = None
    retries: Annotated[Int, Field(ge=0, le=1000)] = 0
    retry_codes: tuple[Annotated[Int, Field(ge=1, le=255)], ...] = ()
    retry_pause_s: Annotated[Float, Field(gt=0, le=3600)] = FIRST_PAUSE_S
    folder: Text = Field(default_factory=_working_folder, validate_default=True)
    env: dict[Annotated[str, Field(pattern=VARIABLE, max_length=1000)], Argument] = Field(
        default_factory=dict
    )
    array_index: Annotated[Int, Field(ge=0, lt=1 << 63)] | None = None
    array_limit: Count | None = None
    stdout: Text = ""
    stderr: Text = ""
    terminal: Annotated[str, Field(max_length=100, pattern=NO_ZERO_BYTE)] = ""
    notify: Text = ""
    requeue: Bool = True
    move: Bool = True
    slurm_variables: Bool = False
    slurm: Origin | None = None
    checkpoint_signal: Annotated[Int, Field(ge=1, le=64)] | None = None
    checkpoint_code: Annotated[Int, Field(ge=1, le=125)] = 85
    grace_s: Annotated[Float, Field(ge=0, le=86_400)] = 10.0

    @property
    def external(self) -> Origin | None:
        """The job of the cluster's own scheduler that was taken over as this one."""
        return self.slurm

    @property
    def gpus_asked(self) -> int:
        """The number of GPUs that the whole job asks for."""
        return count_gpus(self.gpus, self.gpu_kind, self.gpu_memory_mb, self.nodes)

    @property
    def gpus_on_node(self) -> int:
        """The number of GPUs on each of its nodes."""
        return self.gpus_asked // (self.nodes or 1)

    @property
    def ways(self) -> tuple[JobSpec, ...]:
        """The job as it is, and as it runs in each of its alternatives."""
        return tuple(self.way(number) for number in range(len(self.alternatives) + 1))

    def way(self, number: int) -> JobSpec:
        """Return the job as it runs in one of its alternatives, from 1 on; 0: as it is."""
        if not number:
            return self
        taken: dict[str, Any] = {name: JobSpec.model_fields[name].default for name in TAKEN}
        own = self.alternatives[number - 1].model_dump(exclude_none=True)
        return self.model_copy(update=taken | {"expect_s": {}} | own)

    def limited(self, limit_s: float | None) -> JobSpec:
        """Return the job with another limit, also in its alternatives; infinite: none. None: as it is."""
        if limit_s is None:
            return self
        time_s = None if math.isinf(limit_s) else limit_s
        ways = tuple(way.model_copy(update={"time_s": None}) for way in self.alternatives)
        return self.model_copy(update={"time_s": time_s, "alternatives": ways})

    def owner(self, user: str) -> str:
        """Return the user whom the job counts as: ``user``, who runs tenbin, unless another is named."""
        return self.account or (self.slurm.user if self.slurm else user)

    @field_validator("folder")
    @classmethod
    def _absolute(cls, value: str) -> str:
        if not value.startswith("/"):
            raise ValueError("must be an absolute path")
        return value

    @model_validator(mode="after")
    def _possible(self) -> JobSpec:
        if self.mpi and self.checkpoint_signal is not None:
            raise ValueError("mpi with checkpoint_signal: mpiexec hands no such signal on to its ranks")
        for least, most, what in (
            (self.tasks, self.max_tasks, "max_tasks"),
            (self.nodes or 1, self.max_nodes, "max_nodes"),
        ):
            if most is not None and most < least:
                raise ValueError(f"{what}: {most} is less than {least}")
        if self.nodes and (self.tasks != 1 or self.max_tasks):
            raise ValueError("nodes with tasks: nodes are filled with tasks, so give one of them")
        if self.max_nodes and not self.nodes:
            raise ValueError("max_nodes without nodes")
        if self.alternatives and (self.mpi or self.max_tasks or self.max_nodes or self.device != "any"):
            raise ValueError("alternatives: not with mpi, device or a range of sizes")
        if self.speedup and not (self.max_tasks or self.max_nodes):
            raise ValueError("speedup: the size of the job is fixed; give a range (max_tasks)")
        if not self.retries and (self.retry_codes or self.retry_pause_s != FIRST_PAUSE_S):
            raise ValueError("retry_codes and retry_pause_s are for retries; say how many")
        if self.terminal and (self.requeue or self.retries or self.checkpoint_signal is not None):
            raise ValueError("terminal: such a job is started once; no requeue, retries, checkpoint_signal")
        return self


def count_gpus(gpus: int | None, kind: str | None, memory_mb: float | None, nodes: int | None) -> int:
    """Count the GPUs of a whole job; a kind or a size alone means one on each node."""
    return gpus or int(bool(kind or memory_mb)) * (nodes or 1)


def fault(error: Mapping[str, Any]) -> str:
    """Say what is wrong with a value, from one of pydantic's errors."""
    text = str(error["msg"])
    if error["type"] == "string_pattern_mismatch":
        text = MISMATCH.get(error["ctx"]["pattern"], text)
    elif error["type"] == "string_unicode":
        text = "is not valid Unicode (UTF-8)"
    return plain(text).removeprefix("Value error, ")


def refuse_external(spec: JobSpec) -> None:
    """Refuse a job that a user submits as if it had been taken over.

    Raises:
        BadInput: it is such a job.
    """
    if spec.slurm is not None:
        raise BadInput("slurm: only tenbin itself takes jobs over", "leave it out")


def check_variables(variables: Mapping[str, str]) -> Mapping[str, str]:
    """Return the environment if a process can have it; bytes that are not UTF-8 stay as Python has them.

    Raises:
        ValueError: no process can have it.
    """
    for name, value in variables.items():
        if not name or "=" in name or "\0" in name:
            raise ValueError(f"{name[:100]!r} {MISMATCH[VARIABLE]}")
        if "\0" in value:
            raise ValueError(f"{name[:100]} {MISMATCH[NO_ZERO_BYTE]}")
        try:
            whole = os.fsencode(f"{name}={value}")
        except UnicodeEncodeError:
            raise ValueError(f"{name[:100]} is not valid Unicode (UTF-8)") from None
        if len(whole) >= LONGEST_ARGUMENT:
            raise ValueError(f"{name[:100]} with its value has {LONGEST_ARGUMENT} bytes or more")
    return variables


class JobRefused(BadInput):
    """A job, of those that are submitted together, is refused.

    Attributes:
        place: its place among them, from 0 on. reason: the sentence without the place.
    """

    def __init__(self, error: BadInput, place: int, jobs: int) -> None:
        self.place, self.reason = place, str(error)
        which = "" if jobs == 1 else f"job {place + 1} of {jobs}: "
        super().__init__(f"{which}{error.what}", error.remedy)
