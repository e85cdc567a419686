"""Sessions of small devices, and of those that go wrong, for the process of a device."""

from __future__ import annotations

import os
from typing import Any

from probes import device_session
from probes.device_session import BLOCK, DeviceBench
from probes.opencl import WrongResult

# Attributes of ``device_session``, with which a test takes a moment.
SMALL_SIZES = {"array_bytes": lambda handle, kind: 2 * BLOCK, "BATCH_S": 0.001, "TRIAL_S": 0.0}


class Small(DeviceBench):
    """A device with small arrays and short batches."""

    def __init__(self, key: str) -> None:
        vars(device_session).update(SMALL_SIZES)
        super().__init__(key)


class WrongSums(Small):
    """A device whose arithmetic is wrong."""

    def arithmetic(self, precision: str) -> dict[str, Any]:
        raise WrongResult("sums differ")


class Dies(Small):
    """A device whose driver crashes at the first launch."""

    def launches(self) -> dict[str, Any]:
        os._exit(139)
