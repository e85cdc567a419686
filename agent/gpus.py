"""GPUs as people share them: what each one does now, and whose processes hold it.

A GPU belongs to nobody: whoever can open its file can use it. So the queue has to look at who does. AMD's and
Intel's are read from files of the kernel (``probes.drm``), NVIDIA's by NVML. That knows the processes of all
users with their memory; their utilisation is that of the last second, and a process that did nothing has
none. Measured on an H100: the processes take 0.03 ms to ask for, their utilisation 1.7 ms, the energy up to
18 ms; a process that was killed is gone after 0.17 s.

    python -P -m agent.gpus

prints the GPUs as JSON, in a process of its own because a driver may crash; with ``watch`` again whenever
other processes hold them, and every ten seconds, until its standard input ends. It looks every two seconds:
the utilisation that it prints is the mean of its looks.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from select import select
from typing import Any

from probes import drm, nvml
from profiles.errors import Unavailable
from profiles.files.safe_files import user_name
from profiles.quantities import duration

MB = 10**6
HELD_BYTES = 1 << 20  # of a GPU of AMD or Intel: who has less does not hold it
TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
LOOK_S, TELL_S = 2.0, 10.0


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that has memory on a GPU.

    Attributes:
        user: its name, empty if the process cannot be seen (another container's).
        command: the name of its program, likewise.
        memory_mb: on this GPU; None: the driver does not tell.
        utilisation: share of the last second in which kernels of it ran, 0 to 1; None: it is not told.
        age_s: since its start; None: it cannot be seen.
        mark: of the job of tenbin that it belongs to (``tree.number_of``); 0: to none, as far as can be seen.
        job: the number of that job, if it is known, and has not been given this GPU; else 0.
    """

    pid: int
    user: str
    command: str
    memory_mb: float | None
    utilisation: float | None
    age_s: float | None
    mark: int = 0
    job: int = 0

    def __str__(self) -> str:
        """Write it for people: ``process 4711 (python3) of ada, 642 MB, 0 %, for 2:06 h``."""
        program = f" ({self.command})" if self.command else ""
        owner = f" of {self.user}" if self.user else ", which this process cannot see"
        owner = f" of job {self.job}, to which it is not given" if self.job else owner
        memory = "" if self.memory_mb is None else f", {self.memory_mb:.0f} MB"
        age = "" if self.age_s is None else f", for {duration(self.age_s)}"
        share = "" if self.utilisation is None else f", {100 * self.utilisation:.0f} %"
        return f"process {self.pid}{program}{owner}{memory}{share}{age}"


@dataclass(frozen=True, slots=True)
class GpuUse:
    """Use of a GPU, or of a part of one (MIG), at one time.

    Attributes:
        uuid: its identity: ``GPU-...`` or ``MIG-...``, or ``PCI-...`` where it has none.
        name: the driver's, of a part with its size. bus: PCI address of the whole GPU, as in sysfs.
        file: its device file. numa_node: the memory that it is near to; None: not known.
        utilisation: share of the last second in which a kernel ran; None: a part has none.
        power_w, energy_j: of the whole GPU, the energy since the driver was loaded; None: it does not tell.
        distances: of other whole GPUs, by PCI address (``nvml.distances``); {}: not read.
        vendor: whose variable tells programs which GPUs they see. seen_as: its word there.
        work: of a watch, share of the time in which processes with each mark ran kernels; None: only that of
            all is known. since_s: from when on ``utilisation`` and ``work`` are means (monotonic clock).
    """

    uuid: str
    name: str
    bus: str
    file: str
    numa_node: int | None
    memory_mb: float
    used_mb: float
    utilisation: float | None
    power_w: float | None
    energy_j: float | None
    holders: tuple[Holder, ...]
    distances: Mapping[str, int] = field(default_factory=dict)
    vendor: str = "NVIDIA"
    seen_as: str = ""
    work: Mapping[int, float] | None = None
    since_s: float = 0.0


def read_gpus(procfs: Path = Path("/proc"), *, energy: bool = False) -> tuple[GpuUse, ...]:
    """Read what each GPU does, and each part of those that are divided, and how near they are to each other.

    Args:
        energy: read the energy too, which takes longest.

    Raises:
        Unavailable: there is no GPU of AMD or Intel, and no NVIDIA driver or library.
    """
    others = DrmWatch(drm.root(), procfs).look()
    library = _library(needed=not others or nvml.expected())
    if library is None:
        return others
    try:
        whole = _whole(library)
        near = {
            nvml.pci_address(library, gpu): nvml.distances(library, gpu, (o for o in whole if o is not gpu))
            for gpu in whole
        }
        uses = _uses(library, procfs, energy)
        return (*(replace(use, distances=near.get(use.bus, {})) for use in uses), *others)
    finally:
        library.nvmlShutdown()


def watch() -> None:
    """Print the GPUs whenever other processes hold them, and every ``TELL_S``, until standard input ends.

    Raises:
        Unavailable: there is no GPU of AMD or Intel, and no NVIDIA driver or library.
    """
    procfs = Path("/proc")
    others = DrmWatch(drm.root(), procfs)
    library = _library(needed=not others.gpus or nvml.expected())
    before: list[tuple[str, tuple[int, ...]]] = []
    looks: dict[str, list[GpuUse]] = {}
    printed_s = -TELL_S
    since_s = time.monotonic() - 1.0
    while True:
        of_others = others.look()
        uses = (*(() if library is None else _uses(library, procfs, energy=False)), *of_others)
        for use in uses:
            looks.setdefault(use.uuid, []).append(use)
        now = [(use.uuid, tuple(sorted(holder.pid for holder in use.holders))) for use in uses]
        if now != before or time.monotonic() >= printed_s + TELL_S:
            before, printed_s = now, time.monotonic()
            uses = (*(() if library is None else _uses(library, procfs, energy=True)), *of_others)
            means = [_mean(use, looks.get(use.uuid, [use]), since_s) for use in uses]
            print(json.dumps([asdict(use) for use in means]), flush=True)
            looks, since_s = {}, printed_s
        if select([sys.stdin], [], [], LOOK_S)[0]:
            return


def _mean(use: GpuUse, looks: Sequence[GpuUse], since_s: float) -> GpuUse:
    """Return the use of a GPU as seen last, with the means of several looks."""
    shares = [look.utilisation for look in looks if look.utilisation is not None]
    work: dict[int, float] | None = {}
    for look in looks:
        of_look: dict[int, float] = {}
        for holder in look.holders:
            if holder.utilisation is None:
                work = None
            else:
                of_look[holder.mark] = of_look.get(holder.mark, 0.0) + holder.utilisation
        if work is not None:
            for mark, share in of_look.items():
                work[mark] = work.get(mark, 0.0) + min(1.0, share) / len(looks)
    mean = sum(shares) / len(shares) if shares else None
    return replace(use, utilisation=mean, work=work, since_s=since_s)


def _library(*, needed: bool) -> Any:
    """Load NVML; None where it is not there, nor ``needed``."""
    try:
        return nvml.load()
    except nvml.NoLibrary:
        if needed:
            raise
        return None


class DrmWatch:
    """Looks what GPUs of AMD and Intel do; how much of the time is seen from the second look on.

    Args:
        root: of the trees in which they are read. procfs: what else is to be known of their processes.
    """

    def __init__(self, root: Path, procfs: Path) -> None:
        self.gpus = drm.gpus(root)
        self._root, self._procfs = root, procfs
        self._before: dict[str, dict[int, drm.Client]] = {}
        self._read_ns = 0

    def look(self) -> tuple[GpuUse, ...]:
        """Read what each GPU does."""
        if not self.gpus:
            return ()
        clients, now_ns = drm.clients(self._root), time.monotonic_ns()
        passed_ns, before = float(now_ns - self._read_ns), self._before
        self._before, self._read_ns = clients, now_ns
        uses = []
        for gpu in self.gpus:
            mine, earlier = clients.get(gpu.bus, {}), before.get(gpu.bus, {})
            shares = {pid: client.share(earlier.get(pid), passed_ns) for pid, client in mine.items()}
            held = {pid: client.memory_bytes for pid, client in mine.items()}
            uses.append(self._use(gpu, held, shares))
        return tuple(uses)

    def _use(self, gpu: drm.DrmGpu, held: Mapping[int, int], shares: Mapping[int, float]) -> GpuUse:
        used, busy = gpu.figure("mem_info_vram_used"), gpu.figure("gpu_busy_percent")
        power = gpu.figure("hwmon/hwmon*/power1_average", "hwmon/hwmon*/power1_input")
        own = f"GPU-{gpu.unique_id}" if gpu.unique_id else ""
        return GpuUse(
            uuid=own or f"PCI-{gpu.bus}",
            name=gpu.name,
            bus=gpu.bus,
            file=gpu.file,
            numa_node=gpu.numa_node,
            memory_mb=gpu.memory_bytes / MB,
            used_mb=(sum(held.values()) if used is None else used) / MB,
            utilisation=min(1.0, sum(shares.values())) if busy is None else busy / 100,
            power_w=None if power is None else power / 1e6,
            energy_j=None,
            holders=tuple(
                _holder(pid, number, shares[pid], self._procfs)
                for pid, number in held.items()
                if number >= HELD_BYTES
                or shares[pid] > 0  # AMD's library opens those too that it does not use
            ),
            vendor=gpu.vendor,
            seen_as=own or str(gpu.index),
        )


def _uses(library: Any, procfs: Path, energy: bool) -> tuple[GpuUse, ...]:
    uses: list[GpuUse] = []
    for gpu in _whole(library):
        with suppress(library.NVMLError):  # it has fallen off the bus
            uses += [_use(library, (gpu, part), procfs, energy) for part in nvml.parts(library, gpu)]
    return tuple(uses)


def _whole(library: Any) -> list[Any]:
    """Return the GPUs that answer."""
    gpus = []
    for number in range(library.nvmlDeviceGetCount()):
        with suppress(library.NVMLError):
            gpu = library.nvmlDeviceGetHandleByIndex(number)
            nvml.pci_address(library, gpu)
            gpus.append(gpu)
    return gpus


def _use(library: Any, handles: tuple[Any, Any], procfs: Path, energy: bool) -> GpuUse:
    gpu, handle = handles
    bus = nvml.pci_address(library, gpu)
    memory = library.nvmlDeviceGetMemoryInfo(handle)
    rates = nvml.figure(library, library.nvmlDeviceGetUtilizationRates, handle)
    power = joules = None
    if handle is gpu:  # a part has none of its own
        power = nvml.figure(library, library.nvmlDeviceGetPowerUsage, gpu)
    if handle is gpu and energy:
        joules = nvml.figure(library, library.nvmlDeviceGetTotalEnergyConsumption, gpu)
    shares = _shares(library, handle)
    held: dict[int, int | None] = {}
    for call in (library.nvmlDeviceGetComputeRunningProcesses, library.nvmlDeviceGetGraphicsRunningProcesses):
        for process in nvml.figure(library, call, handle) or ():
            held[process.pid] = process.usedGpuMemory
    uuid = nvml.text(library.nvmlDeviceGetUUID(handle))
    return GpuUse(
        uuid=uuid,
        name=nvml.text(library.nvmlDeviceGetName(handle)),
        bus=bus,
        file=nvml.device_file(library, gpu),
        numa_node=nvml.numa_node(bus),
        memory_mb=memory.total / MB,
        used_mb=memory.used / MB,
        utilisation=None if rates is None else rates.gpu / 100,
        power_w=None if power is None else power / 1000,
        energy_j=None if joules is None else joules / 1000,
        holders=tuple(
            _holder(pid, used, None if shares is None else shares.get(pid, 0.0), procfs)
            for pid, used in held.items()
        ),
        seen_as=uuid,
    )


def _shares(library: Any, handle: Any) -> dict[int, float] | None:
    """Return the utilisation of each process in the last second; None: it is not told."""
    try:
        samples = library.nvmlDeviceGetProcessUtilization(handle, int((time.time() - 1) * 1e6))
    except library.NVMLError_NotFound:  # no process did anything
        return {}
    except library.NVMLError:
        return None
    return {sample.pid: min(1.0, sample.smUtil / 100) for sample in samples}


def _holder(pid: int, used: int | None, share: float | None, procfs: Path) -> Holder:
    folder = procfs / str(pid)
    try:
        user = user_name(folder.stat().st_uid)
        head, _, rest = (folder / "stat").read_text().rpartition(")")
        command = head.partition("(")[2]
        up_s = float((procfs / "uptime").read_text().split()[0])
        age_s = max(0.0, up_s - int(rest.split()[19]) * TICK_S)
        mark = _mark((folder / "limits").read_text())
    except (OSError, ValueError, IndexError):
        user, command, age_s, mark = "", "", None, 0
    return Holder(
        pid=pid,
        user=user,
        command=command,
        memory_mb=None if used is None else used / MB,
        utilisation=share,
        age_s=age_s,
        mark=mark,
    )


def _mark(limits: str) -> int:
    """Return the limit that jobs of tenbin, and all their processes, are marked by (``tree.Marking``)."""
    for line in limits.splitlines():  # none, if the process is about to be gone
        if line.startswith("Max file locks") and (limit := line.split()[3]).isdecimal():
            return int(limit)
    return 0


if __name__ == "__main__":
    try:
        if sys.argv[1:] == ["watch"]:
            watch()
        else:
            print(json.dumps([asdict(use) for use in read_gpus()]))
    except Unavailable as error:
        sys.exit(str(error))
