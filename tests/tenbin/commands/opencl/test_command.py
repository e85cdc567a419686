"""``tenbin opencl``: a program is started, listed, moved, parked and resumed."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.moving import Stepper, Worker, command, layer, old_loader, variables
from tests.support.programs import TENBIN, tenbin


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Two devices, and the folder of the sockets; the layer itself is what ``tenbin opencl run`` brings."""
    layer()
    made = {**variables(tmp_path, below=False), "TENBIN_OPENCL_FOLDER": str(tmp_path / "sockets")}
    del made["XDG_CACHE_HOME"]  # there the layer lies that was compiled before
    return made


def test_run_move_park_resume(environment: dict[str, str]) -> None:
    def tell(*arguments: str) -> str:
        done = tenbin("opencl", *arguments, **environment)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    start = [*TENBIN, "opencl", "run", "--device", "pocl-1", "--device", "pocl-0", "--"]
    worker = Worker(environment, [*start, *command("worker")], stderr=subprocess.PIPE)
    digest = worker.digest([["run", 0, 0, 0]])
    pid = str(worker.process.pid)
    assert tell("status") == f"{pid}: on pocl-1; can be moved to pocl-0"
    assert tell("move", pid, "--to", "pocl-0").startswith(
        f"{pid}: on pocl-0; can be moved to pocl-1; 1 move, the last with a pause of "
    )
    assert " (predicted " in tell("status", pid)
    moves = json.loads(tell("move", pid, "--to", "pocl-1", "--json"))["moves"]
    assert moves == 2
    assert f"{pid}: a move takes " in tell("estimate", pid, "--to", "pocl-0")
    assert json.loads(tell("estimate", pid, "--to", "pocl-0", "--json"))["pause_s"] > 0
    tell("move", pid, "--to", "pocl-0")
    assert tell("park", pid).endswith("in memory; was on pocl-0")
    assert json.loads(tell("status", "--json"))[0]["state"] == "parked"
    tell("resume", pid, "--to", "pocl-1")
    assert json.loads(tell("status", pid, "--json"))[0]["device"] == "pocl-1"
    assert worker.digest([["run", 0, 0, 0]]) == digest
    worker.end()
    assert tell("status") == (
        "no OpenCL program runs that was started by: tenbin opencl run -- CMD, or as a job on a device"
    )


def test_try(environment: dict[str, str], tmp_path: Path) -> None:
    """A running program is tried; it stays where it is."""
    program = Stepper(tmp_path, "differing")
    pid, folder = str(program.process.pid), {**environment, "TENBIN_OPENCL_FOLDER": str(tmp_path)}
    program.steps(1)
    with program.busy():
        done, told = (
            tenbin("opencl", "try", pid, "--on", "pocl-1", "--watch", "0.3", *more, **folder)
            for more in ((), ("--json",))
        )
    program.end()
    assert done.returncode == told.returncode == 0, done.stderr
    assert "tenbin: trying differ on pocl-1, 1 of 3" in done.stderr
    first, *rest = done.stdout.splitlines()
    assert re.match(
        rf"{pid}: on pocl-1 it would be .* times \(.* \.\. .*\) as fast as on pocl-0; RESULTS DIFFER", first
    )
    assert any("262148 bytes written are identical" in line for line in rest)
    differing = r"differ \(65536\), .* bytes written differ, numbers by at most 0.33 of themselves"
    assert any(re.search(differing, line) for line in rest)
    assert json.loads(told.stdout)["device"] == "pocl-0"
    assert {one["agrees"] for one in json.loads(told.stdout)["kernels"]} == {True, False}


def test_what_the_program_sees(environment: dict[str, str]) -> None:
    code = "import pyopencl as cl; print([len(p.get_devices()) for p in cl.get_platforms()])"
    done = tenbin("opencl", "run", "--", "python3", "-c", "pass", **environment)
    assert done.returncode == 0
    assert "tenbin: the program sees one device: " in done.stderr
    assert done.stderr.rstrip().endswith("(limits of pocl-0, pocl-1; starts on pocl-0)")
    done = tenbin("opencl", "run", "--", TENBIN[0], "-c", code, **environment)
    assert done.stdout.strip() == "[1]"


def test_a_loader_that_knows_no_layers(environment: dict[str, str], tmp_path: Path) -> None:
    """The program runs all the same; with the folder that is named in front, nothing is said."""
    folders = str(old_loader(tmp_path).parent)
    done = tenbin("opencl", "run", "--", "echo", "ran", **{**environment, "LD_LIBRARY_PATH": folders})
    assert (done.returncode, done.stdout) == (0, "ran\n")
    said = done.stderr.splitlines()[-1]
    assert said.startswith("tenbin: most OpenCL programs cannot be moved here: the OpenCL loader ")
    assert f"{tmp_path}/libOpenCL.so.1, knows no layers; Python programs with pyopencl's wheel" in said
    remedy = re.search("; put (/.*) first in LD_LIBRARY_PATH", said)
    assert remedy, said
    folders = f"{remedy[1]}:{folders}"
    done = tenbin("opencl", "run", "--", "echo", "ran", **{**environment, "LD_LIBRARY_PATH": folders})
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert "knows no layers" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("run", "--device", "nvidia-7", "--", "true"),
            "no OpenCL device 'nvidia-7'; choose from pocl-0, pocl-1",
        ),
        (("run", "--", "no-such-program"), "no-such-program: no such program"),
        (("move", "1", "--to", "pocl-0"), "no OpenCL program with process ID 1 can be moved"),
        (("try", "1", "--on", "pocl-0"), "no OpenCL program with process ID 1 can be moved"),
        (("park", "1", "--to", "/no/folder"), "--to /no/folder: no such folder; name a folder, or 'memory'"),
    ],
)
def test_bad_input(environment: dict[str, str], arguments: tuple[str, ...], said: str) -> None:
    done = tenbin("opencl", *arguments, **environment)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
