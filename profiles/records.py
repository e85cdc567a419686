"""Records of a profile: frozen, units in the names; absent is ``None`` or an ``Absent``, never 0.

Sizes in ``_mb`` and coefficients "per MB" are decimal, ``MB`` bytes, in every probe, model and table.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

SCHEMA_VERSION = 1
MB = 10**6
ROUNDS_DIFFER = "rounds differ"  # in a note
REFITTED = ", refitted from "  # in an origin


# -- parts of a node, as found by ``agent.inventory`` ------------------------------------------------------


class InventoryRecord(BaseModel):
    """Base of the inventory's records."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Cache(InventoryRecord):
    level: int
    kind: str  # data, instruction, unified
    size_kb: int = Field(description="of one instance, in units of 1024 bytes, as processors count them")
    instances: int
    shared_by_cpus: int = Field(description="logical CPUs that use one instance")


class Cpu(InventoryRecord):
    model: str
    architecture: str
    sockets: int
    cores: int
    threads: int = Field(description="logical CPUs that are online")
    smt: bool
    core_kinds: dict[str, int]  # kind -> cores; one entry unless the processor is hybrid
    caches: tuple[Cache, ...]
    governor: str | None
    max_mhz: float | None
    vendor: str | None = None  # as the processor says it: GenuineIntel, AuthenticAMD, ARM ...
    dies: int | None = None
    turbo: bool | None = None
    family: int | None = None  # x86: with the model, the microarchitecture
    model_number: int | None = None
    vectors: tuple[str, ...] = Field(default=(), description="instruction sets: fma, avx2, avx512f, sve ...")


class MemoryModules(InventoryRecord):
    """The memory modules, as the firmware lists them."""

    count: int
    kind: str  # DDR4, DDR5 ...
    mts: float | None = Field(description="transfers in 10^6/s at which the slowest runs")
    channels: int | None = Field(description="that have a module")
    source: str


class Limits(InventoryRecord):
    """Limits of this process on the machine; ``None``: no limit."""

    threads: int | None = Field(default=None, description="logical CPUs that its affinity allows, if fewer")
    quota_cores: float | None = Field(default=None, description="CPU time per time of its control group")
    memory_mb: float | None = Field(default=None, description="memory that its control group allows")


class Tuning(InventoryRecord):
    """Settings of the kernel that decide performance."""

    huge_pages: str | None = None  # transparent huge pages: always, madvise, never
    numa_balancing: bool | None = None
    clock_source: str | None = None


class NumaNode(InventoryRecord):
    index: int
    cpus: tuple[int, ...]  # none: memory only (CXL, HBM)
    memory_mb: float
    distances: tuple[int, ...] = ()


class Storage(InventoryRecord):
    """Storage under a checkpoint folder, or under its nearest existing parent."""

    folder: str
    device: str
    filesystem: str
    kind: str  # nvme, ssd, hdd, virtual, network, memory, unknown
    free_mb: float
    direct_io: bool
    writable: bool = True
    size_mb: float | None = None
    model: str | None = None


class NetworkInterface(InventoryRecord):
    name: str
    speed_mbit: float | None
    numa_node: int | None
    driver: str | None
    virtual: bool = False  # a bridge, a tunnel, one end of a pair


class OpenCLDevice(InventoryRecord):
    key: str  # the label used in models: platform-index, e.g. pocl-0
    platform: str
    name: str
    kind: str  # cpu, gpu, accelerator
    driver: str
    version: str
    compute_units: int
    global_memory_mb: float
    max_allocation_mb: float

    def is_like(self, other: OpenCLDevice | None) -> bool:
        """Tell whether two devices differ only in their number, so that measurements hold for both."""
        if other is None:
            return False
        return (self.platform, self.name, self.driver) == (other.platform, other.name, other.driver)


class Gpu(InventoryRecord):
    index: int
    name: str
    uuid: str = ""  # GPU-..., as CUDA_VISIBLE_DEVICES takes it; profiles of earlier releases have none
    parts: tuple[str, ...] = ()  # MIG-..., where the GPU is divided
    bus: str = ""  # PCI address, as in sysfs
    memory_mb: float
    driver: str
    power_limit_w: float | None
    power_limit_min_w: float | None
    power_limit_max_w: float | None
    numa_node: int | None = None
    link_lanes: int | None = Field(default=None, description="of PCI Express, as they are in use")
    link_gts: float | None = Field(
        default=None, description="the highest rate of a lane that both ends allow"
    )


class Mpi(InventoryRecord):
    library: str
    launcher: str


class PowerZone(InventoryRecord):
    name: str  # package-0, dram ...
    path: str
    cap_w: float | None
    cap_max_w: float | None
    readable: bool
    writable: bool


class Missing(InventoryRecord):
    """A fact that could not be found out, with reason and remedy."""

    what: str  # opencl, opencl platforms, opencl drivers, gpu, mpi, storage FOLDER
    reason: str
    remedy: str = ""


class Inventory(InventoryRecord):
    hostname: str
    kernel: str  # its release
    distribution: str
    virtualisation: str  # the hypervisor: none, kvm, vmware ...
    cpu: Cpu
    numa: tuple[NumaNode, ...]
    memory_mb: float
    storage: tuple[Storage, ...] = ()
    network: tuple[NetworkInterface, ...] = ()
    opencl: tuple[OpenCLDevice, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    mpi: Mpi | None = None
    power: tuple[PowerZone, ...] = ()
    container: str = "none"  # docker, podman, apptainer ...
    limits: Limits = Limits()
    tuning: Tuning = Tuning()
    memory_modules: MemoryModules | None = None
    missing: tuple[Missing, ...] = ()


# -- a profile ---------------------------------------------------------------------------------------------


class Record(BaseModel):
    """Base of every stored record: immutable, and strict about unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Quality(StrEnum):
    """Trust in a coefficient."""

    GOOD = "good"  # narrow interval, the model describes the samples
    NOISY = "noisy"  # usable, but the interval is wide
    POOR = "poor"  # the samples do not support this number


class Coefficient(Record):
    """A number that a model needs, with its interval.

    ``low``/``high`` bound the 95 % interval; ``None`` on one side means that the samples bound it
    on the other side only ("A >= 4").
    """

    name: str
    value: float
    unit: str
    low: float | None
    high: float | None
    n: int = Field(description="number of observations (not of sizes or settings) behind the value")
    quality: Quality
    scale: float | None = Field(
        default=None, gt=0, description="what quality holds the interval against; null: the value itself"
    )
    rounds_differ: bool = Field(
        default=False, description="the rounds spread further than all samples admit; the interval holds them"
    )
    note: str = ""

    @model_validator(mode="before")
    @classmethod
    def _of_earlier_release(cls, stored: Any) -> Any:
        """Take from the note that rounds differ, where a profile has no field for it."""
        if isinstance(stored, dict) and ROUNDS_DIFFER in str(stored.get("note")):
            return {"rounds_differ": True} | stored
        return stored


class Model(Record):
    """A fitted relation ``quantity = form(x)`` on one subject (named by ``labels``)."""

    probe: str = Field(description="the probe whose samples were fitted")
    quantity: str = Field(description="what the model predicts, with its unit as suffix: checkpoint_s")
    form: str = Field(description="name in profiles.models.FORMS: constant, linear, knee, downey")
    labels: dict[str, str] = Field(default_factory=dict, description="the subject: device, storage, cores")
    x: str = Field(default="", description="the independent variable, with its unit: memory_mb")
    x_min: float | None = None
    x_max: float | None = None
    method: str
    coefficients: tuple[Coefficient, ...]
    covariance: tuple[tuple[float, ...], ...] | None = Field(
        default=None, description="of the coefficients, in their order"
    )
    residual_sd: float | None = None
    residual_sd_line: tuple[float, float] | None = Field(
        default=None, description="where the residuals' sd grows with x: its value at x = 0, and per x"
    )
    r2: float | None = None
    emulated: bool = False
    note: str = ""

    @property
    def key(self) -> tuple[str, ...]:
        """Identity of the same model in two profiles."""
        return (self.probe, self.quantity, *(f"{k}={v}" for k, v in sorted(self.labels.items())))

    @property
    def title(self) -> str:
        """The quantity with its labels: ``checkpoint_s{device=pocl-0,storage=/tmp}``."""
        labels = ",".join(f"{k}={v}" for k, v in sorted(self.labels.items()))
        return f"{self.quantity}{{{labels}}}" if labels else self.quantity

    def __getitem__(self, name: str) -> Coefficient:
        for coefficient in self.coefficients:
            if coefficient.name == name:
                return coefficient
        raise KeyError(name)


class NodeKind(Record):
    """Properties of a node that decide how programs slow each other down; nodes alike are of one kind."""

    key: str = Field(description="hash over processor, caches, memory, NUMA and virtualisation")
    title: str = Field(description="for people: AMD EPYC 9B45, 2 cores, 24 GiB")


class Absent(Record):
    """Something that could not be measured, with reason and remedy."""

    probe: str
    what: str
    reason: str
    remedy: str = ""
    failed: bool = Field(default=False, description="something broke, rather than was not there")


class Condition(Record):
    """The machine while one round of one probe ran: what may explain a difference between profiles."""

    probe: str
    round: int
    duration_s: float
    reference_s: float = Field(
        description="time of a fixed pure-CPU loop just before: the machine's own speed"
    )
    steal_ratio: float = Field(description="share of all CPU time that a hypervisor gave to other guests")
    others_ratio: float = Field(
        description="share of all CPU time used by processes that are not the probe's"
    )


class Settings(Record):
    """Orders for a profile: extent, places and seeds."""

    quick: bool = False
    only: tuple[str, ...] = ()
    storage: tuple[Path, ...] = ()
    hosts: tuple[str, ...] = ()
    seed: int = 1
    round: int = Field(default=0, description="a full profile visits each probe in several rounds")
    budget_s: float = Field(default=30.0, gt=0, description="time this round of this probe should take")
    sysfs: Path = Path("/sys")
    procfs: Path = Path("/proc")
    meter: Literal["auto", "powercap", "pyrapl", "nvml", "none"] = "auto"
    set_gpu_limits: bool = False
    emulated: str = Field(default="", description="name of the emulated hardware; empty: the real machine")


class Profile(Record):
    """All that one session of measuring learned about one node."""

    schema_version: Literal[1] = 1
    id: str
    node: str
    created: datetime
    duration_s: float
    tenbin_version: str
    settings: Settings
    fingerprint: str = Field(description="hash over what decides performance; a changed one makes it stale")
    inventory: Inventory
    models: tuple[Model, ...] = ()
    absent: tuple[Absent, ...] = ()
    conditions: tuple[Condition, ...] = ()
    samples: dict[str, int] = Field(default_factory=dict, description="rows stored for each probe")
    interrupted: bool = False
    emulated: bool = False
    origin: str = Field(
        default="", description="of a profile not measured as a whole: from which, and what was refitted"
    )
    refit_of: str = Field(default="", description="id of the profile of which something was refitted")

    @model_validator(mode="before")
    @classmethod
    def _of_earlier_release(cls, stored: Any) -> Any:
        """Take from the origin which profile was refitted, where a stored one has no field for it."""
        if isinstance(stored, dict) and REFITTED in str(stored.get("origin")):
            return {"refit_of": stored["origin"].partition(REFITTED)[0]} | stored
        return stored

    @property
    def partly(self) -> str:
        """Reasons for which it is no whole profile of a machine: ``interrupted, only storage``; "": it is."""
        only = f"only {','.join(self.settings.only)}" if self.settings.only and not self.emulated else ""
        return ", ".join(filter(None, ("EMULATED" * self.emulated, "interrupted" * self.interrupted, only)))

    def find(self, quantity: str, **labels: object) -> Model | None:
        """Find the first model of a quantity whose labels include those given, as numbers or as texts."""
        chosen = {name: str(value) for name, value in labels.items()}
        for model in self.models:
            if model.quantity == quantity and chosen.items() <= model.labels.items():
                return model
        return None
