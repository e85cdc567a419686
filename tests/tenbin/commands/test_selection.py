"""Jobs that a command line selects: ranges take what a change applies to, and name what they left out."""

from __future__ import annotations

import json

from tenbin.commands.jobs.jobs import job_ranges
from tenbin.text import ranges
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
    assert done.stdout == "2 jobs told to end: 2-3\n"
    assert running.wait(30)["stage"] == waiting.wait(30)["stage"] == "cancelled"
    again = up.run("cancel", "1-3")
    assert again.returncode == 0 and "left out 1: has ended (done)" in again.stderr
    assert "left out 2-3: has ended (cancelled)" in again.stderr and again.stdout == "no job told to end\n"


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


def test_what_was_done_is_said(up: Up) -> None:
    """In one line, also where nothing was; programs get the numbers."""
    up.start("--cores", "1")
    for _ in range(3):
        up.client.submit(["sleep", "60"])
    said = {
        ("suspend", "2-3"): "2 jobs suspended: 2-3",
        ("resume", "2-3"): "2 jobs resumed: 2-3",
        ("priority", "3", "--to", "5"): "1 job given another priority: 3",
        ("update", "all", "--time", "1h"): "3 jobs changed: 1-3",
        ("suspend", "--queue"): "no job is started until: tenbin resume --queue",
        ("resume", "--queue"): "jobs are started again",
        ("cancel", "all"): "3 jobs told to end: 1-3",
    }
    for words, line in said.items():
        done = up.run(*words)
        assert (done.returncode, done.stdout, done.stderr) == (0, f"{line}\n", ""), words
    assert [job["stage"] for job in up.client.ended([1, 2, 3], 30, all=True)] == ["cancelled"] * 3
    done = up.run("cancel", "all")
    assert (done.returncode, done.stdout, done.stderr) == (0, "no job told to end\n", "")
    assert json.loads(up.run("retry", "2-3", "--json").stdout)["ids"] == [2, 3]
    up.run("cancel", "all")


def test_a_number_must_be_that_of_a_job_that_a_change_applies_to(up: Up) -> None:
    """With the range beside it: all or none, as before."""
    up.start("--cores", "1")
    assert up.client.submit(["true"]).result(60) == 0
    waits = up.client.submit(["sleep", "60"])
    done = up.run("cancel", "1", "1-2")
    assert done.returncode == 2 and "job 1 has ended (done)" in done.stderr
    assert not waits.done()
    found = up.client.call("POST", "/cancel", {"ids": [2], "where_possible": [1, 2]})
    assert found == {
        "ids": [2],
        "left_out": {"1": "job 1 has ended (done)"},
        "reasons": {"has ended (done)": ["1"]},
    }
    assert waits.wait(30)["stage"] == "cancelled"


def test_reasons_go_with_the_names_of_their_jobs(up: Up) -> None:
    up.start("--cores", "1")
    ids = up.client.hand_over([{"command": ["true"], "folder": "/"}], arrays={0: [5, 7]})["ids"]
    assert [up.client.job(job_id).result(60) for job_id in ids] == [0, 0]
    waits = up.client.submit(["sleep", "60"])
    asked = {"where_possible": [1, *ids, 99, waits.id]}
    assert up.client.call("POST", "/suspend", asked)["reasons"] == {
        "has ended (done)": ["1", "1[5]", "1[7]"],
        "there is no such job": ["99"],
    }
    assert up.client.call("POST", "/suspend", asked)["reasons"]["is suspended already"] == [str(waits.id)]
    found = up.client.call("POST", "/retry", {"where_possible": [1, 2, 99]})
    assert found["reasons"] == {
        "has no job that ended without success": ["1"],
        "has succeeded": ["1[5]"],
        "there is no such job": ["99"],
    }


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


def test_jobs_of_a_name(up: Up) -> None:
    """Those that a change applies to; an array as a whole."""
    up.start("--cores", "1")
    sleep, names = ["sleep", "600"], ("fit 1", "other", "fit 2")
    first, other, second = (up.client.submit(sleep, name=name) for name in names)
    array = up.client.hand_over([{"command": sleep, "name": "fit 3", "folder": "/"}], arrays={0: [0, 1]})[
        "arrays"
    ]
    for command in ("suspend", "resume", "retry"):
        done = up.run(command, "--name", "nothing*")
        assert done.returncode == 2 and "--name 'nothing*': no job of such a name" in done.stderr, done.stderr
    for words in (("cancel",), ("cancel", "1", "--name", "fit*"), ("priority", "--to", "1")):
        done = up.run(*words)
        assert done.returncode == 2 and "give JOB or --name, and a pattern in" in done.stderr, done.stderr
    assert up.run("priority", "--name", "fit ?", "--to", "5").returncode == 0
    assert [job.info()["priority"] for job in (first, other, second)] == [5, 0, 5]
    changed = up.run("cancel", "--name", "fit*", "--json")
    assert changed.returncode == 0 and json.loads(changed.stdout)["left_out"] == {}
    assert first.wait(30)["stage"] == second.wait(30)["stage"] == "cancelled" and not other.done()
    members = [array[0] + 1, array[0] + 2]
    assert [job["stage"] for job in up.client.ended(members, 30, all=True)] == ["cancelled"] * 2
    assert "no job of such a name" in up.run("cancel", "--name", "fit*").stderr
    again = up.run("retry", "--name", "fit [12]")
    assert again.returncode == 0 and again.stdout.startswith("2 jobs will run again: ")
    assert [job.info()["stage"] for job in (first, second)] == ["waiting"] * 2
    up.run("cancel", "--name", "fit*")
    assert first.wait(30)["stage"] == second.wait(30)["stage"] == "cancelled"
    assert up.run("retry", "all").stdout.startswith("4 jobs will run again: ") and not other.done()


def test_numbers_as_ranges() -> None:
    assert ranges([3, 1, 2, 7, 9, 8]) == "1-3, 7-9" and ranges([5]) == "5"
    assert job_ranges(["9[2]", "3", "9[3]", "1", "2", "9[8]"]) == "1-3, 9[2-3,8]"


def test_an_array_is_selected_as_a_whole_and_in_parts(up: Up) -> None:
    """By its number, ``last`` and ranges that its number lies in; members by their indices."""
    up.start("--cores", "2")
    up.client.submit(["true"]).result(60)
    body = "echo $TENBIN_ARRAY_INDEX; exit $((TENBIN_ARRAY_INDEX % 2))"
    assert up.run("submit", "--array", "10-12,20", "--", "sh", "-c", body).stdout == "2\n"
    done = up.run("wait", "last")
    assert done.returncode == 1 and done.stderr == "job 2[11]: failed: exit code 1\n"
    for word, indices in (("2", [10, 11, 12, 20]), ("2[11-20]", [11, 12, 20]), ("2[20,10]", [20, 10])):
        logs = up.run("logs", word)
        assert logs.stdout.split() == list(map(str, indices))
        assert logs.stderr.split("\n")[:-1] == [f"==> job 2[{index}] <==" for index in indices]
    assert up.run("logs", "2[12]").stdout == "12\n" and up.run("logs", "2[12]").stderr == ""
    told = up.run("info", "2").stdout
    assert "array 2: 4 jobs: failed 1, done 3" in told and "failed: 2[11]" in told
    assert "job 2[11]: failed" in up.run("info", "2[11]").stdout
    summary = json.loads(up.run("info", "last", "--json").stdout)
    assert summary["members"] == 4 and summary["stages"] == {"done": 3, "failed": 1}
    assert [job["code"] for job in json.loads(up.run("wait", "2[11-12]", "--json").stdout)] == [1, 0]
    assert [job["id"] for job in json.loads(up.run("wait", "1-2", "--json").stdout)] == [1, 3, 4, 5, 6]
    words = {
        "2[13]": "array 2 has no index 13",
        "2[13-19]": "no index 13-19",
        "1[3]": "a job and no array",
        "9[3]": "there is no array 9",
    }
    for word, sentence in words.items():
        done = up.run("cancel", word)
        assert done.returncode == 2 and sentence in done.stderr, done.stderr
    done = up.run("cancel", "2")
    assert done.returncode == 2 and "array 2 has ended (failed)" in done.stderr
    done = up.run("cancel", "2[11]")
    assert done.returncode == 2 and "job 2[11] has ended (failed)" in done.stderr


def test_changes_of_arrays(up: Up) -> None:
    """An array stands for its members that have not ended; those that have are not named."""
    up.start("--cores", "1")
    assert up.run(
        "submit", "--array", "1-5", "--", "sh", "-c", "[ $TENBIN_ARRAY_INDEX = 1 ] || sleep 60"
    ).stdout
    up.until(lambda: up.client.job(2).info()["stage"] == "done")
    assert up.run("suspend", "1[4-5]", "1[2]").returncode == 0
    stages = [up.client.job(job_id).info()["stage"] for job_id in range(2, 7)]
    assert [stages[place] for place in (0, 1, 3, 4)] == ["done", "suspended", "suspended", "suspended"]
    done = up.run("suspend", "1")
    assert done.returncode == 0 and done.stderr == "tenbin: left out 1[2,4-5]: is suspended already\n"
    done = up.run("resume", "1[4]", "1[5]")
    assert (done.returncode, done.stderr) == (0, "")
    assert not up.client.job(1).done()
    done = up.run("cancel", "1")
    assert (done.returncode, done.stderr) == (0, "")
    found = up.client.job(1).wait(30)
    assert found["stages"] == {"done": 1, "cancelled": 4} and found["trouble"] == "4 of 5 did not succeed"
    assert up.client.submit(["true"]).result(30) == 0
    done = up.run("cancel", "1-7")
    assert done.returncode == 0 and "left out 1: has ended (cancelled)" in done.stderr
