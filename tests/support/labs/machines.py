"""Machines made of text files: ``sys``, ``proc`` and ``etc`` as the kernel shows them, for tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from profiles.records import Settings

CacheSpec = tuple[int, str, str, str]  # level, type, size, shared_cpu_list


def ranges(*cpus: int) -> str:
    """Write the kernel's list format, without its abbreviations."""
    return ",".join(str(cpu) for cpu in sorted(cpus))


@dataclass(frozen=True)
class Tree:
    """A machine's files under one folder."""

    root: Path

    @property
    def sysfs(self) -> Path:
        return self.root / "sys"

    @property
    def procfs(self) -> Path:
        return self.root / "proc"

    def settings(self, *storage: Path) -> Settings:
        """Look at this machine instead of the real one."""
        folders = storage or (self.root / "checkpoints",)
        folders[0].mkdir(exist_ok=True)
        return Settings(sysfs=self.sysfs, procfs=self.procfs, storage=folders, emulated="test")

    def put(self, path: str, text: str | int) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
        return file

    def link(self, path: str, target: str) -> None:
        """Make a link as in sysfs; ``target`` is below this tree, or any text (as in /proc/self/ns)."""
        link = self.root / path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(self.root / target if "/" in target else target)

    def cpu(
        self,
        cpu: int,
        *,
        package: int = 0,
        die: int = 0,
        siblings: str,
        caches: list[CacheSpec],
        **more: str | int,
    ) -> None:
        """One logical CPU; ``more`` are further files, ``__`` for a slash."""
        folder = f"sys/devices/system/cpu/cpu{cpu}"
        files = {"physical_package_id": package, "die_id": die, "core_cpus_list": siblings}
        for name, value in files.items():
            self.put(f"{folder}/topology/{name}", value)
        self.put(f"{folder}/topology/thread_siblings_list", siblings)
        for index, (level, kind, size, shared) in enumerate(caches):
            cache = f"sys/caches/L{level}-{kind}-{shared}"  # one folder for all CPUs that share it
            if not (self.root / cache).exists():
                texts = {"level": level, "type": kind, "size": size, "shared_cpu_list": shared}
                for name, value in texts.items():
                    self.put(f"{cache}/{name}", value)
            self.link(f"{folder}/cache/index{index}", cache)
        for name, value in more.items():
            self.put(f"{folder}/{name.replace('__', '/')}", value)

    def cpus(self, n: int) -> None:
        """Write the CPUs that exist and may be used."""
        for name in ("online", "present", "possible"):
            self.put(f"sys/devices/system/cpu/{name}", f"0-{n - 1}")
        self.put("sys/devices/system/cpu/offline", "")
        self.put("proc/self/status", f"Name:\tpython\nCpus_allowed_list:\t0-{n - 1}")

    def cpuinfo(self, n: int, model: str, vendor: str, flags: str = "fpu tsc") -> None:
        block = f"processor\t: %d\nvendor_id\t: {vendor}\nmodel name\t: {model}\nflags\t\t: {flags}\n"
        self.put("proc/cpuinfo", "\n".join(block % cpu for cpu in range(n)))

    def memory(self, gib: float) -> None:
        kb = int(gib * 2**20)
        self.put(
            "proc/meminfo", f"MemTotal: {kb:>14} kB\nMemFree: {kb // 2:>15} kB\nMemAvailable: {kb // 2} kB"
        )

    def node(self, index: int, cpus: str, gib: float, distances: str) -> None:
        folder = f"sys/devices/system/node/node{index}"
        self.put(f"{folder}/cpulist", cpus)
        self.put(f"{folder}/meminfo", f"Node {index} MemTotal:       {int(gib * 2**20)} kB")
        self.put(f"{folder}/distance", distances)

    def system(self, kernel: str = "6.1.0-18-amd64", clock: str = "tsc") -> None:
        self.put("proc/sys/kernel/osrelease", kernel)
        self.put("proc/sys/kernel/hostname", self.root.name)
        self.put("etc/os-release", 'NAME="Example"\nPRETTY_NAME="Example Linux 1 (demo)"')
        self.put("sys/devices/system/clocksource/clocksource0/current_clocksource", clock)
        self.put("sys/devices/system/clocksource/clocksource0/available_clocksource", f"{clock} hpet acpi_pm")
        self.put("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never")
        for name in ("pid:[4026531836]", "cgroup:[4026531835]"):
            self.link(f"proc/self/ns/{name.partition(':')[0]}", name)
        self.put("proc/1/cgroup", "0::/init.scope")
        self.put("proc/self/cgroup", "0::/user.slice/session")
        self.put("proc/loadavg", "0.10 0.20 0.30 1/100 1000")
        self.put("proc/stat", "cpu  100 0 50 99000 10 0 5 0 0 0")
        self.pressure("cpu", 0.0)

    def pressure(self, resource: str, percent: float) -> None:
        self.put(f"proc/pressure/{resource}", f"some avg10={percent:.2f} avg60=0.00 avg300=0.00 total=1")

    def zone(self, path: str, name: str, *, cap_w: float | None = None, energy_uj: int = 10**9) -> None:
        """Make a powercap zone, ``path`` like ``intel-rapl:0:1``."""
        folder = f"sys/class/powercap/{path}"
        self.put(f"{folder}/name", name)
        self.put(f"{folder}/energy_uj", energy_uj)
        self.put(f"{folder}/max_energy_range_uj", 262143328850)
        self.put(f"{folder}/enabled", 1)
        if cap_w is not None:
            self.put(f"{folder}/constraint_0_name", "long_term")
            self.put(f"{folder}/constraint_0_power_limit_uw", int(cap_w * 1e6))
            self.put(f"{folder}/constraint_0_time_window_us", 999424)
            self.put(f"{folder}/constraint_0_max_power_uw", int(cap_w * 1e6))

    def disk(self, name: str, number: str, path: str, *, rotational: int = 0, model: str = "") -> str:
        """Make a disk at ``path`` below sys/devices; return that path, for further files of the disk."""
        folder = f"sys/devices/{path}/block/{name}"
        self.put(f"{folder}/queue/rotational", rotational)
        if model:
            self.put(f"{folder}/device/model", model)
        self.link(f"sys/dev/block/{number}", folder)
        self.link(f"sys/class/block/{name}", folder)
        return folder

    def partition(self, disk: str, name: str, number: str) -> str:
        folder = f"{disk}/{name}"
        self.put(f"{folder}/partition", 1)
        self.link(f"sys/dev/block/{number}", folder)
        self.link(f"sys/class/block/{name}", folder)
        return folder

    def mounts(self, *mounts: tuple[str, str, str, str] | tuple[str, str, str, str, str]) -> None:
        """``mountinfo`` from (number, point, file system, source[, options])."""
        lines = []
        for i, (number, point, filesystem, source, *options) in enumerate(mounts):
            end = options[0] if options else "rw"
            lines.append(f"{30 + i} 1 {number} / {point} rw,relatime shared:1 - {filesystem} {source} {end}")
        self.put("proc/self/mountinfo", "\n".join(lines))

    def interface(self, name: str, driver: str, *, speed: int = -1, numa_node: int = -1) -> None:
        pci = f"sys/devices/pci0000:00/0000:00:0{len(name)}.0"
        self.put(f"{pci}/numa_node", numa_node)
        self.put(f"sys/bus/pci/drivers/{driver}/bind", "")
        self.link(f"{pci}/driver", f"sys/bus/pci/drivers/{driver}")
        self.put(f"{pci}/net/{name}/speed", speed)
        self.link(f"{pci}/net/{name}/device", pci)
        self.link(f"sys/class/net/{name}", f"{pci}/net/{name}")


def intel_two_sockets(root: Path) -> Tree:
    """2 sockets x 4 cores x 2 threads, a NUMA node and an L3 each, caps; second threads are numbered last."""
    tree = Tree(root)
    for cpu in range(16):
        core = cpu % 8
        package, pair = core // 4, ranges(core, core + 8)
        socket = ranges(*(c for c in range(16) if c % 8 // 4 == package))
        caches = [
            (1, "Data", "48K", pair),
            (1, "Instruction", "32K", pair),
            (2, "Unified", "2048K", pair),
            (3, "Unified", "30720K", socket),
        ]
        more: dict[str, str | int] = {
            "cpufreq__scaling_governor": "powersave",
            "cpufreq__cpuinfo_max_freq": 3500000,
        }
        tree.cpu(cpu, package=package, siblings=pair, caches=caches, **more)
    tree.cpus(16)
    tree.cpuinfo(16, "Intel(R) Xeon(R) Example  8000 CPU @ 2.00GHz", "GenuineIntel")
    tree.memory(64)
    tree.node(0, "0-3,8-11", 32, "10 21")
    tree.node(1, "4-7,12-15", 32, "21 10")
    tree.put("sys/devices/system/node/has_memory", "0-1")
    tree.system()
    tree.put("proc/sys/kernel/numa_balancing", 1)
    tree.put("sys/devices/system/cpu/intel_pstate/no_turbo", 0)
    for package in (0, 1):
        tree.zone(f"intel-rapl:{package}", f"package-{package}", cap_w=150.0)
        tree.zone(f"intel-rapl:{package}:0", "dram")
    tree.interface("eth0", "ice", speed=25000, numa_node=1)
    tree.put("sys/class/infiniband/mlx5_0/ports/1/rate", "200 Gb/sec (4X HDR)")
    disk = tree.disk("nvme0n1", "259:0", "pci0000:00/0000:00:09.0/nvme/nvme0", model="Example SSD 2TB")
    tree.partition(disk, "nvme0n1p2", "259:2")
    tree.mounts(
        ("259:2", "/", "ext4", "/dev/nvme0n1p2"),
        ("0:30", "/dev/shm", "tmpfs", "tmpfs", "rw,size=33554432k"),
    )
    return tree


def amd_many_caches(root: Path) -> Tree:
    """1 socket x 16 cores, SMT off, 4 L3 of 4 cores; energy counters without caps."""
    tree = Tree(root)
    for cpu in range(16):
        first = cpu // 4 * 4
        caches = [
            (1, "Data", "32K", str(cpu)),
            (1, "Instruction", "32K", str(cpu)),
            (2, "Unified", "1024K", str(cpu)),
            (3, "Unified", "32M", f"{first}-{first + 3}"),
        ]
        governor = {"cpufreq__scaling_governor": "performance", "cpufreq__cpuinfo_max_freq": 3400000}
        tree.cpu(cpu, siblings=str(cpu), caches=caches, **governor)
    tree.cpus(16)
    tree.put("sys/devices/system/cpu/cpufreq/boost", 0)
    tree.cpuinfo(16, "AMD EPYC 9000 Example", "AuthenticAMD")
    tree.memory(128)
    tree.node(0, "0-15", 128, "10")
    tree.system()
    tree.zone("intel-rapl:0", "package-0")
    tree.zone("intel-rapl:0:0", "core")
    tree.mounts(("8:1", "/", "xfs", "/dev/sda1"))
    tree.partition(
        tree.disk("sda", "8:0", "pci0000:00/ata1", rotational=1, model="Example HDD"), "sda1", "8:1"
    )
    return tree


def intel_hybrid(root: Path) -> Tree:
    """4 performance cores with SMT (CPUs 0-7), 8 efficiency cores with L2 shared by 4; locked caps."""
    tree = Tree(root)
    for cpu in range(16):
        fast = cpu < 8
        own = ranges(cpu // 2 * 2, cpu // 2 * 2 + 1) if fast else str(cpu)
        first = cpu // 4 * 4
        module = own if fast else f"{first}-{first + 3}"
        caches = [
            (1, "Data", "48K" if fast else "32K", own),
            (1, "Instruction", "32K" if fast else "64K", own),
            (2, "Unified", "1280K" if fast else "2048K", module),
            (3, "Unified", "24M", "0-15"),
        ]
        governor = {"cpufreq__scaling_governor": "powersave", "cpufreq__cpuinfo_max_freq": 5000000}
        tree.cpu(cpu, siblings=own, caches=caches, **governor)
    tree.cpus(16)
    tree.put("sys/devices/cpu_core/cpus", "0-7")
    tree.put("sys/devices/cpu_atom/cpus", "8-15")
    tree.put("sys/devices/system/cpu/intel_pstate/no_turbo", 1)
    tree.cpuinfo(16, "12th Gen Intel(R) Core(TM) Example", "GenuineIntel")
    tree.memory(16)
    tree.node(0, "0-15", 16, "10")
    tree.system()
    tree.zone("intel-rapl:0", "package-0", cap_w=125.0)
    tree.zone("intel-rapl:0:0", "core")
    tree.zone("intel-rapl-mmio:0", "package-0", cap_w=65.0)
    register = tree.put("dev/cpu/0/msr", "")
    with register.open("r+b") as file:
        file.seek(0x610)
        file.write((1 << 63 | 0x1234).to_bytes(8, "little"))
    tree.mounts(("0:40", "/", "tmpfs", "tmpfs"))
    return tree


def arm_big_little(root: Path) -> Tree:
    """4 slow and 4 fast cores; no frequency driver, no powercap, caches without sizes, a slow clock."""
    tree = Tree(root)
    blocks = []
    for cpu in range(8):
        part = "0xd03" if cpu < 4 else "0xd08"
        blocks.append(f"processor\t: {cpu}\nCPU implementer\t: 0x41\nCPU part\t: {part}\nFeatures\t: fp\n")
        tree.cpu(
            cpu,
            package=0,
            siblings=str(cpu),
            caches=[(1, "Data", "", str(cpu))],
            cpu_capacity=446 if cpu < 4 else 1024,
        )
    tree.cpus(8)
    tree.put("proc/cpuinfo", "\n".join(blocks))
    tree.put("proc/sys/kernel/arch", "aarch64")
    tree.memory(8)
    tree.system(kernel="6.6.0", clock="jiffies")
    tree.put("sys/devices/system/cpu/offline", "")
    tree.mounts(("179:2", "/", "ext4", "/dev/mmcblk0p2"))
    tree.partition(tree.disk("mmcblk0", "179:0", "platform/mmc0"), "mmcblk0p2", "179:2")
    return tree


def virtual_machine(root: Path) -> Tree:
    """Make a guest that is told nothing: no topology, no caches, no NUMA, no powercap."""
    tree = Tree(root)
    tree.cpuinfo(4, "QEMU Virtual CPU version 2.5+", "GenuineIntel", "fpu tsc hypervisor")
    tree.put("proc/self/status", "Cpus_allowed_list:\t0-3")
    tree.memory(4)
    tree.put("etc/os-release", "ID=none")
    tree.put("sys/devices/system/clocksource/clocksource0/available_clocksource", "kvm-clock tsc")
    tree.put("sys/devices/system/clocksource/clocksource0/current_clocksource", "kvm-clock")
    tree.mounts(("254:1", "/", "ext4", "/dev/vda1"))
    tree.partition(tree.disk("vda", "254:0", "pci0000:00/virtio0", rotational=1), "vda1", "254:1")
    tree.put("proc/stat", "cpu  1000 0 500 9000 0 0 0 500 0 0")
    tree.put("proc/loadavg", "3.90 2.00 1.00 5/100 1000")
    tree.pressure("cpu", 40.0)
    tree.pressure("io", 25.0)
    return tree


def docker_on_intel(root: Path) -> Tree:
    """Make the two-socket machine seen from a container: 4 CPUs in the mask, 2.5 cores of quota, 2 GiB."""
    tree = intel_two_sockets(root)
    tree.put("proc/self/status", "Cpus_allowed_list:\t0-3")
    tree.put("proc/self/cgroup", "0::/")
    tree.put("sys/fs/cgroup/cpu.max", "250000 100000")
    tree.put("sys/fs/cgroup/memory.max", 2 * 2**30)
    tree.put(".dockerenv", "")
    (tree.root / "proc/self/ns/pid").unlink()
    tree.link("proc/self/ns/pid", "pid:[4026532415]")
    for zone in (tree.sysfs / "class/powercap").iterdir():
        for file in zone.iterdir():
            file.unlink()
        zone.rmdir()
    tree.mounts(
        ("0:50", "/", "overlay", "overlay", "rw,lowerdir=/a,upperdir=/b,workdir=/c"),
        ("0:51", "/dev/shm", "tmpfs", "shm", "rw,size=65536k"),
    )
    return tree


MACHINES: dict[str, Callable[[Path], Tree]] = {
    make.__name__: make
    for make in (
        intel_two_sockets,
        amd_many_caches,
        intel_hybrid,
        arm_big_little,
        virtual_machine,
        docker_on_intel,
    )
}

Pristine = Callable[[Callable[[Path], Tree]], Tree]  # the fixture of that name
