"""OpenCL devices of this machine, under keys that stay the same from one profile to the next.

``python -P -m probes.opencl`` prints the devices as JSON, for callers that must not load a driver into their
own process. With ``bus`` each has its PCI address too; with ``double`` it prints the keys of those with
double precision instead. Here are also the failures and the host memory that all sessions share.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from probes import drm
from profiles.errors import BadInput, Unavailable

if TYPE_CHECKING:
    import numpy as np
    import pyopencl as cl
    from numpy.typing import NDArray

    from profiles.records import OpenCLDevice

MB = 10**6

# A word for a platform's name, so that a device's key is short and survives a driver's update.
_PLATFORMS = (
    ("portable computing language", "pocl"),
    ("nvidia", "nvidia"),
    ("amd", "amd"),
    ("intel", "intel"),
    ("rusticl", "rusticl"),
    ("clover", "clover"),
    ("oclgrind", "oclgrind"),
)

# Vendor libraries that work once a file in the loader's folder names them.
_VENDOR_LIBRARIES = {
    "libnvidia-opencl.so.1": "nvidia.icd",
    "libamdocl64.so": "amdocl64.icd",
    "libintelocl.so": "intel.icd",
}

_INSTALL = "install a driver: the vendor's, or 'apt-get install pocl-opencl-icd' for the processor itself"


class NoDevices(Unavailable):
    """There is no OpenCL device; other reasons say that it is not known."""

    exit_code = 5


@dataclass(frozen=True)
class Device:
    """An OpenCL device, with the driver's object for it."""

    key: str
    platform: str
    handle: Any = field(repr=False, compare=False)

    @property
    def kind(self) -> str:
        """Its kind: cpu, gpu or accelerator."""
        import pyopencl as cl

        kinds = ((cl.device_type.GPU, "gpu"), (cl.device_type.CPU, "cpu"))
        return next((word for bit, word in kinds if self.handle.type & bit), "accelerator")

    @property
    def has_double(self) -> bool:
        return "cl_khr_fp64" in self.handle.extensions.split()

    def facts(self) -> dict[str, Any]:
        """Describe the device for the inventory, with the sizes as reported now (they drift)."""
        return {
            "key": self.key,
            "platform": self.platform,
            "name": self.handle.name.strip(),
            "kind": self.kind,
            "driver": self.handle.driver_version.strip(),
            "version": self.handle.version.strip(),
            "compute_units": self.handle.max_compute_units,
            "global_memory_mb": self.handle.global_mem_size / MB,
            "max_allocation_mb": self.handle.max_mem_alloc_size / MB,
        }

    def record(self) -> OpenCLDevice:
        """Return the facts as the inventory has them."""
        from profiles.records import OpenCLDevice  # late: to list devices in a process needs no pydantic

        return OpenCLDevice(**self.facts())


def devices() -> list[Device]:
    """List every device of every platform, in the loader's order; keys count up within one vendor's word.

    Raises:
        Unavailable: no OpenCL loader, no platform, or no platform with a device; the message says what helps.
    """
    present: list[Device] = []
    count: Counter[str] = Counter()
    for platform in platforms():
        word = platform_word(platform.name)
        for handle in _handles(platform):
            present.append(Device(f"{word}-{count[word]}", platform.name.strip(), handle))
            count[word] += 1
    if not present:
        raise NoDevices("no OpenCL platform has a device", lacks_cache() or _remedy())
    return present


def list_devices() -> dict[str, Any]:
    """List the devices' records, with doubled and overlooked drivers.

    Raises:
        Unavailable: no device.
    """
    present = devices()
    return {
        "devices": [device.record() for device in present],
        "duplicates": duplicate_platforms(present),
        "overlooked": overlooked(),
    }


def find(keys: list[str] | None = None) -> list[Device]:
    """Find the devices of these keys (all where None), in the order of ``keys``.

    Raises:
        BadInput: a key that no device has.
        Unavailable: see ``devices``.
    """
    everything = devices()
    if keys is None:
        return everything
    by_key = {device.key: device for device in everything}
    for key in keys:
        if key not in by_key:
            raise BadInput(f"no OpenCL device {key!r}", f"choose from {', '.join(by_key)}")
    return [by_key[key] for key in keys]


def platforms() -> list[Any]:
    """List the platforms that the loader finds (``pyopencl.Platform``).

    Raises:
        Unavailable: no loader, or no platform.
    """
    try:
        import pyopencl as cl
    except ImportError as error:
        raise Unavailable(f"pyopencl does not load: {error}", "pip install --upgrade pyopencl") from error
    try:
        return list(cl.get_platforms())
    except cl.Error as error:  # PLATFORM_NOT_FOUND_KHR, or a driver that fails to start
        raise NoDevices(f"no OpenCL platform ({error})", _remedy()) from error


def duplicate_platforms(present: list[Device]) -> dict[str, list[str]]:
    """Find platforms listed twice under one name (a driver installed twice), with the keys of their devices.

    Two logical devices of one platform are no duplicate.
    """
    times = Counter(platform.name for platform in platforms())
    return {
        name: [device.key for device in present if device.platform == name]
        for name, n in times.items()
        if n > 1
    }


def may_have_twin(devices: Sequence[OpenCLDevice]) -> bool:
    """Tell whether the only device is of PoCL, which can list a device twice."""
    return len(devices) == 1 and devices[0].key.startswith("pocl") and "POCL_DEVICES" not in os.environ


def overlooked() -> list[str]:
    """Find vendors' OpenCL libraries that are installed but not named to the loader, each as a remedy."""
    folder = Path(os.environ.get("OCL_ICD_VENDORS") or "/etc/OpenCL/vendors")
    named = ""
    with suppress(OSError):  # no such folder: nothing is named
        named = "\n".join(file.read_text(errors="replace") for file in folder.glob("*.icd"))
    return [
        f"{library} is installed but not registered: echo {library} > /etc/OpenCL/vendors/{file}"
        for library, file in _VENDOR_LIBRARIES.items()
        if library.split(".so")[0] not in named and _loads(library)
    ]


def lacks_cache() -> str:
    """Say as a remedy that PoCL, which has devices or builds kernels only with a cache, cannot write it."""
    if not any(platform_word(platform.name) == "pocl" for platform in platforms()):
        return ""
    named, home = os.environ.get("POCL_CACHE_DIR"), os.environ.get("HOME")
    cache = os.environ.get("XDG_CACHE_HOME") or (f"{home}/.cache" if home else "/tmp")
    folder = Path(named or f"{cache}/pocl")
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if os.access(there, os.W_OK):
        return ""
    return f"PoCL cannot write its cache {folder}: set POCL_CACHE_DIR to a folder that you can write"


def platform_word(name: str) -> str:
    """Shorten a name: ``pocl`` for "Portable Computing Language", ``nvidia`` for "NVIDIA CUDA"."""
    lowered = name.lower()
    for part, word in _PLATFORMS:
        if part in lowered:
            return word
    words = re.findall(r"[a-z0-9]+", lowered)
    return words[0] if words else "opencl"


def _remedy() -> str:
    return "; ".join(overlooked()) or _INSTALL


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _handles(platform: Any) -> list[Any]:
    import pyopencl as cl

    try:
        return list(platform.get_devices())
    except cl.Error:  # DEVICE_NOT_FOUND: a driver without its hardware
        return []


# -- parts of every session with a device: named failures, and host memory for copies ----------------------


Bytes: TypeAlias = "NDArray[np.uint8]"
PAGE = 4096


class SessionFailure(Exception):
    """An operation that failed; ``kind`` as of ``probes.device_process.Failure``."""

    kind: ClassVar[str]


class DeviceMemoryTooSmall(SessionFailure):
    """The device cannot hold data of the size asked for."""

    kind = "memory"


class WrongResult(SessionFailure):
    """A kernel or a copy whose result is not what it must be."""

    kind = "data"


def pinned(context: cl.Context, queue: cl.CommandQueue, length: int) -> tuple[cl.Buffer, Bytes]:
    """Allocate ``length`` bytes of pinned host memory, from which a device copies at full speed.

    The memory lasts as long as the buffer.
    """
    import numpy as np
    import pyopencl as cl

    buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR, length)
    access: Any = cl.map_flags.READ | cl.map_flags.WRITE
    view, _ = cl.enqueue_map_buffer(queue, buffer, access, 0, (length,), np.dtype(np.uint8))
    return buffer, view


def touched(memory: Bytes) -> Bytes:
    """Write to every page once: a first touch costs microseconds, later ones nothing."""
    memory[::PAGE] = 0
    return memory


def pci_address(handle: Any) -> str:
    """Return the PCI address as sysfs writes it, where the driver tells it; else ""."""
    import pyopencl as cl

    try:
        slot = int(handle.pci_slot_id_nv)
        return f"{handle.pci_domain_id_nv:04x}:{handle.pci_bus_id_nv:02x}:{slot >> 3:02x}.{slot & 7}"
    except (cl.Error, AttributeError):
        pass
    try:
        place = handle.topology_amd
        return drm.address(drm.root(), f"{place.bus:02x}:{place.device:02x}.{place.function}")
    except (cl.Error, AttributeError):
        return ""


if __name__ == "__main__":
    try:
        if "double" in sys.argv[1:]:
            json.dump([device.key for device in devices() if device.has_double], sys.stdout)
        elif "bus" in sys.argv[1:]:
            rows = [device.facts() | {"bus": pci_address(device.handle)} for device in devices()]
            json.dump(rows, sys.stdout)
        else:
            json.dump([device.facts() for device in devices()], sys.stdout)
    except Unavailable as unavailable:
        print(unavailable, file=sys.stderr)
        sys.exit(unavailable.exit_code)
