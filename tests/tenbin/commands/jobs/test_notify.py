"""Ends that are told, by a coordinator as users start it."""

from __future__ import annotations

from pathlib import Path

from scheduler.engines.common.job_folders import PackedJobs
from tests.support.coordinator import Up
from tests.support.waiting import until


def test_each_end_is_told_once_also_after_a_crash(up: Up, tmp_path: Path) -> None:
    """By its owner's command in the folder of the job, and by that of whoever runs the machine."""
    log, note, go = tmp_path / "log", tmp_path / "note", tmp_path / "go"
    on_event = f'echo "$TENBIN_EVENT $TENBIN_JOB $TENBIN_STATE $TENBIN_EXIT_CODE" >> {log}; sleep 600'
    options = ("--cores", "1", "--on-event", on_event)
    up.start(*options)
    tell = 'echo "$TENBIN_JOB_NAME: $TENBIN_REASON" >> note'
    command = ("sh", "-c", f"until [ -e {go} ]; do sleep 0.02; done; exit 3")
    submitted = up.run("submit", "--notify", tell, "--chdir", str(tmp_path), "--name", "fit", "--", *command)
    assert submitted.returncode == 0, submitted.stderr
    up.until(up.client.job(1).running)
    up.kill()
    go.touch()
    up.start(*options)
    assert up.client.job(1).wait(60)["code"] == 3
    assert up.client.submit(["true"]).wait(60)["stage"] == "done"  # whatever hangs
    until(lambda: note.exists() and log.exists() and log.read_text().count("\n") == 2)
    up.kill()
    up.start(*options)
    assert up.client.submit(["true"]).wait(60)["stage"] == "done"
    until(lambda: log.read_text().count("\n") == 3)
    assert note.read_text() == "fit: exit code 3\n"
    assert sorted(log.read_text().splitlines()) == ["ended 2 done 0", "ended 3 done 0", "failed 1 failed 3"]


def test_a_notice_that_failed_is_said_of_its_job(up: Up) -> None:
    """Also when the files of the job are packed."""
    up.start("--cores", "1", "--on-event", "exit 4")
    assert up.run("submit", "--notify", "false", "--wait", "--", "true").returncode == 0

    def told() -> list[str]:
        lines = up.run("info", "1").stdout.splitlines()
        return sorted(line.partition(" not told: ")[2] for line in lines if " not told: " in line)

    failures = [
        "notice 'exit 4': failed with exit code 4",
        "notice 'false': failed with exit code 1",
    ]
    until(lambda: told() == failures)
    up.kill()
    PackedJobs(up.home).pack({1: "{}"})
    assert not (up.home / "jobs/1").exists()
    up.start("--cores", "1")
    assert told() == failures
