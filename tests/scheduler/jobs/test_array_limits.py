"""The limit of an array against a count by hand, over random lives of its members."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.jobs.arrays import ArrayLimits
from scheduler.jobs.entry import Entry
from scheduler.jobs.specs import JobSpec
from tests.support.amounts import examples


def members(count: int, limit: int) -> list[Entry]:
    spec = JobSpec(command=("true",), folder="/", array_limit=limit)
    return [Entry(7 + index, spec, "", 0.0, array=7, array_index=index) for index in range(1, count + 1)]


@settings(max_examples=examples(300), deadline=None)
@given(st.integers(1, 12), st.integers(1, 5), st.data())
def test_never_more_than_the_limit_and_all_in_the_end(count: int, limit: int, data: st.DataObject) -> None:
    limits, placed, ended = ArrayLimits(), set[int](), set[int]()
    entries = {entry.id: entry for entry in members(count, limit)}

    def admit(entry: Entry) -> None:
        if not limits.must_wait(entry):
            placed.add(entry.id)

    def release(entry: Entry) -> None:
        placed.discard(entry.id)
        placed.update(member.id for member in limits.release(entry))

    held = set[int]()
    for entry in entries.values():
        admit(entry)
    while len(ended) < count:
        open = sorted(entries.keys() - ended)
        assert len(placed) <= limit
        assert len(placed) == min(limit, len(open) - len(held))
        assert all(limits.waits(job_id) == (job_id not in placed | held) for job_id in open)
        entry = entries[data.draw(st.sampled_from(open))]
        what = data.draw(st.sampled_from(("end", "end", "hold", "restart")))
        if what == "restart":
            limits = ArrayLimits()
            kept = {job_id for job_id in sorted(placed) if data.draw(st.booleans())}  # those that have begun
            placed = set(kept)
            for job_id in kept:
                limits.hold(entries[job_id])
            for job_id in open:
                if job_id not in kept | held:
                    admit(entries[job_id])
        elif entry.id in held:
            held.discard(entry.id)
            admit(entry)
        elif what == "hold":
            held.add(entry.id)
            release(entry)
        else:
            ended.add(entry.id)
            release(entry)
    assert not placed


def test_jobs_without_a_limit_do_not_wait() -> None:
    limits = ArrayLimits()
    single = Entry(1, JobSpec(command=("true",), folder="/"), "", 0.0)
    assert not limits.must_wait(single) and limits.release(single) == [] and limits.why(1) == ""


def test_the_reason_names_the_limit() -> None:
    limits, (first, second) = ArrayLimits(), members(2, 1)
    assert not limits.must_wait(first) and limits.must_wait(second)
    assert limits.why(second.id) == "at most 1 of array 7 run at once"
    assert limits.release(first) == [second] and limits.why(second.id) == ""
