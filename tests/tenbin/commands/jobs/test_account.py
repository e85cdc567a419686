"""The account of a job, whose coordinator runs in another time zone."""

from __future__ import annotations

import re
import time
from pathlib import Path

from profiles.errors import BadInput
from scheduler.jobs.dependencies import check_times
from scheduler.jobs.specs import JobSpec
from scheduler.model.clusters import parse_cluster
from tenbin.client.connection import _refusal
from tenbin.commands.jobs.account import account
from tenbin.commands.jobs.jobs import cell
from tenbin.server.descriptions import describe
from tests.support.scheduling.virtual_engine import BEGIN_S, virtual
from tests.support.zones import zone

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
    assert f"should start at {at(begin_s, 'America/New_York')}" in text
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
