"""Expected starts: of jobs that wait, with the interval of such starts, and of jobs not submitted yet."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from profiles.errors import BadInput
from scheduler.coordinator.earlier_starts import MOST_REHEARSED, Prospect, prospects, rehearsal
from scheduler.jobs.specs import JobSpec
from scheduler.model.jobs import Cluster, Pool
from scheduler.prediction.predictions import LEAST
from tests.support.amounts import examples, sweep
from tests.support.scheduling.virtual_engine import BEGIN_S, Virtual, virtual

SPEC = st.builds(
    lambda cores, minutes, priority: {"cores": cores, "time_s": minutes * 60.0, "priority": priority},
    st.integers(1, 4),
    st.integers(1, 40),
    st.sampled_from((0, 0, 0, 5)),
)
POLICIES = ("weigh", "easy", "conservative", "fcfs", "first-fit", "mct")
LONG = {"cores": 1, "time_s": 1740.0, "memory_mb": 800}


def rehearsed(machine: Virtual, *specs: dict[str, Any], **more: Any) -> list[Prospect]:
    """Return the prospects of these jobs."""
    made = [JobSpec(**{"command": ("true",), "folder": "/", **spec}) for spec in specs]
    return prospects(rehearsal(machine.coordinator, made, more.get("waits_for", {}), {}))


@pytest.mark.parametrize("policy", sweep(POLICIES, {"weigh", "easy"}))
def test_a_job_starts_when_its_rehearsal_said(policy: str, tmp_path: Path) -> None:
    """If nothing else is submitted, and run times are as believed."""

    @settings(max_examples=examples(60))
    @given(st.lists(SPEC, min_size=1, max_size=7), st.integers(0, 20), SPEC)
    def check(specs: list[dict[str, Any]], later_min: int, new: dict[str, Any]) -> None:
        with virtual(tmp_path, Cluster((Pool("core", 4),)), policy) as machine:
            machine.submit(*specs)
            machine.until(later_min * 60.0)
            (prospect,) = rehearsed(machine, new)
            (job,) = machine.submit(new)
            assert prospect.expected_start_s == pytest.approx(machine.start_s(job), abs=1e-3)
            assert not prospect.why

    check()


@pytest.mark.parametrize("policy", ["fcfs", "first-fit"])
def test_a_job_that_waits_starts_when_its_reason_said(policy: str, tmp_path: Path) -> None:
    """And as those jobs end that fcfs names."""

    @settings(max_examples=examples(60))
    @given(st.lists(SPEC, min_size=2, max_size=9), st.integers(0, 20))
    def check(specs: list[dict[str, Any]], later_min: int) -> None:
        with virtual(tmp_path, Cluster((Pool("core", 4),)), policy) as machine:
            time_s = {job: spec["time_s"] for job, spec in zip(machine.submit(*specs), specs, strict=True)}
            machine.until(later_min * 60.0)
            reasons = {job: machine.coordinator.why(job) for job in machine.coordinator.cluster.waiting}
            for job, reason in reasons.items():
                start_s = machine.start_s(job)
                assert reason.expected_start_s == pytest.approx(start_s, abs=1e-3)
                named = re.findall(r"(?:when|behind) jobs? (\d+(?:, \d+)*)", reason.sentence)
                for number in map(int, ", ".join(named).split(", ") if named else ()):
                    assert machine.engine.starts[number] + time_s[number] == pytest.approx(start_s, abs=1e-3)

    check()


WAY = st.builds(
    lambda cores, minutes: {"cores": cores, "time_s": minutes * 60.0}, st.integers(1, 4), st.integers(1, 40)
)
IN_WAYS = st.builds(
    lambda spec, others: {**spec, "alternatives": tuple(others)}, SPEC, st.lists(WAY, max_size=2)
)


def test_under_first_fit_a_job_with_alternatives_starts_when_its_reason_said(tmp_path: Path) -> None:
    @settings(max_examples=examples(60))
    @given(st.lists(IN_WAYS, min_size=2, max_size=9), st.integers(0, 20))
    def check(specs: list[dict[str, Any]], later_min: int) -> None:
        with virtual(tmp_path, Cluster((Pool("core", 4),)), "first-fit") as machine:
            machine.submit(*specs)
            machine.until(later_min * 60.0)
            reasons = {job: machine.coordinator.why(job) for job in machine.coordinator.cluster.waiting}
            for job, reason in reasons.items():
                assert reason.expected_start_s == pytest.approx(machine.start_s(job), abs=1e-3)

    check()


NODE = Pool("node", 1, resources=("cores", "memory_mb"), capacity=(4.0, 1000.0))


@pytest.mark.parametrize("pool", [Pool("core", 4), NODE], ids=["cores", "nodes"])
@pytest.mark.parametrize("policy", ["fcfs", "easy", "weigh"])
def test_a_reason_names_the_jobs_whose_ends_count(policy: str, pool: Pool, tmp_path: Path) -> None:
    """Not the first of the queue, which will have started by then."""
    two = {"cores": 2, "time_s": 600}
    with virtual(tmp_path, Cluster((pool,)), policy) as machine:
        short, long, first, second, third = machine.submit(
            {**two, "time_s": 60}, {**two, "time_s": 120}, two, two, {**two, "cores": 4}
        )
        reasons = [machine.coordinator.why(job) for job in (second, third)]
        assert [reason.expected_start_s for reason in reasons] == [BEGIN_S + 120, BEGIN_S + 720]
        assert reasons[0].sentence.endswith(f"; when job {long} ends")
        assert reasons[1].sentence.endswith(f"; behind job {second}")
        assert machine.start_s(first) == BEGIN_S + 60 and short in machine.engine.starts


def test_what_is_held_is_told_and_nothing_is_submitted(tmp_path: Path) -> None:
    with virtual(tmp_path, Cluster((Pool("core", 2),), memory_mb=1000.0), "easy") as machine:
        runs, waits = machine.submit({"cores": 2, "time_s": 60, "memory_mb": 800}, {"cores": 2, "time_s": 60})
        outlook = rehearsed(machine, {}, {"after": [runs]}, {}, {"memory_mb": 300}, waits_for={2: [0]})
        assert [prospect.why for prospect in outlook] == [
            "",
            f"waits for job {runs} to succeed",
            "waits for others of these",
            "waits for 300 MB of memory; 200 MB are free",
        ]
        # The last one may begin before it.
        assert outlook[0].ahead == 1 and outlook[0].expected_start_s is None
        assert rehearsed(machine, {}, {"after": [runs]}) == [
            Prospect("", 1, BEGIN_S + 120),
            Prospect(f"waits for job {runs} to succeed", 2),
        ]
        assert rehearsed(machine, {"priority": 3})[0].ahead == 0
        assert len(rehearsed(machine, *[{}] * 30)) == MOST_REHEARSED
        with pytest.raises(BadInput, match="job 2 of 2: the job needs 3 cores"):
            rehearsed(machine, {}, {"cores": 3})
        assert list(machine.coordinator.job_table.entries) == [runs, waits]


def test_a_start_is_not_known_where_memory_stands_in_the_way(tmp_path: Path) -> None:
    """The policy knows nothing of memory; a job that is short of it is in no simulation."""
    half, large = ({"cores": 1, "time_s": 60, "memory_mb": mb} for mb in (500, 900))
    with virtual(tmp_path, Cluster((Pool("core", 2),), memory_mb=1000.0), "fcfs") as machine:
        machine.submit({"cores": 2, "time_s": 60}, half)
        assert [prospect.expected_start_s for prospect in rehearsed(machine, half)] == [BEGIN_S + 60]
        assert rehearsed(machine, large) == [Prospect("", 1)]
        (short,) = machine.submit(large)
        machine.until(60.0)
        assert rehearsed(machine, {})[0].expected_start_s == BEGIN_S + 60  # at once
        assert machine.coordinator.machine.state.memory.waits(short)
        assert rehearsed(machine, {"cores": 2}, half) == [
            Prospect("", 0),
            Prospect("waits for 500 MB of memory; 500 MB are free, and others have the first turn", 1),
        ]


SHORT = st.builds(
    lambda spec, memory_mb: {**spec, "memory_mb": memory_mb},
    SPEC,
    st.sampled_from((None, 100, 300, 500, 800)),
)


@pytest.mark.parametrize("policy", sweep(("weigh", "easy", "conservative", "fcfs", "first-fit"), {"weigh"}))
def test_of_several_jobs_that_are_short_of_memory_no_start_is_said_that_does_not_come(
    policy: str, tmp_path: Path
) -> None:
    """The higher priority has the memory first, and who is short may hold up those behind."""

    @settings(max_examples=examples(60))
    @given(st.lists(SHORT, max_size=5), st.integers(0, 20), st.lists(SHORT, min_size=1, max_size=3))
    @example([], 9, [{**LONG, "priority": -5}, {**LONG, "priority": 5}])
    def check(specs: list[dict[str, Any]], later_min: int, new: list[dict[str, Any]]) -> None:
        with virtual(tmp_path, Cluster((Pool("core", 4),), memory_mb=1000.0), policy) as machine:
            if specs:
                machine.submit(*specs)
            machine.until(later_min * 60.0)
            outlook = rehearsed(machine, *new)
            for job, prospect in zip(machine.submit(*new), outlook, strict=True):
                if prospect.expected_start_s is not None:
                    assert prospect.expected_start_s == pytest.approx(machine.start_s(job), abs=1e-3)

    check()


@pytest.mark.parametrize("policy", ["weigh", "easy", "conservative", "fcfs", "first-fit"])
def test_of_jobs_submitted_together_the_higher_priority_has_the_memory(policy: str, tmp_path: Path) -> None:
    with virtual(tmp_path, Cluster((Pool("core", 4),), memory_mb=1000.0), policy) as machine:
        new = {**LONG, "priority": -5}, {**LONG, "priority": 5}
        low, high = rehearsed(machine, *new)
        assert high.expected_start_s == BEGIN_S and low.expected_start_s is None
        assert low.why == "waits for 800 MB of memory; 200 MB are free"
        jobs = machine.submit(*new)
        assert [job in machine.engine.starts for job in jobs] == [False, True]


def test_starts_that_came_true_narrow_the_next_ones(tmp_path: Path) -> None:
    """The interval is known after some outcomes; jobs that took half their limit make it half the wait."""
    with virtual(tmp_path, Cluster((Pool("core", 1),)), "fcfs") as machine:
        for number in range(LEAST + 1):
            running, waiting = machine.submit({"time_s": 100}, {"time_s": 100})
            reason = machine.coordinator.why(waiting)
            assert (reason.start_low_s is None) == (number < LEAST)
            until_s = machine.engine.now - BEGIN_S + 50.0
            machine.until(until_s)
            machine.coordinator.cancel([running])
            assert machine.start_s(waiting) == pytest.approx(BEGIN_S + until_s)
            machine.until(until_s + 200.0)
        assert reason.expected_start_s is not None
        begin_s = reason.expected_start_s - 100.0
        assert (reason.start_low_s, reason.start_high_s) == pytest.approx((begin_s + 50.0, begin_s + 50.0))
