"""Programs that wait for events are moved below drivers whose events are slow or whose calls wait."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.moving import command, compiled_layer, output, variables

ROUNDS = "4"


@pytest.mark.parametrize(
    ("name", "more"),
    [("late_callbacks", {"LATE_MS": "300"})],
)
def test_moved_below_another_driver(tmp_path: Path, name: str, more: dict[str, str]) -> None:
    """A callback that the driver has not made by the move, it never makes: its event is gone."""
    driver, report = str(compiled_layer(name, tmp_path)), tmp_path / "report"
    plain = variables(tmp_path, below=False, OPENCL_LAYERS=driver, **more)
    below = variables(
        tmp_path, below=True, TENBIN_OPENCL_MOVE_EVERY="1", TENBIN_OPENCL_REPORT=str(report), **more
    )
    below["OPENCL_LAYERS"] = f"{driver}:{below['OPENCL_LAYERS']}"  # the last is called first
    program = command("tour", "events", ROUNDS)
    assert output(program, below) == output(program, plain)
    assert json.loads(report.read_text())["moves"] > 20
