"""A processor, and an emulated GPU of smaller work-groups: its limits, and what parking leaves on it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from agent.opencl_layer import requests
from profiles.errors import UserError
from tests.support.moving import PROGRAMS, Stepper, command, compiled_layer, variables


class Groups:
    """The program ``groups`` below the layer."""

    def __init__(self, folder: Path) -> None:
        environment = variables(folder, below=True, PYTHONPATH=str(PROGRAMS.parents[2]))
        environment["OPENCL_LAYERS"] = f"{compiled_layer('small_gpu', folder)}:{environment['OPENCL_LAYERS']}"
        self.process = subprocess.Popen(
            command("groups"), env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def launch(self, kernel: str, items: int = 0) -> tuple[int, int]:
        """Launch a kernel by such groups; return what it admits, and the sum."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{kernel} {items}\n")
        self.process.stdin.flush()
        most, found = self.process.stdout.readline().split()
        return int(most), int(found)

    def end(self) -> None:
        self.process.communicate(timeout=30)
        assert self.process.returncode == 0


def test_groups_fit_every_device(tmp_path: Path) -> None:
    """A program that asks what a kernel admits is told what every device admits."""
    program = Groups(tmp_path)
    assert program.launch("plain") == (64, 1)
    requests.move(tmp_path, program.process.pid, "pocl-1")
    assert program.launch("plain") == (64, 2)
    program.end()


def test_a_device_that_takes_smaller_groups_is_refused(tmp_path: Path) -> None:
    """The program runs on where it is; the kernel that was launched may be gone."""
    program = Groups(tmp_path)
    assert program.launch("large", 32) == (64, 3)
    assert program.launch("plain") == (64, 4)
    pid, refusal = program.process.pid, "kernel large is launched by groups of 32, pocl-1 takes 16 at most"
    for request in (requests.estimate, requests.move):
        with pytest.raises(UserError, match=refusal):
            request(tmp_path, pid, "pocl-1")
    requests.park(tmp_path, pid)
    with pytest.raises(UserError, match=refusal):
        requests.resume(tmp_path, pid, "pocl-1")
    requests.resume(tmp_path, pid)
    assert program.launch("large", 32) == (64, 7)
    assert requests.status(tmp_path, pid).device == "pocl-0"
    program.end()


def test_parked_program_holds_nothing_of_a_gpu(tmp_path: Path) -> None:
    """Launches that are kept to warm up its next device keep neither queue nor context."""
    told = tmp_path / "contexts"
    program = Stepper(tmp_path, below_too="small_gpu", CONTEXTS=str(told))
    program.steps(3)
    pid = program.process.pid
    requests.move(tmp_path, pid, "pocl-1")
    with program.busy():
        requests.park(tmp_path, pid)
        until_none(pid, told)
        requests.resume(tmp_path, pid)
    program.end()


def test_too_little_memory_of_a_device_has_a_code(tmp_path: Path) -> None:
    """Programs go by it, whatever the words are; the program runs on."""
    program = Stepper(tmp_path, below_too="small_gpu", FULL="1")
    program.steps(3)
    with pytest.raises(requests.LayerRefused) as caught:
        requests.move(tmp_path, program.process.pid, "pocl-1")
    assert (caught.value.code, caught.value.postponed) == (requests.NO_DEVICE_MEMORY, False)
    program.steps(1)
    assert requests.status(tmp_path, program.process.pid).device == "pocl-0"
    program.end()


def until_none(pid: int, told: Path) -> None:
    """Wait until nobody holds a context of the GPU; a driver's own thread may hold one for a moment."""
    deadline = time.monotonic() + 20
    while not (told.exists() and told.read_text() == "0\n"):
        assert time.monotonic() < deadline
        os.kill(pid, signal.SIGURG)
        time.sleep(0.1)
