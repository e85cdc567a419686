"""NVIDIA's management library, or one that answers as it does (``TENBIN_EMULATED_GPUS``).

The emulated one is loaded first, under the name by which nvidia-ml-py looks for the vendor's, so that it
finds that; all that reads is the same. Only ``load`` imports it, because most machines have none.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from profiles.errors import Unavailable

FOLDER = "TENBIN_EMULATED_GPUS"  # of the emulation, with the library and its state
LIBRARY = "libnvidia-ml.so.1"
DRIVERS = (Path("/proc/driver/nvidia/version"), Path("/dev/nvidiactl"), Path("/dev/dxg"))  # the last: of WSL
LINKED, SAME_NODE, ELSEWHERE = 0, 40, 50  # distances between GPUs


class NoLibrary(Unavailable):
    """There is no library, so there is no such GPU as far as anybody can see."""


def expected() -> bool:
    """Tell whether NVIDIA's driver is there."""
    return not os.environ.get(FOLDER) and any(path.exists() for path in DRIVERS)


def load() -> Any:
    """Start the library, and return the module ``pynvml``.

    Raises:
        NoLibrary: it is not there, or nvidia-ml-py is not.
        Unavailable: it does not start.
    """
    if folder := os.environ.get(FOLDER):
        try:
            ctypes.CDLL(f"{folder}/{LIBRARY}")
        except OSError as error:
            if (Path(folder) / "sys").exists():
                raise NoLibrary(f"{FOLDER}: GPUs of another vendor", "see: docs/gpu-jobs.md") from None
            raise Unavailable(f"{FOLDER}: {error}", "unset it, unless the emulation runs") from None
    try:
        ctypes.CDLL(LIBRARY)  # before pynvml, whose import takes much longer
    except OSError as error:
        raise NoLibrary(f"NVML: {error}", "install NVIDIA's driver, if there is such a GPU") from None
    try:
        import pynvml
    except ImportError:
        remedy = "where there is an NVIDIA GPU: .venv/bin/pip install nvidia-ml-py"
        raise NoLibrary("nvidia-ml-py is not installed", remedy) from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        remedy = "see what 'nvidia-smi' says; after a driver update the machine must be restarted"
        raise Unavailable(f"NVML does not start ({error})", remedy) from None
    return pynvml


def figure(nvml: Any, call: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of the library; None where this GPU, this part of one, or this user has no answer."""
    try:
        return call(*arguments)
    except (
        nvml.NVMLError_NotSupported,
        nvml.NVMLError_NoPermission,
        nvml.NVMLError_NotFound,
        nvml.NVMLError_InvalidArgument,
        nvml.NVMLError_FunctionNotFound,
    ):
        return None


def text(value: str | bytes) -> str:
    """Releases of nvidia-ml-py before 11.515 answer in bytes."""
    return value.decode() if isinstance(value, bytes) else value


def pci_address(library: Any, gpu: Any) -> str:
    """Return the address of a GPU as sysfs writes it: ``0000:3b:00.0``; NVML writes ``00000000:3B:00.0``."""
    return text(library.nvmlDeviceGetPciInfo(gpu).busId).lower()[-12:]


def numa_node(bus: str, sysfs: Path = Path("/sys")) -> int | None:
    """Return the NUMA node of a PCI address; None: not known."""
    try:
        node = int((sysfs / "bus/pci/devices" / bus / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def distances(library: Any, gpu: Any, others: Iterable[Any]) -> dict[str, int]:
    """Tell how far each other GPU is, by PCI address; what the driver does not tell is left out.

    ``LINKED``: by NVLink. Else as NVML has it: 10 is one PCI switch, 20 several, 30 one host bridge, 40 one
    NUMA node, 50 the machine.
    """
    levels: dict[str, int | None] = {}
    for other in others:
        link = figure(library, library.nvmlDeviceGetP2PStatus, gpu, other, library.NVML_P2P_CAPS_INDEX_NVLINK)
        linked = link == library.NVML_P2P_STATUS_OK
        levels[pci_address(library, other)] = (
            LINKED if linked else figure(library, library.nvmlDeviceGetTopologyCommonAncestor, gpu, other)
        )
    return {bus: level for bus, level in levels.items() if level is not None}


def device_file(library: Any, gpu: Any) -> str:
    """Return the file that a program opens to use a GPU; empty if its number is not told."""
    minor = figure(library, library.nvmlDeviceGetMinorNumber, gpu)
    return "" if minor is None else f"{os.environ.get(FOLDER, '')}/dev/nvidia{minor}"


def parts(library: Any, gpu: Any) -> Iterator[Any]:
    """Yield the parts of a GPU that jobs can have: its MIG instances, else itself."""
    mode = figure(library, library.nvmlDeviceGetMigMode, gpu)
    if not mode or not mode[0]:
        yield gpu
        return
    for index in range(figure(library, library.nvmlDeviceGetMaxMigDeviceCount, gpu) or 0):
        part = figure(library, library.nvmlDeviceGetMigDeviceHandleByIndex, gpu, index)
        if part is not None:
            yield part
