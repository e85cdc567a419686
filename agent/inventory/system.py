"""The system around the hardware: kernel and its settings, distribution, hypervisor, container."""

from __future__ import annotations

import os
import platform
import re
import shlex
import socket

from agent.inventory.files import Roots, fields, link_name, read
from profiles.inventory import Tuning

# What a hypervisor puts into the firmware's tables (after systemd's detect-virt).
_DMI_WORDS = (
    ("KVM", "kvm"),
    ("OpenStack", "kvm"),
    ("Google Compute Engine", "kvm"),
    ("Amazon EC2", "kvm"),
    ("QEMU", "qemu"),
    ("VMware", "vmware"),
    ("VirtualBox", "virtualbox"),
    ("innotek GmbH", "virtualbox"),
    ("Xen", "xen"),
    ("Parallels", "parallels"),
    ("BHYVE", "bhyve"),
    ("Hyper-V", "microsoft"),
    ("Virtual Machine", "microsoft"),
    ("Apple Virtualization", "apple"),
)

# Clocks that only a guest of that hypervisor has.
_GUEST_CLOCKS = (("kvm-clock", "kvm"), ("hyperv_clocksource", "microsoft"), ("xen", "xen"))

# Files that a container's engine leaves in its root; a ``.singularity.d`` is also what Apptainer makes.
_CONTAINER_MARKS = (
    ("run/.containerenv", "podman"),
    (".dockerenv", "docker"),
    (".singularity.d", "apptainer"),
)

_CONTAINER_GROUPS = (
    ("docker", "docker"),
    ("libpod", "podman"),
    ("kubepods", "kubernetes"),
    ("/lxc", "lxc"),
    ("machine.slice", "systemd-nspawn"),
)

# The namespaces of the system itself have fixed numbers (linux/proc_ns.h).
_FIRST_NAMESPACES = {"pid": "pid:[4026531836]", "cgroup": "cgroup:[4026531835]"}


def read_hostname(roots: Roots) -> str:
    return read(roots.procfs / "sys/kernel/hostname") or socket.gethostname()


def read_kernel(roots: Roots) -> str:
    """Read the kernel's release: ``6.1.0-18-amd64``."""
    return read(roots.procfs / "sys/kernel/osrelease") or platform.release()


def read_distribution(roots: Roots) -> str:
    """``Debian GNU/Linux 12 (bookworm)``, or ``unknown``."""
    for name in ("etc/os-release", "usr/lib/os-release"):
        match = re.search(r"^PRETTY_NAME=(.+)$", read(roots.root / name) or "", re.MULTILINE)
        if match:
            return " ".join(shlex.split(match[1]))
    return "unknown"


def read_tuning(roots: Roots) -> Tuning:
    """Read the settings of the kernel that decide how fast memory and clocks are."""
    pages = re.search(r"\[(\w+)\]", read(roots.sysfs / "kernel/mm/transparent_hugepage/enabled") or "")
    balancing = read(roots.procfs / "sys/kernel/numa_balancing")
    clocks = roots.sysfs / "devices/system/clocksource/clocksource0"
    return Tuning(
        huge_pages=pages[1] if pages else None,
        numa_balancing=None if balancing is None else balancing != "0",
        clock_source=read(clocks / "current_clocksource"),
    )


def read_virtualisation(roots: Roots) -> str:
    """Name the hypervisor under this kernel (``kvm`` ...; ``vm`` if it hides its name), or ``none``."""
    if "control_d" in (read(roots.procfs / "xen/capabilities") or ""):
        return "none"  # the machine's own system, which sees the hardware
    if read(roots.sysfs / "hypervisor/type"):
        return read(roots.sysfs / "hypervisor/type") or "xen"
    info = fields(read(roots.procfs / "cpuinfo"))
    dmi = _dmi(roots)
    if "flags" not in info:  # not x86: no flag says so, the firmware's names must do
        tree = read(roots.procfs / "device-tree/hypervisor/compatible") or ""
        named = next((kind for word, kind in _DMI_WORDS if word in dmi), None)
        bare = dmi and ".metal" in dmi  # a cloud's whole machine, under the cloud's name
        return "none" if bare else named or ("kvm" if "kvm" in tree else "none")
    if "hypervisor" not in info["flags"].split():
        return "none"
    clocks = read(roots.sysfs / "devices/system/clocksource/clocksource0/available_clocksource") or ""
    by_clock = next((kind for word, kind in _GUEST_CLOCKS if word in clocks), None)
    return by_clock or next((kind for word, kind in _DMI_WORDS if word in dmi), "vm")


def _dmi(roots: Roots) -> str:
    names = ("sys_vendor", "product_name", "board_vendor", "bios_vendor")
    return " ".join(read(roots.sysfs / "class/dmi/id" / name) or "" for name in names)


def read_container(roots: Roots) -> str:
    """Name the container around this process (``docker``, ``podman``, ``apptainer`` ...), or ``none``.

    An engine's mark in the root is believed only where the process is in namespaces that are not the system's
    own: machines whose disk was made from a container's image carry the mark too.
    """
    if "APPTAINER_CONTAINER" in os.environ or "SINGULARITY_CONTAINER" in os.environ:
        return "apptainer"
    told = read(roots.root / "run/systemd/container")
    if told:
        return told
    groups = read(roots.procfs / "1/cgroup") or ""
    for word, kind in _CONTAINER_GROUPS:
        if word in groups:
            return kind
    if not _in_own_namespaces(roots):
        return "none"
    return next((kind for mark, kind in _CONTAINER_MARKS if (roots.root / mark).exists()), "none")


def _in_own_namespaces(roots: Roots) -> bool:
    here = {name: link_name(roots.procfs / "self/ns" / name) for name in _FIRST_NAMESPACES}
    return any(link is not None and link != _FIRST_NAMESPACES[name] for name, link in here.items())
