"""Lists and accounts of jobs: no job that runs is hidden, and a state has one name everywhere."""

from __future__ import annotations

import csv
import io
import json
import re
import socket
import time
from getpass import getuser
from pathlib import Path

import pytest

from profiles.files.store import Store
from tests.support.coordinator import Up
from tests.support.labs.components import require
from tests.support.programs import opencl_devices
from tests.support.records import make_model, make_profile


def test_a_limit_hides_no_job_that_runs(up: Up) -> None:
    """One job runs, and the first ones of those that wait are shown; the others are counted."""
    up.start("--cores", "1")
    running = up.client.submit(["sleep", "60"])
    up.client.submit_all([{"command": ["true"], "folder": "/"}] * 60)
    up.until(lambda: running.info()["stage"] == "running")
    shown = up.run("jobs").stdout
    lines = [line.split() for line in shown.splitlines()]
    assert lines[1][:3] == ["1", "sleep", "running"] and "and 11 more: tenbin jobs --limit 61" in shown
    assert [line[0] for line in lines[2:-1]] == [str(number) for number in range(2, 51)]
    assert "more" not in up.run("jobs", "--limit", "61").stdout
    listed = json.loads(up.run("jobs", "--json", "--limit", "2").stdout)
    assert [job["id"] for job in listed] == [1, 2]
    running.cancel()
    up.client.ended(range(1, 62), 60, all=True)
    assert "and 11 more: tenbin jobs --all --limit 61" in up.run("jobs", "--all").stdout


def test_an_array_is_one_row(up: Up) -> None:
    """With how many members are in each stage; programs, and --members, get the members."""
    up.start("--cores", "1")
    script = ["sh", "-c", "[ $TENBIN_ARRAY_INDEX != 3 ] || exec sleep 60; exit $TENBIN_ARRAY_INDEX"]
    up.client.submit_all([{"command": script, "folder": "/"}], arrays={0: [0, 2, 3, 4, 5]})
    later = up.client.submit(["true"])
    up.until(lambda: up.client.job(4).info()["stage"] == "running")
    whole, single = up.client.call("GET", "/jobs?members=false")
    assert whole["stages"] == {"running": 1, "waiting": 2, "done": 1, "failed": 1}
    assert whole["members"] == 5 and whole["trouble"] == "1 of 5 did not succeed" and single["id"] == 7
    assert "running 1, waiting 2, failed 1, done 1" in up.run("jobs").stdout
    members = [line.split()[0] for line in up.run("jobs", "--members").stdout.splitlines()[1:]]
    assert members == ["1[3]", "1[4]", "1[5]", "7"]
    assert [job["id"] for job in json.loads(up.run("jobs", "--json").stdout)] == [4, 5, 6, 7]
    up.run("cancel", "1")
    assert later.wait(30)["stage"] == "done" and up.run("jobs").stdout.count("\n") == 1
    assert "and 1 more: tenbin jobs --all --limit 2" in up.run("jobs", "--all", "--limit", "1").stdout
    whole = [line.split() for line in up.run("jobs", "--all").stdout.splitlines()[1:]]
    assert [line[0] for line in whole] == ["7", "1"] and "cancelled" in whole[1]
    up.kill()
    up.start("--cores", "1")
    again = [line.split() for line in up.run("jobs", "--all").stdout.splitlines()[1:]]
    assert [line[:3] for line in again] == [line[:3] for line in whole]
    assert up.client.call("GET", "/jobs/count?all=true&members=false") == {"count": 2}


def test_filters_and_columns(up: Up) -> None:
    """Running jobs come first; an array is a row if one of its members is meant."""
    up.start("--cores", "1")
    first = up.client.submit(["sh", "-c", "exit 3"], name="bad")
    script = ["sh", "-c", "exit $TENBIN_ARRAY_INDEX"]
    array = up.client.call(
        "POST", "/jobs", {"specs": [{"command": script, "folder": "/"}], "arrays": {0: [0, 1]}}
    )["arrays"][0]
    up.client.ended([first.id, array], 60, all=True)
    held = up.client.submit(["true"], name="later", begin_s=time.time() + 3600)
    running = up.client.submit(["sleep", "60"], name="fit one")
    waiting = up.client.submit(["sleep", "60"], name="fit two")
    up.until(lambda: running.info()["stage"] == "running")

    def ids(*options: str) -> list[int]:
        """Return the numbers of the rows."""
        table = up.run("jobs", "--columns", "id,stage", *options).stdout.splitlines()[1:]
        return [int(line.split()[0]) for line in table]

    assert ids() == [running.id, waiting.id, held.id]
    assert ids("--all") == [running.id, waiting.id, held.id, array, first.id]
    assert ids("--since", "1h") == ids("--all") and ids("--since", "2126-01-01") == ids()
    assert ids("--stage", "failed") == [array, first.id] == ids("--state", "failed")  # its old name
    assert ids("--stage", "done") == [array]
    assert ids("--stage", "held,running") == [running.id, held.id]
    assert ids("--name", "fit*") == [running.id, waiting.id] and ids("--name", "sh", "--all") == [array]
    assert ids("--user", "nobody-of-this-name") == [] and len(ids("--user", getuser())) == 3
    place = json.loads(up.run("jobs", "--json").stdout)[0]["place"]
    assert ids("--place", place) == [running.id] and ids("--place", "nowhere", "--all") == []
    assert ids("--place", place, "--all") == [running.id, array, first.id]
    assert "at most 1 are shown; more: --limit" in up.run("jobs", "--stage", "waiting", "--limit", "1").stdout

    written = up.run("jobs", "--csv", "--columns", "id,name,array_index", "--stage", "failed").stdout
    assert list(csv.reader(io.StringIO(written))) == [
        ["id", "name", "array_index"],
        [str(array + 2), "sh", "1"],
        [str(first.id), "bad", ""],
    ]
    assert json.loads(up.run("jobs", "--json", "--columns", "id,name").stdout)[0] == {
        "id": running.id,
        "name": "fit one",
    }
    assert "since_s" in up.run("jobs", "--columns", "help").stdout.split()
    for options in (["--stage", "odd"], ["--columns", "odd"], ["--since", "odd"], ["--csv", "--json"]):
        said = up.run("jobs", *options)
        assert said.returncode == 2 and len(said.stderr.splitlines()) == 1 and not said.stdout


def test_a_suspended_job_is_suspended_everywhere(up: Up) -> None:
    """One name for its state, whether it ran before or not; one that waits for another is held."""
    up.start("--cores", "1")
    ran, waits = up.client.submit(["sleep", "60"]), up.client.submit(["sleep", "60"])
    up.until(lambda: ran.info()["stage"] == "running")
    ran.suspend()
    up.until(lambda: waits.info()["stage"] == "running")
    never = up.client.submit(["sleep", "60"])
    never.suspend()
    held = up.client.submit(["true"], after=[never.id])
    stages = {ran.id: "suspended", waits.id: "running", never.id: "suspended", held.id: "held"}
    assert {job["id"]: job["stage"] for job in up.client.call("GET", "/jobs")} == stages
    assert {number: up.client.job(number).info()["stage"] for number in stages} == stages
    listed = [line.split() for line in up.run("jobs").stdout.splitlines()[1:]]
    assert {int(line[0]): line[2] for line in listed} == stages
    assert up.run("info", str(never.id)).stdout.startswith(f"job {never.id}: suspended\n")
    assert "2 suspended" in up.run("status").stdout and "1 held" in up.run("status").stdout
    metrics = up.client.call("GET", "/metrics")
    assert 'tenbin_jobs{stage="suspended"} 2.0' in metrics and 'tenbin_jobs{stage="held"} 1.0' in metrics
    assert "is suspended, not running" in up.run("migrate", str(never.id), "--to", "core").stderr
    up.kill()
    up.start("--cores", "1")
    assert {number: up.client.job(number).info()["stage"] for number in stages} == stages
    never.cancel()
    assert never.wait(30)["stage"] == "cancelled" and held.wait(30)["stage"] == "cancelled"
    ended = json.loads(up.run("jobs", "--all", "--json").stdout)[2:]
    assert [job["stage"] for job in ended] == ["cancelled"] * 2


def test_info_names_the_device(up: Up, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POCL_DEVICES", "pthread basic")
    require(len(opencl_devices()) == 2, "two OpenCL devices (PoCL)")
    up.start("--devices", "--policy", "fcfs")
    for device in ("pocl-1", "pocl-0"):
        job = up.client.submit(["true"], device=device)
        assert job.result(60) == 0
        assert f"  device {device}; attempt 1\n" in up.run("info", str(job.id)).stdout


def test_info_names_the_node(up: Up) -> None:
    up.start("--cores", "1", "--nodes", "1", "--policy", "las")
    assert up.client.submit(["true"]).result(60) == 0
    assert "  node0; core number " in up.run("info", "1").stdout


def test_the_list_says_why_and_when(up: Up, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reason in its row, whole for programs and in files, cut on a terminal; in the queue's order."""
    up.start("--cores", "2")
    running = up.client.submit(["sleep", "600"], cores=2, time_s=3600)
    later = up.client.submit(["sleep", "600"], cores=2, time_s=60, name="later")
    urgent = up.client.submit(["sleep", "600"], cores=2, time_s=7200, name="urgent", priority=5)
    held = up.client.submit(["true"], name="held", after=[urgent.id], priority=9)
    up.until(running.running)
    rows = json.loads(up.run("jobs", "--json").stdout)
    assert [row["id"] for row in rows] == [running.id, urgent.id, later.id, held.id]
    assert [row["why"] for row in rows] == [job.info()["why"] for job in (running, urgent, later, held)]
    assert rows[1]["expected_start_s"] == pytest.approx(rows[0]["start_s"] + 3600, abs=60)
    assert rows[2]["expected_start_s"] == pytest.approx(rows[0]["start_s"] + 3 * 3600, abs=60)
    assert rows[0]["expected_start_s"] is rows[3]["expected_start_s"] is rows[1]["start_low_s"] is None
    heading, _, first, second, third = up.run("jobs").stdout.splitlines()
    assert heading.split() == ["job", "name", "stage", "cores", "since", "starts", "reason"]
    assert re.search(r"in (1:00 h|59:\d\d min) +waits for 2 cores \(0 of 2 free\); first in the queue", first)
    assert re.search(r"in (3:00|2:59) h +waits for 2 cores \(0 of 2 free\); behind job 3", second)
    assert third.split()[1:3] == ["held", "held"] and third.rstrip().endswith("waits for job 3 to succeed")
    logs = up.run("logs", "3")
    assert (logs.returncode, logs.stdout) == (0, "")
    assert logs.stderr.startswith("tenbin: job 3 has not begun: waits for 2 cores (0 of 2 free); first in")
    used = up.run("status").stdout.splitlines()
    assert used[1] == "1 held, 2 waiting, 1 running" and used[2].startswith("in use: 2 of 2 cores, 0 of ")
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    monkeypatch.setenv("COLUMNS", "60")
    drawn = re.sub(r"\x1b\[[0-9;]*m", "", up.run("jobs").stdout).splitlines()
    assert len(drawn) == 5 and all(len(line) <= 60 for line in drawn) and "…" in drawn[2]
    monkeypatch.setenv("COLUMNS", "40")  # too few for the headings: whole, in lines of its own
    drawn = re.sub(r"\x1b\[[0-9;]*m", "", up.run("jobs").stdout).splitlines()
    assert max(map(len, drawn)) <= 40 and "…" not in "".join(drawn)
    assert "reason waits for job 3 to succeed" in " ".join(" ".join(drawn).split())


def test_an_empty_list_says_what_to_type(up: Up) -> None:
    up.start("--cores", "1")
    first = "no jobs; the first one: tenbin submit -- CMD..."
    ended = "; those that have ended: tenbin jobs --all"
    for words, said in (
        (("jobs",), first + ended),
        (("jobs", "--all"), first),
        (("jobs", "--name", "x"), f"no such job{ended}"),
    ):
        assert up.run(*words).stderr == f"tenbin: {said}\n"
        assert up.run(*words, "--json").stderr == up.run(*words, "--csv").stderr == ""


def test_jobs_are_listed_by_their_numbers(up: Up) -> None:
    """Ended or not; of an array its row, or the members that are meant; one that is not there is an error."""
    up.start("--cores", "1")
    array = up.client.submit_all([{"command": ["true"], "folder": "/"}], arrays={0: [3, 4, 5]})[0].id - 1
    single = up.client.submit(["true"])
    up.client.ended([array, single.id], 60, all=True)

    def labels(*which: str) -> list[str]:
        return [line.split()[0] for line in up.run("jobs", *which).stdout.splitlines()[1:]]

    assert labels(str(single.id)) == [str(single.id)] and labels(str(array)) == [str(array)]
    assert labels(f"{array}[4]", "--members") == [f"{array}[4]"] and labels(f"{array}[4]") == [str(array)]
    assert labels("last", f"{array}[3-4]", "--members") == [str(single.id), f"{array}[4]", f"{array}[3]"]
    missing = up.run("jobs", "99")
    assert missing.returncode == 2 and "there is no job 99" in missing.stderr and not missing.stdout


def test_nodes_say_what_runs_what_is_held_and_what_was_measured(
    up: Up, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENBIN_STORE", str(tmp_path))
    up.start("--cores", "2")
    job = up.client.submit(["sleep", "600"], name="fit")
    up.until(lambda: job.info()["stage"] == "running")
    free, runs, held, measured = up.run("nodes").stdout.splitlines()
    assert free == "core: 1 of 2 free" and runs.startswith(f"  job {job.id}, fit: 1 core, for ")
    assert held.startswith("in use: 1 of 2 cores, 0 of ") and held.endswith(" memory")
    assert measured == "this machine has no profile yet: tenbin profile --quick"
    triad = make_model(quantity="stream_bandwidth_gbs", labels={"kernel": "triad", "numa": "local"})
    Store(tmp_path).save(make_profile(node=socket.gethostname(), models=(triad,)), {})
    measured = up.run("nodes").stdout.splitlines()[-1]
    assert re.match(r"profile of \d{4}-\d\d-\d\d: memory bandwidth [\d.]+ GB/s$", measured)


def test_more_jobs_are_listed_by_their_numbers_than_an_address_can_have(up: Up) -> None:
    up.start("--cores", "1")
    later = {"command": ["true"], "folder": "/", "begin_s": time.time() + 86_400}
    up.client.submit_all([later] * 8000)
    rows = up.run("jobs", "1-8000", "--columns", "id", "--csv", "--limit", "9000")
    assert rows.stdout.split()[1:] == [str(number) for number in range(1, 8001)], rows.stderr
