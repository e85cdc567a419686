"""What a node is made of, as found; filled by ``agent.inventory``."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Part(BaseModel):
    """Base of the inventory's records."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Cache(Part):
    level: int
    kind: str  # data, instruction, unified
    size_kb: int
    instances: int
    shared_by_cpus: int


class Cpu(Part):
    model: str
    architecture: str
    sockets: int
    cores: int
    threads: int
    smt: bool
    core_kinds: dict[str, int]  # kind -> cores; one entry unless the processor is hybrid
    caches: tuple[Cache, ...]
    governor: str | None
    max_mhz: float | None


class NumaNode(Part):
    index: int
    cpus: tuple[int, ...]
    memory_mb: float


class Storage(Part):
    folder: str
    device: str
    filesystem: str
    kind: str  # nvme, ssd, hdd, virtual, network, memory, unknown
    free_mb: float
    direct_io: bool


class NetworkInterface(Part):
    name: str
    speed_mbit: float | None
    numa_node: int | None
    driver: str | None


class OpenCLDevice(Part):
    key: str  # the label used in models: platform-index, e.g. pocl-0
    platform: str
    name: str
    kind: str  # cpu, gpu, accelerator
    driver: str
    version: str
    compute_units: int
    global_memory_mb: float
    max_allocation_mb: float


class Gpu(Part):
    index: int
    name: str
    memory_mb: float
    driver: str
    power_limit_w: float | None
    power_limit_min_w: float | None
    power_limit_max_w: float | None


class Mpi(Part):
    library: str
    launcher: str


class PowerZone(Part):
    name: str  # package-0, dram ...
    path: str
    cap_w: float | None
    cap_max_w: float | None
    readable: bool
    writable: bool


class Inventory(Part):
    hostname: str
    kernel: str
    distribution: str
    virtualisation: str  # none, kvm, docker ...
    cpu: Cpu
    numa: tuple[NumaNode, ...]
    memory_mb: float
    storage: tuple[Storage, ...] = ()
    network: tuple[NetworkInterface, ...] = ()
    opencl: tuple[OpenCLDevice, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    mpi: Mpi | None = None
    power: tuple[PowerZone, ...] = ()
