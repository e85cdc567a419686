"""The program that runs one round of one probe.

    python -P -m agent.node_profile.probe_process PROBE < settings.json

It is a process of its own, so that a crashing driver costs one probe and not the profile. Events are JSON
lines on the original standard output; what libraries print goes to standard error. On SIGINT, SIGTERM and the
death of its parent the probe cleans up, and the journal puts changed values back.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from types import FrameType
from typing import Any

from agent.journal import Journal
from agent.paths import state_dir
from probes.registry import entry_of
from probes.run import Event, Run
from profiles.errors import INTERRUPTED, UserError
from profiles.records import Absent, Settings

PR_SET_PDEATHSIG = 1


def _interrupt(signum: int, frame: FrameType | None) -> None:
    # Once only: a second signal must not break the cleaning up.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def _plain(value: Any) -> Any:
    """Numpy scalars and paths as JSON knows them."""
    return value.item() if hasattr(value, "item") else str(value)


def main() -> int:
    signal.signal(signal.SIGINT, _interrupt)
    signal.signal(signal.SIGTERM, _interrupt)
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    name = sys.argv[1]
    settings = Settings.model_validate_json(sys.stdin.read())
    events = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def emit(event: Event) -> None:
        events.write(json.dumps(event, default=_plain) + "\n")

    try:
        with Journal(state_dir() / "journal") as journal:
            entry_of(name).load()(Run(name, settings, emit, journal.control))
    except KeyboardInterrupt:
        return INTERRUPTED
    except UserError as error:
        absent = Absent(probe=name, what="all of it", reason=error.what, remedy=error.remedy)
        emit({"event": "absent", "absent": absent.model_dump()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
