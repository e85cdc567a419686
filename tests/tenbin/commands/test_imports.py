"""Commands that only read import nothing heavy: what they need is small, and others wait for it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent import inventory
from agent.doctor import examine
from agent.node_profile.identity import changes_since
from profiles.files.store import Store
from profiles.records import Profile, Settings
from tests.support.coordinator import Up
from tests.support.paths import ROOT
from tests.support.programs import tenbin
from tests.support.records import make_coefficient, make_device, make_inventory, make_model, make_profile
from tests.tenbin.report.test_page import memory_samples

SCIENCE = {"numpy", "scipy", "statsmodels", "pandas", "pyarrow", "plotly"}
HEAVY = SCIENCE | {"psutil", "pyopencl", "mpi4py", "fastapi", "uvicorn", "textual"}
RUN = """
import sys
from tenbin.cli import main
try:
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""


def imported(*arguments: str, heavy: set[str] = HEAVY) -> set[str]:
    """Run a command in a process of its own; return what of ``heavy`` it has imported."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", RUN, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return heavy & {name.partition(".")[0] for name in done.stderr.splitlines()[-1].split()}


def here(**changes: Any) -> Profile:
    """Make a profile of this machine, with the model of a checkpoint, of which the card has a prediction."""
    settings = Settings(storage=(Path("/"),))
    line = make_model(
        make_coefficient(0.002, 0.0019, 0.0021, name="alpha", unit="s/MB"),
        make_coefficient(0.1, 0.09, 0.11, name="beta", unit="s"),
        **{"probe": "checkpoint", "quantity": "checkpoint_s", "form": "linear", "x": "memory_mb"},
        **{"covariance": ((1e-9, 0.0), (0.0, 1e-5)), "residual_sd": 0.01, "labels": {"device": "d"}},
    )
    node = socket.gethostname()
    made = {"node": node, "settings": settings, "inventory": inventory.read_machine(settings)}
    return make_profile(**{**made, "models": (make_model(), line), **changes})


def test_the_help_of_all_commands_needs_no_records() -> None:
    assert imported("--help", heavy=HEAVY | {"pydantic"}) == set()


def test_policies_are_listed_without_their_libraries() -> None:
    assert imported("policies") == set()


def test_a_profile_is_shown_without_numpy(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.save(here(), {})
    assert imported("profile", "show", "--store", str(tmp_path)) == set()
    assert imported("profile", "list", "--store", str(tmp_path)) == set()
    assert imported("profile", "drift", "--store", str(tmp_path)) == set()


def test_the_doctor_imports_what_it_needs() -> None:
    assert imported("doctor") <= {"psutil"}  # to end ranks that hang


def test_a_report_draws_its_pictures_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    store = Store(tmp_path / "store")
    store.save(here(), {"memory": memory_samples()})
    words = ("profile", "report", "--store", str(store.root), "--output", str(tmp_path / "report.html"))
    assert not imported(*words) & {"scipy", "statsmodels", "plotly"}
    drawn = (tmp_path / "report.html").read_bytes()
    assert imported(*words) == set() and (tmp_path / "report.html").read_bytes() == drawn
    assert b"Memory bandwidth over cores" in drawn


def test_jobs_are_listed_without_numpy(up: Up) -> None:
    up.start("--cores", "1")
    up.client.submit(["true"]).wait(60)
    for words in (
        ["jobs", "--all"],
        ["info", "1"],
        ["status"],
        ["nodes"],
        ["history"],
        ["efficiency", "1"],
        ["logs", "1"],
    ):
        assert imported(*words, "--home", str(up.home)) == set(), words


@pytest.mark.parametrize("what", ["gpu", "opencl"])
def test_drivers_are_asked_by_a_small_process(what: str) -> None:
    program = f"""
import runpy, sys
sys.argv = ["drivers", {what!r}]
runpy.run_path({str(ROOT / "agent/drivers.py")!r}, run_name="__main__")
print(*sys.modules)
"""
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    answer, modules = done.stdout.splitlines()
    assert isinstance(json.loads(answer), dict)
    assert {name.partition(".")[0] for name in modules.split()} & (HEAVY | {"pydantic"}) == set()


def test_drivers_are_not_asked_to_show_a_profile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Only files are compared; ``tenbin doctor``, which asks the drivers, compares the rest."""

    def asked(*_: object) -> None:
        raise AssertionError("a driver is asked")

    monkeypatch.setattr(inventory, "ask", asked)
    monkeypatch.setattr(inventory, "_mpi", asked)
    profile = here()
    assert changes_since(profile) == []
    of_devices = profile.inventory.model_copy(update={"opencl": (make_device(),)})
    assert changes_since(profile.model_copy(update={"inventory": of_devices})) == []
    older = profile.inventory.model_copy(update={"kernel": "2.6.32"})
    changed = profile.model_copy(update={"inventory": older})
    (line,) = changes_since(changed)
    assert "kernel 2.6.32 -> " in line
    Store(tmp_path).save(changed, {})
    shown = tenbin("profile", "show", "--store", str(tmp_path)).stdout
    assert f"STALE: this machine has changed since ({line}). Profile it again: tenbin profile" in shown


def test_the_doctor_tells_of_a_changed_driver() -> None:
    device = make_device()
    now = make_inventory(opencl=(device,))
    updated = make_profile(
        inventory=now.model_copy(update={"opencl": (device.model_copy(update={"driver": "0.9"}),)})
    )
    same = make_profile(inventory=now)

    def told(last: Profile | None) -> list[str]:
        return [found.reason for found in examine(Settings(), now, last) if "is stale" in found.what]

    assert told(None) == told(same) == []
    (reason,) = told(updated)
    assert f"OpenCL device {device.key}" in reason and "0.9" in reason
