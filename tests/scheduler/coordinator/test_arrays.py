"""Arrays as units, over restarts: their limit, and which of their jobs run again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from profiles.errors import BadInput
from scheduler.coordinator.coordinator import Coordinator
from tenbin.commands.jobs.account import account
from tenbin.option_values import array_and_limit
from tenbin.server.job_list import Window, array_summary, window
from tests.support.scheduling.manual_engine import (
    ManualEngine,
    a_job,
    shown,
    submit,
    submit_array,
    why,
)

FULL = "at most 1 of array 1 run at once"


def test_at_most_so_many_run_at_once_over_restarts(tmp_path: Path) -> None:
    engine = ManualEngine(2)
    with engine.coordinator(tmp_path) as coordinator:
        array, members = submit_array(coordinator, 12, array_limit=1)
        free = submit(coordinator)
        assert shown(coordinator, free) == ["running"] and why(coordinator, members[-1]) == FULL
    for number, member in enumerate(members, 1):
        with engine.coordinator(tmp_path) as coordinator:
            assert [job for job, _ in engine.begun if job != free] == members[:number]
            engine.end(member)
            coordinator.turn()
    with engine.coordinator(tmp_path) as coordinator:
        assert array_summary(coordinator, array)["stages"] == {"done": 12}
    assert set(Counter(engine.begun).values()) == {1}


def test_a_suspended_member_keeps_its_place_if_it_has_begun(tmp_path: Path) -> None:
    engine = ManualEngine(2)
    with engine.coordinator(tmp_path) as coordinator:
        _, (first, second, third) = submit_array(coordinator, 3, array_limit=1)
        coordinator.suspend([second])
        coordinator.suspend([first])
        held = "; job 1[1] is ahead: suspended; go on with: tenbin resume 1[1]"
        assert why(coordinator, third) == FULL + held
        coordinator.cancel([first])
        engine.end(first, "cancelled")
        coordinator.turn()
        assert shown(coordinator, third) == ["running"]
        coordinator.resume([second])
        assert why(coordinator, second) == FULL
        coordinator.cancel([third])
        engine.end(third, "cancelled")
        coordinator.turn()
        assert shown(coordinator, first, second, third) == ["cancelled", "running", "cancelled"]


def test_a_limit_of_an_array_whose_members_wait_themselves_says_what_they_wait_for(tmp_path: Path) -> None:
    engine = ManualEngine(2)
    with engine.coordinator(tmp_path, "easy") as coordinator:
        submit(coordinator, cores=2)
        submit(coordinator, cores=2)
        array, members = submit_array(coordinator, 5, array_limit=2)
        queue = "waits for 1 core (0 of 2 free); behind job 2"
        assert why(coordinator, members[0]).startswith(queue)
        assert why(coordinator, members[3]).startswith(
            f"at most 2 of array 3 run at once; job 3[1] is ahead: {queue}"
        )
        first = coordinator.why(members[0])
        assert first.expected_start_s is not None
        summary = array_summary(coordinator, array)
        assert summary["why"] == f"3[1]: {first.sentence}"
        assert summary["expected_start_s"] == first.expected_start_s
        (row,) = window(coordinator, Window(members=False, details=9))["rows"][-1:]
        assert row["id"] == array and row["why"] == summary["why"]
        assert f"  {summary['why']}; starts about " in account(summary)
        for job in (1, 2):
            engine.end(job)
            coordinator.turn()
        assert why(coordinator, members[3]) == "at most 2 of array 3 run at once"
        summary = array_summary(coordinator, array)
        assert summary["why"] == "3[3]: at most 2 of array 3 run at once"
        for job in members[:4]:
            engine.end(job)
            coordinator.turn()
        assert array_summary(coordinator, array)["why"] == ""


def run_again(coordinator: Coordinator, *job_ids: int) -> list[int]:
    return [entry.id for entry in coordinator.retry(job_ids)[0]]


def test_members_that_failed_run_again(tmp_path: Path) -> None:
    engine = ManualEngine(2)
    with engine.coordinator(tmp_path) as coordinator:
        array, (first, second, third) = submit_array(coordinator, 3, array_limit=1)
        later = submit(coordinator, after=(array,))
        for job, code in ((first, 0), (second, 3), (third, 3)):
            engine.end(job, code=code)
            coordinator.turn()
        summary = array_summary(coordinator, array)
        assert summary["stages"] == {"done": 1, "failed": 2} and summary["failed"] == [2, 3]
        assert shown(coordinator, later, third) == ["cancelled", "failed"]
        for wrong, sentence in ((first, r"job 1\[1\] has succeeded"), (9, "there is no job 9")):
            with pytest.raises(BadInput, match=sentence):
                coordinator.retry([second, wrong])
        assert (second, 2) not in engine.begun
        assert run_again(coordinator, third) == [third]
        engine.end(third)
        coordinator.turn()
    with engine.coordinator(tmp_path) as coordinator:
        assert array_summary(coordinator, array)["stages"] == {"done": 2, "failed": 1}
        assert run_again(coordinator, array, later) == [second, later]
        for job in (second, later):
            engine.end(job)
            coordinator.turn()
        assert shown(coordinator, second, third, later) == ["done"] * 3
        assert engine.begun[-3:] == [(third, 2), (second, 2), (later, 1)]
        assert "retry" in [kind for _, kind, _ in coordinator.job_table.history(third)]
        with pytest.raises(BadInput, match=f"array {array} has no job that ended without success"):
            coordinator.retry([array])


def test_cancelled_and_killed_jobs_run_again_over_a_restart(tmp_path: Path) -> None:
    engine = ManualEngine(2)
    with engine.coordinator(tmp_path) as coordinator:
        jobs = submit(coordinator), submit(coordinator)
        with pytest.raises(BadInput, match="job 1 is running and has not ended"):
            coordinator.retry(jobs[:1])
        coordinator.cancel(jobs[:1])
        engine.end(jobs[0], "cancelled")
        engine.end(jobs[1], "time-limit")
        coordinator.turn()
        assert shown(coordinator, *jobs) == ["cancelled", "killed"]
        coordinator.retry(jobs)
    with engine.coordinator(tmp_path) as coordinator:
        entry = coordinator.job_table.open(jobs[0])
        assert (entry.attempt, entry.failures, entry.trouble, entry.end_s) == (2, 0, "", None)
        engine.end(jobs[1], "time-limit")
        coordinator.turn()
        assert shown(coordinator, *jobs) == ["running", "killed"]
        assert engine.begun == [(job, attempt) for attempt in (1, 2) for job in jobs]


def test_an_array_is_one_spec(tmp_path: Path) -> None:
    """An array has a number of its own, by which others wait for all of it; each member has its own too."""
    engine = ManualEngine(20)
    with engine.coordinator(tmp_path) as coordinator:
        waits_for = {2: [1], 3: [1]}  # by their places: two jobs for the array
        bad = coordinator.submit([a_job()] * 4, {}, waits_for, {1: [0, 7, 9]})
        good = coordinator.submit([a_job()] * 4, {}, waits_for, {1: [0, 7, 9], 3: [1, 2]})
        members = [(entry.id, entry.array_index) for entry in (*bad, *good) if entry.array]
        assert members == [(3, 0), (4, 7), (5, 9), (10, 0), (11, 7), (12, 9), (15, 1), (16, 2)]
        assert [entry.array for entry in (*bad, *good) if entry.array] == [2] * 3 + [9] * 3 + [14] * 2
        assert [entry.id for entry in (*bad, *good) if not entry.array] == [1, 6, 7, 8, 13]
        later = submit(coordinator, after=(9, 14))
        for entry in bad[:4]:
            engine.end(entry.id, code=entry.array_index or 0)
        coordinator.turn()
        assert shown(coordinator, 1, 3, 4, 6, 7) == ["done", "done", "failed", "cancelled", "cancelled"]
        assert shown(coordinator, 13, later) == ["held"] * 2
        engine.end_all(coordinator)
        assert shown(coordinator, 13, 15, 16, later) == ["done"] * 4
    with engine.coordinator(tmp_path) as coordinator:
        assert shown(coordinator, submit(coordinator, after=(9,))) == ["running"]
        assert shown(coordinator, submit(coordinator, after=(2,))) == ["cancelled"]


def test_limits_as_words() -> None:
    assert array_and_limit("1-3%2") == ([1, 2, 3], 2) and array_and_limit("4") == ([4], None)
    assert array_and_limit("3,1,1-2,3") == ([3, 1, 2], None)
    for word in ("1-3%", "1-3%0", "1-3%x", "%2", "1%2%3"):
        with pytest.raises(BadInput):
            array_and_limit(word)


def test_a_job_past_its_deadline_does_not_run_again(tmp_path: Path) -> None:
    engine = ManualEngine(2)
    with engine.coordinator(tmp_path) as coordinator:
        specs = [a_job(deadline_s=engine.now + 60.0)] * 2
        single, member = ended = [entry.id for entry in coordinator.submit(specs, {}, arrays={1: [0]})]
        for job in ended:
            engine.end(job, code=1)
        coordinator.turn()
        engine.wait(60.0)
        for job, name in ((single, "job 1"), (2, "array 2"), (member, r"job 2\[0\]")):
            with pytest.raises(BadInput, match=f"{name} is past its deadline; submit it anew"):
                coordinator.retry([job])
        _, left_out = coordinator.retry([], ended)
        assert {omitted.reason for omitted in left_out.values()} == {"is past its deadline"}


@pytest.mark.parametrize("policy", ["fcfs", "easy", "weigh"])
def test_reasons_name_members_as_users_do(policy: str, tmp_path: Path) -> None:
    """And tell a job that runs, whose end counts, from one that waits too."""
    engine = ManualEngine(2)
    with engine.coordinator(tmp_path, policy) as coordinator:
        _, (first, second, third) = submit_array(coordinator, 3)
        last = submit(coordinator)
        wide = submit(coordinator, cores=2)
        follows = submit(coordinator, after=(third,))
        hopes = submit(coordinator, after_not_ok=(first,))
        assert why(coordinator, last).endswith("; when jobs 1[1], 1[2] end")
        assert why(coordinator, wide).endswith(f"; behind jobs 1[3], {last}")
        assert why(coordinator, follows) == "waits for job 1[3] to succeed"
        engine.end(first)
        engine.end(second)
        coordinator.turn()
        ended = coordinator.job_table.entry(hopes)
        assert ended is not None and ended.trouble == "job 1[1], which had to fail, succeeded"
