"""Processor time of the commands that only read, beside that of ``tenbin --version``, in turns.

At most twice is aimed at. ``doctor`` has what drivers, MPI and compiler answered within a day, if nothing of
them has changed; to try them (``doctor --again``) takes longer, two ranks alone more than ``--version``.
``report`` finds the pictures drawn, by ``tenbin profile`` as a rule; to draw them (``first report``) it
reads the samples by pandas, whose import alone takes twice as long as ``--version``. ``drift`` needs numpy
where six checks or more are there.
"""

from __future__ import annotations

import os
import resource
import socket
import subprocess
from pathlib import Path
from statistics import median

import pytest

from agent.inventory import read_machine
from profiles.files.store import Store
from profiles.records import Settings
from tests.benchmarks import amount, few
from tests.support.coordinator import Up
from tests.support.programs import TENBIN
from tests.support.records import make_coefficient, make_model, make_profile
from tests.tenbin.report.test_page import memory_samples

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(600)]
ROUNDS = amount(20, 10, 1)
COMMANDS = (  # and whether a coordinator answers
    *((False, command) for command in ("policies", "policies easy", "profile list", "program list")),
    *((False, f"profile {command}") for command in ("show", "show --json", "compare previous last")),
    *((False, f"profile {command}") for command in ("export", f"report --output {os.devnull}", "drift")),
    *((False, command) for command in ("doctor", "doctor --again")),
    *((True, command) for command in ("jobs", "info 1", "status", "nodes", "history", "logs 1")),
)


def cpu_s(*arguments: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([*TENBIN, *arguments], capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_commands_that_read(
    up: Up, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings(storage=(tmp_path,))
    models = tuple(
        make_model(
            make_coefficient(n + 1.0, 0.9 * n, 1.1 * n + 2.0), labels={"cores": str(n), "numa": "local"}
        )
        for n in range(100)
    )
    machine = {"settings": settings, "inventory": read_machine(settings), "node": socket.gethostname()}
    store = Store(tmp_path / "store")
    for id in ("20260101T000000Z", "20260102T000000Z"):
        store.save(make_profile(id=id, models=models, **machine), {"memory": memory_samples()})
    monkeypatch.setenv("TENBIN_STORE", str(store.root))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    up.start("--cores", "1")
    up.client.submit(["true"]).wait(60)
    ending = {True: ("--home", str(up.home)), False: ()}
    commands = {"--version": ("--version",)}
    commands |= {command: (*command.split(), *ending[asks]) for asks, command in few(COMMANDS)}
    first_s = cpu_s("profile", "report", "--output", os.devnull)
    took = [{name: cpu_s(*words) for name, words in commands.items()} for _ in range(ROUNDS)]
    with capsys.disabled():
        print(f"\n{'tenbin ...':34} {'processor time, s':>17} {'ratio':>6}")
        for name in commands:
            middle, peer = (median(turn[of] for turn in took) for of in (name, "--version"))
            print(f"{name:34} {middle:17.2f} {middle / peer:6.1f}")
        print(f"{'first report':34} {first_s:17.2f} {first_s / peer:6.1f}")
