"""Sessions of devices that go wrong, for the process of a device."""

from __future__ import annotations

import os
from typing import Any

from probes.device_session import DeviceBench
from probes.opencl import WrongResult


class WrongSums(DeviceBench):
    """A device whose arithmetic is wrong."""

    def arithmetic(self, precision: str) -> dict[str, Any]:
        raise WrongResult("sums differ")


class Dies(DeviceBench):
    """A device whose driver crashes at the first launch."""

    def launches(self) -> dict[str, Any]:
        os._exit(139)
