"""docs/other-tools.md: each command line of it can be parsed; its recipe runs the real Snakemake."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import typer

from tenbin.cli import app
from tests.support.coordinator import Up
from tests.support.labs.components import require
from tests.support.paths import ROOT
from tests.support.programs import TENBIN

PAGE = (ROOT / "docs" / "other-tools.md").read_text()
LINES = sorted(set(re.findall(r"(?:^    |`|\| )(tenbin map [^`\n]*)", PAGE, re.MULTILINE)))
PROFILE, STATUS, CANCEL = re.findall(r"```(?:yaml|sh)\n(.*?)```", PAGE, re.DOTALL)
PACKAGES = ("snakemake", "snakemake-executor-plugin-cluster-generic")
SNAKEFILE = r"""
rule all:
    input: "fragile.txt"

rule words:
    output: "words.txt"
    threads: 2
    shell: "printf '%s\\n' b a c > {output}"

rule fragile:
    input: "words.txt"
    output: "fragile.txt"
    resources: mem_mb=500
    shell: "test -e mended && sort {input} > {output}"
"""


@pytest.mark.parametrize("line", LINES)
def test_each_command_line_parses(line: str) -> None:
    command = typer.main.get_command(app).commands["map"]  # type: ignore[attr-defined]
    context = command.make_context("map", shlex.split(line)[2:])
    assert context.params["words"]


def test_the_forms_are_all_there() -> None:
    assert len(LINES) >= 10


@pytest.fixture
def programs(up: Up, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the scripts of the page, and tenbin itself, to a folder on the PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    tenbin = f'#!/bin/sh\nexec {shlex.join(TENBIN)} "$@"\n'
    for name, text in (("tenbin-job-status", STATUS), ("tenbin-job-cancel", CANCEL), ("tenbin", tenbin)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("TENBIN_HOME", str(up.home))
    return folder


def status(job_id: int) -> str:
    """Run the status command as Snakemake does; return its line."""
    told = subprocess.run(
        f"tenbin-job-status '{job_id}'", shell=True, capture_output=True, text=True, check=True
    )
    return told.stdout


def test_status_and_cancel_commands(up: Up, programs: Path) -> None:
    up.start("--cores", "2")
    ended = up.client.submit(["true"]), up.client.submit(["false"])
    runs, waits = up.client.submit(["sleep", "600"], cores=2), up.client.submit(["sleep", "600"])
    for job in ended:
        job.wait(60)
    jobs = (*ended, runs, waits)
    assert [status(job.id) for job in jobs] == ["success\n", "failed\n", "running\n", "running\n"]
    subprocess.run(["tenbin-job-cancel", *(str(job.id) for job in jobs)], check=True)
    assert {job.wait(60)["stage"] for job in (runs, waits)} == {"cancelled"}
    assert [status(job.id) for job in jobs] == ["success\n", "failed\n", "failed\n", "failed\n"]
    up.kill()
    assert status(1) == "running\n"


@pytest.fixture
def snakemake(tmp_path: Path) -> Path:
    """Install Snakemake with its generic cluster executor, and what of it is not there for tenbin."""
    folder = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    (packages / "tenbin's.pth").write_text(sysconfig.get_path("purelib"))
    pip = [sys.executable, "-m", "pip", "--python", str(folder)]
    install = [*pip, "install", "-q", "--no-compile", *PACKAGES]
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    require(done.returncode == 0, f"Snakemake by pip: {done.stderr.strip()[-200:]}")
    return folder / "bin" / "snakemake"


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_snakemake_runs_a_workflow_and_goes_on_after_a_failure(
    up: Up, programs: Path, snakemake: Path, tmp_path: Path
) -> None:
    work, profile = tmp_path / "work", tmp_path / "profile"
    work.mkdir()
    profile.mkdir()
    (profile / "config.yaml").write_text(PROFILE)
    (work / "Snakefile").write_text(SNAKEFILE)
    up.start("--cores", "2")
    run = [str(snakemake), "--profile", str(profile), "--keep-going", "--seconds-between-status-checks", "3"]

    first = subprocess.run(run, cwd=work, capture_output=True, text=True, check=False)
    assert first.returncode == 1 and "Error in rule fragile" in first.stderr, first.stderr
    jobs = up.client.call("GET", "/jobs?all=true")
    names = sorted(job["name"] for job in jobs)
    assert names == ["fragile", "words"], first.stderr
    assert [job["name"] for job in jobs if job["stage"] != "done"] == ["fragile"]
    specs = {job["name"]: up.client.job(job["id"]).info()["spec"] for job in jobs}
    assert (specs["words"]["cores"], specs["fragile"]["cores"]) == (2, 1)
    assert (specs["fragile"]["memory_mb"], specs["words"]["memory_mb"]) == (500, 1000)

    (work / "mended").touch()
    second = subprocess.run(run, cwd=work, capture_output=True, text=True, check=False)
    assert second.returncode == 0, second.stderr
    assert (work / "fragile.txt").read_text() == "a\nb\nc\n"
    (later,) = up.client.call("GET", "/jobs?all=true")[len(jobs) :]
    assert (later["name"], later["stage"]) == ("fragile", "done")
