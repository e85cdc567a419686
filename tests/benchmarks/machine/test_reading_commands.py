"""Processor time of the commands that only read, beside that of ``tenbin --version``, in turns.

At most twice is aimed at. It cannot be had by those that do more than read: ``doctor`` starts ranks of MPI,
asks the drivers and calls a compiler; ``report`` computes with pandas, whose import alone takes more than
that, and draws; ``drift`` needs numpy where six checks or more are there.
"""

from __future__ import annotations

import os
import resource
import socket
import subprocess
from pathlib import Path

import pytest

from agent.inventory import read_machine
from profiles.files.store import Store
from profiles.records import Settings
from tests.benchmarks import amount, few
from tests.support.coordinator import Up
from tests.support.programs import TENBIN
from tests.support.records import make_coefficient, make_model, make_profile

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(600)]
ROUNDS = amount(20, 10, 1)
OF_PROFILES = (
    ("profile", "show"),
    ("profile", "show", "--json"),
    ("profile", "list"),
    ("profile", "compare", "previous", "last"),
    ("profile", "export"),
    ("doctor",),
    ("profile", "report", "--output", os.devnull),
    ("profile", "drift"),
)
OF_JOBS = (("jobs",), ("info", "1"), ("status",), ("nodes",), ("history",), ("logs", "1"))


def cpu_s(*arguments: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([*TENBIN, *arguments], capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def compare(commands: tuple[tuple[str, ...], ...], *ending: str) -> None:
    """Print the least processor time of each command, over that of ``tenbin --version``."""
    least = dict.fromkeys((("--version",), *few(commands)), float("inf"))
    for _ in range(ROUNDS):
        for command in least:
            more = ending if command != ("--version",) else ()
            least[command] = min(least[command], cpu_s(*command, *more))
    peer = least[("--version",)]
    print(f"\ntenbin --version: {peer:.2f} s of processor time")
    for command in few(commands):
        print(f"tenbin {' '.join(command)}: {least[command]:.2f} s, ratio {least[command] / peer:.1f}")


def test_commands_that_read_profiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
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
        store.save(make_profile(id=id, models=models, **machine), {})
    monkeypatch.setenv("TENBIN_STORE", str(store.root))
    with capsys.disabled():
        compare(OF_PROFILES)


def test_commands_that_read_jobs(up: Up, capsys: pytest.CaptureFixture[str]) -> None:
    up.start("--cores", "1")
    up.client.submit(["true"]).wait(60)
    with capsys.disabled():
        compare(OF_JOBS, "--home", str(up.home))
