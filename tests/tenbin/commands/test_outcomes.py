"""Messages of commands about a job that did not succeed."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from scheduler.engines.common.job_folders import PackedJobs
from tenbin.commands.jobs.account import exit_code
from tenbin.errors import TenbinError
from tests.support.coordinator import Up
from tests.support.programs import tenbin

COMPLAINS = ("sh", "-c", "echo before; echo first >&2; printf 'last \\033[31mword\\n\\n' >&2; exit 3")


def test_a_failure_speaks(up: Up) -> None:
    up.start("--cores", "1")
    done = up.run("submit", "--wait", "--", *COMPLAINS)
    assert done.returncode == 3 and done.stdout == "1\nbefore\n"  # its output, as it is
    assert done.stderr == "first\nlast \x1b[31mword\n\njob 1: failed: exit code 3\n"
    waited = up.run("wait", "1").stderr
    assert waited == "job 1: failed: exit code 3\n  stderr ends: last \\x1b[31mword\n"
    assert "  stderr ends: last \\x1b[31mword\n" in up.run("info", "1").stdout
    assert json.loads(up.run("info", "1", "--json").stdout)["stderr_end"] == "last \x1b[31mword"
    logs = up.run("logs", "1")
    assert logs.stdout == "before\n" and "job 1 failed: exit code 3" in logs.stderr
    assert "tenbin logs 1 --error" in logs.stderr and up.run("logs", "1", "--error").stderr == ""


def test_a_job_that_succeeded_or_was_silent_says_no_more(up: Up, tmp_path: Path) -> None:
    up.start("--cores", "1")
    done = up.run("submit", "--wait", "--", "sh", "-c", "echo a warning >&2")
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "a warning\n")
    assert up.run("logs", "1").stderr == "" and "stderr ends" not in up.run("info", "1").stdout
    done = up.run("submit", "--wait", "--", "false")
    assert (done.returncode, done.stderr) == (1, "job 2: failed: exit code 1\n")
    assert up.run("logs", "2").stderr == ""
    one = str(tmp_path / "both")
    up.run("submit", "--wait", "--output", one, "--error", one, "--", *COMPLAINS)
    assert up.run("logs", "3").stderr == ""  # it is there already
    waits = up.client.submit(["sleep", "60"])
    waits.cancel()
    assert up.run("wait", str(waits.id)).stderr == f"job {waits.id}: cancelled\n"


@pytest.mark.parametrize(
    ("stage", "code", "signal", "handed_on"),
    [
        ("done", 0, None, 0),
        ("failed", 3, None, 3),
        ("failed", None, 11, 139),
        ("failed", 0, None, 125),
        ("killed", 0, None, 125),
        ("killed", 7, None, 7),
        ("killed", None, 15, 143),
        ("cancelled", 0, None, 125),
        ("cancelled", None, None, 125),
    ],
)
def test_the_stage_decides_about_success(
    stage: str, code: int | None, signal: int | None, handed_on: int
) -> None:
    assert exit_code({"stage": stage, "code": code, "signal": signal}) == handed_on


def test_who_is_ended_and_leaves_with_0_has_not_succeeded(up: Up) -> None:
    up.start("--cores", "2")
    obliging = ("sh", "-c", "trap 'exit 0' TERM; while :; do sleep 0.05; done")
    limited = up.run("submit", "--wait", "--time", "1s", "--", *obliging)
    assert limited.returncode == 125 and "job 1: killed: it reached its time limit of 1 s\n" in limited.stderr
    late = up.client.submit([*obliging], deadline_s=time.time() + 1.0)
    with pytest.raises(TenbinError, match="job 2 is killed: it reached its deadline"):
        late.result(30)
    assert up.run("wait", "2").returncode == 125
    cancelled = up.client.submit([*obliging])
    up.until(cancelled.running)
    cancelled.cancel()
    assert up.run("wait", "3").returncode == 125
    follower = up.client.submit(["true"], after=[1])
    assert follower.wait(30)["stage"] == "cancelled"


def test_the_end_of_a_long_file(up: Up) -> None:
    """Only its end is read, however long the last line is."""
    up.start("--cores", "1")
    up.run("submit", "--wait", "--", "sh", "-c", "seq 300000 >&2; exit 1")
    assert up.client.call("GET", "/jobs/1/stderr?last=7") == b"300000\n"
    assert up.client.call("GET", "/jobs/1/stdout?last=7") == b""
    assert "stderr ends: 300000\n" in up.run("info", "1").stdout
    long = up.run("submit", "--wait", "--", "sh", "-c", "head -c 5000000 /dev/zero | tr '\\0' x >&2; exit 1")
    assert long.stderr == "x" * 5_000_000 + "\njob 2: failed: exit code 1\n"
    assert 100 < len(up.run("wait", "2").stderr) < 1000


def test_output_is_read_where_no_coordinator_runs(up: Up) -> None:
    """Of jobs that have ended, packed ones also, of an array, and of one that runs on."""
    up.start("--cores", "2")
    says = "echo out $TENBIN_ARRAY_INDEX; echo err >&2"
    assert up.run("submit", "--wait", "--", "sh", "-c", says).returncode == 0
    assert up.run("submit", "--wait", "--array", "1-3", "--", "sh", "-c", says).returncode == 0
    goes_on = ["sh", "-c", "echo begun; until [ -e go ]; do sleep 0.05; done"]
    job = up.client.submit(goes_on, folder=str(up.home))
    up.until(lambda: b"begun" in b"".join(job.output()))
    asked = (("1",), ("1", "--error"), ("2",), ("2[2-3]",), ("1", "--json"))
    answers = [up.run("logs", *words) for words in asked]
    assert up.run("down").returncode == 0
    PackedJobs(up.home).pack({1: "{}"})
    for words, answer in zip(asked, answers, strict=True):
        kept = up.run("logs", *words)
        assert (kept.returncode, kept.stdout) == (0, answer.stdout), words
        shown = [line for line in answer.stderr.splitlines() if line.startswith("==>")]
        assert kept.stderr.splitlines() == shown
    assert answers[2].stdout == "out 1\nout 2\nout 3\n"
    kept = up.run("logs", "last", "-f")
    assert (
        kept.stdout == "begun\n" and "no coordinator answers: this is what is written so far" in kept.stderr
    )
    for word, said in (
        ("99", "there is no job 99"),
        ("2[9]", "there is no job 2[9]"),
        ("x", "'x' is no job"),
    ):
        refused = up.run("logs", word)
        assert refused.returncode == 2 and said in refused.stderr, word
    nowhere = tenbin("logs", "1", TENBIN_HOME=str(up.home / "nowhere"))
    assert nowhere.returncode != 0 and "start one with: tenbin up --daemon" in nowhere.stderr
    (up.home / "go").touch()
