"""``tenbin map`` with a real coordinator: outputs, exit codes, an interrupt, and bad input."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.coordinator import Up
from tests.support.programs import TENBIN, tenbin

ODD = ["two  words", "a\nb", "é名", "'\"`$HOME", "", "-n", "{}", "*", "\\"]


def test_arguments_come_as_they_are_and_outputs_in_order(up: Up) -> None:
    up.start("--cores", "2")
    done = up.run("map", "-k", "--env", "WHO=me", "--", "printf", "[%s]", "{}", ":::", *ODD)
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout == "".join(f"[{argument}]" for argument in ODD)
    found = up.client.call("GET", "/jobs?all=true")
    assert {job["array"] for job in found} == {1} and [job["array_index"] for job in found] == [*range(1, 10)]
    assert {job["name"] for job in found} == {"printf"}
    assert up.client.job(found[0]["id"]).info()["spec"]["command"][1:] == ["printf", "[%s]", "{}"]


def test_outputs_are_printed_as_jobs_end_and_failures_are_counted(up: Up, tmp_path: Path) -> None:
    """The first job ends only after the outputs of the others have been read."""
    up.start("--cores", "2")
    wait = f"while [ $1 = 1 ] && ! [ -e {tmp_path}/go ]; do sleep 0.02; done"
    script = f"{wait}; echo out $1; echo err $1 >&2; [ $1 != 2 ]"
    command = [*TENBIN, "map", "--", "sh", "-c", script, "sh", "{}", ":::", "1", "2", "3"]
    environment, pipe = {**os.environ, "TENBIN_HOME": str(up.home)}, subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        assert {process.stdout.readline() for _ in range(2)} == {"out 2\n", "out 3\n"}
        (tmp_path / "go").touch()
        rest, errors = process.communicate(timeout=60)
    assert (rest, process.returncode) == ("out 1\n", 1)
    assert {line for line in errors.splitlines() if line.startswith("err")} == {"err 1", "err 2", "err 3"}
    assert "tenbin: job 1[2] failed: exit code 1: sh -c" in errors


def test_outputs_in_order_wait_for_the_first(up: Up, tmp_path: Path) -> None:
    """The first job ends only after the second has."""
    up.start("--cores", "2")
    wait = f"while [ $1 = 1 ] && ! [ -e {tmp_path}/go ]; do sleep 0.02; done"
    script = f"{wait}; echo out $1; touch {tmp_path}/go"
    done = up.run("map", "-k", "--", "sh", "-c", script, "sh", "{}", ":::", "1", "2")
    assert (done.stdout, done.returncode) == ("out 1\nout 2\n", 0)


def test_no_more_run_at_once_than_asked_for(up: Up, tmp_path: Path) -> None:
    up.start("--cores", "2")
    alone = f"mkdir {tmp_path}/alone && sleep 0.2 && rmdir {tmp_path}/alone"
    done = up.run("map", "-j", "1", "--", "sh", "-c", alone, "sh", ":::", *"abcdef")
    assert done.returncode == 0, done.stderr


def test_more_than_100_failures_are_101(up: Up) -> None:
    up.start("--cores", "2")
    done = up.run("map", "--", "false", ":::", *map(str, range(102)))
    assert done.returncode == 101


def test_without_waiting_the_number_of_the_array_is_printed(up: Up, tmp_path: Path) -> None:
    up.start("--cores", "2")
    (tmp_path / "list").write_bytes(b"a b\nc\xff\n")
    output = str(tmp_path / "%a.txt")
    done = up.run(
        "map", "--no-wait", "--output", output, "--", "echo", "{#}", "{}", "::::", str(tmp_path / "list")
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")
    assert [job["stage"] for job in up.client.ended([2, 3], 60, all=True)] == ["done", "done"]
    assert (tmp_path / "1.txt").read_bytes() == b"1 a b\n" and (
        tmp_path / "2.txt"
    ).read_bytes() == b"2 c\xff\n"
    waited = up.run("map", "--output", output, "--", "echo", ":::", "x")
    assert waited.stdout == "" and (tmp_path / "1.txt").read_text() == "1 a b\nx\n"


def test_an_interrupt_cancels_the_array(up: Up) -> None:
    up.start("--cores", "2")
    command = [*TENBIN, "map", "--", "sleep", ":::", *["600"] * 5]
    environment = {**os.environ, "TENBIN_HOME": str(up.home)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        up.until(lambda: len(up.client.call("GET", "/jobs")) == 5)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and "cancelled" in said and "Traceback" not in said
    ended = up.client.ended(range(2, 7), 60, all=True)
    assert [job["stage"] for job in ended] == ["cancelled"] * 5


def test_only_look(tmp_path: Path) -> None:
    done = tenbin("map", "--dry-run", "-c", "2", "--", "gzip", "{}", "-o", "{/.}", ":::", "a/b c.txt", "d")
    assert (done.returncode, done.stdout) == (0, "gzip 'a/b c.txt' -o 'b c'\ngzip d -o d\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["echo", ":::", "a"], "no -- before the command"),
        (["x", "--", "echo", ":::", "a"], "'x' stands before --"),
        (["--", ":::", "a"], "no command before the arguments"),
        (["--"], "no command before the arguments"),
        (["--", "echo", ":::"], "::: without arguments"),
        (["--", "echo", ":::", "a", "::::"], ":::: without files"),
        (["--", "echo", ":::+", "a"], ":::+ has no source before it"),
        (["--", "echo", "::::", "/no/such"], "/no/such: No such file or directory"),
        (["--", "echo", "::::", "/"], "/: Is a directory"),
        (["--", "echo", "::::", "/dev/null"], "/dev/null has no arguments"),
        (["--", "echo"], "standard input has no arguments"),
        (["--", "echo", "{%}", ":::", "a"], "'{%}' is a replacement that tenbin does not have"),
        (["--", "echo", "{2}", ":::", "a"], "'{2}': there is 1 source of arguments"),
        (["--time", "soon", "--", "echo", ":::", "a"], "--time 'soon' is no duration"),
        (["--", "echo", *[":::", *"abcdefghijklmnopqrstuvw"] * 4], "more than 100,000 combinations"),
    ],
)
def test_bad_input_is_one_line(words: list[str], said: str) -> None:
    done = tenbin("map", *words)
    assert done.returncode == 2 and said in done.stderr and done.stdout == "", done.stderr
    assert len(done.stderr.splitlines()) == 1
