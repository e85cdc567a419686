"""Unmodified programs moved while they run print what they print without the layer."""

from __future__ import annotations

import json
from ctypes.util import find_library
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.amounts import examples
from tests.support.labs.components import require
from tests.support.moving import Worker, command, output, variables
from tests.support.opencl_programs.worker import OPERATIONS

ROUNDS = "3"
EXAMPLES = examples(60)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Run all programs without the layer."""
    folder = tmp_path_factory.mktemp("plain")
    return output(command("tour", "all", ROUNDS), variables(folder, below=False))


def run_below(folder: Path, **more: str) -> tuple[str, dict[str, object]]:
    """Run all programs below the layer: what they print, and the status at their end."""
    report = folder / "report"
    environment = variables(folder, below=True, TENBIN_OPENCL_REPORT=str(report), **more)
    return output(command("tour", "all", ROUNDS), environment), json.loads(report.read_text())


def test_without_a_move(plain: str, tmp_path: Path) -> None:
    found, status = run_below(tmp_path)
    assert found == plain
    assert status["moves"] == 0 and status["movable"]


def test_moved_every_so_many_calls(plain: str, tmp_path: Path) -> None:
    found, status = run_below(tmp_path, TENBIN_OPENCL_MOVE_EVERY="11")
    assert found == plain
    assert status["movable"]
    assert status["moves"] > 30


def test_failing_moves_leave_the_program_as_it_was(plain: str, tmp_path: Path) -> None:
    """Every second move fails, the first at its first step, the next at its second, up to the 40th."""
    more = {"TENBIN_OPENCL_MOVE_EVERY": "11", "TENBIN_OPENCL_FAIL_EVERY": "2"}
    found, status = run_below(tmp_path, **more)
    assert found == plain
    assert status["failures"] > 20
    assert status["moves"] > 15


def test_properties_and_destructor_callbacks(tmp_path: Path) -> None:
    """A function without an entry in the layer would take a handle for a driver's object, and crash."""
    require(find_library("OpenCL"), "the loader of OpenCL (Debian: ocl-icd-libopencl1)")
    plain = output(command("queries"), variables(tmp_path, below=False))
    assert "destructor callbacks [2, 1, 0]" in plain
    assert output(command("queries"), variables(tmp_path, below=True)) == plain
    assert output(command("queries"), variables(tmp_path, below=True, TENBIN_OPENCL_MOVE_EVERY="1")) == plain


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> tuple[Worker, Worker]:
    """Start a worker without the layer, and one that moves every ninth call."""
    folder = tmp_path_factory.mktemp("workers")
    report = str(folder / "report")
    more = {"TENBIN_OPENCL_MOVE_EVERY": "9", "TENBIN_OPENCL_FAIL_EVERY": "5", "TENBIN_OPENCL_REPORT": report}
    both = Worker(variables(folder, below=False)), Worker(variables(folder, below=True, **more))
    yield both
    for worker in both:
        worker.end()
    assert json.loads(Path(report).read_text())["moves"] > 3 * EXAMPLES


SMALL = st.integers(0, 255)
PROGRAM = st.lists(st.tuples(st.sampled_from(OPERATIONS), SMALL, SMALL, SMALL), max_size=25)


@settings(max_examples=EXAMPLES)
@given(program=PROGRAM)
def test_random_programs(workers: tuple[Worker, Worker], program: list[tuple[object, ...]]) -> None:
    one, moved = workers
    assert moved.digest(program) == one.digest(program)
