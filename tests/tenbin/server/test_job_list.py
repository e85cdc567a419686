"""Arrays as one row: one stage in every list, and a filter by stage finds what is shown with it."""

from __future__ import annotations

import random
from itertools import combinations
from pathlib import Path

import pytest

from scheduler.coordinator.coordinator import Coordinator
from scheduler.coordinator.journal.journal import Journal
from scheduler.jobs.arrays import array_stage
from scheduler.jobs.entry import FINAL, Entry, Stage
from scheduler.jobs.specs import JobSpec
from scheduler.model.clusters import parse_cluster
from tenbin.page.mirror import Mirror
from tenbin.page.views import listing
from tenbin.page.views.listing import Asked, Lists
from tenbin.server.job_filters import Listed
from tenbin.server.job_list import array_summary, list_jobs
from tenbin.server.queue_window import Window, window
from tests.support.scheduling.virtual_engine import VirtualEngine

STAGES = (*FINAL, Stage.WAITING, Stage.SUSPENDED)  # a job that runs would need an engine that has it


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Make a journal with an array for each set of stages, and single jobs of each stage."""
    chance = random.Random(1)
    sets = [set_ for n in range(1, len(STAGES) + 1) for set_ in combinations(STAGES, n)]
    jobs: list[Entry] = []
    number = 0
    for stages in sets:
        number += 1
        array = number
        for index, stage in enumerate([*stages, *chance.choices(stages, k=3)]):
            number += 1
            jobs.append(job(number, stage))
            jobs[-1].array, jobs[-1].array_index = array, index
    jobs += [job(number + place, stage) for place, stage in enumerate(STAGES, 1)]
    journal = Journal(tmp_path)
    environment = journal.keep_environment({})
    for entry in jobs:
        entry.environment = environment
    journal.commit((), added=jobs)
    journal.close()
    return tmp_path


def job(number: int, stage: Stage) -> Entry:
    made = Entry(number, JobSpec(command=("true",), folder="/", time_s=60), "", submit_s=1e9, stage=stage)
    if stage is Stage.SUSPENDED:
        made.stage, made.held_by_user = Stage.HELD, True
    made.end_s = 1e9 + number if stage.final else None
    return made


def test_every_list_shows_one_stage_of_an_array(store: Path) -> None:
    journal = Journal(store)
    coordinator = Coordinator(journal, VirtualEngine(parse_cluster("1")), "fcfs")
    mirror = Mirror(store)
    mirror.refresh()
    try:
        jobs = {row["id"]: row for row in list_jobs(coordinator, Listed(all=True, members=False))}
        top = window(coordinator, Window(all=True, members=False, rows=1000))["rows"]
        page = [listing.told(row) for row in Lists(mirror).find(Asked())]
        for rows in (top, page):
            assert {row["id"]: row["stage"] for row in rows} == {n: row["stage"] for n, row in jobs.items()}
            assert all(row.get("stages") == jobs[row["id"]].get("stages") for row in rows)
        arrays = {number: row for number, row in jobs.items() if "members" in row}
        assert len(arrays) == 2 ** len(STAGES) - 1
        assert all(array_summary(coordinator, number)["stage"] == jobs[number]["stage"] for number in arrays)
        for stage in STAGES:
            shown = {number for number, row in jobs.items() if row["stage"] == stage}
            among = Listed(all=True, members=False, stages=[stage])
            assert shown <= {row["id"] for row in list_jobs(coordinator, among)}, stage
            asked = Asked(stages=[stage])
            assert shown <= {listing.number_of(row) for row in Lists(mirror).find(asked)}, stage
    finally:
        mirror.close()
        journal.close()


def test_a_killed_member_is_no_failed_one() -> None:
    assert array_stage({"done": 1, "killed": 1}) is Stage.KILLED
    assert array_stage({"done": 1, "killed": 1, "failed": 1}) is Stage.FAILED
    assert array_stage({"done": 9, "cancelled": 1}) is Stage.CANCELLED
    assert array_stage({"failed": 9, "waiting": 1}) is Stage.WAITING
    assert array_stage({"waiting": 9, "running": 1, "done": 0}) is Stage.RUNNING
    assert array_stage({"done": 3, "failed": 0}) is Stage.DONE
