"""The options of order: what they mean, and bad input, each refused in one line with the remedy."""

from __future__ import annotations

import json
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from profiles.errors import BadInput
from scheduler.jobs.specs import JobSpec
from tenbin.commands.jobs.job_file import read
from tenbin.commands.jobs.submit import spec_of
from tenbin.errors import TenbinError
from tests.support.coordinator import Up


def order_fields(options: dict[str, Any]) -> dict[str, Any]:
    return spec_of(options, ["x"], None)


@pytest.mark.parametrize(("text", "after_s"), [("now+90", 90), ("now+1h", 3600), ("now+1.5h", 5400),
    ("now+2d", 172_800), ("now+10m", 600), ("now+1:00:00", 3600), ("now+2hours", 7200)])  # fmt: skip
def test_times_from_now(text: str, after_s: float) -> None:
    before = time.time()
    found = order_fields({"begin": text, "deadline": text})
    assert found["begin_s"] == pytest.approx(before + after_s, abs=60)
    assert found["deadline_s"] == pytest.approx(before + after_s, abs=60)


def test_times_of_day_and_dates() -> None:
    at = datetime(2190, 12, 24, 8, 0).timestamp()
    assert order_fields({"begin": "2190-12-24T08:00"})["begin_s"] == at
    assert order_fields({"begin": "2020-01-01"})["begin_s"] is None  # at once
    assert 0 < order_fields({"begin": "16:00"})["begin_s"] - time.time() <= 86_400 + 3600


def test_retries() -> None:
    found = order_fields({"retries": 3, "retry_on": "1, 137", "retry_pause": "1m"})
    assert (found["retries"], found["retry_codes"], found["retry_pause_s"]) == (3, [1, 137], 60)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"after": ["x"]}, "--after 'x' is no job; give a number, 3-9, 7[3]"),
        ({"after_any": ["3-1"]}, "--after-any 3-1 has no jobs; write 1-3"),
        ({"begin": "soon"}, "--begin 'soon' is no time; write for instance 16:00"),
        ({"begin": "now+"}, "--begin 'now+' is no time"),
        ({"begin": "2190-13-01"}, "--begin '2190-13-01' is no time"),
        ({"deadline": "24:00"}, "--deadline '24:00' is no time"),
        ({"deadline": "2020-01-01"}, "--deadline '2020-01-01' has passed; name a later"),
        ({"retry_on": "1"}, "--retry-on without --retries; say how often"),
        ({"retry_pause": "1s"}, "--retry-pause without --retries"),
        ({"retries": 1, "retry_on": "0"}, "--retry-on '0' is no list of exit codes; write numbers"),
        ({"retries": 1, "retry_on": "1,x"}, "--retry-on '1,x' is no list"),
        ({"retries": 1, "retry_on": "256"}, "--retry-on '256' is no list"),
        ({"retries": 1, "retry_pause": "-3"}, "--retry-pause '-3' is no duration"),
    ],
)
def test_bad_values(options: dict[str, object], words: str) -> None:
    with pytest.raises(BadInput) as caught:
        order_fields(options)
    assert str(caught.value).startswith(words) and caught.value.remedy


def test_job_files(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "jobs.toml"
    path.write_text(
        "[[job]]\nname = 'a'\ncommand = ['x']\narray = '1-3'\nbegin = 2190-12-24T08:00:00\n"
        "[[job]]\ncommand = ['y']\narray = '1-2'\nafter-corr = 'a'\nafter-any = [7, 'a']\ndeadline = 7e9\n"
        "retries = 2\nretry-on = [1, 137]\nretry-pause = '20s'\n"
    )
    batch = read(path)
    first, second = map(JobSpec.model_validate, batch.specs)
    assert batch.waits_for == {1: {"after_any": [0], "after_corr": [0]}}
    assert first.begin_s == datetime(2190, 12, 24, 8).timestamp()
    assert (second.after_any, second.deadline_s, second.retries) == ((7,), 7e9, 2)
    assert (second.retry_codes, second.retry_pause_s) == ((1, 137), 20)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("begin = 'soon'", "job 1: begin 'soon' is no time"),
        ("begin = true", "job 1: begin = True is not"),
        ("retries = 1\nretry-on = 0", "job 1: retry-on '0' is no list of exit codes"),
        ("retry-on = 1", "for retries; say how many"),
        ("after-any = 1.5", "job 1: after-any = 1.5"),
        ("after-corr = 'b'\n[[job]]\nname = 'b'\ncommand = ['x']", "after_corr: the job is no array"),
        ("array = '1-2'\nafter-corr = 'b'\n[[job]]\nname = 'b'\ncommand = ['x']", "there is no job 2 of"),
        ("array = '1-2'\nafter-corr = 'b'\n[[job]]\nname = 'b'\narray = '1'\ncommand = ['x']", "no member 2"),
    ],
)
def test_bad_job_files(tmp_path, text: str, words: str) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "jobs.toml"
    path.write_text("[[job]]\ncommand = ['x']\n" + text)
    with pytest.raises(BadInput) as caught:
        read(path)
    assert str(caught.value).startswith(str(path)) and words in str(caught.value)


def test_what_the_coordinator_refuses(up: Up) -> None:
    """Each is one line with the remedy, exit code 2, and nothing is submitted."""
    up.start("--cores", "1")
    up.client.submit(["true"])
    for options, words in (
        (("--after-any", "9"), "there is no job 9 to wait for; see: tenbin jobs"),
        (("--after-corr", "1"), "after_corr: the job is no array; use after"),
        (("--after-corr", "1", "--array", "1-2"), "after_corr: there is no array 1; name an array"),
        (("--begin", "now+2h", "--deadline", "now+1h"), "is not after begin; name one after"),
    ):
        done = up.run("submit", *options, "--", "true")
        assert done.returncode == 2 and words in done.stderr and done.stderr.count("\n") == 1, done.stderr
    assert len(up.client.call("GET", "/jobs?all=true")) == 1


def test_jobs_to_wait_for_are_named_as_everywhere(up: Up) -> None:
    up.start("--cores", "1")
    none = up.run("submit", "--after", "last", "--", "true")
    assert none.returncode == 2 and "--after last: there is no such job" in none.stderr
    assert up.run("submit", "--array", "3,5,3", "--", "sleep", "600").stdout == "1\n"
    for words, field, numbers in (
        (("--after", "last"), "after", [1]),
        (("--after-any", "1[5]", "--after-any", "1[5]"), "after_any", [3]),
        (("--after", "4-5"), "after", [4, 5]),
        (("--after-corr", "1", "--array", "3,5"), "after_corr", [1]),
    ):
        done = up.run("submit", "--json", *words, "--", "true")
        assert done.returncode == 0, done.stderr
        job_id = json.loads(done.stdout)["ids"][0]
        assert up.client.job(job_id).info()["spec"][field] == numbers
    for word in ("1[4]", "x", "99"):
        done = up.run("submit", "--after", word, "--", "true")
        assert done.returncode == 2 and done.stderr.count("\n") == 1 and "Traceback" not in done.stderr


def test_numbers_need_no_coordinator() -> None:
    assert order_fields({"after": ["7", "7", "8"]})["after"] == [7, 8]


def test_a_refusal_names_the_job_of_the_file_by_its_place(up: Up, tmp_path: Path) -> None:
    """Whatever the words of the refusal are: names of users may look like its beginning."""
    up.start("--cores", "1")
    path = tmp_path / "jobs.toml"
    odd = "job 1 of 2: x"
    path.write_text(f"[[job]]\ncommand = ['true']\nchdir = '/no/{odd}'\n")
    done = up.run("submit", "-f", str(path))
    assert f"{path}, job 1: working directory /no/{odd}: No such file" in done.stderr
    path.write_text(f"[[job]]\ncommand = ['true']\n[[job]]\nname = '{odd}'\ncommand = ['x y']\n")
    done = up.run("submit", "-f", str(path))
    assert done.stderr.startswith(f"tenbin: {path}, job 2 ({odd}): there is no program 'x y'")
    spec = {"command": ["true"], "folder": "/"}
    with pytest.raises(TenbinError, match="job 2 of 2: there is no job 9 to wait for") as caught:
        up.client.submit_all([spec, {**spec, "after": [9]}])
    assert caught.value.place == 1 and caught.value.reason.startswith("there is no job 9")
    with pytest.raises(TenbinError) as caught:
        up.client.call("POST", "/cancel", {"ids": [9]})
    assert caught.value.place is None and caught.value.reason == str(caught.value)
