"""One list of jobs in API and page, against a list made here in the plainest way."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.processes.samples import Sample
from profiles.files.safe_files import user_name
from scheduler.coordinator.coordinator import Coordinator
from scheduler.coordinator.job_table import JobTable
from scheduler.coordinator.journal.journal import Journal
from scheduler.jobs.arrays import array_stage
from scheduler.jobs.entry import FINAL, Entry, Stage
from scheduler.jobs.job_list import JobFilter, JobQuery, as_json, find_rows
from scheduler.jobs.specs import JobSpec
from scheduler.model.clusters import parse_cluster
from scheduler.model.jobs import Placement
from tenbin.page.jobs import Lists, ListWindow
from tenbin.page.mirror import Mirror
from tenbin.server.job_list import CoordinatorJobs, JobList, Window, array_summary, list_jobs, used, window
from tests.support.amounts import examples
from tests.support.scheduling.virtual_engine import BEGIN_S, VirtualEngine, virtual

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
        listed = list_jobs(coordinator, JobList(all=True, members=False))
        jobs = {row.id: as_json(row) for row in listed}
        top = window(coordinator, Window(all=True, members=False, rows=1000))["rows"]
        page = [Lists(mirror).row_as_json(row) for row in Lists(mirror).find(ListWindow())]
        for rows in (top, page):
            assert {row["id"]: row["stage"] for row in rows} == {n: row["stage"] for n, row in jobs.items()}
            assert all(row.get("stages") == jobs[row["id"]].get("stages") for row in rows)
        arrays = {number: row for number, row in jobs.items() if "members" in row}
        assert len(arrays) == 2 ** len(STAGES) - 1
        assert all(array_summary(coordinator, number)["stage"] == jobs[number]["stage"] for number in arrays)
        for stage in STAGES:
            shown = {number for number, row in jobs.items() if row["stage"] == stage}
            among = JobList(all=True, members=False, stages=[stage])
            assert shown <= {row.id for row in list_jobs(coordinator, among)}, stage
            asked = ListWindow(stages=[stage])
            assert shown <= {row.id for row in Lists(mirror).find(asked)}, stage
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


# -- any list, made here from the jobs themselves ----------------------------------------------------------

USER = user_name()
ORDER = ("running", "stopping", "suspended", "waiting", "held", "failed", "killed", "cancelled", "done")
BEGUN, FINISHED = ORDER[:3], ORDER[5:]


@dataclass
class Made:
    """The same jobs in a journal, behind a coordinator's table, and in the page's mirror."""

    entries: list[Entry]
    jobs: CoordinatorJobs
    coordinator: Coordinator
    lists: Lists


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    """Make single jobs and arrays of each stage, with equal names, sizes, places and instants among them."""
    chance = random.Random(2)
    entries: list[Entry] = []

    def add(number: int, spec: JobSpec, stage: Stage) -> Entry:
        entry = Entry(number, spec, "", submit_s=1000.0 + chance.randrange(40), stage=stage)
        entry.held_by_user = stage is Stage.HELD and chance.random() < 0.5
        entry.new_priority = chance.choice([None, None, 0, 1, 7])
        entry.trouble = chance.choice(["", "it did not fit", "lost"])
        if stage.final or stage.begun or chance.random() < 0.2:
            entry.start_s = entry.submit_s + chance.randrange(3)
            nodes = chance.choice([(), ((0, 1),), ((1, 1), (2, 1))])
            entry.placement = Placement("node" if nodes else "core", 1, nodes)
            entry.hosts = ["n-1", "n-10"] if chance.random() < 0.3 else None
            entry.cores = tuple(range(chance.randrange(3)))
        entry.end_s = 1050.0 + chance.randrange(10) if stage.final else None
        entries.append(entry)
        return entry

    def drawn() -> JobSpec:
        name = chance.choice(["", "fit", "Fit 2", "a*b"])
        return JobSpec(command=("/bin/prog",), folder="/", name=name, cores=chance.randint(1, 3))

    number = 0
    while number < 150:
        number += 1
        if chance.random() < 0.7:
            add(number, drawn(), chance.choice(list(Stage)))
            continue
        array, spec = number, drawn()
        stages = chance.sample(list(Stage), chance.randint(1, 3))
        for index in range(chance.randint(1, 6)):
            number += 1
            member = add(number, spec, chance.choice(stages))
            member.array, member.array_index = array, 3 * index
    home = tmp_path_factory.mktemp("lists")
    journal = Journal(home)
    environment = journal.keep_environment({})
    for entry in entries:
        entry.environment = environment
    journal.commit((), added=entries)
    table = JobTable(journal, parse_cluster("1"))
    coordinator = cast(
        "Coordinator", SimpleNamespace(job_table=table, cluster=SimpleNamespace(ranked=True), journal=journal)
    )
    mirror = Mirror(home)
    mirror.refresh()
    yield Made(entries, CoordinatorJobs(coordinator), coordinator, Lists(mirror))
    mirror.close()
    journal.close()


def shown(entry: Entry) -> dict[str, Any]:
    """Describe a job by its own fields alone."""
    placement = entry.placement
    pool = placement.pool if placement else ""
    numbered = tuple(f"{pool}{node}" for node, _ in (placement.nodes if placement else ()))
    nodes = tuple(entry.hosts or numbered)
    return {
        "id": entry.id,
        "array": entry.array,
        "label": f"{entry.array}[{entry.array_index}]" if entry.array else str(entry.id),
        "name": entry.spec.name or "prog",
        "user": USER,
        "stage": "suspended" if entry.stage == "held" and entry.held_by_user else entry.stage.value,
        "cores": len(entry.cores) or entry.spec.cores,
        "priority": entry.new_priority or 0,
        "nodes": nodes or ((pool,) if pool else ()),
        "places": {pool, *nodes, *numbered} - {""},
        "submit_s": entry.submit_s,
        "start_s": entry.start_s,
        "end_s": entry.end_s,
        "ended_s": entry.end_s or 0.0,
        "trouble": entry.trouble,
    }


def meets(job: dict[str, Any], wanted: JobFilter) -> bool:
    """Tell if a job meets the conditions."""
    text = wanted.text.casefold()
    said = (job["name"], job["label"], job["user"], ", ".join(job["nodes"]), job["trouble"])
    return (
        (not wanted.stages or job["stage"] in wanted.stages)
        and (wanted.array is None or job["array"] == wanted.array)
        and (wanted.name is None or fnmatchcase(job["name"], wanted.name))
        and (wanted.since_s is None or job["end_s"] is None or job["end_s"] >= wanted.since_s)
        and (wanted.until_s is None or job["submit_s"] <= wanted.until_s)
        and (wanted.user is None or job["user"] == wanted.user)
        and (wanted.place is None or wanted.place in job["places"])
        and (
            fnmatchcase(job["name"], wanted.text)
            if "*" in text
            else any(text in part.casefold() for part in said)
        )
    )


def plain_list(entries: list[Entry], query: JobQuery) -> list[dict[str, Any]]:
    """Make the list."""
    jobs = [shown(entry) for entry in entries]
    rows = [job for job in jobs if meets(job, query.filter)]
    if not query.members:
        arrays = {row["array"] for row in rows} - {None}
        rows = [row for row in rows if row["array"] is None]
        for array in arrays:
            members = [job for job in jobs if job["array"] == array]
            stages = Counter(job["stage"] for job in members)
            stage = min(stages, key=ORDER.index)
            first = min(members, key=lambda job: job["id"])
            rows.append({**first, "id": array, "stage": stage, "start_s": None, "end_s": None})
            rows[-1] |= {"members": len(members), "stages": dict(stages)}

    def in_queue(row: dict[str, Any]) -> tuple[float, ...]:
        if row["stage"] in FINISHED:
            return 2, -row["ended_s"], -row["id"]
        if row["stage"] in BEGUN:
            return 0, row["id"]
        return 1, row["stage"] == "held", -row["priority"], row["id"]

    keys = {
        "stage": lambda row: ORDER.index(row["stage"]),
        "place": lambda row: row["nodes"],
        "since": lambda row: row["end_s"] or row["start_s"] or row["submit_s"],
    }
    rows.sort(key=in_queue, reverse=query.reverse and query.order == "queue")
    if query.order != "queue":
        rows.sort(key=keys.get(query.order, lambda row: row[query.order]), reverse=query.reverse)
    return rows


NUMBERS = st.integers(1, 170)
queries = st.builds(
    JobQuery,
    st.builds(
        JobFilter,
        stages=st.frozensets(st.sampled_from(Stage)),
        array=st.none() | st.none() | NUMBERS,
        text=st.sampled_from(["", "", "fit", "FIT*", "F*", "[6", "1", "n-1", "node1, ", "LOST", "a*b", "me"]),
    ),
    members=st.booleans(),
    order=st.sampled_from(["queue", "id", "name", "user", "stage", "cores", "place", "since", "submit_s"]),
    reverse=st.booleans(),
)
SHARED = ("id", "stage", "name", "cores", "priority", "submit_s", "start_s", "end_s")


@settings(max_examples=examples(600))
@given(queries, NUMBERS, st.integers(1, 50))
def test_the_page_shows_the_plain_list(made: Made, query: JobQuery, start: int, count: int) -> None:
    """Each window of the page, and the same list of the coordinator's jobs."""
    expected = plain_list(made.entries, query)
    rows = [as_json(made.jobs.row(row)) for row in find_rows(made.jobs, query)]
    for row in (rows, expected):
        for each in row:
            each["stages"] = dict(each.get("stages") or {})
    for name in (*SHARED, "stages"):
        assert [row[name] for row in rows] == [row[name] for row in expected], name
    asked = ListWindow(
        stages=list(query.filter.stages),
        text=query.filter.text,
        array=query.filter.array,
        members=query.members,
        sort=query.order,
        down=query.reverse,
        start=start,
        count=count,
    )
    if asked.array is not None and not query.members:
        return  # the page shows the members of an array that is named
    whole = made.lists.find(asked)
    assert [row.id for row in whole] == [row["id"] for row in expected]
    shown_rows = made.lists.window(asked)
    assert shown_rows["total"] == len(expected)
    window = expected[start : start + count]
    for name in (*SHARED, "label"):
        labels = [str(row["id"]) if row["stages"] else row["label"] for row in window]
        wanted = labels if name == "label" else [row[name] for row in window]
        assert [row[name] for row in shown_rows["rows"]] == wanted, name


conditions = st.builds(
    JobList,
    stages=st.lists(st.sampled_from(Stage), max_size=3),
    name=st.sampled_from([None, None, "fit", "?it*", "prog"]),
    user=st.sampled_from([None, None, USER, "nobody"]),
    since_s=st.sampled_from([None, None, 1040.0, 1055.0]),
    until_s=st.sampled_from([None, None, 1020.0]),
    place=st.sampled_from([None, None, "node1", "n-1", "nowhere"]),
    array=st.none() | st.none() | NUMBERS,
    all=st.booleans(),
    members=st.booleans(),
    order=st.sampled_from(["id", "queue"]),
)


@settings(max_examples=examples(600))
@given(conditions, st.none() | st.integers(1, 30))
def test_the_api_lists_the_plain_list(made: Made, wanted: JobList, limit: int | None) -> None:
    """Without a limit all rows; else all that run, and by number the last ones, in the queue the first."""
    ended = wanted.all or wanted.since_s is not None or any(stage.final for stage in wanted.stages)
    query = JobQuery(wanted.as_filter(), wanted.members, wanted.order)
    expected = plain_list(made.entries, query)
    if not ended:  # an array is meant if an open member is, and counts its ended ones too
        open_rows = plain_list([entry for entry in made.entries if not entry.stage.final], query)
        expected = [row for row in expected if row["id"] in {each["id"] for each in open_rows}]
    assert [row.id for row in list_jobs(made.coordinator, wanted)] == [row["id"] for row in expected]
    if limit is not None and (wanted.order == "id" or not ended):  # else by when the last ones have ended
        kept = expected[-limit:] if wanted.order == "id" else expected[:limit]
        shown_ids = {row["id"] for row in kept}
        meant = [row["id"] for row in expected if row["id"] in shown_ids or row["stage"] in BEGUN]
        limited = wanted.model_copy(update={"limit": limit})
        assert [row.id for row in list_jobs(made.coordinator, limited)] == meant


# Use of resources by a job that was paused: a pause is no run time.


@pytest.mark.parametrize(
    ("stage", "since_s", "last_s", "ran_s"),
    [
        (Stage.RUNNING, 0.0, 30.0, 30.0),
        (Stage.RUNNING, 600.0, 630.0, 80.0),  # it had run for 50 s before a pause
        (Stage.SUSPENDED, 50.0, 49.0, 50.0),
    ],
)
def test_a_pause_is_no_run_time(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    stage: Stage,
    since_s: float,
    last_s: float,
    ran_s: float,
) -> None:
    with virtual(tmp_path, parse_cluster("2"), "fcfs") as it:
        (job,) = it.submit({"time_s": 3600.0, "cores": 2})
        entry = it.coordinator.job_table.entries[job]
        entry.stage, entry.alive, entry.start_s = stage, True, BEGIN_S
        entry.since_s = BEGIN_S + since_s
        entry.served_s = 20.0 + (50.0 if since_s else 0.0)
        entry.kept_s = 20.0  # an earlier attempt, up to its checkpoint
        rows = [
            Sample(BEGIN_S + at_s, cpu_s, 1.0, 0.0, 0.0, 1, 1)
            for at_s, cpu_s in ((1.0, 2.0), (last_s, ran_s))
        ]
        monkeypatch.setattr(it.coordinator.folders, "samples", lambda job, attempt: rows)
        found = used(it.coordinator, entry)
        assert found["running_s"] == pytest.approx(ran_s)
        assert found["cpu_efficiency"] == pytest.approx(0.5)
