"""``tenbin opencl``: a program is started, listed, moved, parked and resumed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.labs.components import require
from tests.support.moving import Stepper, Worker, command, driver, layer, old_loader, variables
from tests.support.programs import TENBIN, opencl_devices, tenbin


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


@pytest.mark.slow
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


def test_a_loader_in_the_program(environment: dict[str, str], tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n# /etc/OpenCL/vendors\necho ran\n")
    program.chmod(0o755)
    done = tenbin("opencl", "run", "--", str(program), **environment)
    assert (done.returncode, done.stdout) == (0, "ran\n")
    said = f"tenbin: {program} cannot be moved: the OpenCL loader in it knows no layers"
    assert done.stderr.splitlines()[0] == said and "sees one device" not in done.stderr


def test_a_program_that_runs_without_the_layer(environment: dict[str, str]) -> None:
    """The status tells of it, though it has no socket."""
    code = f"import ctypes; ctypes.CDLL({driver()!r}); print(flush=True); input()"
    start = [*TENBIN, "opencl", "run", "--", sys.executable, "-c", code]
    with subprocess.Popen(start, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        program.stdout.readline()
        listed = tenbin("opencl", "status", **environment)
        asked = tenbin("opencl", "move", str(program.pid), "--to", "pocl-1", **environment)
        program.communicate(b"\n")
    why = f"{program.pid}: cannot be moved: it has loaded the driver "
    assert listed.stdout.startswith(why) and listed.stdout.count("\n") == 1
    assert asked.returncode == 2
    assert f"process {program.pid} cannot be moved: it has loaded the driver " in asked.stderr


def test_who_takes_double_precision_away(environment: dict[str, str]) -> None:
    mesa = {"RUSTICL_ENABLE": "llvmpipe", "RUSTICL_FEATURES": ""}
    keys = {one["key"] for one in opencl_devices(**mesa)}
    require("rusticl-0" in keys, "the driver rusticl (Debian: mesa-opencl-icd)")
    start = ("opencl", "run", "--device", "pocl-0", "--device", "rusticl-0", "--", "true")
    done = tenbin(*start, **environment, **mesa)
    limits = "(limits of pocl-0, rusticl-0; no double precision, because of rusticl-0; starts on pocl-0)"
    assert done.stderr.rstrip().endswith(limits)


def test_a_folder_too_long_for_sockets(environment: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 100)
    done = tenbin("opencl", "run", "--", "true", **{**environment, "TENBIN_OPENCL_FOLDER": str(folder)})
    assert done.returncode == 2
    assert " bytes too long for sockets; name a shorter folder: TENBIN_OPENCL_FOLDER" in done.stderr
    assert not folder.exists()


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
