"""Programs that end while they are parked, or while a request is under way."""

from __future__ import annotations

import select
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.opencl_layer import requests
from profiles.errors import UserError
from tests.support.moving import PROGRAMS, command, compiled_layer, variables
from tests.support.opencl_programs.ends import N
from tests.support.waiting import until

SUM = f"{sum(range(N))}\n"


@contextmanager
def started(folder: Path, *options: str, **more: str) -> Iterator[subprocess.Popen[str]]:
    """Start the program ``ends``; in the end it has printed the sum of its numbers, and ended in order."""
    environment = variables(folder, below=True, PYTHONPATH=str(PROGRAMS.parents[2]), **more)
    environment["OPENCL_LAYERS"] = f"{compiled_layer('late_compiler', folder)}:{environment['OPENCL_LAYERS']}"
    program = subprocess.Popen(
        command("ends", *options),
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    try:
        assert program.stdout.readline() == "ready\n"
        yield program
        assert program.stdout.readline() == SUM
        assert program.wait(30) == 0
    finally:
        program.kill()
        program.communicate()
    assert not (folder / str(program.pid)).exists()


def end(program: subprocess.Popen[str]) -> None:
    """Let it begin to end."""
    assert program.stdin is not None and program.stdout is not None
    program.stdin.write("\n")
    program.stdin.flush()
    assert program.stdout.readline() == "ends\n"


@pytest.mark.parametrize("options", [(), ("thread",)])
def test_a_parked_program_waits_at_its_end(tmp_path: Path, options: tuple[str, ...]) -> None:
    """A status lists it, and a resume lets it end: exit handlers may have work for its device."""
    with started(tmp_path, *options) as program:
        requests.park(tmp_path, program.pid)
        end(program)
        assert select.select([program.stdout], [], [], 0.3)[0] == []
        assert [one.state for one in requests.statuses(tmp_path)] == ["parked"]
        assert requests.resume(tmp_path, program.pid).state == "running"


@pytest.mark.parametrize("options", [(), ("thread",)])
def test_an_end_waits_for_a_compiler_at_its_first_use(tmp_path: Path, options: tuple[str, ...]) -> None:
    """Handlers that a driver registers during the first move are called after it."""
    compiles = tmp_path / "compiles"
    with started(tmp_path, *options, COMPILES=str(compiles)) as program:
        said: list[str] = []

        def move() -> None:
            try:
                requests.move(tmp_path, program.pid, "pocl-1")
            except UserError as error:
                said.append(str(error))

        mover = threading.Thread(target=move)
        mover.start()
        until(lambda: compiles.exists() or not mover.is_alive())
        assert compiles.exists(), said
        end(program)
        mover.join(30)
        assert not mover.is_alive()
