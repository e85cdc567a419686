"""OpenCL devices and NVIDIA GPUs, which only vendors' drivers know.

Run as ``python -P -m agent.drivers opencl`` (or ``gpu``), which prints an ``Answer`` as JSON; see
``agent.inventory``. Only what the drivers need is imported: pydantic would take longer than they do.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from profiles.errors import Unavailable

MB = 10**6
Facts = dict[str, Any]


def opencl() -> Facts:
    """List the OpenCL devices, and platforms that are installed twice."""
    from probes.opencl import devices, duplicate_platforms, lacks_cache, overlooked

    try:
        present = devices()
        twice = duplicate_platforms(present)
    except Unavailable as error:
        return {"missing": [{"what": "opencl", "reason": error.what, "remedy": error.remedy}]}
    troubles = [
        {
            "what": "opencl platforms",
            "reason": f"the platform '{name}' is there twice, as {', '.join(keys)}",
            "remedy": "remove one of the two installations, or the .icd file in /etc/OpenCL/vendors that "
            "names the driver again",
        }
        for name, keys in twice.items()
    ]
    for sentence in overlooked():
        reason, _, remedy = sentence.partition(": ")
        troubles.append({"what": "opencl drivers", "reason": reason, "remedy": f"as root: {remedy}"})
    if lacking := lacks_cache():
        reason, _, remedy = lacking.partition(": ")
        troubles.append({"what": "opencl drivers", "reason": reason, "remedy": remedy})
    return {"opencl": [device.facts() for device in present], "missing": troubles}


def gpu(sysfs: str = "/sys") -> Facts:
    """List the NVIDIA GPUs by NVML; none without its library."""
    try:
        import pynvml as nvml
    except ImportError:
        return {}
    try:
        nvml.nvmlInit()
    except nvml.NVMLError_LibraryNotFound:
        return {}
    except nvml.NVMLError as error:
        reason = f"NVML does not start ({error})"
        remedy = "see what 'nvidia-smi' says; after a driver update the machine must be restarted"
        return {"missing": [{"what": "gpu", "reason": reason, "remedy": remedy}]}
    try:
        driver = _text(nvml.nvmlSystemGetDriverVersion())
        count = nvml.nvmlDeviceGetCount()
        return {"gpus": [_gpu(nvml, index, driver, Path(sysfs)) for index in range(count)]}
    finally:
        nvml.nvmlShutdown()


def _gpu(nvml: Any, index: int, driver: str, sysfs: Path) -> Facts:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    low, high = _or_none(nvml, nvml.nvmlDeviceGetPowerManagementLimitConstraints, handle) or (None, None)
    return {
        "index": index,
        "name": _text(nvml.nvmlDeviceGetName(handle)),
        "memory_mb": round(nvml.nvmlDeviceGetMemoryInfo(handle).total / MB, 1),
        "driver": driver,
        "numa_node": _numa_node(sysfs, _text(nvml.nvmlDeviceGetPciInfo(handle).busId)),
        "power_limit_w": _watts(_or_none(nvml, nvml.nvmlDeviceGetPowerManagementLimit, handle)),
        "power_limit_min_w": _watts(low),
        "power_limit_max_w": _watts(high),
    }


def _or_none(nvml: Any, call: Callable[[Any], Any], handle: Any) -> Any:
    """Call a function of NVML; ``None`` if this GPU does not support it."""
    try:
        return call(handle)
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_NoPermission):
        return None


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def _numa_node(sysfs: Path, bus: str) -> int | None:
    """NVML writes ``00000000:3B:00.0``, sysfs ``0000:3b:00.0``."""
    try:
        node = int((sysfs / "bus/pci/devices" / bus.lower()[-12:] / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def _text(value: str | bytes) -> str:
    """Releases of nvidia-ml-py before 11.515 answer in bytes."""
    return value.decode() if isinstance(value, bytes) else value


if __name__ == "__main__":
    print(json.dumps({"opencl": opencl, "gpu": gpu}[sys.argv[1]](*sys.argv[2:])))
