"""The process that runs one round of one probe, and its parent's side.

    python -P -m agent.node_profile.probe_process PROBE < settings.json

It is a process of its own, so that a crashing driver costs one probe and not the profile. Events are JSON
lines on the original standard output; what libraries print goes to standard error. On SIGINT, SIGTERM and the
death of its parent the probe cleans up, and the journal puts changed values back.

Every round waits for the imports of this module, so numpy and what fits belong elsewhere.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType
from typing import IO, Any

from agent.journal import Journal
from agent.processes.tree import end_with_parent
from probes.registry import entry_of
from probes.run import Event, Run
from profiles.errors import INTERRUPTED, UserError
from profiles.files.safe_files import state_dir
from profiles.records import Absent, Settings

# -- the parent's side: it runs one round and hands its events on as they come -----------------------------


GRACE_S = 15.0  # for a probe to clean up after an interrupt


@dataclass(frozen=True)
class ProbeExit:
    """The end of a probe's process; ``last_words`` is its last line on standard error."""

    returncode: int
    interrupted: bool
    timed_out: bool
    last_words: str

    @property
    def trouble(self) -> str:
        """The end of a sentence that says what went wrong; empty if nothing did."""
        if self.interrupted or self.returncode in (0, INTERRUPTED):
            return ""
        if self.timed_out:
            return "hung and was stopped"
        if self.returncode < 0:
            return f"died of {signal.Signals(-self.returncode).name}"
        return f"failed ({self.last_words or f'exit code {self.returncode}'})"


def run_child(probe: str, settings: Settings, on_event: Callable[[Event], None], limit_s: float) -> ProbeExit:
    """Run ``probe`` once; a KeyboardInterrupt here is passed to it, and it is waited for while it cleans up.

    The probe has a session of its own, so that the terminal's Ctrl-C does not reach it twice. After
    ``limit_s`` seconds the whole session is killed.
    """
    with tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "agent.node_profile.probe_process", probe],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
        overdue = threading.Event()
        timer = _kill_later(child, limit_s, overdue)
        interrupted = False
        try:
            _feed(child, settings)
            interrupted = _read(child, on_event)
        finally:
            timer.cancel()
            _kill_group(child)
            child.wait()
        return ProbeExit(child.returncode, interrupted, overdue.is_set(), _last_line(errors))


def _feed(child: subprocess.Popen[str], settings: Settings) -> None:
    assert child.stdin
    with suppress(BrokenPipeError):  # a child that died at once: its exit code and last words say why
        child.stdin.write(settings.model_dump_json())
        child.stdin.close()


def _read(child: subprocess.Popen[str], on_event: Callable[[Event], None]) -> bool:
    """Hand on events until the child closes its output; return whether an interrupt came meanwhile."""
    assert child.stdout
    interrupted = False
    while True:
        try:
            for line in child.stdout:
                if line.endswith("\n"):  # a killed probe may leave half a line
                    on_event(json.loads(line))
            child.wait()
            return interrupted
        except KeyboardInterrupt:
            if interrupted:  # the user means it
                _kill_group(child)
            else:
                child.send_signal(signal.SIGINT)
                _kill_later(child, GRACE_S, threading.Event())
            interrupted = True


def _kill_later(child: subprocess.Popen[str], seconds: float, overdue: threading.Event) -> threading.Timer:
    def kill() -> None:
        if child.poll() is None:
            overdue.set()
            _kill_group(child)

    timer = threading.Timer(seconds, kill)
    timer.daemon = True
    timer.start()
    return timer


def _kill_group(child: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def _last_line(errors: IO[str]) -> str:
    errors.seek(0)
    lines = [line.strip() for line in errors if line.strip()]
    return lines[-1] if lines else ""


# -- the process -------------------------------------------------------------------------------------------


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
    end_with_parent(os.getppid())
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
