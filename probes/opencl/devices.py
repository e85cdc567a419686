"""The OpenCL devices of this machine, under keys that stay the same from one profile to the next.

``python -P -m probes.opencl.devices`` prints them as JSON, for who must not load a driver into their own
process.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from profiles.errors import BadInput, Unavailable
from profiles.inventory import OpenCLDevice
from profiles.records import MB

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


@dataclass(frozen=True)
class Device:
    """An OpenCL device, with the driver's object for it.

    Sizes are asked afresh at every use: drivers report what is left to them, and that drifts.
    """

    key: str
    platform: str
    name: str
    kind: str  # cpu, gpu, accelerator
    driver: str
    version: str
    compute_units: int
    handle: Any = field(repr=False, compare=False)

    @property
    def global_memory_mb(self) -> float:
        """Memory of the device as reported now."""
        return float(self.handle.global_mem_size) / MB

    @property
    def max_allocation_mb(self) -> float:
        """Largest single buffer as reported now."""
        return float(self.handle.max_mem_alloc_size) / MB

    def record(self) -> OpenCLDevice:
        """The device as the inventory keeps it."""
        return OpenCLDevice(
            key=self.key,
            platform=self.platform,
            name=self.name,
            kind=self.kind,
            driver=self.driver,
            version=self.version,
            compute_units=self.compute_units,
            global_memory_mb=self.global_memory_mb,
            max_allocation_mb=self.max_allocation_mb,
        )


def devices() -> list[Device]:
    """Every device of every platform, in the loader's order; keys count up within one vendor's word.

    Raises:
        Unavailable: no OpenCL loader, no platform, or no platform with a device; the message says what helps.
    """
    found: list[Device] = []
    count: Counter[str] = Counter()
    for platform in platforms():
        word = platform_word(platform.name)
        for handle in _handles(platform):
            found.append(_device(f"{word}-{count[word]}", platform.name, handle))
            count[word] += 1
    if not found:
        raise Unavailable("no OpenCL platform has a device", _remedy())
    return found


def find(keys: list[str] | None = None) -> list[Device]:
    """The devices of these keys (all where None), in the order of ``keys``.

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
    """The platforms the loader finds (``pyopencl.Platform``).

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
        raise Unavailable(f"no OpenCL platform ({error})", _remedy()) from error


def duplicate_platforms(found: list[Device]) -> dict[str, list[str]]:
    """Platforms seen twice under one name (a driver installed twice), with the keys of their devices.

    Two logical devices of one platform are no duplicate.
    """
    times = Counter(platform.name for platform in platforms())
    return {
        name: [device.key for device in found if device.platform == name]
        for name, n in times.items()
        if n > 1
    }


def overlooked() -> list[str]:
    """Vendors' OpenCL libraries that are installed but not named to the loader, each as a remedy."""
    folder = Path(os.environ.get("OCL_ICD_VENDORS") or "/etc/OpenCL/vendors")
    named = ""
    with suppress(OSError):  # no such folder: nothing is named
        named = "\n".join(file.read_text(errors="replace") for file in folder.glob("*.icd"))
    return [
        f"{library} is installed but not registered: echo {library} > /etc/OpenCL/vendors/{file}"
        for library, file in _VENDOR_LIBRARIES.items()
        if library.split(".so")[0] not in named and _loads(library)
    ]


def platform_word(name: str) -> str:
    """``pocl`` for "Portable Computing Language", ``nvidia`` for "NVIDIA CUDA"; else the first word."""
    lowered = name.lower()
    for part, word in _PLATFORMS:
        if part in lowered:
            return word
    words = re.findall(r"[a-z0-9]+", lowered)
    return words[0] if words else "opencl"


def _remedy() -> str:
    return "; ".join([*overlooked()]) or _INSTALL


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


def _device(key: str, platform: str, handle: Any) -> Device:
    import pyopencl as cl

    kinds = ((cl.device_type.GPU, "gpu"), (cl.device_type.CPU, "cpu"))
    kind = next((word for bit, word in kinds if handle.type & bit), "accelerator")
    return Device(
        key=key,
        platform=platform.strip(),
        name=handle.name.strip(),
        kind=kind,
        driver=handle.driver_version.strip(),
        version=handle.version.strip(),
        compute_units=handle.max_compute_units,
        handle=handle,
    )


if __name__ == "__main__":
    try:
        json.dump([device.record().model_dump() for device in devices()], sys.stdout)
    except Unavailable as unavailable:
        sys.exit(str(unavailable))
