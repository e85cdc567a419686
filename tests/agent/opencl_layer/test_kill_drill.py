"""The drill: programs are moved, parked and tried at random, and they or their callers are killed meanwhile.

They end in all ways in which a program can end: by handlers of ``exit`` that use the device, by a destructor,
by a thread, after they have unloaded their loader. ``TENBIN_DRILL=SEED`` makes 300 kills, else there are 12.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import socket
import subprocess
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from ctypes.util import find_library
from pathlib import Path
from typing import Any

import pytest

from agent.opencl_layer import requests
from tests.support.labs.components import require
from tests.support.moving import PROGRAMS, layer, variables

FULL = os.environ.get("TENBIN_DRILL")
SEED, KILLS = int(FULL or 20261127), 300 if FULL else 12
AT_ONCE = 3
ENDINGS = ("return", "handler", "destructor", "thread", "unload")
STEPS, PAUSE_US = (20, 60, 150), 3000
FATES = ("left alone", "killed", "killed", "killed at a step", "caller killed")
DEVICES = ("pocl-0", "pocl-1")
MOST_STEPS = 30  # of a request to a program of one context and two buffers
PATIENCE_S = 120.0  # for any answer, on a loaded machine
ENDS, ON_IT = "the program ends", tuple(f"the program is on {device} already" for device in DEVICES)
PARKED = ("the program is parked; resume it", "the program is parked already")
REFUSALS = {
    "move": (ENDS, *PARKED),
    "estimate": (ENDS, *PARKED),
    "park": (ENDS, *PARKED),
    "resume": (ENDS, "the program is not parked"),
    "try": (ENDS, *PARKED, *ON_IT),
}


class Life:
    """One program, from its start to its end or to its kill.

    Attributes:
        story: what was asked and answered. happened: how often the program or a caller was killed, and so on.
    """

    def __init__(self, program: Path, environment: dict[str, str], seed: str) -> None:
        self.chance = random.Random(seed)
        self.ending, self.steps = self.chance.choice(ENDINGS), self.chance.choice(STEPS)
        self.fate = self.chance.choice(FATES)
        self.story = [f"{seed}: {self.ending} after {self.steps}, {self.fate}"]
        self.happened = Counter[str]()
        self.parked = False
        command = [str(program), self.ending, str(self.steps), str(PAUSE_US)]
        out = subprocess.PIPE
        self.process = subprocess.Popen(command, env=environment, stdout=out, stderr=out, text=True)
        self.socket = Path(environment["TENBIN_OPENCL_FOLDER"]) / str(self.process.pid)

    def live(self) -> tuple[int, str, str]:
        """Ask this and that until the program has ended; return its exit code and what it has printed."""
        try:
            assert self.process.stdout is not None
            if self.chance.random() < 0.9:  # else requests may come before its first context
                select.select([self.process.stdout], [], [], PATIENCE_S)
            calm = self.chance.randrange(5)  # requests before the blow
            while self.process.poll() is None:
                if calm == 0 and self.fate == "killed at a step":
                    self._ask(f"fail {-self.chance.randint(1, MOST_STEPS)}")
                self._ask(self._request(), blow=self.fate if calm == 0 else "")
                calm -= 1
                time.sleep(self.chance.uniform(0, 0.05))
            out, error = self.process.communicate(timeout=PATIENCE_S)
        finally:
            self.process.kill()
            self.process.communicate()
        return self.process.returncode, out, error

    def _request(self) -> str:
        device = self.chance.choice(DEVICES)
        if self.parked and self.chance.random() < 0.7:
            return self.chance.choice(("resume", f"resume {device}"))
        others = (f"park 10 {self.socket.parent}", f"estimate {device}", f"try {device} 0.1 0", "status")
        return self.chance.choice((*[f"move {device} 10"] * 3, *["park 10"] * 3, *others))

    def _ask(self, request: str, blow: str = "") -> None:
        """Send a request and take the answer, unless a blow falls before."""
        answer: dict[str, Any] | None = None
        what = request.split(maxsplit=1)[0]
        assert self.process.stdout is not None
        builds = not select.select([self.process.stdout], [], [], 0)[0]  # its program: it has not begun
        with socket.socket(socket.AF_UNIX) as line, suppress(OSError):
            line.connect(str(self.socket))
            line.settimeout(PATIENCE_S)
            line.sendall(f"{request}\n".encode())
            if blow in ("killed", "caller killed"):
                select.select([line], [], [], self.chance.choice((0, 0.01, 0.1, 0.5)) * self.chance.random())
                if blow == "killed":
                    self.process.kill()
                else:
                    self.happened[blow] += 1
                    return self.story.append(f"{request}: {blow}")
            with line.makefile() as lines:
                answer = next((made for made in map(json.loads, lines) if "progress" not in made), None)
        self.story.append(f"{request}: {answer}")
        if answer is None:  # it ends, or has not begun
            return None
        if trouble := answer.get("trouble"):
            passes = what == "try" or builds
            assert passes if answer["postponed"] else trouble in REFUSALS[what], "\n".join(self.story)
            self.happened["refused"] += 1
            self.parked = trouble in PARKED
        elif what != "status":
            self.happened[what] += 1
        if "state" in answer:
            self.parked = answer["state"] == "parked"
        return None


@pytest.mark.slow
@pytest.mark.timeout(3600 if FULL else 300)
def test_every_program_ends_as_if_nobody_had_asked(tmp_path: Path) -> None:
    """Neither sockets nor files are left, and no request waits for ever."""
    layer()
    require(find_library("OpenCL"), "the loader of OpenCL (Debian: ocl-icd-libopencl1)")
    program = tmp_path / "endings"
    subprocess.run(["cc", "-O1", "-pthread", "-o", program, PROGRAMS / "endings.c", "-ldl"], check=True)
    sockets = tmp_path / "sockets"
    sockets.mkdir(mode=0o700)
    environment = variables(sockets, below=True, XDG_CACHE_HOME=str(tmp_path / "cache"))
    plain = variables(sockets, below=False, XDG_CACHE_HOME=str(tmp_path / "cache"))
    results = {
        steps: subprocess.check_output([program, "return", str(steps), "0"], env=plain, text=True)
        for steps in STEPS
    }
    happened, wrong = Counter[str](), threading.Event()

    def live_on(number: int) -> None:
        life = 0
        while happened["killed"] + happened["caller killed"] < KILLS and not wrong.is_set():
            life += 1
            living = Life(program, environment, f"{SEED}-{number}-{life}")
            status, out, error = living.live()
            story = "\n".join([*living.story, f"{status}: {out!r} {error!r}"])
            if living.fate.startswith("killed") and status == -signal.SIGKILL:
                happened["killed"] += 1
            else:
                assert (status, out) == (0, results[living.steps]), story
            happened.update(living.happened)
            happened[living.ending] += 1

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for done in as_completed([pool.submit(live_on, number) for number in range(AT_ONCE)]):
            if done.exception():
                wrong.set()
            done.result()
    print(f"\ndrill {SEED}: {dict(happened)}")
    assert list(requests.statuses(sockets)) == []
    assert list(sockets.iterdir()) == []
