"""The phases that a program with ``tenbin.Checkpoint`` notes in its job's folder.

``checkpoint.phases.jsonl`` has a line for each, an object with these fields:

    phase   context, compile: opening the device, building kernels; restore: reading the checkpoint back;
            ready: from now on it computes; pace: mean time between its safe points;
            drain, save: emptying the queue, writing the checkpoint
    time_s  duration
    bytes   size of what is saved or restored (ready: of what a later checkpoint will hold)
    program, device  their names
    at_s    end, in seconds since 1970
"""

from __future__ import annotations

import json
import math
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from agent.attempts.checked import shown
from profiles.files.safe_files import read_plain

NAME = "checkpoint.phases.jsonl"
MOST_BYTES = 65_536  # of the end of the file: a program could write anything


class Phase(NamedTuple):
    """One line of the file."""

    phase: str
    time_s: float
    bytes: float
    at_s: float
    program: str


def read(folder: Path) -> list[Phase]:
    """Read the last phases, in their order; damaged lines are left out."""
    found = []
    end = b""
    with suppress(OSError):
        end = read_plain(folder / NAME, MOST_BYTES, last=True)
    for line in end.split(b"\n"):
        with suppress(ValueError, KeyError, TypeError, OverflowError, RecursionError):
            row = json.loads(line)
            took, size, at = (float(row[name]) for name in ("time_s", "bytes", "at_s"))
            if all(math.isfinite(number) and number >= 0 for number in (took, size, at)):
                words = (shown(str(row.get(name, ""))) for name in ("phase", "program"))
                found.append(Phase(next(words), took, size, at, next(words)))
    return found
