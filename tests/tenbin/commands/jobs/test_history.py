"""What is told of jobs: history, advice on what to ask for, the account of one, and earlier starts."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from profiles.errors import BadInput
from scheduler.jobs.dependencies import check_times
from scheduler.jobs.specs import JobSpec
from scheduler.model.clusters import parse_cluster
from tenbin.client.connection import _refusal
from tenbin.commands.jobs.account import account, needs_words
from tenbin.commands.jobs.history import advice, quantiles, shares
from tenbin.commands.jobs.jobs import cell, print_csv
from tenbin.server.descriptions import describe
from tenbin.text import printable
from tests.support.coordinator import Up
from tests.support.programs import TENBIN
from tests.support.scheduling.virtual_engine import BEGIN_S, virtual
from tests.support.top_session import Session, play
from tests.support.zones import zone

BUSY_S = 0.6
BUSY = f"import time\nwhile time.process_time() < {BUSY_S}: pass"
ODD = 'a,b\n"c"\x1b[31m'


def test_csv_has_the_line_ends_of_other_programs(capsys: pytest.CaptureFixture[str]) -> None:
    print_csv([{"id": 7, "name": "fit"}], ("id", "name"))
    assert capsys.readouterr().out == "id,name\n7,fit\n"


NEEDS = JobSpec(command=("./fit",), folder="/").model_dump(mode="json")


@pytest.mark.parametrize(
    ("needs", "words"),
    [
        ({}, "1 core; no time limit"),
        ({"cores": 4, "memory_mb": 2000.0, "time_s": 600.0}, "4 cores, 2 GB of memory; at most 10:00 min"),
        ({"tasks": 2, "memory_mb": 500.0}, "2 tasks x 1 core, 500 MB of memory each; no time limit"),
        ({"tasks": 2, "max_tasks": 8, "cores": 3}, "2 to 8 tasks x 3 cores; no time limit"),
        ({"nodes": 1, "cores": 2}, "1 node x 2 cores; no time limit"),
        ({"gpus": 2}, "1 core, 2 GPUs; no time limit"),
        (
            {"tasks": 2, "gpu_kind": "a100", "gpu_memory_mb": 20_000.0},
            "2 tasks x 1 core, 1 GPU in all (a100, 20 GB each); no time limit",
        ),
    ],
)
def test_what_a_job_has_asked_for(needs: dict[str, Any], words: str) -> None:
    assert needs_words(NEEDS | needs) == words


def test_a_job_that_is_not_there_is_an_error(up: Up) -> None:
    """One that waits is there, and has no history yet."""
    up.start("--cores", "1")
    jobs = [up.client.submit(["sleep", "600"], name="fit", cores=1, time_s=600.0) for _ in range(2)]
    up.until(lambda: jobs[0].info()["stage"] == "running")
    for words in (("99999",), ("1", "99999"), ("99999", "--efficiency")):
        done = up.run("history", *words)
        assert done.returncode == 2 and done.stderr.startswith("tenbin: there is no job 99999; see:"), (
            done.stderr
        )
    assert up.run("history", "2", "--json").stdout.strip() == "[]"
    lines = up.run("info", "2").stdout.splitlines()
    assert lines[1] == "  name fit" and "  asked for 1 core; at most 10:00 min" in lines
    stopped = up.run("down")
    to_end = "to end all jobs: tenbin up --daemon, then tenbin cancel all"
    assert stopped.returncode == 0 and f"; 1 job runs on; {to_end}\n" in stopped.stdout


def test_who_no_longer_waits_is_told_that_the_job_stays(shared: Up) -> None:
    blocked = shared.client.submit(["sleep", "600"], cores=2)
    variables = {**os.environ, "TENBIN_HOME": str(shared.home)}
    for options in ((), ("--array", "0-1")):
        command = [*TENBIN, "submit", "--wait", *options, "--", "true"]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables
        ) as waiting:
            assert waiting.stdout is not None
            number = waiting.stdout.readline().strip()
            waiting.send_signal(signal.SIGINT)
            _, said = waiting.communicate(timeout=60)
        assert waiting.returncode == 130
        assert said == f"tenbin: job {number} stays; to end: tenbin cancel {number}\n"
        assert not shared.client.job(int(number)).done()
    blocked.cancel()


def test_history_filters_and_formats(up: Up, monkeypatch: pytest.MonkeyPatch) -> None:
    up.start("--cores", "2")
    client, began = up.client, time.monotonic()
    busy = client.submit(["python3", "-c", BUSY], name="busy", memory_mb=500.0, cores=2)
    bad, odd = client.submit(["false"]), client.submit(["true"], name=ODD)
    array = client.call(
        "POST",
        "/jobs",
        {"specs": [{"command": ["true"], "folder": "/"}], "environment": {}, "arrays": {0: [3, 4, 5]}},
    )
    client.ended([busy.id, bad.id, odd.id, *array["ids"]], 60, all=True)
    took_s = time.monotonic() - began
    client.submit(["sleep", "60"], name="runs")
    up.until(lambda: client.call("GET", "/jobs")[0]["stage"] == "running")

    def ids(*options: str) -> list[int]:
        return [row["id"] for row in ask(up, *options)]

    everything = ids()
    assert everything == sorted(everything) and len(everything) == 7
    assert ids("--stage", "failed") == ids("--name", "fals?") == [bad.id]
    assert ids("--stage", "running") == ids("--name", "runs") == [everything[-1]]
    assert ids("--array", str(array["arrays"][0])) == ids(str(array["arrays"][0])) == array["ids"]
    assert ids(f"{array['arrays'][0]}[4]") == [array["ids"][1]]
    assert ids("--since", "1h") == everything and ids("--until", "yesterday") == []
    assert ids("--since", "2126-01-01") == [everything[-1]]  # it has not ended
    assert ids("--limit", "2") == everything[-2:]
    assert ids("--user", "nobody-of-this-name") == [] and ids("--place", "nowhere") == []
    assert ids("--place", ask(up, "1")[0]["place"]) == everything

    used = ask(up, "--name", "busy")[0]
    assert BUSY_S < used["cpu_s"] < 3.0 and used["cores"] == 2
    assert BUSY_S / (2 * took_s) < used["cpu_efficiency"] < 0.55  # one thread on two cores
    assert used["memory_asked_mb"] == 1 * 500.0 and 0 < used["peak_memory_mb"] < 200

    written = up.run("history", "--csv", "--stage", "done,failed").stdout
    rows = list(csv.DictReader(io.StringIO(written, newline="")))
    assert rows == [as_text(row) for row in ask(up, "--stage", "done,failed")]
    assert printable(ODD) in [row["name"] for row in rows]
    shown = up.run("history").stdout
    assert "\x1b" not in shown and "7[3]" not in shown and f"{array['arrays'][0]}[3]" in shown

    note = shown.splitlines()[-1] if used["energy_j"] is None else ""
    assert not note or ("energy not known: no counter" in note and note in up.run("info", "1").stdout)
    assert "run time of limit: not known: none had a limit" in up.run("history", "--efficiency", "1").stdout
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    monkeypatch.setenv("COLUMNS", "40")
    narrow = re.sub(r"\x1b\[[0-9;]*m", "", up.run("history", "1").stdout).removesuffix(f"{note}\n")
    assert max(map(len, narrow.splitlines())) <= 40 and "stage done" in narrow and "…" not in narrow
    monkeypatch.undo()

    told = json.loads(up.run("history", "--efficiency", "1", "--json").stdout)
    assert told["jobs"] == 1 and told["cpu"]["max"] == used["cpu_efficiency"]
    assert "CPU time" in up.run("history", "--efficiency", str(array["arrays"][0])).stdout
    cpu, memory, _ = csv.DictReader(io.StringIO(up.run("history", "--efficiency", "1", "--csv").stdout))
    assert (cpu["share"], cpu["jobs"], float(cpu["max"])) == ("cpu", "1", used["cpu_efficiency"])
    assert memory["share"] == "memory" and float(memory["median"]) == used["memory_efficiency"]
    samples = list(csv.DictReader(io.StringIO(up.run("info", "1", "--samples", "--csv").stdout)))
    asked = json.loads(up.run("info", "1", "--samples", "--json").stdout)["samples"]
    assert samples == [as_text({"id": 1, **row}) for row in asked] and samples
    refused = up.run("info", "1", "--csv")
    assert refused.returncode == 2 and "tenbin history 1 --csv" in refused.stderr


def test_efficiency_and_files_are_of_all_jobs(up: Up) -> None:
    """The table shows the last 50 of them."""
    up.start("--cores", "2")
    spec = {"command": ["true"], "folder": "/"}
    array = up.client.call("POST", "/jobs", {"specs": [spec], "environment": {}, "arrays": {0: [*range(51)]}})
    up.client.ended(array["ids"], 60, all=True)
    assert len(ask(up)) == 51 and len(ask(up, "--limit", "7")) == 7
    assert len(up.run("history", "--csv").stdout.splitlines()) == 1 + 51
    table = up.run("history").stdout
    assert "the last 50 are shown" in table and "1[1]" in table and "1[0]" not in table
    for options, count in (([], 51), (["--since", "1h"], 51), (["--limit", "7"], 7)):
        assert json.loads(up.run("history", "--efficiency", *options, "--json").stdout)["jobs"] == count


def test_bad_input_is_one_line(up: Up) -> None:
    up.start("--cores", "1")
    for options in (["--stage", "odd"], ["--columns", "id,odd"], ["--since", "odd"], ["--csv", "--json"]):
        said = up.run("history", *options)
        assert said.returncode == 2 and len(said.stderr.splitlines()) == 1 and not said.stdout
    up.client.submit(["sleep", "60"])
    said = up.run("history", "--efficiency", "1")
    assert said.returncode == 2 and "none of these jobs has run and ended" in said.stderr


def test_info_says_what_a_running_job_uses(up: Up) -> None:
    up.start("--cores", "1")
    up.client.submit(["python3", "-c", "while True: pass"], memory_mb=400.0)
    up.until(lambda: json.loads(up.run("info", "1", "--json").stdout)["now"])
    assert "  uses now: " in (said := up.run("info", "1").stdout) and " of 400 MB; reads " in said
    assert ask(up)[0]["cpu_s"] > 0


def ask(up: Up, *options: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(up.run("history", "--json", *options).stdout)
    return found


def as_text(row: dict[str, Any]) -> dict[str, str]:
    """Write a row's values as CSV has them."""
    return {
        key: "" if value is None else printable(json.dumps(value) if isinstance(value, list) else str(value))
        for key, value in row.items()
    }


# Advice on what to ask for, by tables.


def record(**more: Any) -> dict[str, Any]:
    """Make a job that used all it asked for."""
    values = {"cores": 1, "running_s": 100.0, "elapsed_s": 100.0, "cpu_efficiency": 1.0, "stage": "done"}
    return {
        **values,
        **dict.fromkeys(("memory_efficiency", "memory_asked_mb", "peak_memory_mb", "time_limit_s")),
        **dict.fromkeys(("gpus_asked", "gpus_used", "gpu_efficiency")),
        **more,
    }


def memory(asked_mb: float, used_mb: float) -> dict[str, Any]:
    return {
        "memory_asked_mb": asked_mb,
        "peak_memory_mb": used_mb,
        "memory_efficiency": used_mb / asked_mb,
    }


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([record()], []),
        ([record(cores=4, cpu_efficiency=0.25)], ["used 1 of 4 cores: 1 would do"]),
        ([record(cores=4, cpu_efficiency=0.25), record(cores=4, cpu_efficiency=0.9)], []),
        ([record(cores=4, cpu_efficiency=0.25, running_s=1.0)], []),
        ([record(cores=4, cpu_efficiency=None)], []),
        ([record(**memory(20_000, 1200))], ["asked for 20 GB, used 1.2 GB: ask for 1.5 GB"]),
        ([record(**memory(20_000, 11_000))], []),
        ([record(**memory(20_000, 1200), stage="failed")], []),
        ([record(**memory(90, 1))], []),
        (
            [record(running_s=180.0, time_limit_s=86_400.0)],
            ["ran 3:00 min of a limit of 24:00 h: --time 10m"],
        ),
        (
            [record(running_s=180.0, elapsed_s=9000.0, time_limit_s=86_400.0)],  # it was paused
            ["ran 3:00 min of a limit of 24:00 h: --time 10m"],
        ),
        ([record(running_s=None, cpu_efficiency=None, time_limit_s=86_400.0)], []),
        ([record(running_s=180.0, time_limit_s=900.0)], []),
        ([record(running_s=180.0, time_limit_s=86_400.0, stage="killed")], []),
        (
            [record(gpus_asked=4, gpus_used=1.3, gpu_efficiency=0.325)],
            ["used 1.3 of 4 GPUs: 2 would do (--gpus)"],
        ),
        ([record(gpus_asked=2, gpus_used=1.3, gpu_efficiency=0.65)], []),
        ([record(gpus_asked=1, gpus_used=0.0, gpu_efficiency=0.0)], []),
    ],
)
def test_advice(rows: list[dict[str, Any]], said: list[str]) -> None:
    found = advice(rows)
    assert len(found) == len(said)
    assert all(sentence.startswith(begin) for sentence, begin in zip(found, said, strict=True))


def test_quantiles_are_by_nearest_rank() -> None:
    found = quantiles([None, *(float(value) for value in range(100, 0, -1))])
    assert found == {"min": 1.0, "q10": 10.0, "median": 50.0, "q90": 90.0, "max": 100.0}
    assert quantiles([None]) is None and quantiles([]) is None


def test_shares_of_what_is_known() -> None:
    found = shares([record(time_limit_s=200.0), record(time_limit_s=None)])
    assert found["time"] is not None and found["time"]["max"] == 0.5
    assert found["memory"] is None


# The account of a job, whose coordinator runs in another time zone.


DAY_S = 86_400.0


def at(time_s: float, name: str) -> str:
    """Write an instant in a zone."""
    with zone(name):
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_s))


def test_all_times_are_the_readers(tmp_path: Path) -> None:
    begin_s, deadline_s = BEGIN_S + 3 * DAY_S, BEGIN_S + 9 * DAY_S
    with zone("UTC"), virtual(tmp_path, parse_cluster("1"), "fcfs") as it:
        (job,) = it.submit({"time_s": 60.0, "begin_s": begin_s, "deadline_s": deadline_s})
        found = describe(it.coordinator, job)
    found["expected_start_s"] = begin_s
    found["trouble"] = found["why"]
    with zone("America/New_York"):
        text = account(found)
        row = cell(found, "trouble")
    assert f"begins at {at(begin_s, 'America/New_York')}" in text and text.count("begins at") == 2
    assert f"starts about {at(begin_s, 'America/New_York')}" in text
    assert f"deadline {at(deadline_s, 'America/New_York')}" in text
    assert row == f"begins at {at(begin_s, 'America/New_York')}"
    local = {at(time_s, "America/New_York") for time_s in (BEGIN_S, begin_s, deadline_s)}
    assert {*re.findall(r"\d{4}-\d\d-\d\d.\d\d:\d\d:\d\d", text)} == local


def test_refusals_are_in_the_readers_time() -> None:
    spec = JobSpec(command=("true",), folder="/", deadline_s=BEGIN_S)
    with zone("UTC"):
        try:
            check_times(spec, BEGIN_S + 1.0)
        except BadInput as error:
            refusal = f'{{"detail": "{error}"}}'
    with zone("America/New_York"):
        assert f"deadline {at(BEGIN_S, 'America/New_York')} has passed" in str(_refusal(refusal.encode(), 2))


# Earlier starts, as commands and ``tenbin top`` tell them.


def test_what_would_start_a_job_sooner_is_told_and_so_it_is(up: Up) -> None:
    up.start("--cores", "2")
    up.client.submit(["sleep", "600"], time_s=3600)
    wide = up.client.submit(["sleep", "600"], cores=2, time_s=1800)
    sentence = "sooner, if submitted again with 1 core in place of 2: at once"
    assert sentence in up.run("info", str(wide.id)).stdout
    told = json.loads(up.run("info", str(wide.id), "--json").stdout)
    (one,) = told["sooner"]
    assert one["fields"] == {"cores": 1} and one["expected_start_s"] < told["expected_start_s"]
    assert "sooner" not in wide.info()  # it costs more than the rest

    async def script(top: Session) -> None:
        await top.shows("2 listed")
        await top.press("G", "e")
        await top.shows(f"all about job {wide.id}", sentence)

    play(up, script)
    done = up.run("submit", "-c", "1", "--time", "30m", "--", "sleep", "600")
    wide.cancel()
    up.until(up.client.job(int(done.stdout)).running)
    assert up.client.job(1).info(sooner=True)["sooner"] == []
    array = up.client.submit_all([{"command": ["true"], "folder": "/"}], arrays={0: [1, 2]})[0]
    assert "sooner" not in up.client.job(array.id - 1).info(sooner=True)
