"""After which ends a job is tried again, and after which pause."""

from __future__ import annotations

import pytest

from agent.attempts.records import Result
from scheduler.jobs.dependencies import pause_s, tried_again
from scheduler.jobs.specs import JobSpec


def ended(how: str, code: int | None = None, signal: int | None = None) -> Result:
    return Result(how, 0.0, code, signal)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("codes", "result", "again"),
    [
        ((), ended("exited", 1), True),
        ((), ended("exited", 0), False),
        ((), ended("signalled", signal=9), True),
        ((1, 137), ended("signalled", signal=9), True),
        ((1, 137), ended("exited", 137), True),
        ((1, 137), ended("exited", 2), False),
        ((), ended("time-limit", signal=15), False),
        ((), ended("memory-limit", signal=9), False),
        ((), ended("cancelled", 1), False),
        ((), ended("not-started"), False),
    ],
)
def test_which_ends_are_tried_again(codes: tuple[int, ...], result: Result, again: bool) -> None:
    spec = JobSpec(command=("x",), folder="/", retries=3, retry_codes=codes)
    assert tried_again(spec, 0, result) is again and tried_again(spec, 2, result) is again
    assert not tried_again(spec, 3, result)


def test_the_pause_doubles_up_to_an_hour() -> None:
    spec = JobSpec(command=("x",), folder="/", retries=1000)
    assert [pause_s(spec, retried) for retried in range(4)] == [10, 20, 40, 80]
    assert pause_s(spec, 999) == pause_s(spec, 9) == 3600
