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
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

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


class Lack(NamedTuple):
    """A reason why devices are not found or cannot be used, and its remedy."""

    driver: str
    lack: str
    remedy: str

    @property
    def sentence(self) -> str:
        return f"{self.driver} {self.lack}"

    def __str__(self) -> str:
        return f"{self.sentence}: {self.remedy}"


class NoDevices(Unavailable):
    """There is no OpenCL device; other reasons say that it is not known."""

    exit_code = 5


class Platform(NamedTuple):
    """An OpenCL platform: the driver's number for it, and its name."""

    id: int
    name: str


@dataclass(frozen=True)
class Device:
    """An OpenCL device, with the driver's number for it."""

    key: str
    platform: str
    id: int = field(repr=False, compare=False)

    @property
    def handle(self) -> Any:
        """Pyopencl's object for the device."""
        import pyopencl as cl

        return cl.Device.from_int_ptr(self.id)

    @property
    def kind(self) -> str:
        """Its kind: cpu, gpu or accelerator."""
        kinds = self._number(_TYPE)
        return "gpu" if kinds & _GPU else "cpu" if kinds & _CPU else "accelerator"

    @property
    def has_double(self) -> bool:
        return "cl_khr_fp64" in self._text(_EXTENSIONS).split()

    def facts(self) -> dict[str, Any]:
        """Describe the device for the inventory, with the sizes as reported now (they drift)."""
        return {
            "key": self.key,
            "platform": self.platform,
            "name": self._text(_NAME),
            "kind": self.kind,
            "driver": self._text(_DRIVER_VERSION),
            "version": self._text(_VERSION),
            "compute_units": self._number(_COMPUTE_UNITS),
            "global_memory_mb": self._number(_GLOBAL_MEMORY) / MB,
            "max_allocation_mb": self._number(_MOST_ALLOCATED) / MB,
        }

    def record(self) -> OpenCLDevice:
        """Return the facts as the inventory has them."""
        from profiles.records import OpenCLDevice  # late: to list devices in a process needs no pydantic

        return OpenCLDevice(**self.facts())

    def _number(self, what: int) -> int:
        return int.from_bytes(_info("clGetDeviceInfo", self.id, what), sys.byteorder)

    def _text(self, what: int) -> str:
        return _text(_info("clGetDeviceInfo", self.id, what))


def devices() -> list[Device]:
    """List every device of every platform, in the loader's order; keys count up within one vendor's word.

    Raises:
        Unavailable: no OpenCL loader, no platform, or no platform with a device; the message says what helps.
    """
    present: list[Device] = []
    count: Counter[str] = Counter()
    for platform in platforms():
        word = platform_word(platform.name)
        for id in _device_ids(platform):
            present.append(Device(f"{word}-{count[word]}", platform.name, id))
            count[word] += 1
    if not present:
        raise NoDevices("no OpenCL platform has a device", str(lacks_cache() or _remedy()))
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


def platforms() -> list[Platform]:
    """List the platforms that the loader finds.

    Raises:
        Unavailable: no loader, or no platform.
    """
    try:
        ids = _ids("clGetPlatformIDs")
    except OpenCLError as error:  # no platform, or a driver that fails to start
        raise NoDevices(f"no OpenCL platform ({error})", _remedy()) from error
    return [Platform(id, _text(_info("clGetPlatformInfo", id, _PLATFORM_NAME))) for id in ids]


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


def overlooked() -> list[Lack]:
    """Find vendors' OpenCL libraries that are installed but not named to the loader."""
    folder = Path(os.environ.get("OCL_ICD_VENDORS") or "/etc/OpenCL/vendors")
    named = ""
    with suppress(OSError):  # no such folder: nothing is named
        named = "\n".join(file.read_text(errors="replace") for file in folder.glob("*.icd"))
    return [
        Lack(library, "is installed but not registered", f"echo {library} > /etc/OpenCL/vendors/{file}")
        for library, file in _VENDOR_LIBRARIES.items()
        if library.split(".so")[0] not in named and _loads(library)
    ]


def lacks_cache() -> Lack | None:
    """Tell if PoCL, which has devices or builds kernels only with a cache, cannot write it."""
    if not any(platform_word(platform.name) == "pocl" for platform in platforms()):
        return None
    named, home = os.environ.get("POCL_CACHE_DIR"), os.environ.get("HOME")
    cache = os.environ.get("XDG_CACHE_HOME") or (f"{home}/.cache" if home else "/tmp")
    folder = Path(named or f"{cache}/pocl")
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if os.access(there, os.W_OK):
        return None
    return Lack(
        "PoCL", f"cannot write its cache {folder}", "set POCL_CACHE_DIR to a folder that you can write"
    )


def platform_word(name: str) -> str:
    """Shorten a name: ``pocl`` for "Portable Computing Language", ``nvidia`` for "NVIDIA CUDA"."""
    lowered = name.lower()
    for part, word in _PLATFORMS:
        if part in lowered:
            return word
    words = re.findall(r"[a-z0-9]+", lowered)
    return words[0] if words else "opencl"


def _remedy() -> str:
    return "; ".join(map(str, overlooked())) or _INSTALL


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _device_ids(platform: Platform) -> list[int]:
    try:
        return _ids("clGetDeviceIDs", ctypes.c_void_p(platform.id), ctypes.c_uint64(_ALL))
    except OpenCLError:  # a driver without its hardware
        return []


# -- questions to the loader that pyopencl uses: to import pyopencl takes longer than they do ----------------


_PLATFORM_NAME = 0x0902
_TYPE, _COMPUTE_UNITS, _MOST_ALLOCATED, _GLOBAL_MEMORY = 0x1000, 0x1002, 0x1010, 0x101F
_NAME, _DRIVER_VERSION, _VERSION, _EXTENSIONS = 0x102B, 0x102D, 0x102F, 0x1030
_CPU, _GPU, _ALL = 1 << 1, 1 << 2, 0xFFFFFFFF


class OpenCLError(Exception):
    """A call that failed."""


@cache
def _loader() -> ctypes.CDLL:
    """Load pyopencl's library, and with it the loader that it is linked to.

    Raises:
        Unavailable: pyopencl is not there, or does not load.
    """
    spec = find_spec("pyopencl")
    folders = (spec.submodule_search_locations or ()) if spec else ()
    libraries = [file for folder in folders for file in Path(folder).glob("_cl*.so")]
    try:
        os.environ["PYOPENCL_HOME"] = str(libraries[0].parent)  # its wheel's loader crashes without
        return ctypes.CDLL(str(libraries[0]))
    except (IndexError, OSError) as error:
        why = error if libraries else "it is not installed"
        raise Unavailable(f"pyopencl does not load: {why}", "pip install --upgrade pyopencl") from error


def _call(function: str, *arguments: Any) -> None:
    if code := getattr(_loader(), function)(*arguments):
        raise OpenCLError(f"{function}: error {code}")


def _ids(function: str, *of: Any) -> list[int]:
    count = ctypes.c_uint32()
    _call(function, *of, 0, None, ctypes.byref(count))
    ids = (ctypes.c_void_p * count.value)()
    _call(function, *of, count, ids, None)
    return [id or 0 for id in ids]


def _info(function: str, of: int, what: int) -> bytes:
    size = ctypes.c_size_t()
    _call(function, ctypes.c_void_p(of), what, ctypes.c_size_t(0), None, ctypes.byref(size))
    value = ctypes.create_string_buffer(size.value)
    _call(function, ctypes.c_void_p(of), what, size, value, None)
    return value.raw


def _text(value: bytes) -> str:
    return value.partition(b"\0")[0].decode(errors="replace").strip()


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
