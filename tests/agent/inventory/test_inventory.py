"""The inventory against made-up machines of known truth; on this one against lscpu, findmnt, psutil."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.inventory import (
    Roots,
    ask,
    gather,
    mount_of,
    read_container,
    read_cpu,
    read_distribution,
    read_limits,
    read_machine,
    read_memory_mb,
    read_mounts,
    read_network,
    read_numa,
    read_storage,
    read_virtualisation,
)
from agent.node_profile.identity import explain, fingerprint
from probes.folders import inspect_folder
from probes.topology import cpu_list, cpu_ranges
from profiles.records import Cache, Inventory, Limits, Mpi, NetworkInterface, PowerZone, Settings, Storage
from tests.support.amounts import examples
from tests.support.labs.components import require
from tests.support.labs.machines import (
    MACHINES,
    Pristine,
    Tree,
    amd_many_caches,
    arm_big_little,
    docker_on_intel,
    intel_hybrid,
    intel_two_sockets,
    ranges,
    virtual_machine,
)
from tests.support.records import make_device, make_gpu


def roots(tree: Tree) -> Roots:
    return Roots.of(tree.settings())


# --- processors ---------------------------------------------------------------------------------------------


def test_two_sockets_with_smt(pristine: Pristine) -> None:
    cpu = read_cpu(roots(pristine(intel_two_sockets)))
    assert (cpu.sockets, cpu.dies, cpu.cores, cpu.threads, cpu.smt) == (2, 2, 8, 16, True)
    assert cpu.model == "Intel(R) Xeon(R) Example 8000 CPU @ 2.00GHz"
    assert (cpu.vendor, cpu.governor, cpu.turbo, cpu.max_mhz) == ("GenuineIntel", "powersave", True, 3500.0)
    assert cpu.core_kinds == {"core": 8}
    assert cpu.caches == (
        Cache(level=1, kind="data", size_kb=48, instances=8, shared_by_cpus=2),
        Cache(level=1, kind="instruction", size_kb=32, instances=8, shared_by_cpus=2),
        Cache(level=2, kind="unified", size_kb=2048, instances=8, shared_by_cpus=2),
        Cache(level=3, kind="unified", size_kb=30720, instances=2, shared_by_cpus=8),
    )


def test_several_last_level_caches_in_one_socket(pristine: Pristine) -> None:
    cpu = read_cpu(roots(pristine(amd_many_caches)))
    assert (cpu.sockets, cpu.cores, cpu.smt, cpu.turbo) == (1, 16, False, False)
    assert cpu.caches[-1] == Cache(level=3, kind="unified", size_kb=32768, instances=4, shared_by_cpus=4)


def test_hybrid_cores_and_their_caches(pristine: Pristine) -> None:
    cpu = read_cpu(roots(pristine(intel_hybrid)))
    assert cpu.core_kinds == {"performance": 4, "efficiency": 8}
    assert (cpu.cores, cpu.threads, cpu.smt) == (12, 16, True)
    second = [(c.size_kb, c.instances, c.shared_by_cpus) for c in cpu.caches if c.level == 2]
    assert second == [(1280, 4, 2), (2048, 2, 4)]


def test_big_little(pristine: Pristine) -> None:
    cpu = read_cpu(roots(pristine(arm_big_little)))
    assert cpu.core_kinds == {"little": 4, "big": 4}
    assert cpu.model == "ARM Cortex-A53 + ARM Cortex-A72"
    assert (cpu.architecture, cpu.vendor, cpu.governor) == ("aarch64", "ARM", None)
    assert cpu.caches == ()  # the firmware tells no sizes


def test_nothing_in_sysfs(pristine: Pristine) -> None:
    cpu = read_cpu(roots(pristine(virtual_machine)))
    assert (cpu.sockets, cpu.cores, cpu.threads, cpu.smt, cpu.caches) == (1, 4, 4, False, ())


def test_an_offline_cpu_is_not_counted(tmp_path: Path) -> None:
    tree = amd_many_caches(tmp_path)
    shutil.rmtree(tree.sysfs / "devices/system/cpu/cpu7/topology")
    assert read_cpu(roots(tree)).threads == 15


@settings(max_examples=15)
@given(
    sockets=st.integers(1, 2),
    cores=st.integers(1, 3),
    threads=st.integers(1, 2),
    sharing=st.integers(1, 3),
)
def test_any_topology(
    tmp_path_factory: pytest.TempPathFactory, sockets: int, cores: int, threads: int, *, sharing: int
) -> None:
    """``sharing`` cores of a socket have one L2; a thread's number has nothing to do with its place."""
    tree = Tree(tmp_path_factory.mktemp("machine"))
    places = [(s, c, t) for t in range(threads) for c in range(cores) for s in range(sockets)]
    number = {place: cpu for cpu, place in enumerate(places)}
    for (socket, core, _), cpu in number.items():
        own = ranges(*(number[socket, core, t] for t in range(threads)))
        group = [c for c in range(cores) if c // sharing == core // sharing]
        shared = ranges(*(number[socket, c, t] for c in group for t in range(threads)))
        tree.cpu(cpu, package=socket, siblings=own, caches=[(2, "Unified", "1M", shared)])
    cpu_found = read_cpu(roots(tree))
    assert (cpu_found.sockets, cpu_found.cores, cpu_found.threads) == (
        sockets,
        sockets * cores,
        sockets * cores * threads,
    )
    assert cpu_found.smt == (threads > 1)
    assert sum(c.instances for c in cpu_found.caches) == sockets * -(-cores // sharing)
    assert sum(c.instances * c.shared_by_cpus for c in cpu_found.caches) == cpu_found.threads


@given(st.sets(st.integers(0, 300)))
def test_cpu_lists_there_and_back(cpus: set[int]) -> None:
    assert cpu_list(cpu_ranges(cpus)) == tuple(sorted(cpus))


def test_this_machine_as_lscpu_sees_it() -> None:
    require(shutil.which("lscpu"), "lscpu (util-linux)")
    cpu = read_cpu(Roots.of(Settings()))
    listing = subprocess.run(
        ["lscpu", "--parse=CPU,CORE,SOCKET"], capture_output=True, text=True, check=True
    ).stdout
    rows = [tuple(line.split(",")) for line in listing.splitlines() if not line.startswith("#")]
    assert cpu.threads == len(rows)
    assert cpu.sockets == len({socket for _, _, socket in rows})
    assert cpu.cores == len({(socket, core) for _, core, socket in rows})
    told = subprocess.run(["lscpu", "-J", "-B", "-C"], capture_output=True, text=True, check=True).stdout
    sizes = {(c["level"], int(c["one-size"]) // 1024) for c in json.loads(told)["caches"]}
    assert {(c.level, c.size_kb) for c in cpu.caches} == sizes


# --- memory and limits --------------------------------------------------------------------------------------


def test_numa_nodes(pristine: Pristine) -> None:
    nodes = read_numa(roots(pristine(intel_two_sockets)))
    assert [node.cpus for node in nodes] == [(0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15)]
    assert [node.distances for node in nodes] == [(10, 21), (21, 10)]
    assert nodes[0].memory_mb == pytest.approx(32 * 2**30 / 1e6, abs=0.1)
    assert read_numa(roots(pristine(virtual_machine))) == ()


def test_memory_as_psutil_sees_it() -> None:
    assert read_memory_mb(Roots.of(Settings())) == pytest.approx(psutil.virtual_memory().total / 1e6, abs=0.1)


def test_no_limits_are_none(pristine: Pristine) -> None:
    assert read_limits(roots(pristine(intel_two_sockets)), 16, 64000.0) == Limits()


def test_limits_of_a_container(pristine: Pristine) -> None:
    found = read_limits(roots(pristine(docker_on_intel)), 16, 64000.0)
    assert found == Limits(threads=4, quota_cores=2.5, memory_mb=2147.5)


def test_limits_of_version_1_and_of_a_parent(tmp_path: Path) -> None:
    tree = intel_two_sockets(tmp_path)
    tree.put("proc/self/cgroup", "4:memory:/batch/job7\n3:cpu,cpuacct:/batch/job7\n0::/batch/job7")
    tree.put("sys/fs/cgroup/cpu,cpuacct/batch/job7/cpu.cfs_quota_us", -1)
    tree.put("sys/fs/cgroup/cpu,cpuacct/batch/job7/cpu.cfs_period_us", 100000)
    tree.put(
        "sys/fs/cgroup/cpu,cpuacct/batch/cpu.cfs_quota_us", 300000
    )  # the tightest is above the job's own
    tree.put("sys/fs/cgroup/cpu,cpuacct/batch/cpu.cfs_period_us", 100000)
    tree.put("sys/fs/cgroup/memory/batch/job7/memory.limit_in_bytes", 9223372036854771712)
    tree.put("sys/fs/cgroup/memory/batch/memory.limit_in_bytes", 10**9)
    assert read_limits(roots(tree), 16, 64000.0) == Limits(quota_cores=3.0, memory_mb=1000.0)


def test_affinity_of_a_real_process() -> None:
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from agent.inventory import Roots\n"
        "from agent.inventory import read_limits\n"
        "from profiles.records import Settings\n"
        "print(read_limits(Roots.of(Settings()), 1000, 1e12).threads)"
    )
    command = [sys.executable, "-P", "-c", code]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "1"


# --- system -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"proc/cpuinfo": "flags: fpu tsc", "sys/class/dmi/id/sys_vendor": "Amazon EC2"}, "none"),
        ({"proc/cpuinfo": "flags: fpu hypervisor"}, "vm"),
        ({"proc/cpuinfo": "flags: hypervisor", "sys/class/dmi/id/product_name": "VMware7,1"}, "vmware"),
        ({"proc/cpuinfo": "flags: hypervisor", "sys/class/dmi/id/product_name": "VirtualBox"}, "virtualbox"),
        ({"proc/cpuinfo": "flags: hypervisor", "sys/class/dmi/id/sys_vendor": "QEMU"}, "qemu"),
        ({"proc/cpuinfo": "flags: hypervisor", "sys/hypervisor/type": "xen"}, "xen"),
        ({"proc/xen/capabilities": "control_d", "sys/hypervisor/type": "xen"}, "none"),
        ({"proc/cpuinfo": "Features: fp", "sys/class/dmi/id/sys_vendor": "QEMU"}, "qemu"),
        ({"proc/cpuinfo": "Features: fp", "proc/device-tree/hypervisor/compatible": "linux,kvm"}, "kvm"),
        (
            {
                "proc/cpuinfo": "Features: fp",
                "sys/class/dmi/id/sys_vendor": "Amazon EC2",
                "sys/class/dmi/id/product_name": "c7g.metal",
            },
            "none",
        ),
        ({"proc/cpuinfo": "Features: fp"}, "none"),
    ],
)
def test_hypervisors(tmp_path: Path, files: dict[str, str], expected: str) -> None:
    tree = Tree(tmp_path)
    for path, text in files.items():
        tree.put(path, text)
    assert read_virtualisation(roots(tree)) == expected


def test_hypervisor_of_this_machine_as_systemd_sees_it() -> None:
    if not shutil.which("systemd-detect-virt"):
        pytest.skip("systemd-detect-virt (systemd) is not installed")
    command = ["systemd-detect-virt", "--vm"]  # exit code 1 where there is none
    told = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    assert (read_virtualisation(Roots.of(Settings())) == "none") == (told == "none")


def test_containers(tmp_path: Path, pristine: Pristine) -> None:
    assert read_container(roots(pristine(docker_on_intel))) == "docker"
    leftover = intel_two_sockets(tmp_path / "b")
    leftover.put(".dockerenv", "")  # an image turned into a machine's disk
    assert read_container(roots(leftover)) == "none"
    for text, expected in (
        ("0::/kubepods/pod1", "kubernetes"),
        ("1:cpu:/docker/a1b2", "docker"),
        ("0::/", "none"),
    ):
        leftover.put("proc/1/cgroup", text)
        assert read_container(roots(leftover)) == expected


def test_apptainer_tells_by_a_variable(pristine: Pristine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APPTAINER_CONTAINER", "/images/x.sif")
    assert read_container(roots(pristine(intel_two_sockets))) == "apptainer"


def test_distribution(pristine: Pristine) -> None:
    assert read_distribution(roots(pristine(intel_two_sockets))) == "Example Linux 1 (demo)"
    assert read_distribution(roots(pristine(virtual_machine))) == "unknown"


# --- network ------------------------------------------------------------------------------------------------


def test_interfaces(tmp_path: Path) -> None:
    tree = intel_two_sockets(tmp_path)
    tree.put("sys/class/net/lo/operstate", "unknown")
    tree.put("sys/class/net/br0/operstate", "up")
    tree.put("sys/class/net/veth9/operstate", "down")
    assert read_network(roots(tree)) == (
        NetworkInterface(name="br0", speed_mbit=None, numa_node=None, driver=None, virtual=True),
        NetworkInterface(name="eth0", speed_mbit=25000.0, numa_node=1, driver="ice"),
        NetworkInterface(name="mlx5_0/1", speed_mbit=200000.0, numa_node=None, driver=None),
    )


def test_interfaces_of_this_machine_as_psutil_sees_them() -> None:
    known = psutil.net_if_stats()
    for interface in read_network(Roots.of(Settings())):
        if "/" not in interface.name:
            assert interface.name in known
            assert interface.speed_mbit in (None, float(known[interface.name].speed))


# --- storage ------------------------------------------------------------------------------------------------


def storage_on(tree: Tree, tmp_path: Path, filesystem: str, source: str, *, number: str) -> Storage:
    tree.root.mkdir(exist_ok=True)
    folder = tmp_path / "data" / "checkpoints here"
    folder.mkdir(parents=True, exist_ok=True)
    escaped = str(tmp_path / "data").replace(" ", r"\040")
    tree.mounts(("8:1", "/", "ext4", "/dev/other"), (number, escaped, filesystem, source))
    return read_storage(roots(tree), folder)


@pytest.mark.parametrize(
    ("name", "path", "rotational", "model", "expected"),
    [
        ("nvme0n1", "pci0000:00/nvme/nvme0", 0, "Example SSD", "nvme"),
        ("nvme1n1", "pci0000:00/nvme/nvme1", 0, "Amazon Elastic Block Store", "network"),
        ("sda", "pci0000:00/ata1", 0, "Example SSD", "ssd"),
        ("sdb", "pci0000:00/ata2", 1, "Example HDD", "hdd"),
        ("sdc", "pci0000:00/ata3", 1, "QEMU HARDDISK", "virtual"),
        ("vda", "pci0000:00/virtio1", 1, "", "virtual"),
        ("zram0", "virtual", 0, "", "memory"),
        ("rbd0", "virtual", 0, "", "network"),
    ],
)
def test_kinds_of_disk(
    tmp_path: Path, name: str, path: str, rotational: int, *, model: str, expected: str
) -> None:
    tree = Tree(tmp_path / "machine")
    tree.partition(tree.disk(name, "9:0", path, rotational=rotational, model=model), f"{name}p1", "9:1")
    found = storage_on(tree, tmp_path, "ext4", f"/dev/{name}p1", number="9:1")
    assert (found.kind, found.model, found.device) == (expected, model or None, f"/dev/{name}p1")


@pytest.mark.parametrize(
    ("filesystem", "expected"),
    [
        ("nfs4", "network"),
        ("lustre", "network"),
        ("tmpfs", "memory"),
        ("virtiofs", "virtual"),
        ("overlay", "unknown"),
    ],
)
def test_kinds_of_file_system(tmp_path: Path, filesystem: str, expected: str) -> None:
    tree = Tree(tmp_path / "machine")
    assert storage_on(tree, tmp_path, filesystem, "server:/export", number="0:44").kind == expected


def test_a_disk_under_encryption_on_a_partition(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "machine")
    disk = tree.disk("nvme0n1", "259:0", "pci0000:00/nvme/nvme0", model="Example SSD")
    partition = tree.partition(disk, "nvme0n1p3", "259:3")
    mapped = tree.disk("dm-0", "253:0", "virtual")
    tree.link(f"{mapped}/slaves/nvme0n1p3", partition)
    found = storage_on(tree, tmp_path, "ext4", "/dev/mapper/crypt", number="253:0")
    assert (found.kind, found.model) == ("nvme", "Example SSD")


def test_a_made_up_device_number_is_found_by_its_source(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "machine")
    tree.partition(tree.disk("sda", "8:0", "pci0000:00/ata1", model="Example SSD"), "sda2", "8:2")
    assert storage_on(tree, tmp_path, "btrfs", "/dev/sda2", number="0:27").kind == "ssd"


def test_nvme_over_fabrics_is_network(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "machine")
    disk = tree.disk("nvme0n1", "259:0", "virtual/nvme-fabrics/ctl/nvme0", model="Linux")
    tree.put(f"{disk}/device/transport", "tcp")
    assert storage_on(tree, tmp_path, "xfs", "/dev/nvme0n1", number="259:0").kind == "network"


def test_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    found = read_storage(Roots.of(Settings()), tmp_path / "a" / "b")
    assert found.folder == str(tmp_path / "a" / "b")
    assert found.writable
    assert not (tmp_path / "a").exists()


def test_a_folder_that_cannot_be_looked_at(tmp_path: Path) -> None:
    found = read_storage(Roots.of(Settings()), tmp_path / ("x" * 300))  # the name alone is refused
    assert found.free_mb > 0


def test_a_folder_that_may_not_be_looked_into(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may look everywhere")
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o000)
    assert not read_storage(Roots.of(Settings()), closed / "checkpoints").writable


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert not read_storage(Roots.of(Settings()), tmp_path / "file").writable


def test_looking_at_a_folder_leaves_nothing(tmp_path: Path) -> None:
    assert inspect_folder(tmp_path).is_folder
    assert list(tmp_path.iterdir()) == []
    assert not inspect_folder(Path("/proc")).direct_io


def test_mounts_of_this_machine_as_findmnt_sees_them(tmp_path: Path) -> None:
    require(shutil.which("findmnt"), "findmnt (util-linux)")
    for folder in (tmp_path, Path("/"), Path("/dev/shm"), Path("/proc")):
        command = ["findmnt", "-n", "-o", "FSTYPE,SOURCE", "--target", folder]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        require(done.returncode == 0, f"a mount that holds {folder} (a chroot shows none)")
        told = done.stdout.split()
        mount = mount_of(folder.resolve(), read_mounts(Roots.of(Settings())))
        assert mount is not None
        assert mount.filesystem == told[-2]
        assert told[-1].startswith(mount.source)


# --- drivers ------------------------------------------------------------------------------------------------


def test_no_opencl_platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCL_ICD_VENDORS", str(tmp_path))
    answer = ask("opencl")
    assert answer.opencl == ()
    assert [m.what for m in answer.missing] == ["opencl"]
    assert answer.missing[0].remedy


def test_a_driver_that_aborts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = shutil.which("cc")
    require(compiler, "a C compiler")
    source = tmp_path / "broken.c"
    source.write_text(
        "#include <stdlib.h>\n__attribute__((constructor)) static void start(void) { abort(); }\n"
    )
    library = tmp_path / "libbroken.so"
    subprocess.run([str(compiler), "-shared", "-fPIC", "-o", library, source], check=True)
    (tmp_path / "broken.icd").write_text(f"{library}\n")
    monkeypatch.setenv("OCL_ICD_VENDORS", str(tmp_path))
    answer = ask("opencl")
    assert answer.opencl == ()
    assert answer.missing[0].reason == "its driver died of SIGABRT"


def test_a_driver_that_hangs() -> None:
    began = time.monotonic()
    answer = ask("opencl", timeout_s=0.001)
    assert "has not answered" in answer.missing[0].reason
    assert time.monotonic() - began < 60


# --- the whole ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def inventory(tmp_path_factory: pytest.TempPathFactory) -> Inventory:
    """Make the two-socket machine, with devices of every kind."""
    tree = intel_two_sockets(tmp_path_factory.mktemp("intel"))
    found = read_machine(tree.settings())
    device = make_device(name="pthread-example", compute_units=16)
    gpu = make_gpu(driver="550.1")
    mpi = Mpi(library="MPICH 5.0.2", launcher="/usr/bin/mpiexec")
    return found.model_copy(update={"opencl": (device,), "gpus": (gpu,), "mpi": mpi})


def test_only_the_tree_is_read(inventory: Inventory) -> None:
    assert inventory.kernel == "6.1.0-18-amd64"
    assert inventory.distribution == "Example Linux 1 (demo)"
    assert (inventory.virtualisation, inventory.container) == ("none", "none")
    assert inventory.tuning.huge_pages == "madvise"
    assert inventory.tuning.numa_balancing is True
    assert (inventory.storage[0].kind, inventory.storage[0].model) == ("nvme", "Example SSD 2TB")
    zones = {zone.name: zone for zone in inventory.power}
    assert list(zones) == ["package-0", "package-0/dram", "package-1", "package-1/dram"]
    assert zones["package-0"] == PowerZone(
        name="package-0",
        path=zones["package-0"].path,
        cap_w=150.0,
        cap_max_w=150.0,
        readable=True,
        writable=True,
    )


@pytest.mark.parametrize("name", MACHINES)
def test_every_machine_can_be_read_and_kept(pristine: Pristine, name: str) -> None:
    found = read_machine(pristine(MACHINES[name]).settings())
    again = Inventory.model_validate_json(found.model_dump_json())
    assert again == found
    assert fingerprint(again) == fingerprint(found)
    assert sum(found.cpu.core_kinds.values()) == found.cpu.cores


def test_gather_on_this_machine(tmp_path: Path) -> None:
    found = gather(Settings(storage=(tmp_path,)))
    assert found.hostname
    assert found.kernel == os.uname().release
    assert found.cpu.threads >= 1
    assert found.memory_mb > 0
    assert found.storage[0].free_mb > 0
    assert found.opencl or [m for m in found.missing if m.what == "opencl"]
    assert found.mpi or [m for m in found.missing if m.what == "mpi"]


# --- fingerprint --------------------------------------------------------------------------------------------


def changed(inventory: Inventory, path: str, value: Any) -> Inventory:
    """Copy the inventory; the field at ``path`` (``cpu.model``, ``storage.0.free_mb``) becomes ``value``."""
    data = inventory.model_dump()
    *parents, last = path.split(".")
    place: Any = data
    for part in parents:
        place = place[int(part) if part.isdigit() else part]
    assert last in place
    place[last] = value
    return Inventory.model_validate(data)


DRIFT: dict[str, Any] = {
    "hostname": "other",
    "distribution": "Example Linux 2",
    "memory_mb": 64.0 * 2**30 / 1e6 - 100,
    "storage.0.free_mb": 1.0,
    "storage.0.writable": False,
    "opencl.0.max_allocation_mb": 2147.0,
    "opencl.0.global_memory_mb": 4500.0,
    "power.0.cap_w": 80.0,
    "power.0.readable": False,
    "gpus.0.power_limit_w": 500.0,
    "numa.0.memory_mb": 6000.0,
    "limits.threads": 4,
    "limits.quota_cores": 2.0,
    "mpi.launcher": "/opt/mpich/bin/mpiexec",
}

DECIDING: dict[str, tuple[Any, str]] = {
    "kernel": ("6.8.0", "kernel 6.1.0-18-amd64 -> 6.8.0"),
    "cpu.model": ("Other 9000", "processor Intel(R) Xeon(R) Example 8000 CPU @ 2.00GHz -> Other 9000"),
    "cpu.sockets": (1, "sockets 2 -> 1"),
    "cpu.dies": (4, "dies 2 -> 4"),
    "cpu.core_kinds": ({"big": 4, "little": 4}, "cores 8 core -> 4 big, 4 little"),
    "cpu.threads": (8, "logical CPUs 16 -> 8"),
    "cpu.smt": (False, "SMT on -> off"),
    "cpu.governor": ("performance", "governor powersave -> performance"),
    "cpu.turbo": (False, "turbo on -> off"),
    "cpu.max_mhz": (3000.0, "maximum frequency 3500 MHz -> 3000 MHz"),
    "cpu.caches.3.size_kb": (
        60000,
        "L3 unified cache 2 x 30720 KiB for 8 CPUs -> 2 x 60000 KiB for 8 CPUs",
    ),
    "memory_mb": (32 * 2**30 / 1e6, "memory 64 GiB -> 32 GiB"),
    "numa.1.cpus": ((4, 5), "NUMA node 1 CPUs 4-7,12-15, distances [21, 10] -> CPUs 4-5, distances [21, 10]"),
    "numa.1.distances": (
        (32, 10),
        "NUMA node 1 CPUs 4-7,12-15, distances [21, 10] -> CPUs 4-7,12-15, distances [32, 10]",
    ),
    "tuning.huge_pages": ("never", "transparent huge pages madvise -> never"),
    "tuning.numa_balancing": (False, "NUMA balancing on -> off"),
    "virtualisation": ("kvm", "virtualisation none -> kvm"),
    "container": ("docker", "container none -> docker"),
    "mpi.library": ("Open MPI 4.1.6", "MPI MPICH 5.0.2 -> Open MPI 4.1.6"),
    "network.0.speed_mbit": (
        10000.0,
        "interface eth0 ice, 25000 Mbit/s, NUMA node 1 -> ice, 10000 Mbit/s, NUMA node 1",
    ),
    "opencl.0.driver": (
        "6.0",
        "OpenCL device pocl-0 pthread-example, driver 3.1, 16 compute units -> pthread-example, driver 6.0, "
        "16 compute units",
    ),
    "gpus.0.driver": (
        "570.1",
        "GPU 0 Example GPU, 75 GiB, driver 550.1 -> Example GPU, 75 GiB, driver 570.1",
    ),
    "gpus": ((), "GPU 0 is gone (Example GPU, 75 GiB, driver 550.1)"),
    "opencl": ((), "OpenCL device pocl-0 is gone (pthread-example, driver 3.1, 16 compute units)"),
    "power.0.cap_w": (None, "power zone package-0 with a cap -> without a cap"),
}


@pytest.mark.parametrize("path", DRIFT)
def test_what_drifts_changes_nothing(inventory: Inventory, path: str) -> None:
    other = changed(inventory, path, DRIFT[path])
    assert other != inventory
    assert fingerprint(other) == fingerprint(inventory)
    assert explain(inventory, other) == []


@pytest.mark.parametrize("path", DECIDING)
def test_what_decides_is_told(inventory: Inventory, path: str) -> None:
    value, phrase = DECIDING[path]
    other = changed(inventory, path, value)
    assert fingerprint(other) != fingerprint(inventory)
    assert explain(inventory, other) == [phrase]


@pytest.mark.parametrize("field", ["filesystem", "kind", "model", "direct_io"])
def test_storage_is_told(inventory: Inventory, field: str) -> None:
    value = not inventory.storage[0].direct_io if field == "direct_io" else "other"
    other = changed(inventory, f"storage.0.{field}", value)
    assert fingerprint(other) != fingerprint(inventory)
    (phrase,) = explain(inventory, other)
    assert phrase.startswith(f"storage {inventory.storage[0].folder} ")


def test_what_is_new_is_told(inventory: Inventory) -> None:
    without = changed(inventory, "gpus", ())
    assert explain(without, inventory) == ["GPU 0 is new (Example GPU, 75 GiB, driver 550.1)"]


@settings(max_examples=examples(60))
@given(
    drift=st.sets(st.sampled_from(sorted(DRIFT)), max_size=3),
    deciding=st.sets(st.sampled_from(sorted(DECIDING)), max_size=3),
)
def test_a_fingerprint_differs_exactly_where_there_is_something_to_tell(
    inventory: Inventory, drift: set[str], deciding: set[str]
) -> None:
    other = inventory
    # Whole lists last: nothing can be changed in an empty one.
    for path in sorted(drift | deciding, key=lambda path: -path.count(".")):
        both = path in deciding
        other = changed(other, path, DECIDING[path][0] if both else DRIFT[path])
    assert (fingerprint(other) != fingerprint(inventory)) == bool(deciding)
    assert bool(explain(inventory, other)) == bool(deciding)
    assert len(fingerprint(other)) == 12
