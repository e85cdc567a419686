"""Questions to drivers in a process of their own, because a broken driver may hang or abort its process."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from pydantic import ValidationError

from profiles.inventory import Gpu, InventoryRecord, Missing, OpenCLDevice

TIMEOUT_S = 20.0  # a driver that has to start a sleeping GPU takes seconds


class Answer(InventoryRecord):
    """The answer of a driver."""

    opencl: tuple[OpenCLDevice, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    missing: tuple[Missing, ...] = ()


def ask(what: str, *arguments: str, timeout_s: float = TIMEOUT_S) -> Answer:
    """Ask the drivers of ``what`` (``opencl`` or ``gpu``) in a child; trouble becomes a ``Missing``."""
    # As a file: as a module it would import this package, and with it more than it needs.
    command = [sys.executable, "-P", str(Path(__file__).with_name("drivers.py")), what, *arguments]
    try:
        child = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return _trouble(what, f"its driver has not answered within {timeout_s:g} s")
    if child.returncode:
        return _trouble(what, f"its driver {_end(child.returncode)}{_last_line(child.stderr)}")
    try:
        return Answer.model_validate_json(_last_line(child.stdout).removeprefix(": "))
    except ValidationError:
        return _trouble(what, "its driver's answer cannot be read" + _last_line(child.stdout))


def _trouble(what: str, reason: str) -> Answer:
    remedy = f"see what it says by itself: {Path(sys.executable).name} -P -m agent.inventory.drivers {what}"
    return Answer(missing=(Missing(what=what, reason=reason, remedy=remedy),))


def _end(returncode: int) -> str:
    if returncode < 0:
        return f"died of {signal.Signals(-returncode).name}"
    return f"failed with exit code {returncode}"


def _last_line(text: str) -> str:
    """Return the last line as the end of a sentence: ``": last line"``."""
    lines = text.strip().splitlines()
    return f": {lines[-1]}" if lines else ""
