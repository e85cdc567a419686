"""Reading and writing what can be changed on a node: control files, and limits of GPUs named like files.

``nvml/<uuid>/power_limit_mw`` is the power limit of an NVIDIA GPU; any other path is a file.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any


def read_control(path: Path) -> str:
    """Read the present value.

    Raises:
        OSError: there is no such control, or it cannot be read.
    """
    if path.parts[0] == "nvml":
        return str(_nvml("nvmlDeviceGetPowerManagementLimit", path))
    return path.read_text().strip()


def write_control(path: Path, value: str) -> None:
    """Set ``value``: in one write call, as sysfs wants it; never makes a file that is not there.

    Raises:
        OSError: there is no such control, or it refuses.
    """
    if path.parts[0] == "nvml":
        _nvml("nvmlDeviceSetPowerManagementLimit", path, int(value))
        return
    handle = os.open(path, os.O_WRONLY | os.O_TRUNC)
    try:
        os.write(handle, f"{value.strip()}\n".encode())
    finally:
        os.close(handle)


def _nvml(function: str, path: Path, *arguments: int) -> Any:
    """Call an NVML function on the GPU that ``path`` names."""
    try:
        import pynvml
    except ImportError:
        raise FileNotFoundError(errno.ENOENT, "nvidia-ml-py is not installed", str(path)) from None
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(path.parts[1])
        return getattr(pynvml, function)(handle, *arguments)
    except pynvml.NVMLError as error:
        raise OSError(errno.EPERM, str(error), str(path)) from None
