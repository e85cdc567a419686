"""What users mistype, what programs send, and what terminals must not be sent."""

from __future__ import annotations

import http.client
import json
import os
import socket
from pathlib import Path

import pytest

from tests.conftest import require
from tests.coordinator.conftest import Up

NAMES = (
    "two words",
    "-dash",
    "a\nb",
    "\x1b[2J[red]",
    "名前 é",
    "$(touch x)",
    "'; rm -rf x",
    "[bold]",
    "..",
    "a/b",
)
LEAVES = 'trap "exit 85" URG; while ! [ -e go ]; do sleep 0.02; done'


def test_names_and_arguments_are_only_text(up: Up, tmp_path: Path) -> None:
    """No name is a command, an option, a path or a control sequence; each comes back as it was."""
    up.start("--cores", "1")
    folder = tmp_path / "a folder\nwith é"
    folder.mkdir()
    for name in NAMES:
        printf = ("printf", "%s\n", name, "-n")
        done = up.run("submit", f"--name={name}", "--chdir", str(folder), "--", *printf)
        assert done.returncode == 0, done.stderr
    for number, name in enumerate(NAMES, 1):
        job = up.client.job(number)
        assert job.result(60) == 0 and job.info()["name"] == name
        assert up.client.output(number).decode() == f"{name}\n-n\n"
    shown = up.run("jobs", "--all").stdout + up.run("info", "4").stdout
    assert "\x1b" not in shown and "a\\nb" in shown and "\\x1b[2J[red]" in shown and "名前 é" in shown
    assert list(folder.iterdir()) == []
    assert {path.name for path in (up.home / "jobs").iterdir()} == {str(n + 1) for n in range(len(NAMES))}


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'{"specs": 3}', b"\xff\xfe", b"[" * 5000])
def test_a_malformed_call_is_refused_in_one_line(up: Up, body: bytes) -> None:
    up.start("--cores", "1")
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.sock.connect(str(up.home / "api.sock"))
    connection.request("POST", "/jobs", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    assert 400 <= answer.status < 500 and "detail" in json.loads(answer.read())
    assert up.client.submit(["true"]).id == 1


def test_commands_that_cannot_run(up: Up, tmp_path: Path) -> None:
    up.start("--cores", "1")
    (tmp_path / "text").write_text("no program")
    cases = (
        (["no-such-program"], "/"),
        ([str(tmp_path / "text")], "/"),
        (["true"], "/no/such/folder"),
        ([""], "/"),
    )
    for command, folder in cases:
        found = up.client.submit(command, folder=folder).wait(60)
        assert found["stage"] == "failed" and "could not be started" in found["trouble"], command
    for arguments, words in (
        (("submit", "--env", "novalue", "--", "true"), "write NAME=VALUE"),
        (("submit", "--priority", "9999999", "--", "true"), "less than or equal to 1000000"),
        (("submit", "--after", "99", "--", "true"), "no job 99"),
        (("migrate", "1", "--to", "core"), "has ended"),
    ):
        done = up.run(*arguments)
        assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_a_job_moves_to_another_node(up: Up) -> None:
    require(len(os.sched_getaffinity(0)) > 1, "two cores")
    up.start("--nodes", "2", "--policy", "las")
    job = up.client.submit(["sh", "-c", LEAVES], folder=str(up.home), checkpoint_signal=23)
    up.until(
        lambda: (
            job.info()["stage"] == "running"
            and (up.home / "jobs" / "1" / "attempt-1" / "state.json").exists()
        )
    )
    (here,) = job.info()["nodes"]
    places = {f"node{here}": "runs there already", "node7": "has 2 nodes", "nowhere": "no pool nowhere"}
    for place, words in places.items():
        done = up.run("migrate", "1", "--to", place)
        assert done.returncode == 2 and words in done.stderr, done.stderr
    cores = job.info()["cpus"]
    up.client.job(1).migrate(f"node{1 - here}")
    up.until(lambda: job.info()["attempt"] == 2 and job.info()["stage"] == "running", 120)
    found = job.info()
    assert found["nodes"] == [1 - here] and not {*found["cpus"]} & {*cores} and found["migrations"] == 1
    other = up.client.submit(["true"])
    (up.home / "go").touch()
    assert job.result(60) == 0 and other.result(60) == 0
    assert "node1" in up.run("nodes").stdout
