"""Job files: taken in whole or not at all, in the order of who waits for whom."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from profiles.errors import BadInput
from scheduler.coordinator.coordinator import Coordinator
from scheduler.jobs.entry import Stage
from scheduler.jobs.specs import JobSpec
from tenbin.commands.jobs.job_file import LARGEST, read
from tenbin.commands.jobs.map import combinations
from tests.support.coordinator import Up
from tests.support.paths import ROOT
from tests.support.programs import TENBIN

FILE = """
[defaults]
cores = 1
time = "10m"
env = { WHO = "all", WHAT = "line" }

[[job]]
name = "last"
command = ["sh", "-c", "echo $WHO $WHAT > last; cat part-* >> last"]
after = ["part", "first thing"]

[[job]]
name = "part"
command = 'sh -c "cat first > part-$TENBIN_ARRAY_INDEX"'
array = [3, 5]
after = "first thing"
env = { WHO = "nobody" }

[[job]]
name = "first thing"
command = ["sh", "-c", "sleep 0.3; echo \\"$WHO's\\" > first"]
memory = 500
priority = -3
"""


def test_a_file_of_jobs_that_wait_for_each_other(up: Up, tmp_path: Path) -> None:
    path = tmp_path / "some jobs.toml"
    path.write_text(FILE)
    shown = up.run("submit", "--file", str(path), "--dry-run")  # needs no coordinator
    assert shown.returncode == 0 and len(shown.stdout.splitlines()) == 10
    assert (
        "after jobs 2, 3 of these" in shown.stdout
        and "array of 2: 3, 5" in shown.stdout
        and "1 core, 500 MB of memory; at most 10:00 min" in shown.stdout
    )
    up.start("--cores", "2")
    earlier = up.client.submit(["true"])
    done = up.run("submit", "-f", str(path), "--wait", "--json")
    assert done.returncode == 0 and json.loads(done.stdout) == {
        "ids": [2, 4, 5, 6],
        "arrays": [3],
        "remarks": [],
    }
    assert (tmp_path / "last").read_text() == "all line\nall's\nall's\n"
    last, first = up.client.job(2).info(), up.client.job(6).info()
    assert last["spec"]["after"] == [3, 6] and first["spec"]["time_s"] == 600
    assert [up.client.job(i).info()["array_index"] for i in (4, 5)] == [3, 5]
    assert earlier.result(30) == 0
    path.write_text(
        '[[job]]\ncommand = ["true"]\nafter = 1\n[[job]]\ncommand = ["true"]\nname = "b"\ncores = 99'
    )
    done = up.run("submit", "-f", str(path))
    assert done.returncode == 2 and "some jobs.toml, job 2 (b): the job needs 99 cores" in done.stderr
    assert len(up.client.call("GET", "/jobs?all=true")) == 5  # all or none
    for extra in (("--cores", "2"), ("--chdir", "/"), ("--user-share", "a"), ("--", "true")):
        done = up.run("submit", "-f", str(path), *extra)
        assert done.returncode == 2 and "with --file: the file says" in done.stderr, extra
    for arguments, words in (((str(path),), "--file"), ((), "nothing to run")):
        done = up.run("submit", *arguments)
        assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr


X = "[[job]]\ncommand = ['x']\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no jobs"),
        ("[[job]\n", "is no TOML"),
        ("[[jobs]]\ncommand = ['x']", "unknown table 'jobs'; did you mean job?"),
        ("job = 3", "has no jobs"),
        ("job = [3]", "job 1 is no table"),
        ("[[job]]\nname = 'n'", "job 1 (n): command is missing"),
        ("[[job]]\ncommand = []", "job 1: command"),
        ("[[job]]\ncommand = ['x', 3]", "job 1: command = ['x', 3] is not"),
        ("[[job]]\ncommand = 'x \"y'", "job 1: command"),
        (X + X + "memry = 3", "job 2: unknown field 'memry'; did you mean memory"),
        (X + "time = '5 apples'", "job 1: time '5 apples' is no duration; write for instance 90s"),
        (X + "time = -5", "job 1: time: must be more than 0"),
        (X + "time = true", "job 1: time = True is not"),
        (X + "memory = 'much'", "job 1: memory 'much' is no size"),
        (X + "cores = '2'", "job 1: cores = '2' is not"),
        (X + "cores = 0", "job 1: cores: must be at least"),
        (X + "tasks = '4-1'", "job 1: tasks '4-1' is no number or range"),
        (X + "tasks = 1.5", "job 1: tasks = 1.5 is not"),
        (X + "nodes = 0", "job 1: nodes"),
        (X + "speedup = { 1 = 'fast' }", "job 1: speedup"),
        (X + "load = 'light'", "job 1: load"),
        (X + "mpi = 1", "job 1: mpi = 1 is not"),
        (X + "expect = 'gpu'", "job 1: expect 'gpu' is no list"),
        (X + "expect = [1]", "job 1: expect = [1] is not"),
        (X + "array = '3-1'", "job 1: array '3-1' is no list"),
        (X + "array = []", "job 1: array [] is no list"),
        (X + "user_share = 'a=0'", "job 1: user-share 'a=0' is no share"),
        (X + "env = { A = 3 }", "job 1: env = {'A': 3} is not"),
        (X + "env = { 'A=B' = 'c' }", "job 1: env"),
        (X + "after = [1.5]", "job 1: after = [1.5]"),
        (X + "after = 'mash'\n" + X + "name = 'mesh'", "wait for, by name: 'mash'; did you mean mesh"),
        (X + "name = 'a'\nafter = 'a'", "jobs wait for each other: 1 -> 1"),
        (X + "name = 'a'\n" + X + "name = 'a'\n" + X + "after = 'a'", "jobs 1 and 2 have that name"),
        ("defaults = 3\n[[job]]\ncommand = ['x']", "defaults is no table"),
        ("[defaults]\nname = 'x'\n[[job]]\ncommand = ['x']", "defaults: name is each job's own"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_file_job_and_field(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "jobs.toml"
    path.write_text(text)
    with pytest.raises(BadInput) as caught:
        read(path)
    assert str(caught.value).startswith(str(path)) and words in str(caught.value)
    assert "\n" not in str(caught.value) and caught.value.remedy


def test_a_folder_lies_where_the_file_lies(tmp_path: Path) -> None:
    path = tmp_path / "jobs.toml"
    path.write_text(X + "chdir = 'sub'")
    assert read(path).specs[0]["folder"] == str(tmp_path / "sub")


@pytest.mark.parametrize("given", ["jobs.toml", "-"])
def test_a_file_is_utf_8_whatever_the_locale(tmp_path: Path, given: str) -> None:
    """Other letters are shown as the terminal can."""
    content = "\ufeff[[job]]\r\nname = 'é名'\r\ncommand = ['true']\r\narray = [1, 1, 2]\r\n".encode()
    (tmp_path / "jobs.toml").write_bytes(content)
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    shown = {
        "": "   array of 2: 1-2, name é名\n",
        "C": "   array of 2: 1-2, name \\xe9\\u540d\n",
    }
    for more in ({}, ascii_only):
        done = subprocess.run(
            [*TENBIN, "submit", "--dry-run", "--file", given],
            input=content, capture_output=True, env={**os.environ, **more}, cwd=tmp_path, check=False,
        )  # fmt: skip
        assert shown[more.get("LC_ALL", "")] in done.stdout.decode() and not done.stderr


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"[[job]]\ncommand = ['\xe9']")
    for path in (tmp_path, tmp_path / "none", tmp_path / "latin"):
        with pytest.raises(BadInput, match=str(path)):
            read(path)


def test_a_file_that_is_too_large_is_not_read_whole(tmp_path: Path) -> None:
    huge = tmp_path / "huge.toml"
    huge.touch()
    os.truncate(huge, LARGEST + 1)
    with pytest.raises(BadInput, match=r"has more than 64 MiB"):
        read(huge)
    with pytest.raises(BadInput, match=r"has more than 64 MiB"):
        read(Path("/dev/zero"))
    with pytest.raises(BadInput, match=r"has more than 64 MiB"):
        combinations(["::::", "/dev/zero"])


def test_the_example_of_the_page(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "job-files.md").read_text()
    example = page[page.index("    [defaults]") : page.index("    tenbin submit --file")]
    (tmp_path / "jobs.toml").write_text("\n".join(line[4:] for line in example.splitlines()))
    batch = read(tmp_path / "jobs.toml")
    assert (
        len(batch.specs) == 3
        and batch.waits_for[2] == {"after": [1]}
        and batch.arrays == {1: list(range(1, 21))}
    )
    assert batch.specs[2]["after"] == [17] and batch.specs[1]["command"] == [
        "./solve", "--case", "$TENBIN_ARRAY_INDEX",
    ]  # fmt: skip


def test_a_crash_before_the_first_decision_lets_no_job_pass(tmp_path: Path) -> None:
    """The disk holds what a crash after the numbers leaves: a job that waits for another is held."""
    from scheduler.coordinator.job_table import JobTable
    from scheduler.coordinator.journal.journal import Journal
    from scheduler.engines.local.discovery import divide
    from scheduler.engines.local.engine import LocalEngine

    machine = divide("fcfs", 1, None)
    journal = Journal(tmp_path / "home")
    spec = JobSpec(command=("sleep", "0.2"), folder="/")
    waiting, first = JobTable(journal, machine.cluster).add([spec, spec], {"PATH": "/bin"}, 1.0, {0: [1]})
    assert waiting.spec.after == (first.id,) and waiting.id < first.id
    engine = LocalEngine(tmp_path / "home", tmp_path / "home" / "r", machine.cluster, machine.cores)
    coordinator = Coordinator(journal, engine, "fcfs")
    try:
        coordinator.turn()
        assert coordinator.job_table.stage(waiting.id) is Stage.HELD
        while coordinator.job_table.entries:
            coordinator.turn()
        ends = [journal.entry(i) for i in (first.id, waiting.id)]
        assert all(entry is not None and entry.stage is Stage.DONE for entry in ends)
        assert ends[0].end_s <= ends[1].start_s  # type: ignore[union-attr, operator]
    finally:
        engine.close()
        journal.close()
