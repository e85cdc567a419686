"""pyopencl's own tests end alike plain, below the layer, and moved every so many calls.

They are downloaded. ``TENBIN_PYOPENCL_TESTS=all`` runs every one of them in a process of its own, moved
every 50th, 7th and every call; ``-s`` prints how many there were. That takes hours: each move builds all
programs and copies all memory.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.support.labs.components import require
from tests.support.moving import variables

ALL = os.environ.get("TENBIN_PYOPENCL_TESTS") == "all"
LIMIT_S = 1800.0  # of one process
FILES = ["enqueue_copy", "wrapper", "arrays_in_structs", "clmath", "clrandom", "array", "algorithm"]
SELECTED = "not svm and not SVM and not nanny"  # nothing moves after the use of SVM; nanny takes long
EVERY = ["50", "7", "1"] if ALL else ["7"]
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(12 * 3600 if ALL else 600)]


def fetch(folder: Path, *arguments: str) -> None:
    """Let pip download or install something."""
    command = [sys.executable, "-m", "pip", *arguments, "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    require(done.returncode == 0, f"{arguments[-1]} by pip: {done.stderr.strip().splitlines()[-1:]}")


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Download the source of the pyopencl that is installed, and give the folder of its tests."""
    folder = tmp_path_factory.mktemp("pyopencl")
    fetch(folder, "download", "--no-deps", "--no-binary", "pyopencl", f"pyopencl=={version('pyopencl')}")
    if ALL:  # tests of algorithms need it
        fetch(folder, "install", "--target", "packages", "mako")
    with tarfile.open(next(folder.glob("*.tar.gz"))) as packed:
        packed.extractall(folder, filter="data")
    return next(folder.glob("*/test"))


def run(suite: Path, environment: dict[str, str], *arguments: str) -> str:
    """Run pytest in the folder of the suite; return what it prints."""
    done = subprocess.run(
        [*PYTEST, *arguments],
        cwd=suite,
        env={**environment, "PYTHONPATH": str(suite.parents[1] / "packages")},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def outcomes(suite: Path, environment: dict[str, str], *tests: str) -> dict[str, str]:
    """Run tests in one process; give their outcomes by names without the name of the device."""
    found = suite / "found.xml"
    run(suite, environment, f"--junitxml={found}", *tests)
    cases = ElementTree.parse(found).iter("testcase")
    return {
        without_device(case.get("name", "")): next((child.tag for child in case), "passed") for case in cases
    }


def without_device(name: str) -> str:
    """Give the name of a test without its file, and without names of devices and addresses in memory."""
    return re.sub(r"<context factory for <[^>]*>>|0x[0-9a-f]+", "any", name.rpartition("::")[2])


def all_outcomes(suite: Path, files: str, environment: dict[str, str]) -> dict[str, str]:
    """Run files: each test by itself, or some of their tests in one process."""
    names = [f"test_{file}.py" for file in files.split()]
    if not ALL:
        return outcomes(suite, environment, *names, "-k", SELECTED)
    tests = [line for line in run(suite, environment, "--collect-only", *names).splitlines() if "::" in line]
    return {name: end for test in tests for name, end in outcomes(suite, environment, test).items()}


@pytest.mark.parametrize("files", FILES if ALL else [" ".join(FILES[:2])])
def test_same_outcomes(suite: Path, tmp_path: Path, files: str) -> None:
    plain = all_outcomes(suite, files, variables(tmp_path, below=False, POCL_DEVICES="pthread"))
    assert "passed" in plain.values()
    if ALL:  # outcomes of programs that are moved tell of it too
        assert all_outcomes(suite, files, variables(tmp_path, below=True)) == plain
    for every in EVERY:
        report = tmp_path / f"report-{every}"
        more = {"TENBIN_OPENCL_MOVE_EVERY": every, "TENBIN_OPENCL_REPORT": str(report)}
        moved = all_outcomes(suite, files, variables(tmp_path, below=True, **more))
        assert moved == plain
        ends = [json.loads(line) for line in report.read_text().splitlines()]
        moves = sum(end["moves"] for end in ends)
        print(f"{files}, moved every {every} calls: {len(moved)} tests, {moves} moves")
        assert moves > 3, [end["last_trouble"] for end in ends]
