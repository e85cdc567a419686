"""The record of a job profile: what one program needs, presses with and suffers from, on one kind of node.

*Pressure*: how much slower memprobe gets beside the job. *Sensitivity*: how much slower the job gets beside
memprobe, a curve over its graded intensity. Both are measured against the same writers on the same cores,
as is their *reference*, memprobe beside itself; so a pressure can be said in the terms of the curves: the
traffic of memprobe beside which memprobe suffers as much.

Every slow-down is there by two clocks: ``wall``, what a user waits, and ``cpu``, CPU time for the same work,
which is blind to other programs that took the cores meanwhile.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from profiles.records import Absent, Coefficient, Condition, Record

JOB_SCHEMA_VERSION = 1
Clock = Literal["wall", "cpu"]
JobName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,99}$")]


class NodeKind(Record):
    """What decides how programs on a node slow each other down; nodes alike are of one kind."""

    key: str = Field(description="hash over processor, caches, memory, NUMA and virtualisation")
    title: str = Field(description="for people: AMD EPYC 9B45, 2 cores, 24 GiB")


class Level(Record):
    """The slow-down beside memprobe at one intensity."""

    intensity_percent: float = Field(description="share of the time that memprobe writes")
    offered_gbs: float = Field(description="what it writes at that intensity beside nobody, in GB/s")
    traffic_gbs: float | None = Field(default=None, description="what it wrote beside this one, in GB/s")
    slowdown: Coefficient = Field(description="time for the same work / time for it alone")


class Curve(Record):
    """Slow-downs at ascending intensities from 0, by one clock."""

    clock: Clock
    levels: Annotated[tuple[Level, ...], Field(min_length=1)]


class MemoryPressure(Record):
    """What a job does to memprobe, by one clock."""

    clock: Clock
    slowdown: Coefficient = Field(description="of memprobe at full intensity beside the job")
    equivalent_gbs: Coefficient | None = Field(
        default=None, description="memprobe's traffic beside which memprobe suffers as much"
    )
    note: str = ""


class JobProfile(Record):
    """All that one session of measuring learned about one program."""

    schema_version: Literal[1] = 1
    name: JobName
    id: str = Field(description="when it was made; a name can have several profiles")
    node: str
    kind: NodeKind
    created: datetime
    duration_s: float
    tenbin_version: str
    command: tuple[str, ...]
    folder: str
    cpus: tuple[int, ...] = Field(description="logical CPUs that the job ran on, one a core")
    probe_cpus: tuple[int, ...] = Field(description="logical CPUs that memprobe wrote from beside it")
    quick: bool = False
    seed: int = 1
    repetitions: int
    clock: Clock = Field(description="the clock to predict by: cpu where the machine was busy")
    alone: tuple[Coefficient, ...] = Field(
        description="run_s, cpu_s, peak_memory_mb, read_mb, ...; kernels, compile_s, ... of OpenCL"
    )
    sensitivity: tuple[Curve, ...] = ()
    reference: tuple[Curve, ...] = Field(default=(), description="memprobe itself beside memprobe")
    pressure: tuple[MemoryPressure, ...] = ()
    condition: Condition
    absent: tuple[Absent, ...] = ()
    interrupted: bool = False
    emulated: bool = False
    note: str = ""

    @property
    def cores(self) -> int:
        """Cores that the job had."""
        return len(self.cpus)

    def need(self, name: str) -> Coefficient | None:
        """One of ``alone``; None where it was not measured."""
        return next((c for c in self.alone if c.name == name), None)

    def sensitivity_by(self, clock: Clock | None = None) -> Curve | None:
        """The curve by that clock, or by the profile's own."""
        return next((c for c in self.sensitivity if c.clock == (clock or self.clock)), None)

    def pressure_by(self, clock: Clock | None = None) -> MemoryPressure | None:
        """The pressure by that clock, or by the profile's own."""
        return next((p for p in self.pressure if p.clock == (clock or self.clock)), None)
