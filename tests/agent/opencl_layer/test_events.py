"""Programs that wait for events, moved below drivers that call back late or whose calls wait for others."""

from __future__ import annotations

import itertools
import json
import subprocess
from pathlib import Path

import pytest

from agent.opencl_layer import requests
from profiles.errors import UserError
from tests.support.amounts import slow
from tests.support.moving import PROGRAMS, command, compiled_layer, output, variables

ROUNDS = "4"


def below_both(folder: Path, driver: Path, **more: str) -> dict[str, str]:
    """Give the environment of a program below the layer, which is above an emulated driver."""
    environment = variables(folder, below=True, **more, PYTHONPATH=str(PROGRAMS.parents[2]))
    layers = f"{driver}:{environment['OPENCL_LAYERS']}"  # the last is called first
    return {**environment, "OPENCL_LAYERS": layers}


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("late_callbacks", {"LATE_MS": "300"}),  # what it has not called back by a move it never does
        slow("blocking_calls", {"BLOCKS": "order"}),
        ("blocking_calls", {"BLOCKS": "unset"}),
    ],
    ids=["late callbacks", "flush of others first", "copies wait for user events"],
)
def test_moved_between_events(tmp_path: Path, name: str, more: dict[str, str]) -> None:
    driver, report = compiled_layer(name, tmp_path), tmp_path / "report"
    plain = variables(tmp_path, below=False, OPENCL_LAYERS=str(driver), **more)
    often = {"TENBIN_OPENCL_MOVE_EVERY": "3", "TENBIN_OPENCL_REPORT": str(report)}
    program = command("tour", "events", ROUNDS)
    assert output(program, below_both(tmp_path, driver, **often, **more)) == output(program, plain)
    assert json.loads(report.read_text())["moves"] > 10


def test_a_call_that_waits_for_another_thread(tmp_path: Path) -> None:
    """A write waits in the driver for an event, which another thread sets while the layer is to move."""
    driver = compiled_layer("blocking_calls", tmp_path)
    program = command("crossed", "15")
    plain = variables(tmp_path, below=False, OPENCL_LAYERS=str(driver), BLOCKS="queue")
    process = subprocess.Popen(
        program, env=below_both(tmp_path, driver, BLOCKS="queue"), stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    moved = 0
    for key in itertools.cycle(("pocl-1", "pocl-0")):
        try:
            requests.move(tmp_path, process.pid, key)
            moved += 1
        except UserError:  # it has ended, or is on this device
            if process.poll() is not None:
                break
    assert f"ready\n{process.stdout.read()}" == output(program, plain)
    assert process.returncode == 0 and moved
