"""Real scripts of public projects: taken as sbatch would take them, or refused by line."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from scheduler.jobs.specs import JobSpec
from tests.support.paths import ROOT
from tests.support.programs import tenbin

CASES = tomllib.loads((ROOT / "tests" / "data" / "sbatch_scripts.toml").read_text())["script"]


def name(case: dict[str, Any]) -> str:
    return str(case["from"]).partition(":")[0]


def place(case: dict[str, Any], folder: Path) -> Path:
    path = folder / "job.sh"
    path.write_text(case["head"] + "true\n")
    return path


def test_there_are_twenty() -> None:
    assert len(CASES) >= 20 and sum("spec" in case for case in CASES) >= 10


@pytest.mark.parametrize("case", CASES, ids=name)
def test_a_real_script(case: dict[str, Any], tmp_path: Path) -> None:
    path = place(case, tmp_path)
    done = tenbin("submit", "--dry-run", "--json", str(path))
    if "refused" in case:
        line, words = case["refused"]
        assert done.returncode == 2 and f"{path}, line {line}: #SBATCH" in done.stderr, done.stderr
        assert words in done.stderr and len(done.stderr.splitlines()) == 1
        return
    assert done.returncode == 0, done.stderr
    told = done.stderr.splitlines()
    assert [line.partition("#SBATCH --")[2].split()[0] for line in told] == case["left_out"]
    body = json.loads(done.stdout)
    (spec,), arrays = body["specs"], body["arrays"]
    if "array" in case:
        indices = arrays["0"]
        assert (indices[0], indices[-1], len(indices)) == tuple(case["array"])
    else:
        assert arrays == {}
    expected = JobSpec(command=(str(path),), slurm_variables=True, **case["spec"])
    changing = {"folder", "env"}
    assert JobSpec(**spec).model_dump(exclude=changing) == expected.model_dump(exclude=changing)
