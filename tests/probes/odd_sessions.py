"""Sessions of small devices, and of those that go wrong, for the process of a device."""

from __future__ import annotations

import os
from typing import Any

from probes import device_session
from probes.device_session import BLOCK, DeviceBench
from probes.opencl import WrongResult


class Small(DeviceBench):
    """A device with small arrays and short batches, so that a test takes a moment."""

    def __init__(self, key: str) -> None:
        vars(device_session).update(array_bytes=lambda handle, kind: 2 * BLOCK, BATCH_S=0.001, TRIAL_S=0.0)
        super().__init__(key)


class WrongSums(Small):
    """A device whose arithmetic is wrong."""

    def arithmetic(self, precision: str) -> dict[str, Any]:
        raise WrongResult("sums differ")


class Dies(Small):
    """A device whose driver crashes at the first launch."""

    def launches(self) -> dict[str, Any]:
        os._exit(139)
