"""Results as SWF: the rules of the Standard Workload Format 2.2, and tenbin's own reader."""

from __future__ import annotations

import re
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.model.jobs import Cluster, Job, Placement, Pool
from scheduler.policies.registry import create
from scheduler.simulator.trace import Outcome, Segment
from scheduler.workloads.logs import swf
from scheduler.workloads.logs.swf import result_lines
from tests.support.amounts import examples
from tests.support.scheduling.worlds import World, classes, counted, run

FILES = settings(max_examples=examples(100))
# The header comments of version 2.2
# fmt: off
LABELS = {
    "Version", "Computer", "Installation", "Acknowledge", "Information", "Conversion", "MaxJobs",
    "MaxRecords", "Preemption", "UnixStartTime", "TimeZone", "TimeZoneString", "StartTime",
    "EndTime", "MaxNodes", "MaxProcs", "MaxRuntime", "MaxMemory", "AllowOveruse", "MaxQueues",
    "Queues", "Queue", "MaxPartitions", "Partitions", "Partition", "Note",
}
# fmt: on
NUMBER = re.compile(r"-?\d+(\.\d+)?")


def valid(text: str) -> tuple[dict[str, str], list[list[float]]]:
    """Check the standard's rules; return header and fields."""
    assert text.isascii()
    rows = text.splitlines()
    comments = [row for row in rows if row.startswith(";")]
    assert rows[: len(comments)] == comments  # the header comes first
    pairs = [row.removeprefix(";").strip().split(": ", 1) for row in comments]
    assert all(len(pair) == 2 and pair[0] in LABELS for pair in pairs)
    header = dict(pairs)
    fields = [row.split() for row in rows[len(comments) :]]
    assert all(len(row) == 18 and all(map(NUMBER.fullmatch, row)) for row in fields)
    jobs = [[float(field) for field in row] for row in fields]
    assert header["Version"] == "2.2" and header["MaxJobs"] == str(len(jobs))
    assert [row[1] for row in jobs] == sorted(row[1] for row in jobs)
    assert len({row[0] for row in jobs}) == len(jobs) and all(row[0] >= 1 for row in jobs)
    for row in jobs:
        assert row[1] >= 0 and row[2] >= 0 and row[3] >= 0 and row[4] >= 1 and row[7] >= 1
        assert row[10] in (0, 1) and all(row[i] == -1 or row[i] >= 1 for i in (11, 12, 13, 14, 15, 16))
        assert all(row[i] == int(row[i]) for i in (0, 4, 6, 7, 9, 10, 11, 12, 13, 14, 15, 16))
        assert row[4] <= float(header["MaxNodes"]) and row[15] <= float(header["MaxPartitions"])
    return header, jobs


@FILES
@given(world=st.one_of(counted(most=12), classes(most=8)), policy=st.sampled_from(("fcfs", "easy", "mctbm")))
def test_results_are_valid_and_read_again(tmp_path: Path, world: World, policy: str) -> None:
    outcomes, _ = run(create(policy), world)
    text = "".join(result_lines(outcomes, world.cluster, "a world"))
    header, jobs = valid(text)
    assert (header["Preemption"] == "Yes") == any(o.preemptions or o.migrations for o in outcomes)
    by_id = {outcome.job.id: outcome for outcome in outcomes}
    for row in jobs:
        outcome = by_id[int(row[0])]
        assert row[2] == round(outcome.start_s - outcome.job.submit_s, 6)
        if not outcome.preemptions and not outcome.migrations and not outcome.overhead_s:
            assert row[3] == round(outcome.end_s - outcome.start_s, 6)
        assert (row[10] == 0) == (outcome.how == "killed")
    path = tmp_path / "results.swf"
    path.write_text(text)
    workload = swf.Swf(strict=True).read(path)
    found = {arrival.job.id: arrival for arrival in workload.arrivals}  # type: ignore[union-attr]
    assert found.keys() == by_id.keys() and not workload.skipped
    for number, (job, run_s, *_) in found.items():
        outcome = by_id[number]
        assert (job.submit_s, job.units) == (outcome.job.submit_s, outcome.job.units)
        assert run_s == round(outcome.run_s, 6)
        if not outcome.job.estimates_s:
            assert job.estimate_s == (outcome.job.estimate_s or None)


def outcome(number: int, user: str, submit_s: float) -> Outcome:
    job = Job(number, submit_s, 2, 60.0, user, memory_mb=4.096)
    segment = Segment("run", Placement("node", 2), submit_s, submit_s + 10)
    return Outcome(job, submit_s, submit_s + 10, "done", 10.0, 0.0, 0.0, 0, 0, 0, 0.0, (segment,))


def rows(*outcomes: Outcome) -> tuple[str, list[list[float]]]:
    text = "".join(result_lines(outcomes, Cluster((Pool("node", 4),)), "two\nlines"))
    return text, valid(text)[1]


def test_users_that_are_numbers_stay_and_names_become_numbers() -> None:
    assert [row[11] for row in rows(outcome(1, "7", 0), outcome(2, "", 1), outcome(3, "3", 2))[1]] == [
        7,
        -1,
        3,
    ]
    text, found = rows(outcome(2, "bob", 1), outcome(1, "alice", 0), outcome(3, "7", 2), outcome(4, "bob", 3))
    assert [row[11] for row in found] == [1, 2, 3, 2]
    assert "; Note: User 2 is bob\n" in text and "; Note: two?lines\n" in text


def test_jobs_are_numbered_anew_where_a_number_does_not_fit() -> None:
    assert [row[0] for row in rows(outcome(2**40, "", 5), outcome(9, "", 0))[1]] == [1, 2]
    assert [row[0] for row in rows(outcome(7, "", 5), outcome(9, "", 0))[1]] == [9, 7]


def test_memory_is_kb_of_a_processor() -> None:
    assert rows(outcome(1, "", 0))[1][0][9] == 2000
