"""``tenbin submit --dry-run``: what a job would be, when it would start, and what would probably fail."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from scheduler.engines.local.engine import launchers
from tests.support.coordinator import Up

SRUN = "start ranks by mpiexec, or the program itself; on Slurm's nodes: tenbin up --engine slurm"


def test_size_and_start_of_a_job_that_is_not_submitted(up: Up) -> None:
    up.start("--cores", "2")

    def said(*words: str) -> list[str]:
        done = up.run("submit", "--dry-run", *words)
        assert done.returncode == 0 and not done.stderr, done.stderr
        return done.stdout.splitlines()

    assert said("-c", "2", "--memory", "1G", "--time", "10m", "--priority", "3", "--", "sleep", "9") == [
        "1: sleep 9",
        "   2 cores, 1 GB of memory; at most 10:00 min",
        "   priority 3",
        "   would start at once",
    ]
    running = up.client.submit(["sleep", "600"], cores=2, time_s=3600)
    up.client.submit(["sleep", "600"], cores=2, time_s=3600)
    up.until(running.running)
    assert re.fullmatch(r"   would start about .*:\d\d; 1 job before it", said("--", "true")[-1])
    assert re.fullmatch(r"   would start about .*:\d\d", said("--priority", "1", "--", "true")[-1])
    short = json.loads(up.run("submit", "--dry-run", "--json", "--", "true").stdout)
    assert short["forecast"][0]["expected_start_s"] == pytest.approx(time.time() + 7200, abs=120)
    assert said("--after", "1", "--", "true")[-1] == "   waits for job 1 to succeed"
    refused = up.run("submit", "--dry-run", "-c", "3", "--", "true")
    assert refused.returncode == 2 and "there are 2 cores" in refused.stderr and not refused.stdout
    assert up.client.call("GET", "/jobs/count") == {"count": 2}


def test_of_a_file_each_job_is_told(up: Up, tmp_path: Path) -> None:
    up.start("--cores", "2")
    jobs = tmp_path / "jobs.toml"
    jobs.write_text(
        "[[job]]\nname = 'a'\ncommand = 'sleep 9'\ncores = 2\narray = '1-3'\n"
        "[[job]]\ncommand = 'true'\nafter = 'a'\nenv = { A = '1' }\n"
    )
    assert up.run("submit", "--dry-run", "--file", str(jobs)).stdout.splitlines() == [
        "1: sleep 9",
        "   2 cores; no time limit",
        "   array of 3: 1-3, name a",
        "   would start at once",
        "2: true",
        "   1 core; no time limit",
        "   after job 1 of these, env A=1",
        "   waits for others of these",
    ]
    up.kill()
    last = up.run("submit", "--dry-run", "--file", str(jobs)).stdout.splitlines()[-1]
    assert last.startswith("when it would start is not known: no coordinator")


def test_a_script_that_calls_srun_is_remarked_once(up: Up, tmp_path: Path) -> None:
    """The job is submitted all the same, and the exit code stays."""
    up.start("--cores", "2")
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\n#SBATCH -n 2\n# srun ./a\nA=1 srun true; srun true\ntrue\n")
    path = f"PATH={tmp_path}"
    for options in (["--dry-run"], []):
        done = up.run("submit", "--env", path, *options, str(script))
        assert done.returncode == 0 and done.stderr == f"tenbin: {script}, line 4: srun is not here; {SRUN}\n"
    (tmp_path / "srun").write_text("#!/bin/sh\n")
    (tmp_path / "srun").chmod(0o755)
    done = up.run("submit", "--env", path, str(script))
    assert "line 4: srun asks Slurm for a job of its own, outside of this queue; " in done.stderr


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (b"mpirun -n 2 ./a", [1]),
        (b"cd x && exec mpiexec ./a\nif true; then srun a; fi", [1, 2]),
        (b"module load openmpi\nmpirun ./a", []),
        (b"echo srun a\nmy-mpirun a\nsrun() { :; }\ncommand -v mpirun", []),
    ],
)
def test_where_ranks_are_started(text: bytes, lines: list[int], tmp_path: Path) -> None:
    remarks = launchers(text, str(tmp_path))
    assert [int(remark.split()[1].rstrip(":")) for remark in remarks] == lines
