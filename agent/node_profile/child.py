"""Runs one round of one probe in a process of its own, and hands its events on as they come."""

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
from typing import IO

from probes.run import Event
from profiles.errors import INTERRUPTED
from profiles.records import Settings

GRACE_S = 15.0  # what a probe may take to clean up after an interrupt


@dataclass(frozen=True)
class ProbeExit:
    """How a probe's process ended; ``last_words`` is the last line it wrote to standard error."""

    returncode: int
    interrupted: bool
    timed_out: bool
    last_words: str

    @property
    def trouble(self) -> str:
        """What went wrong, as the end of a sentence; empty when nothing did."""
        if self.interrupted or self.returncode in (0, INTERRUPTED):
            return ""
        if self.timed_out:
            return "hung and was stopped"
        if self.returncode < 0:
            return f"died of {signal.Signals(-self.returncode).name}"
        return f"failed ({self.last_words or f'exit code {self.returncode}'})"


def run_child(probe: str, settings: Settings, on_event: Callable[[Event], None], limit_s: float) -> ProbeExit:
    """Run ``probe`` once; a KeyboardInterrupt here is passed to it, and it is waited for while it cleans up.

    Its own session keeps the terminal's Ctrl-C away from it (it would arrive twice) and lets everything it
    started be killed with it when it does not end within ``limit_s`` seconds.
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
    with suppress(BrokenPipeError):  # it died at once: its exit code and last words say why
        child.stdin.write(settings.model_dump_json())
        child.stdin.close()


def _read(child: subprocess.Popen[str], on_event: Callable[[Event], None]) -> bool:
    """Hand on events until the child has closed its output; whether an interrupt came meanwhile."""
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
