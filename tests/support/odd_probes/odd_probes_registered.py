"""Probes that go wrong, each in its own way."""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
import time

from probes.registry import PROBES, ProbeEntry
from probes.run import Run

ODD = ("well", "crash", "fail", "patient", "hang", "stubborn", "chatty")


def register() -> None:
    for name in ODD:
        PROBES[name] = ProbeEntry("odd_probes_registered", name, full_s=3.0, quick_s=1.0)


def measure(run: Run) -> None:
    """Two samples, then what the probe's name says."""
    for number in range(2):
        run.sample(value_s=float(number))
    run.progress("the second half", 0.5)
    match run.probe:
        case "crash":
            faulthandler.disable()
            os.kill(os.getpid(), signal.SIGSEGV)
        case "fail":
            raise RuntimeError("the device is gone")
        case "hang":
            time.sleep(600)
        case "stubborn":
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            run.progress("deaf", 0.6)
            time.sleep(600)
        case "chatty":
            print("a library prints on standard output")
            os.system("echo and so does its C code")
        case "patient":
            try:
                run.progress("waiting", 0.6)
                time.sleep(600)
            finally:
                run.sample(value_s=99.0)
    run.sample(value_s=2.0)
