"""Programs that keep variables in device memory are not moved; constants move with the source."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from agent.opencl_layer import requests
from tests.support.amounts import sweep
from tests.support.labs.components import require
from tests.support.moving import variables

PROGRAM = """
import json, sys
import pyopencl as cl
KERNEL = "kernel void f(global int *a) { *a = 1; }"
context = cl.create_some_context(interactive=False)
for line in sys.stdin:
    cl.Program(context, json.loads(line) + KERNEL).build(["-cl-std=CL2.0"])
    print("built", flush=True)
"""
CONSTANTS = (
    "const sampler_t nearest = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP | CLK_FILTER_NEAREST;",
    "constant float weights[3] = {1, 2, 1};",
    "const int size = 5;",
    "typedef struct { int x; } point; point made(const int x);",
)
CHANGING = ("global int count;", "global float values[2] = {1, 2};", "const global int *place;")


class Builder:
    """A program that builds what it is given."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env=variables(folder, below=True),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def uses(self, source: str) -> list[str]:
        """Build this beside a kernel; return what hinders a move."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(source + "\n") + "\n")
        self.process.stdin.flush()
        require(self.process.stdout.readline() == "built\n", f"a driver that builds {source}")
        found = requests.status(self.folder, self.process.pid).hindrances
        return [one["uses"] for one in found]

    def end(self) -> None:
        self.process.communicate(timeout=30)


def test_constants_move(tmp_path: Path) -> None:
    program = Builder(tmp_path)
    assert [program.uses(source) for source in CONSTANTS] == [[]] * len(CONSTANTS)
    program.end()


@pytest.mark.parametrize("source", sweep(CHANGING, CHANGING[:1]))
def test_variables_do_not(tmp_path: Path, source: str) -> None:
    program = Builder(tmp_path)
    assert program.uses(source) == ["variables of a program in device memory"]
    program.end()
