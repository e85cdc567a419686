"""Contents are copied when kernels have run, also from a driver whose clFinish returns before."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.opencl_layer import requests
from tests.support.amounts import sweep
from tests.support.labs.components import require
from tests.support.moving import ONE, PROGRAMS, command, compiled_layer, variables
from tests.support.programs import opencl_devices

LAUNCHES = 30


def early_finish(folder: Path) -> dict[str, str]:
    """Give the environment of a program whose devices begin to work when somebody waits for an event."""
    environment = variables(folder, below=True)
    layers = f"{compiled_layer('early_finish', folder)}:{environment['OPENCL_LAYERS']}"
    return {**environment, "OPENCL_LAYERS": layers}


def rusticl(folder: Path) -> dict[str, str]:
    """Give the environment of a program that starts on Mesa's rusticl."""
    driver = {"RUSTICL_ENABLE": "llvmpipe", "POCL_DEVICES": ONE}
    keys = {str(one["key"]) for one in opencl_devices(**driver)}
    require({"rusticl-0", "pocl-0"} <= keys, "the driver rusticl (Debian: mesa-opencl-icd)")
    return variables(folder, below=True, **driver, TENBIN_OPENCL_DEVICES="rusticl-0,pocl-0")


@pytest.mark.parametrize("released", sweep([(), ("released",)], [()]), ids=["queue kept", "queue released"])
@pytest.mark.parametrize("driver", sweep((early_finish, rusticl), {early_finish}))
def test_parked_with_kernels_under_way(
    tmp_path: Path, driver: Callable[[Path], dict[str, str]], released: tuple[str, ...]
) -> None:
    environment = {**driver(tmp_path), "PYTHONPATH": str(PROGRAMS.parents[2])}
    program = subprocess.Popen(
        command("flushed", *released),
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert program.stdin is not None and program.stdout is not None
    assert program.stdout.readline() == "ready\n"
    for rounds in (1, 2, 3):
        program.stdin.write(f"{LAUNCHES}\n")
        program.stdin.flush()
        assert program.stdout.readline() == "ready\n"
        requests.park(tmp_path, program.pid)
        now = requests.status(tmp_path, program.pid)
        requests.resume(tmp_path, program.pid, now.devices[rounds % 2]["key"])
    told, _ = program.communicate("end\n", timeout=60)
    assert told.split() == [str(3 * LAUNCHES)] * 2
    assert program.returncode == 0
