"""The page for developers, tried: each new file and line in docs/developing.md works as it stands there."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from profiles.files.store import Store, samples
from tests.support.paths import ROOT
from tests.support.programs import TENBIN

PAGE = (ROOT / "docs" / "developing.md").read_text()
FLOORS = ("agent", "probes", "profiles", "scheduler", "tenbin")
# Submission, cores, run time. On one core they wait 0, 9 and 108 s in order, and 0, 8, 19 s newest first.
JOBS = ((0, 1, 10), (1, 1, 100), (2, 1, 10))
IN_ORDER_S, NEWEST_FIRST_S = 39.0, 9.0


def section(heading: str) -> str:
    """Cut the section of this heading out of the page."""
    return PAGE.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]


def names(file: str) -> set[str]:
    """List the functions, classes and methods (``Class.method``) that a file defines."""
    body = ast.parse((ROOT / file).read_text()).body
    named = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return {part.name for part in body if isinstance(part, named)} | {
        f"{part.name}.{method.name}"
        for part in body
        if isinstance(part, ast.ClassDef)
        for method in part.body
        if isinstance(method, named)
    }


def test_the_ways_name_what_exists() -> None:
    places = re.findall(r"`([\w/]+\.py)`: `([\w.]+)`", PAGE)
    assert len(places) > 30
    assert [f"{file}: {name}" for file, name in places if name not in names(file)] == []


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """Copy the product, to which a test adds files and lines."""
    for floor in FLOORS:
        shutil.copytree(ROOT / floor, tmp_path / floor, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def follow(house: Path, heading: str) -> None:
    """Do in the copy what the section says: new files whole, and a line in a registry."""
    text = section(heading)
    assert "One new file and one line" in text
    for path, code in re.findall(r"(?<! of )`([\w/]+\.py)`:\n\n```python\n(.*?)```", text, re.DOTALL):
        assert not (house / path).exists()
        (house / path).write_text(code)
    lines = re.findall(r"In `(\w+)` of `([\w/]+\.py)`[^\n]*\n\n```python\n(.*)\n```", text)
    ((registry, path, line),) = lines
    before, after = (house / path).read_text().split(f"\n{registry} = {{\n", 1)
    (house / path).write_text(f"{before}\n{registry} = {{\n{line}\n{after}")


def tenbin(house: Path, *arguments: str) -> str:
    """Run the command line of the copy."""
    environment = {**os.environ, "PYTHONPATH": str(house), "TENBIN_STORE": str(house / "store")}
    done = subprocess.run(
        [*TENBIN, *arguments], cwd=house, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def mean_wait_s(house: Path, policy: str, workload: str) -> float:
    out = tenbin(house, "simulate", "-p", policy, "-w", workload, "-c", "1", "--json")
    (result,) = json.loads(out)["results"]
    return float(result["mean_wait_s"])


@pytest.mark.measures
def test_a_new_probe_is_one_file_and_one_line(house: Path) -> None:
    follow(house, "A new probe")
    tenbin(house, "profile", "--quick", "--only", "clock")
    store = Store(house / "store")
    profile = store.load()
    table = samples(store.find())["clock"]
    assert profile.samples["clock"] == len(table) > 1
    assert (table["step_s"] > 0).all()
    model = profile.find("clock_step_s")
    assert model is not None
    assert model["step"].value == table["step_s"].median()


def test_a_new_policy_is_one_file_and_one_line(house: Path) -> None:
    follow(house, "A new policy")
    rest = "-1 -1 -1 -1 -1 -1 -1 -1 -1 -1"
    lines = [f"{n} {at} -1 {run} {cores} -1 -1 {cores} {rest}" for n, (at, cores, run) in enumerate(JOBS, 1)]
    (house / "jobs.swf").write_text("\n".join(lines))
    assert mean_wait_s(house, "lifo", "jobs.swf") == NEWEST_FIRST_S
    assert mean_wait_s(house, "fcfs", "jobs.swf") == IN_ORDER_S


def test_a_new_reader_of_logs_is_one_file_and_one_line(house: Path) -> None:
    follow(house, "A new reader of logs")
    (house / "jobs.triples.csv").write_text("\n".join(",".join(map(str, job)) for job in JOBS))
    assert mean_wait_s(house, "fcfs", "jobs.triples.csv,limit_s=600") == IN_ORDER_S
