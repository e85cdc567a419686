"""pyopencl's own tests end alike plain, below the layer, and moved every so many calls.

They are downloaded. ``TENBIN_PYOPENCL_TESTS=all`` runs every file of them, moved as often as every call.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.support.labs.components import require
from tests.support.moving import variables

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
ALL = os.environ.get("TENBIN_PYOPENCL_TESTS") == "all"
FILES = [
    "enqueue_copy",
    "arrays_in_structs",
    *(["wrapper", "clmath", "clrandom", "array", "algorithm"] * ALL),
]
EVERY = ["50", "7", "1"] if ALL else ["7"]


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Download the source of the pyopencl that is installed, and give the folder of its tests."""
    folder = tmp_path_factory.mktemp("pyopencl")
    wanted = ["--no-deps", "--no-binary", "pyopencl", f"pyopencl=={version('pyopencl')}"]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(folder), *wanted]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    require(done.returncode == 0, f"the source of pyopencl: {done.stderr.strip().splitlines()[-1:]}")
    with tarfile.open(next(folder.glob("*.tar.gz"))) as packed:
        packed.extractall(folder, filter="data")
    return next(folder.glob("*/test"))


def outcomes(suite: Path, file: str, environment: dict[str, str]) -> dict[str, str]:
    """Run a file without its tests of shared virtual memory, after which nothing moves."""
    found = suite / "found.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "not svm and not SVM"]
    done = subprocess.run(
        [*command, f"--junitxml={found}", f"test_{file}.py"],
        cwd=suite,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout[-2000:] + done.stderr[-2000:]
    cases = ElementTree.parse(found).iter("testcase")
    return {case.get("name", ""): next((child.tag for child in case), "passed") for case in cases}


@pytest.mark.parametrize("file", FILES)
def test_same_outcomes(suite: Path, tmp_path: Path, file: str) -> None:
    plain = outcomes(suite, file, variables(tmp_path, below=False, POCL_DEVICES="pthread"))
    assert "passed" in plain.values()
    assert outcomes(suite, file, variables(tmp_path, below=True)) == plain
    for every in EVERY:
        report = tmp_path / f"report-{every}"
        more = {"TENBIN_OPENCL_MOVE_EVERY": every, "TENBIN_OPENCL_REPORT": str(report)}
        assert outcomes(suite, file, variables(tmp_path, below=True, **more)) == plain
        status = json.loads(report.read_text().splitlines()[-1])
        assert status["moves"] > 3, status["last_trouble"]
