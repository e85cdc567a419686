"""Real scripts, as Slurm itself reads them (``scontrol show job``), and as tenbin does: the same fields."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler.jobs.literals import limit_s
from tenbin.commands.jobs.sbatch import size_mib
from tests.support.coordinator import Up
from tests.support.labs.slurm_lab import SlurmLab, slurmlab
from tests.support.programs import tenbin
from tests.tenbin.commands.jobs.scripts.test_sbatch_options import CASES, name, place

TAKEN = [case for case in CASES if "spec" in case and case["spec"].get("device") is None]
UNREADABLE = [case for case in CASES if case.get("sbatch_refuses")]


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmLab]:
    """Yield one node that is large enough, in words, for every script."""
    with slurmlab(tmp_path_factory.mktemp("big"), nodes=1, cpus=64, memory_mb=600_000, gpus=("2",)) as lab:
        yield lab


def sbatch(lab: SlurmLab, path: Path) -> subprocess.CompletedProcess[str]:
    command = ["sbatch", "--parsable", "--hold", "--partition=main", str(path)]
    environment = os.environ | lab.env
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def shown(lab: SlurmLab, job_id: str) -> dict[str, str]:
    text = lab.call("scontrol", "-o", "show", "job", job_id)
    return {key: value for key, _, value in (word.partition("=") for word in text.split())}


@pytest.mark.parametrize("case", TAKEN, ids=name)
def test_slurm_and_tenbin_read_the_same(big: SlurmLab, case: dict[str, Any], tmp_path: Path) -> None:
    path = place(case, tmp_path)
    done = sbatch(big, path)
    assert done.returncode == 0, done.stderr
    slurm = shown(big, done.stdout.strip())
    body = json.loads(tenbin("submit", "--dry-run", "--json", str(path)).stdout)
    (spec,) = body["specs"]
    assert spec["name"] == slurm["JobName"]
    assert spec["tasks"] * spec["cores"] == int(slurm["NumCPUs"])
    assert int(spec["env"].get("SLURM_NTASKS", "1")) == int(slurm["NumTasks"])
    assert spec["time_s"] == limit_s(re.sub(r"^(\d+:\d+:\d+)$", r"0-\1", slurm["TimeLimit"]))
    gpus = re.search(r"gpu(?::\w+)?:(\d+)", slurm.get("TresPerNode", ""))
    assert spec["gpus"] == (int(gpus[1]) if gpus else None)
    assert spec["requeue"] == (slurm["Requeue"] == "1") and -spec["priority"] == int(slurm["Nice"])
    memory = None if spec["memory_mb"] is None else round(spec["memory_mb"] * spec["tasks"] / 1.048576)
    assert memory == (size_mib(slurm["MinMemoryNode"]) if "MinMemoryNode" in slurm else None)
    if "array" in case:
        assert indices(slurm["ArrayTaskId"]) == body["arrays"]["0"]
    else:
        assert "ArrayTaskId" not in slurm and body["arrays"] == {}


def indices(text: str) -> list[int]:
    first, _, last = text.partition("-")
    return list(range(int(first), int(last) + 1))


@pytest.mark.parametrize("case", UNREADABLE, ids=name)
def test_slurm_refuses_what_is_said_to_be_unreadable(
    big: SlurmLab, case: dict[str, Any], tmp_path: Path
) -> None:
    done = sbatch(big, place(case, tmp_path))
    assert done.returncode != 0 and done.stdout == ""


SCRIPT = """#!/bin/bash
#SBATCH -J on-nodes -N 1 -n 2 -c 1 --array=4,6 -o out_%a.txt
state=$(squeue -h -j $SLURM_JOB_ID -o %T)
echo $SLURM_ARRAY_TASK_ID $SLURM_NTASKS $SLURM_JOB_NAME $state $(srun hostname | wc -l)
"""


def test_a_script_under_tenbin_on_slurm(up: Up, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers of the array are tenbin's, the job's number is Slurm's; srun starts as many as asked."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.sh").write_text(SCRIPT)
    up.start("--engine", "slurm")
    done = up.run("submit", "--wait", "job.sh")
    assert done.returncode == 0, done.stderr
    for index in (4, 6):
        assert (tmp_path / f"out_{index}.txt").read_text() == f"{index} 2 on-nodes RUNNING 2\n"
