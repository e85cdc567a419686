"""OpenCL devices and NVIDIA GPUs, which only vendors' drivers know.

Run as ``python -P -m agent.drivers opencl`` (or ``gpu``), which prints an ``Answer`` as JSON; see
``agent.inventory``. Only what the drivers need is imported: pydantic would take longer than they do.
"""

from __future__ import annotations

import json
import sys
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
    for lack in overlooked():
        remedy = f"as root: {lack.remedy}"
        troubles.append({"what": "opencl drivers", "reason": lack.sentence, "remedy": remedy})
    if lacking := lacks_cache():
        troubles.append({"what": "opencl drivers", "reason": lacking.sentence, "remedy": lacking.remedy})
    facts = [device.facts() for device in present]
    return {"opencl": facts, "missing": troubles, "files": loaded_libraries()}


def loaded_libraries() -> list[str]:
    """List the libraries that this process has loaded by now: drivers, and what they rest on."""
    lines = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    return sorted({line.split(maxsplit=5)[5] for line in lines if ".so" in line})


def gpu(sysfs: str = "/sys") -> Facts:
    """List the NVIDIA GPUs by NVML; none without its library."""
    from probes import nvml

    try:
        library = nvml.load()
    except nvml.NoLibrary:
        return {}
    except Unavailable as error:
        return {"missing": [{"what": "gpu", "reason": error.what, "remedy": error.remedy}]}
    try:
        driver = nvml.text(library.nvmlSystemGetDriverVersion())
        count = library.nvmlDeviceGetCount()
        return {"gpus": [_gpu(library, index, driver, Path(sysfs)) for index in range(count)]}
    finally:
        library.nvmlShutdown()


def _gpu(library: Any, index: int, driver: str, sysfs: Path) -> Facts:
    from probes.nvml import figure, numa_node, parts, pci_address, text

    handle = library.nvmlDeviceGetHandleByIndex(index)
    limits = figure(library, library.nvmlDeviceGetPowerManagementLimitConstraints, handle)
    low, high = limits or (None, None)
    bus = pci_address(library, handle)
    identity = text(library.nvmlDeviceGetUUID(handle))
    of_parts = [text(library.nvmlDeviceGetUUID(part)) for part in parts(library, handle)]
    return {
        "index": index,
        "name": text(library.nvmlDeviceGetName(handle)),
        "uuid": identity,
        "parts": [] if of_parts == [identity] else of_parts,
        "bus": bus,
        "memory_mb": round(library.nvmlDeviceGetMemoryInfo(handle).total / MB, 1),
        "driver": driver,
        "numa_node": numa_node(bus, sysfs),
        **pci_link(sysfs / "bus/pci/devices" / bus),
        "power_limit_w": _watts(figure(library, library.nvmlDeviceGetPowerManagementLimit, handle)),
        "power_limit_min_w": _watts(low),
        "power_limit_max_w": _watts(high),
    }


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def pci_link(device: Path) -> Facts:
    """Read lanes and rate of a device's link to the host; a device at rest lowers its rate, not its lanes."""
    lanes = _first_number(device / "current_link_width")
    now = _first_number(device / "current_link_speed")
    both_ends = [_first_number(end / "max_link_speed") for end in (device, device.resolve().parent)]
    highest = min((rate for rate in both_ends if rate), default=0.0)
    return {"link_lanes": int(lanes) or None, "link_gts": max(now, highest) or None}


def _first_number(file: Path) -> float:
    """Read ``16.0 GT/s PCIe`` or ``16``; 0 where there is none."""
    try:
        return float(file.read_text().split()[0])
    except (OSError, ValueError, IndexError):  # "Unknown", in a virtual machine
        return 0.0


if __name__ == "__main__":
    print(json.dumps({"opencl": opencl, "gpu": gpu}[sys.argv[1]](*sys.argv[2:])))
