"""``tenbin policies``, and policies from files of users."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from scheduler.policies.registry import OFFERED, POLICIES, create, several
from tests.support.coordinator import Up
from tests.support.paths import ROOT
from tests.support.programs import tenbin

FILE = '''
"""Last come, first served."""

from dataclasses import dataclass

from scheduler.model.events import Start
from scheduler.model.jobs import counted
from scheduler.policies.base import Policy, Reason


@dataclass(frozen=True)
class Parameters:
    """``most``: jobs that start at one instant."""

    most: int = 1000


class Lifo(Policy):
    """The newest job starts first."""

    Parameters = Parameters

    def decide(self, view, event):
        pool = view.cluster.pools[0].name
        free, actions = view.free[pool], []
        for job in reversed(list(view.waiting.values())[-self.parameters.most:]):
            if job.units > free:
                break
            free -= job.units
            actions.append(Start(job.id, counted(pool, job.units)))
        return actions

    def why(self, job, view):
        return Reason("waits for the newer ones")
'''


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    file = tmp_path / "mine.py"
    file.write_text(FILE)
    return file


def test_every_policy_stands_there_with_what_it_takes_and_needs() -> None:
    rows = {row["name"]: row for row in json.loads(tenbin("policies", "--json").stdout)["policies"]}
    first, others = tenbin("policies", COLUMNS="300").stdout.split("\nOthers: ")
    assert list(rows) == list(POLICIES)
    for name, row in rows.items():
        given = "".join(f",{key}={value}" for key, value in row["parameters"].items() if value != "''")
        assert create(f"{name}{given}").parameters == create(name).parameters, name  # its own defaults
        assert row["suits"] and row["algorithm"] and row["offered"] == (name in OFFERED)
        part = first if row["offered"] else others
        assert re.search(rf"^ *{name}  {re.escape(row['summary'])} *$", part, re.MULTILINE)
        given = "  ".join(f"{key}={value}" for key, value in row["parameters"].items())
        assert given in (part if row["offered"] else tenbin("policies", name, COLUMNS="300").stdout)
    assert rows["mctb"]["parameters"]["backfill"] == "true" != rows["mct"]["parameters"]["backfill"]


def test_one_policy_is_shown_whole() -> None:
    shown = tenbin("policies", "conservative", COLUMNS="300").stdout
    assert "depth=1000" in shown and "number of waiting jobs with reservations" in shown
    assert "later jobs never delay a job" in shown and "Source:" in shown
    for name in POLICIES:  # as people write, not as sources do
        assert not re.search(r"``|\*\*|Attributes:|Args:", tenbin("policies", name).stdout), name
    wrong = tenbin("policies", "essy")
    assert (wrong.returncode, wrong.stdout) == (2, "") and "did you mean easy" in wrong.stderr
    assert f"there are: {', '.join(OFFERED)}; all: tenbin policies" in wrong.stderr


def test_a_comma_before_a_name_begins_another_policy() -> None:
    assert several("fcfs,easy") == ["fcfs", "easy"]
    assert several("las,victims=2,spare_s=3, easy") == ["las,victims=2,spare_s=3", "easy"]
    assert several("a.py,x=1,b.py") == ["a.py,x=1", "b.py"] and several("las,esy") == ["las,esy"]
    done = tenbin("simulate", "-p", "fcfs,easy", "-p", "easy", "-w", "generator:lublin,jobs=20", "-c", "64")
    assert done.stdout.splitlines()[1].split() == ["fcfs", "easy"], done.stderr


def test_a_policy_of_a_file_is_simulated(mine: Path) -> None:
    workload = ("-w", "generator:lublin,jobs=50,load=0.9", "-c", "64", "--json")
    done = tenbin("simulate", "-p", f"{mine},most=3,fcfs", *workload)
    first, second = json.loads(done.stdout)["results"]
    assert first["policy"] == f"{mine},most=3" and first["jobs"] == second["jobs"] == 50
    assert first["mean_wait_s"] != second["mean_wait_s"]
    (row,) = json.loads(tenbin("policies", str(mine), "--json").stdout)["policies"]
    assert (row["summary"], row["parameters"]) == ("The newest job starts first", {"most": "1000"})


def test_the_file_of_the_page_runs(mine: Path) -> None:
    (text,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "write-a-policy.md").read_text(), re.DOTALL)
    mine.write_text(text)
    done = tenbin("simulate", "-p", f"{mine},fcfs", "-w", "generator:lublin,jobs=50", "-c", "64", "--json")
    first, second = json.loads(done.stdout)["results"]
    assert first["mean_wait_s"] == second["mean_wait_s"] and first["jobs"] == 50


def test_a_file_without_a_docstring_of_its_class_has_that_of_the_file(mine: Path) -> None:
    mine.write_text(FILE.replace('    """The newest job starts first."""\n', ""))
    (row,) = json.loads(tenbin("policies", str(mine), "--json").stdout)["policies"]
    assert row["summary"] == "Last come, first served"


def test_a_policy_of_a_file_is_refused_where_it_says_it_does_not_suit(mine: Path) -> None:
    cluster = "4xnode[cores=64,memory_mb=512000,gpu=4]"
    words = ("-w", "generator:lublin,jobs=20", "-c", cluster)
    done = tenbin("simulate", "-p", str(mine), *words)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert (
        "policy Lifo suits counted, this cluster has nodes; policies for this cluster: weigh, easy"
        in done.stderr
    )


def test_a_policy_of_a_file_runs_jobs(up: Up, mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named from its folder, which the coordinator leaves."""
    monkeypatch.chdir(mine.parent)
    started = up.run("up", "--cores", "1", "--policy", "./mine.py", "--daemon")
    assert started.returncode == 0, started.stderr
    first = up.client.submit(["sh", "-c", "until [ -e go ]; do sleep 0.05; done"], folder=str(mine.parent))
    jobs = [first, *(up.client.submit(["true"]) for _ in range(2))]
    assert up.client.call("GET", "/status")["policy"] == str(mine)
    assert up.client.call("GET", f"/jobs/{jobs[1].id}")["why"] == "waits for the newer ones"
    (mine.parent / "go").touch()
    starts = [job.wait(60)["start_s"] for job in jobs]
    assert up.run("down").returncode == 0
    assert starts[0] < starts[2] < starts[1]


@pytest.mark.parametrize(
    ("fault", "named"),
    [("1 / 0", "ZeroDivisionError: division by zero"), ("raise SystemExit(5)", "SystemExit: 5")],
)
def test_a_policy_that_fails_is_said_wherever_one_looks(up: Up, mine: Path, fault: str, named: str) -> None:
    """Where, and what to do; its jobs stay, and run under another policy."""
    mine.write_text(FILE.replace("free, actions = ", f"{fault}; free, actions = "))
    line = next(n for n, text in enumerate(mine.read_text().splitlines(), 1) if fault in text)
    said = f"policy {mine}: {named} (mine.py, line {line}); no job is started until"
    started = up.run("up", "--cores", "1", "--policy", str(mine), "--daemon")
    assert started.returncode == 0 and said in started.stderr
    job = up.client.submit(["true"])
    for words in (("status",), ("jobs",), ("info", str(job.id))):
        assert said in up.run(*words).stdout, words
    log = (up.home / "coordinator.log").read_text()
    assert log.count("no job is started") == log.count("Traceback") == 1
    assert up.run("down").returncode == 0
    mine.write_text(FILE.replace('return Reason("waits for the newer ones")', fault))
    assert up.run("up", "--cores", "1", "--policy", str(mine), "--daemon").stderr == ""
    assert job.wait(60)["stage"] == "done"
    first, second = (up.client.submit(["sleep", "60"]) for _ in range(2))
    up.until(first.running)
    assert f"policy {mine}: {named}" in up.run("jobs").stdout and not second.running()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it defines no policy"),
        ("x = (", "SyntaxError"),
        ("import sys; sys.exit(5)", "SystemExit: 5"),
        ("import nothing_of_that_name", "ModuleNotFoundError: No module named 'nothing_of_that_name'"),
        (FILE + "class Other(Lifo): pass", "it defines Lifo and Other"),
        (FILE.replace("decide", "decides"), "it defines no policy"),
    ],
)
def test_a_file_without_one_policy_is_one_line(mine: Path, text: str, said: str) -> None:
    mine.write_text(text)
    for command in (("policies", str(mine)), ("up", "--policy", str(mine), "--home", str(mine.parent / "h"))):
        done = tenbin(*command)
        assert done.returncode == 2 and not done.stdout and len(done.stderr.splitlines()) == 1
        assert f"policy {mine}: {said}" in done.stderr and "docs/write-a-policy.md" in done.stderr


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("free, actions = ", "1 / 0; free, actions = "),
        ("    def decide", "    def __init__(self, *given):\n        1 / 0\n\n    def decide"),
    ],
)
def test_an_error_in_the_file_is_one_line(mine: Path, before: str, after: str) -> None:
    mine.write_text(FILE.replace(before, after))
    line = next(n for n, text in enumerate(mine.read_text().splitlines(), 1) if "1 / 0" in text)
    done = tenbin("simulate", "-p", f"{mine},most=3", "-w", "generator:lublin,jobs=5", "-c", "64")
    assert done.returncode == 2 and not done.stdout
    said = f"policy {mine}: ZeroDivisionError: division by zero (mine.py, line {line})"
    assert said in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("answer", ["['x']", "None", "5", "[Start(1, None)]"])
def test_what_is_no_action_is_told_as_an_error_is(mine: Path, answer: str) -> None:
    mine.write_text(FILE.replace("free, actions = ", f"return {answer}; free, actions = "))
    done = tenbin("simulate", "-p", str(mine), "-w", "generator:lublin,jobs=5", "-c", "64")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr
    assert f"tenbin: policy {mine}: decide returned " in done.stderr and "mend the file" in done.stderr


def test_a_coordinator_says_what_is_no_action_and_goes_on_when_the_next_is(up: Up, mine: Path) -> None:
    """Its decisions are none until a file is there; why answers by a plain text."""
    text = FILE.replace('return Reason("waits for the newer ones")', 'return "x"')
    begins = f"if not __import__('os').path.exists('{mine.parent / 'go'}'): return ['x']"
    mine.write_text(text.replace("free, actions = ", f"{begins}\n        free, actions = "))
    started = up.run("up", "--cores", "1", "--policy", str(mine), "--daemon")
    assert started.returncode == 0, started.stderr
    first = up.client.submit(["sleep", "60"])
    said = f"policy {mine}: decide returned 'x', which is no action; no job is started until it decides again"
    for words in (("status",), ("jobs",), ("info", str(first.id))):
        done = up.run(*words)
        assert done.returncode == 0 and said in done.stdout, (done.stdout, done.stderr)
    (mine.parent / "go").touch()
    second = up.client.submit(["sleep", "60"])
    up.until(lambda: first.running() or second.running())
    waiting = second if first.running() else first
    done = up.run("info", str(waiting.id))
    assert done.returncode == 0 and f"policy {mine}: why returned 'x', which is no Reason" in done.stdout


def test_a_refusal_that_is_no_text_and_prices_that_are_no_numbers_are_told(up: Up, mine: Path) -> None:
    refuses, prices = "def refuses(self, job, cluster):", "def prices(self):"
    mine.write_text(
        f"{FILE.rstrip()}\n\n    {refuses}\n        return 5\n\n    {prices}\n        return ['x']\n"
    )
    done = tenbin("simulate", "-p", str(mine), "-w", "generator:lublin,jobs=5", "-c", "64")
    said = f"policy {mine}: refuses returned 5, which is no text"
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr
    assert up.run("up", "--cores", "1", "--policy", str(mine), "--daemon").returncode == 0
    done = up.run("submit", "--", "true")
    assert done.returncode == 2 and said in done.stderr and "mend the file" in done.stderr
    assert "core: 1 of 1 free" in up.run("nodes").stdout
    said = f"policy {mine}: prices returned ['x'], no numbers by pool and resource"
    assert said in (up.home / "coordinator.log").read_text()


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    done = tenbin("policies", str(tmp_path / "no.py"))
    assert (
        done.returncode == 2 and len(done.stderr.splitlines()) == 1 and "no.py: no such file;" in done.stderr
    )


def test_names_are_taken_as_elsewhere_without_parameters() -> None:
    assert (
        tenbin("policies", "fcfs,easy", "--json").stdout
        == tenbin("policies", "fcfs", "easy", "--json").stdout
    )
    done = tenbin("policies", "las,victims=2")
    assert done.returncode == 2 and done.stderr == (
        "tenbin: las,victims=2: parameters are for simulate and up; see: tenbin policies las\n"
    )
