"""Errors of a cluster or of a request are one sentence with a remedy."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tenbin.cli import app
from tests.support.coordinator import Up
from tests.support.labs.slurm_lab import SlurmLab


def refused(*options: str) -> tuple[object, str]:
    """Run ``tenbin up``; return the error's exit code and sentence."""
    from profiles.errors import UserError

    found = CliRunner().invoke(app, ["up", *options])
    assert isinstance(found.exception, UserError), (found.output, found.exception)
    assert "\n" not in str(found.exception) and found.exception.remedy
    return found.exception.exit_code, str(found.exception)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--partition", "nope"), "--partition nope: there is none; choose one of main"),
        (("--policy", "nope"), "nope"),
        (("--policy", "las", "--unit", "1"), "places on nodes"),
        (("--unit", "9"), "no node has so many cores"),
        (("--devices", "--unit", "2"), "--unit 2 with --devices"),
        (("--cores", "1"), "--cores with --engine slurm"),
    ],
)
def test_of_a_cluster(lab: SlurmLab, tmp_path: Path, options: tuple[str, ...], said: str) -> None:
    code, sentence = refused("--engine", "slurm", "--home", str(tmp_path / "home"), *options)
    assert code == 2 and said in sentence


def test_options_of_a_cluster_without_one() -> None:
    assert refused("--partition", "main") == (2, "--partition is of a Slurm cluster; add --engine slurm")
    assert refused("--unit", "2")[0] == 2
    assert refused("--set-down") == (2, "--set-down is of a Slurm cluster; add --engine slurm")


def test_a_configuration_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "none"))
    code, sentence = refused("--engine", "slurm", "--home", str(tmp_path / "home"))
    assert code == 2 and "there is no such file" in sentence


def test_no_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_CONF", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    code, sentence = refused("--engine", "slurm", "--home", str(tmp_path / "home"))
    assert code == 4 and "no such program" in sentence


def test_a_folder_that_the_nodes_do_not_share(lab: SlurmLab) -> None:
    """Each node has a /dev/shm of its own."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        up = Up(Path(folder) / "home")
        try:
            up.start("--engine", "slurm")
            job = up.client.submit(["true"])
            up.until(lambda: job.info()["stage"] == "failed", 60)
            trouble = job.info()["trouble"]
            assert "could not start it" in trouble and "under the same paths" in trouble
        finally:
            up.sweep()
