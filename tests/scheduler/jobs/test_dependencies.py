"""Jobs that wait for others, for their place in an array, or for their next try."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.attempts.records import Result
from scheduler.coordinator.machine_state import Holds
from scheduler.jobs.arrays import ArrayLimits, Arrays
from scheduler.jobs.dependencies import (
    KINDS,
    Kind,
    Standing,
    WaitCondition,
    by_kind,
    pause_s,
    places,
    tried_again,
    verdict,
)
from scheduler.jobs.entry import Entry, Stage
from scheduler.jobs.specs import JobSpec

OPEN, PARTLY_FAILED = Standing(False, False), Standing(False, True)
SUCCEEDED, FAILED = Standing(True, False), Standing(True, True)


@pytest.mark.parametrize(
    ("kind", "standing", "told"),
    [  # sbatch(1) of Slurm 22.05, --dependency
        ("after", OPEN, "waits for job 3 to succeed"),
        ("after", SUCCEEDED, ""),
        ("after", FAILED, "job 3, which it waited for, did not succeed"),
        ("after", PARTLY_FAILED, "job 3, which it waited for, did not succeed"),
        ("after", None, "job 3, which it waited for, did not succeed"),
        ("after_corr", OPEN, "waits for job 3 to succeed"),
        ("after_corr", SUCCEEDED, ""),
        ("after_corr", FAILED, "job 3, which it waited for, did not succeed"),
        ("after_any", OPEN, "waits for job 3 to end"),
        ("after_any", PARTLY_FAILED, "waits for job 3 to end"),
        ("after_any", SUCCEEDED, ""),
        ("after_any", FAILED, ""),
        ("after_any", None, ""),
        ("after_not_ok", OPEN, "waits for job 3 to fail"),
        ("after_not_ok", PARTLY_FAILED, "waits for job 3 to fail"),
        ("after_not_ok", SUCCEEDED, "job 3, which had to fail, succeeded"),
        ("after_not_ok", FAILED, ""),
    ],
)
def test_one_condition(kind: Kind, standing: Standing | None, told: str) -> None:
    found = verdict([WaitCondition(kind, 3)], lambda _: standing)
    assert (found.hopeless or found.why()) == told
    assert bool(found.waits) == told.startswith("waits") and bool(found.hopeless) == told.startswith("job")


def test_several_conditions_are_told_together() -> None:
    asked = [
        WaitCondition("after", 1),
        WaitCondition("after", 2),
        WaitCondition("after_any", 3),
        WaitCondition("after", 4),
    ]
    found = verdict(asked, lambda number: SUCCEEDED if number == 4 else OPEN)
    assert found.why() == "waits for job 1, 2 to succeed, for job 3 to end"
    assert "job 2" in verdict(asked, lambda number: FAILED if number == 2 else OPEN).hopeless


def test_a_plain_list_of_places_is_of_after() -> None:
    assert by_kind({0: [1, 2], 3: {"after_any": [0], "after": []}, 4: []}) == {
        0: {"after": (1, 2)},
        3: {"after_any": (0,)},
    }
    assert places({5: {"after": [1, 2], "after_any": [2, 0]}}) == {5: [1, 2, 0]}


@dataclass
class Table:
    """As much of a job table as ``Holds`` asks."""

    entries: dict[int, Entry] = field(default_factory=dict)
    all: dict[int, Entry] = field(default_factory=dict)
    arrays: Arrays = field(default_factory=Arrays)

    def standing(self, number: int) -> Standing | None:
        if number in self.arrays:
            return self.arrays.standing(number)
        stage = self.all[number].stage
        return Standing(stage.final, stage.final and stage is not Stage.DONE)

    def name(self, number: int) -> str:
        return self.all[number].label if number in self.all else str(number)

    def members(self, array: int) -> dict[int, int]:
        found = self.all.values()
        return {e.array_index: e.id for e in found if e.array == array and e.array_index is not None}

    def end(self, entry: Entry, stage: Stage) -> None:
        entry.stage = stage
        del self.entries[entry.id]
        if entry.array is not None:
            self.arrays.end(entry.array, stage)


def random_graph(chance: random.Random) -> Table:
    """Make jobs and arrays, each of which may wait for earlier ones."""
    table, units, sizes = Table(), list[int](), dict[int, int]()
    number = 0
    for _ in range(chance.randint(2, 9)):
        number += 1
        unit, size = number, chance.choice((0, 0, 1, 2, 3))
        waits: dict[str, list[int]] = {}
        for other in chance.sample(units, min(len(units), chance.choice((0, 1, 1, 2)))):
            kind = chance.choice(KINDS)
            if kind != "after_corr" or 0 < size <= sizes[other]:
                waits.setdefault(kind, []).append(other)
        spec = JobSpec(command=("x",), folder="/", **waits)  # type: ignore[arg-type]
        indices = [None] if not size else list(range(size))
        if size:
            table.arrays.add(unit, size)
        for index in indices:
            number += bool(size)
            table.all[number] = Entry(
                number, spec, "", 0.0, array=unit if size else None, array_index=index, stage=Stage.HELD
            )
        units.append(unit)
        sizes[unit] = size
    table.entries = dict(table.all)
    return table


def holds_by_definition(table: Table, entry: Entry) -> bool | None:
    """Say whether the conditions of a job hold, by the words of sbatch(1); None: not yet, or never."""
    for kind in KINDS:
        for number in getattr(entry.spec, kind):
            of = [e for e in table.all.values() if number in (e.id, e.array)]
            if kind == "after_corr":
                of = [e for e in of if e.array_index == entry.array_index]
            if not all(e.stage.final for e in of):
                return None
            succeeded = all(e.stage is Stage.DONE for e in of)
            if (kind in ("after", "after_corr") and not succeeded) or (kind == "after_not_ok" and succeeded):
                return False
    return True


@given(st.integers(0, 2**32))
def test_random_graphs_end_as_by_brute_force(seed: int) -> None:
    """Each job begins exactly if its conditions hold in the end, never before, and none is left over."""
    chance = random.Random(seed)
    table = random_graph(chance)
    holds = Holds(table)  # type: ignore[arg-type]
    begun: dict[int, Entry] = {}
    started: set[int] = set()

    def admit(entry: Entry) -> bool:
        """Judge a job; return true if it is cancelled."""
        told = holds.verdict(entry)
        if told.hopeless:
            table.end(entry, Stage.CANCELLED)
        elif told.waits:
            holds.hold(entry, told)
        else:
            assert holds_by_definition(table, entry), "it begins before its conditions hold"
            entry.stage = Stage.WAITING
            begun[entry.id] = entry
            started.add(entry.id)
        return bool(told.hopeless)

    def settle(ended: list[Entry]) -> None:
        while ended:
            ended += [follower for follower in holds.followers(ended.pop()) if admit(follower)]
        for entry in table.entries.values():  # whoever cannot begin any more is gone at once
            assert entry.stage is not Stage.HELD or not holds.verdict(entry).hopeless

    for entry in list(table.all.values()):
        if admit(entry):
            settle([entry])
    while begun:
        entry = begun.pop(chance.choice(sorted(begun)))
        table.end(entry, chance.choice((Stage.DONE, Stage.DONE, Stage.FAILED, Stage.KILLED)))
        settle([entry])
    assert not table.entries, "these are left over"
    for entry in table.all.values():
        assert (entry.id in started) == bool(holds_by_definition(table, entry))


# The limit of an array against a count by hand, over random lives of its members.


def members(count: int, limit: int) -> list[Entry]:
    spec = JobSpec(command=("true",), folder="/", array_limit=limit)
    return [Entry(7 + index, spec, "", 0.0, array=7, array_index=index) for index in range(1, count + 1)]


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


# After which ends a job is tried again, and after which pause.


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
