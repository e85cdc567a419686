"""The phases that a program with ``tenbin.Checkpoint`` has noted in its job's folder.

``checkpoint.phases.jsonl`` has a line for each, an object with these fields:

    phase   context, compile: opening the device, building kernels; restore: reading the checkpoint back;
            ready: from now on it computes; pace: mean time between its safe points;
            drain, save: emptying the queue, writing the checkpoint
    time_s  how long it took
    bytes   that are saved or restored (ready: that will have to be)
    program, device  their names
    at_s    when it ended, in seconds since 1970
"""

from __future__ import annotations

import json
import math
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from agent.attempts.checked import shown
from profiles.files import read_plain

NAME = "checkpoint.phases.jsonl"
MOST_BYTES = 65_536  # of the end of the file: a program could write anything


class Phase(NamedTuple):
    """One line; see above."""

    phase: str
    time_s: float
    bytes: float
    at_s: float
    program: str


def read(folder: Path) -> list[Phase]:
    """The last phases, in their order; lines that are none are left out, as is what is no plain file."""
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
