"""Parts of a node as found by ``agent.inventory``. MB are 10**6 bytes; absent is ``None``."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


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
    memory_mb: float
    driver: str
    power_limit_w: float | None
    power_limit_min_w: float | None
    power_limit_max_w: float | None
    numa_node: int | None = None


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
    missing: tuple[Missing, ...] = ()
