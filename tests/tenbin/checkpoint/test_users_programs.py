"""Programs as documented run where modules of the user's own have the names of tenbin's packages."""

from __future__ import annotations

import os
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import numpy as np
import pandas as pd
import pytest

import tenbin
from profiles.files.store import Store
from profiles.models import linear
from profiles.records import Settings
from tests.support.coordinator import Up
from tests.support.labs.components import require
from tests.support.paths import ROOT
from tests.support.programs import opencl_devices
from tests.support.records import make_model, make_profile

TAKEN = ("profiles", "agent", "probes", "scheduler")
DOCUMENTED = [
    (page.name, number, block)
    for page in sorted([*ROOT.glob("docs/*.md"), ROOT / "README.md"])
    # tenbin's own code, and a file that tenbin reads; none of its code
    if page.name not in ("developing.md", "write-a-policy.md", "move-opencl-programs.md")
    for number, block in enumerate(
        re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
        + re.findall(r"^((?:    (?:import|from) .*\n)(?:(?:    .*)?\n)*)", page.read_text(), re.MULTILINE)
    )
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a user's folder, in which every name of tenbin's packages is taken."""
    folder = tmp_path / "mine"
    folder.mkdir()
    for name in TAKEN:
        (folder / f"{name}.py").write_text(f"raise RuntimeError('the user\\'s own {name} was imported')\n")
    return folder


def run(folder: Path, program: str, *arguments: str, **variables: str) -> str:
    """Run a program in the folder, which comes first on its path; return what the program prints."""
    done = subprocess.run(
        [sys.executable, program, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Store a profile in which a checkpoint takes 0.01 s and 0.001 s for each MB."""
    x = np.repeat([8.0, 64.0, 512.0, 4096.0], 5)
    y = (0.01 + 0.001 * x) * np.exp(np.random.default_rng(1).normal(0, 0.01, len(x)))
    model = linear.fit(x, y, probe="checkpoint", quantity="checkpoint_s", x_name="memory_mb")
    named = [c.model_copy(update={"name": f"{c.name}_C"}) for c in model.coefficients]
    labels = {"device": "pocl-0"}
    model = model.model_copy(update={"coefficients": tuple(named), "labels": labels})
    samples = pd.DataFrame({"round": 0, "emulated": False, "memory_mb": x, "wall_s": y})
    Store(tmp_path / "store").save(make_profile(models=(model,)), {"checkpoint": samples})
    return tmp_path / "store"


def test_pages_have_programs() -> None:
    assert {page for page, _, _ in DOCUMENTED} >= {
        "submit-from-programs.md",
        "simulate.md",
        "use-the-numbers.md",
    }
    for _, _, block in DOCUMENTED:
        imported = set(re.findall(r"^ *(?:from|import) (\w+)", block, re.MULTILINE))
        assert imported - sys.stdlib_module_names == {"tenbin"}, block


@pytest.mark.parametrize(("page", "number", "block"), DOCUMENTED, ids=lambda value: str(value)[:16])
def test_documented_programs(
    page: str, number: int, block: str, folder: Path, *, store: Path, up: Up, tmp_path: Path
) -> None:
    if "submit" in block or "Executor" in block:
        up.start("--cores", "2")
    for name in ("simulate", "fit"):
        (folder / name).write_text("#!/bin/sh\nexit 0\n")
        (folder / name).chmod(0o755)
    (folder / "program.py").write_text(dedent(block).replace("/work", str(folder)))
    printed = run(folder, "program.py", TENBIN_STORE=str(store), TENBIN_HOME=str(up.home))
    assert printed.strip()


def test_what_a_program_reads_is_what_was_stored(folder: Path, store: Path) -> None:
    (folder / "program.py").write_text(
        "import pickle, sys, tenbin\n"
        "profile = tenbin.load_profile(sys.argv[1])\n"
        "assert isinstance(profile, tenbin.Profile) and pickle.loads(pickle.dumps(profile)) == profile\n"
        "value, low, high = tenbin.predict(profile.find('checkpoint_s', device='pocl-0'), 4096)\n"
        "print(value, low, high, len(tenbin.load_samples()['checkpoint']))\n"
        "try:\n    tenbin.load_profile('nobody')\n"
        "except tenbin.TenbinError as error:\n    print(error.exit_code, error)\n"
        "try:\n    import profiles\nexcept RuntimeError:\n    print('mine')\n"
    )
    first, second, third = run(folder, "program.py", "last", TENBIN_STORE=str(store)).splitlines()
    value, low, high, rows = map(float, first.split())
    assert low < 0.01 + 0.001 * 4096 < high and low < value < high < 1.2 * value and rows == 20
    assert second.startswith("2 'nobody' matches no profile") and third == "mine"


def test_numbers_are_found_by_numbers_and_predicted_where_they_make_sense(store: Path) -> None:
    profile = tenbin.load_profile("last", store)
    assert profile.find("checkpoint_s", device="pocl-0") is profile.models[0]
    model = make_model(labels={"cores": "1"})
    assert make_profile(models=(model,)).find("memory_bandwidth_gbs", cores=1) == model
    for x in (-1, float("nan"), float("inf")):
        with pytest.raises(tenbin.TenbinError, match="give a number from 0 on"):
            tenbin.predict(profile.models[0], x)
    (slope, intercept) = profile.models[0].coefficients
    late = intercept.model_copy(update={"value": -5.0})
    assert tenbin.predict(profile.models[0].model_copy(update={"coefficients": (slope, late)}), 1)[:2] == (
        0,
        0,
    )


def test_a_last_profile_that_is_not_whole_is_told(tmp_path: Path) -> None:
    made = make_profile(interrupted=True, settings=Settings(only=("memory",)))
    Store(tmp_path).save(made, {})
    with pytest.warns(UserWarning, match=f"node {made.id}, is interrupted, only memory"):
        tenbin.load_profile("last", tmp_path)


def test_simulate_says_what_makes_no_sense() -> None:
    with pytest.raises(tenbin.TenbinError, match="unknown policy 'esay'") as caught:
        tenbin.simulate("esay", "generator:lublin,jobs=10", "8")
    assert caught.value.exit_code == 2
    with pytest.raises(
        tenbin.TenbinError, match="'--limit': must be at least 1; see: tenbin simulate --help"
    ):
        tenbin.simulate("easy", "generator:lublin,jobs=10", "8", limit=0)


def test_a_program_with_checkpoints(folder: Path) -> None:
    require(opencl_devices(), "an OpenCL device")
    shutil.copy(ROOT / "examples" / "stencil.py", folder)
    small = ("--cells", "64", "--steps", "50")
    assert run(folder, "stencil.py", *small, TENBIN_JOB_FOLDER=str(folder)).strip()


def test_every_public_name_is_there_and_nothing_is_imported_for_none() -> None:
    assert all(getattr(tenbin, name) for name in tenbin.__all__)
    loaded = (
        "import sys, tenbin; print(len([m for m in sys.modules if m.startswith(('tenbin.', 'pydantic'))]))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", loaded], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"
    assert pickle.loads(pickle.dumps(tenbin.Profile)) is tenbin.Profile
