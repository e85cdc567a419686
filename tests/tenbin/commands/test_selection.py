"""Jobs that a command line selects: ranges take what a change applies to, and name what they left out."""

from __future__ import annotations

import json

from tenbin.commands.jobs.selection import ranges
from tests.support.coordinator import Up


def test_a_range_takes_the_jobs_that_have_not_ended(up: Up) -> None:
    up.start("--cores", "1")
    first = up.client.submit(["true"])
    assert first.result(60) == 0
    running, waiting = up.client.submit(["sleep", "60"]), up.client.submit(["sleep", "60"])
    up.until(lambda: running.info()["stage"] == "running")
    done = up.run("cancel", "1-9")
    assert done.returncode == 0, done.stderr
    assert "the last job is 3" in done.stderr and "left out 1: has ended (done)" in done.stderr
    assert running.wait(30)["stage"] == waiting.wait(30)["stage"] == "cancelled"
    again = up.run("cancel", "1-3")
    assert again.returncode == 0 and "left out 1: has ended (done)" in again.stderr
    assert "left out 2-3: has ended (cancelled)" in again.stderr


def test_a_range_takes_the_jobs_that_a_change_applies_to(up: Up) -> None:
    up.start("--cores", "1")
    jobs = [up.client.submit(["sleep", "60"]) for _ in range(3)]
    jobs[1].suspend()
    done = up.run("suspend", "1-3")
    assert done.returncode == 0 and "left out 2: is suspended already" in done.stderr
    jobs[0].resume()
    up.until(lambda: jobs[0].info()["stage"] == "running")
    done = up.run("resume", "all")
    assert done.returncode == 0 and "left out 1: is running, not suspended by you" in done.stderr
    assert [job.info()["held_by_user"] for job in jobs] == [False] * 3
    done = up.run("migrate", "1-3", "--to", "core")
    assert done.returncode == 0 and "left out 1: cannot move" in done.stderr
    assert "left out 2-3: is waiting, not running" in done.stderr


def test_a_number_must_be_that_of_a_job_that_a_change_applies_to(up: Up) -> None:
    """With the range beside it: all or none, as before."""
    up.start("--cores", "1")
    assert up.client.submit(["true"]).result(60) == 0
    waits = up.client.submit(["sleep", "60"])
    done = up.run("cancel", "1", "1-2")
    assert done.returncode == 2 and "job 1 has ended (done)" in done.stderr
    assert not waits.done()
    found = up.client.call("POST", "/cancel", {"ids": [2], "where_possible": [1, 2]})
    assert found == {"ids": [2], "left_out": {"1": "job 1 has ended (done)"}}
    assert waits.wait(30)["stage"] == "cancelled"


def test_words_that_select_no_job(up: Up) -> None:
    up.start("--cores", "1")
    up.client.submit(["true"])
    words = {"3-1": "write 1-3", "5-7": "there are no jobs 5-7", "x": "is no job", "1-": "is no job"}
    cases = [(("cancel",), *case) for case in (words | {"9" * 5000: "is no job"}).items()]
    others = ("wait",), ("info",), ("logs",), ("migrate", "--to", "core")
    cases += [(other, "5-7", words["5-7"]) for other in others]
    for command, word, sentence in cases:
        done = up.run(*command, word)
        assert done.returncode == 2 and sentence in done.stderr and "Traceback" not in done.stderr, word
    assert len(json.loads(up.run("jobs", "--all", "--json").stdout)) == 1


def test_numbers_as_ranges() -> None:
    assert ranges([3, 1, 2, 7, 9, 8]) == "1-3, 7-9" and ranges([5]) == "5"
