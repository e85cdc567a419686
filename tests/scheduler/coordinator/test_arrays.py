"""Arrays as units: their limit, over restarts."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from profiles.errors import BadInput
from tenbin.option_values import array_and_limit
from tests.support.coordinator import Up

NOTES = 'echo begin >> "$LOG"; sleep 0.2; echo end >> "$LOG"'


def most_at_once(log: Path) -> int:
    """Return how many ran at once at most; lines of a few bytes are written whole."""
    running = most = 0
    for line in log.read_text().split():
        running += 1 if line == "begin" else -1
        most = max(most, running)
    return most


def test_at_most_so_many_run_at_once_over_restarts(up: Up, tmp_path: Path) -> None:
    up.start("--cores", "2")
    log = tmp_path / "log"
    log.touch()
    done = up.run("submit", "--array", "1-12%1", "--env", f"LOG={log}", "--", "sh", "-c", NOTES)
    assert done.stdout == "1\n", done.stderr
    free = up.client.submit(["true"])
    assert free.result(60) == 0
    assert up.client.job(13).info()["why"] == "at most 1 of array 1 run at once"
    assert "at most 1 run at once" in up.run("info", "1").stdout
    for _ in range(2):
        ended = log.read_text().count("end")
        more = min(ended + 1, 12)
        up.until(lambda more=more: log.read_text().count("end") >= more)
        up.kill()
        up.start("--cores", "2")
    assert up.client.job(1).wait(60)["stages"] == {"done": 12}
    assert most_at_once(log) == 1 and log.read_text().count("end") == 12


def test_a_suspended_member_keeps_its_place_if_it_has_begun(up: Up) -> None:
    up.start("--cores", "2")
    body = {"arrays": {0: [1, 2, 3]}}
    spec = {"command": ["sleep", "60"], "folder": "/", "array_limit": 1}
    assert up.client.hand_over([spec], **body) == {"ids": [2, 3, 4], "arrays": [1]}
    jobs = [up.client.job(job_id) for job_id in (2, 3, 4)]
    up.until(jobs[0].running)
    jobs[1].suspend()
    jobs[0].suspend()
    assert jobs[2].info()["why"] == "at most 1 of array 1 run at once"
    jobs[0].cancel()
    up.until(jobs[2].running)
    jobs[1].resume()
    assert jobs[1].info()["why"] == "at most 1 of array 1 run at once"
    jobs[2].cancel()
    up.until(jobs[1].running)


SOMETIMES = 'echo $TENBIN_GENERATION; [ $TENBIN_ARRAY_INDEX = 1 ] || [ -e "$GO" ] || exit 3'


def test_members_that_failed_run_again(up: Up, tmp_path: Path) -> None:
    up.start("--cores", "2")
    go = tmp_path / "go"
    done = up.run("submit", "--array", "1-3%1", "--env", f"GO={go}", "--", "sh", "-c", SOMETIMES)
    assert done.stdout == "1\n", done.stderr
    later = up.client.submit(["true"], after=[1])
    whole, third = up.client.job(1), up.client.job(4)
    assert whole.wait(60)["stages"] == {"done": 1, "failed": 2} and whole.wait()["failed"] == [2, 3]
    assert later.wait(30)["stage"] == "cancelled" and third.result(30) == 3
    for word, sentence in {"1[1]": "job 1[1] has succeeded", "9": "there is no job 9"}.items():
        done = up.run("retry", "1[2]", word)
        assert done.returncode == 2 and sentence in done.stderr
    assert third.info()["attempt"] == 1
    go.touch()
    third.retry()
    assert third.result(60) == 0 and third.info()["attempt"] == 2
    up.kill()
    up.start("--cores", "2")
    assert whole.info()["stages"] == {"done": 2, "failed": 1}
    done = up.run("retry", "1", str(later.id))
    assert done.returncode == 0 and done.stderr.startswith("2 jobs will run again"), done.stderr
    assert up.client.job(1).result(60) == 0 and up.client.job(later.id).result(60) == 0
    assert up.run("logs", "1").stdout == "1\n1\n2\n1\n2\n"  # of all attempts
    assert "retry" in [event["what"] for event in third.info()["history"]]
    done = up.run("retry", "1")
    assert done.returncode == 2 and "array 1 has no job that ended without success" in done.stderr


def test_cancelled_and_killed_jobs_run_again_over_a_restart(up: Up) -> None:
    up.start("--cores", "2")
    jobs = [up.client.submit(["sleep", "60"]), up.client.submit(["sleep", "1.5"], time_s=0.5)]
    up.until(jobs[0].running)
    refused = up.run("retry", "1")
    assert refused.returncode == 2 and "job 1 is running and has not ended" in refused.stderr
    jobs[0].cancel()
    assert [job.wait(60)["stage"] for job in jobs] == ["cancelled", "killed"]
    assert up.run("retry", "1-2").returncode == 0
    up.kill()
    up.start("--cores", "2")
    again = up.client.job(1)
    up.until(again.running)
    found = again.info()
    assert (found["attempt"], found["failures"], found["trouble"], found["end_s"]) == (2, 0, "", None)
    assert up.client.job(2).wait(60)["stage"] == "killed" and up.client.job(2).info()["attempt"] == 2


def test_limits_as_words() -> None:
    assert array_and_limit("1-3%2") == ([1, 2, 3], 2) and array_and_limit("4") == ([4], None)
    assert array_and_limit("3,1,1-2,3") == ([3, 1, 2], None)
    for word in ("1-3%", "1-3%0", "1-3%x", "%2", "1%2%3"):
        with pytest.raises(BadInput):
            array_and_limit(word)


def test_a_job_past_its_deadline_does_not_run_again(up: Up) -> None:
    up.start("--cores", "1")
    bad = {"command": ["false"], "folder": "/", "deadline_s": time.time() + 1.0}
    up.client.submit_all([bad, bad], arrays={1: [0]})
    up.client.ended([1, 2], 30, all=True)
    time.sleep(max(bad["deadline_s"] - time.time(), 0.0))
    for job, name in (("1", "job 1"), ("2", "array 2"), ("2[0]", "job 2[0]")):
        done = up.run("retry", job)
        assert done.returncode == 2 and f"{name} is past its deadline; submit it anew" in done.stderr
    assert "left out 1-2: is past its deadline" in up.run("retry", "1-3").stderr
