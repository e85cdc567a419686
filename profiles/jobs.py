"""Record of a job profile: needs, pressure and sensitivity of a program, on one kind of node.

*Pressure*: how much slower memprobe gets beside the job. *Sensitivity*: how much slower the job gets beside
memprobe, a curve over its graded intensity. Both are measured against the same writers on the same cores,
as is their *reference*, memprobe beside itself. So a pressure can be expressed in the terms of the curves:
the traffic of memprobe beside which memprobe suffers as much. A job over several hosts has the same on the
network, with comprobe (all-to-all between the hosts) in the place of memprobe.

Every slow-down is measured by two clocks: ``wall``, the time that a user waits, and ``cpu``, CPU time for the
same work, which is blind to other programs on the cores.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from .records import Absent, Coefficient, Condition, Model, NodeKind, Record

COMPROBE_BYTES = 1 << 20  # from each rank to each other: bandwidth decides, not latency
Clock = Literal["wall", "cpu"]
JobName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,99}$")]


class Level(Record):
    """The slow-down beside a probe at one intensity."""

    intensity_percent: float = Field(description="share of the time that the probe writes, or communicates")
    offered_gbs: float = Field(
        description="what it writes (comprobe: each rank sends) at that intensity beside nobody, in GB/s"
    )
    traffic_gbs: float | None = Field(default=None, description="what it wrote beside this one, in GB/s")
    slowdown: Coefficient = Field(description="time for the same work / time for it alone")


class Curve(Record):
    """Slow-downs at ascending intensities from 0, by one clock."""

    clock: Clock
    levels: Annotated[tuple[Level, ...], Field(min_length=1)]


class ProbePressure(Record):
    """Slow-down of a probe beside a job, by one clock."""

    clock: Clock
    slowdown: Coefficient = Field(description="of the probe at full intensity beside the job")
    equivalent_gbs: Coefficient | None = Field(
        default=None,
        description="the probe's traffic beside which the probe suffers as much; comprobe's that "
        "takes as much of the network as the job does alone",
    )
    note: str = ""


class Phases(Record):
    """Slow-down of memprobe over the course of a job's run, because a mean hides bursts."""

    clock: Clock
    bin_s: float = Field(description="the run is cut into parts of this length")
    slowdown: tuple[float | None, ...] = Field(description="of memprobe in each part; null: not seen")
    peak: Coefficient = Field(
        description="in the worst part, each repetition's where the others were worst: no luck of the draw"
    )
    peak_at_percent: float = Field(description="where in the run that is")
    bursts: bool = Field(description="whether the worst part stands out from the whole in the repetitions")


class NetworkHalf(Record):
    """A job over several hosts beside comprobe, by run time."""

    message_bytes: int = Field(description="of comprobe, from each host to each other")
    sensitivity: Curve | None = None
    reference: Curve | None = Field(default=None, description="comprobe itself beside comprobe")
    pressure: ProbePressure | None = None
    emulated: bool = Field(default=False, description="the hosts are namespaces of one machine")
    note: str = ""


class CapLevel(Record):
    """A job alone under one power cap; power and energy of the packages that it runs on."""

    cap_w: float | None = Field(description="of each package; null: under the limits as found")
    run_s: Coefficient
    power_w: Coefficient = Field(description="mean over the run, with what the packages draw at rest")
    energy_j: Coefficient = Field(description="of one run")
    held: bool = Field(default=True, description="whether the power kept to the cap in every run")


class UnderCaps(Record):
    """A job alone under power caps."""

    levels: Annotated[tuple[CapLevel, ...], Field(min_length=1)] = Field(
        description="ascending; the last one without a cap"
    )
    speed: Model | None = Field(
        default=None, description="speed over the cap of each package, relative to none; knee model"
    )
    emulated: str = Field(default="", description="name of the emulated machine; empty: the real one")
    note: str = ""


class JobProfile(Record):
    """All that one session of measuring learned about one program, or several that were pooled."""

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
    sessions: int = Field(default=1, description="of measuring, at different times, whose samples are pooled")
    repetitions: int
    clock: Clock = Field(description="the clock to predict by: cpu where the machine was busy")
    alone: tuple[Coefficient, ...] = Field(
        description="run_s, cpu_s, ...; mpi_share of MPI programs; kernels, compile_s, ... of OpenCL"
    )
    sensitivity: tuple[Curve, ...] = ()
    reference: tuple[Curve, ...] = Field(default=(), description="memprobe itself beside memprobe")
    pressure: tuple[ProbePressure, ...] = ()
    phases: tuple[Phases, ...] = ()
    mpi: bool = Field(default=False, description="the command is started as ranks, by mpiexec")
    ranks: int | None = Field(default=None, description="how many, if mpi; cpus are those of one host")
    hosts: tuple[str, ...] = Field(default=(), description="on which the ranks lie; empty: on this node")
    network: NetworkHalf | None = None
    scaling: Model | None = Field(
        default=None, description="run time alone over cores (Downey), where that was measured"
    )
    caps: UnderCaps | None = Field(
        default=None, description="run time and energy under power caps, where that was measured"
    )
    condition: Condition
    absent: tuple[Absent, ...] = ()
    interrupted: bool = False
    emulated: bool = False
    note: str = ""

    @property
    def cores(self) -> int:
        """Cores that the job had, on each host."""
        return len(self.cpus)

    def need(self, name: str) -> Coefficient | None:
        """Find one of ``alone``; None where it was not measured."""
        return next((c for c in self.alone if c.name == name), None)

    def sensitivity_by(self, clock: Clock | None = None) -> Curve | None:
        """Find the curve by that clock, or by the profile's own."""
        return next((c for c in self.sensitivity if c.clock == (clock or self.clock)), None)

    def pressure_by(self, clock: Clock | None = None) -> ProbePressure | None:
        """Find the pressure by that clock, or by the profile's own."""
        return next((p for p in self.pressure if p.clock == (clock or self.clock)), None)

    def phases_by(self, clock: Clock | None = None) -> Phases | None:
        """Find the phases by that clock, or by the profile's own."""
        return next((p for p in self.phases if p.clock == (clock or self.clock)), None)
