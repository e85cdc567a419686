"""Earlier starts: told changes are made, and the job starts then."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.coordinator.earlier_starts import EarlierStart, earlier_starts, question
from scheduler.model.jobs import Cluster, Pool
from tests.support.amounts import examples, sweep
from tests.support.scheduling.virtual_engine import Virtual, virtual

MINUTE_S = 60.0
SPEC = st.builds(
    lambda cores, minutes, priority: {"cores": cores, "time_s": minutes * MINUTE_S, "priority": priority},
    st.integers(1, 4),
    st.integers(1, 40),
    st.sampled_from((0, 0, 0, 5)),
)


def asked(one: Virtual, job: int) -> list[EarlierStart]:
    found = question(one.coordinator, job)
    return [] if found is None else earlier_starts(found)


POLICIES = ("weigh", "easy", "conservative", "fcfs", "first-fit", "mct", "regions", "soft-regions", "parm")


@pytest.mark.parametrize("policy", sweep(POLICIES, {"weigh", "easy"}))
def test_a_job_that_is_changed_as_told_starts_as_told(policy: str, tmp_path: Path) -> None:
    """And never later than the present forecast: of this simulation, and of the policy itself."""
    told_in_all = 0

    @settings(max_examples=examples(60))
    @given(st.lists(SPEC, min_size=2, max_size=7), st.integers(0, 20), st.integers(0, 6))
    def check(specs: list[dict[str, Any]], later_min: int, which: int) -> None:
        nonlocal told_in_all

        def again(then: Callable[[Virtual, list[int]], float]) -> float:
            with virtual(tmp_path, Cluster((Pool("core", 4),)), policy) as one:
                jobs = one.submit(*specs)
                one.until(later_min * MINUTE_S)
                return then(one, jobs)

        found: list[EarlierStart] = []
        expected = [math.inf]
        place = -1 - which % len(specs)

        def ask(one: Virtual, jobs: list[int]) -> float:
            found.extend(asked(one, jobs[place]))
            if found:
                expected.append(one.coordinator.why(jobs[place]).expected_start_s or math.inf)
                return one.start_s(jobs[place])
            return math.inf

        unchanged_s = again(ask)
        for earlier in found:
            told_in_all += 1

            def change(one: Virtual, jobs: list[int], fields: dict[str, Any] = earlier.fields) -> float:
                (new,) = one.submit({**specs[place], **fields})
                one.coordinator.cancel([jobs[place]])
                return one.start_s(new)

            changed_s = again(change)
            assert changed_s == pytest.approx(earlier.expected_start_s, abs=1e-3)
            assert changed_s <= min(unchanged_s, *expected)

    check()
    assert told_in_all


def test_half_the_cores(tmp_path: Path) -> None:
    with virtual(tmp_path, Cluster((Pool("core", 4),)), "easy") as one:
        _, wide = one.submit({"cores": 2, "time_s": 3600}, {"cores": 4, "time_s": 7200})
        (told,) = asked(one, wide)
        assert told.change == "2 cores in place of 4" and told.fields == {"cores": 2}
        assert told.expected_start_s == one.engine.now


def test_more_is_told_if_it_gains_more(tmp_path: Path) -> None:
    with virtual(tmp_path, Cluster((Pool("core", 4),)), "fcfs") as one:
        *_, wide = one.submit(
            *({"cores": cores, "time_s": hours * 3600} for cores, hours in ((1, 5), (2, 2), (4, 1)))
        )
        told = {earlier.change: earlier.expected_start_s - one.engine.now for earlier in asked(one, wide)}
        assert told == {"1 core in place of 4": 0.0, "2 cores in place of 4": 2 * 3600.0}


def test_a_range_of_sizes(tmp_path: Path) -> None:
    """Only sizes of the range are told."""
    with virtual(tmp_path, Cluster((Pool("core", 8),)), "fifo-max") as one:
        *_, wide = one.submit({"cores": 6, "time_s": 3600}, {"tasks": 2, "max_tasks": 8, "time_s": 3600})
        (told,) = asked(one, wide)
        assert told.change == "exactly 2 tasks in place of 2 to 8"
        assert told.fields == {"tasks": 2, "max_tasks": None, "speedup": {}}


def test_a_limit_that_earlier_runs_tell(tmp_path: Path) -> None:
    """A short job may pass the first one; how short it is, its earlier runs tell, and no one else."""
    with virtual(tmp_path, Cluster((Pool("core", 2),)), "easy") as one:
        blocks = {"time_s": 3600.0}
        first = {"cores": 2, "time_s": 3600.0}
        long = {"command": ("solve",), "time_s": 14_400.0}
        one.submit(blocks, first)
        (job,) = one.submit(long)
        assert asked(one, job) == []
        for entry in (one.coordinator.job_table.entries[job],):
            one.coordinator.cancel([entry.id])
        runs = one.coordinator.run_times
        history = one.submit(*[{"command": ("solve",), "time_s": 60.0 + n} for n in range(12)])
        one.until(900)
        assert all(number in one.engine.starts for number in history)
        assert runs.predictions
        (job,) = one.submit(long)
        (told,) = asked(one, job)
        assert told.change.startswith("--time ") and told.change.endswith(" in place of 4h")
        assert 70 < told.fields["time_s"] <= 180 and told.told_by.startswith("by earlier runs at most ")
        assert told.expected_start_s == one.engine.now


def test_another_device(tmp_path: Path) -> None:
    cluster = Cluster((Pool("gpu0", 1, kind="gpu"), Pool("cpu0", 1, kind="cpu")))
    with virtual(tmp_path, cluster, "easy") as one:
        _, job = one.submit(*[{"device": "gpu", "time_s": 3600}] * 2)
        (told,) = asked(one, job)
        assert told.change == "--device cpu0 in place of gpu" and told.expected_start_s == one.engine.now
        (anywhere,) = one.submit({"device": "any", "time_s": 60})
        assert anywhere in one.engine.starts


def test_of_some_jobs_nothing_is_told(tmp_path: Path) -> None:
    """Running, held, with followers, members of a limited array, in want of memory, at their turn anyway."""
    with virtual(tmp_path, Cluster((Pool("core", 4),), memory_mb=1000), "easy") as one:
        wide = {"cores": 4, "time_s": 3600}
        running, waiting = one.submit({"cores": 3, "time_s": 3600}, wide)
        assert asked(one, waiting)
        (held,) = one.submit({**wide, "after": (waiting,)})
        assert not asked(one, running) and not asked(one, held) and not asked(one, 99)
        assert not asked(one, waiting)  # to cancel it would cancel the other one as well
        one.coordinator.cancel([held])
        assert asked(one, waiting)
        (later,) = one.submit({**wide, "begin_s": one.engine.now + 60})
        assert not asked(one, later)
        one.coordinator.suspend([waiting])
        assert not asked(one, waiting)
        one.coordinator.resume([waiting])
        one.coordinator.cancel([waiting])
        (sober,) = one.submit({**wide, "memory_mb": 50.0})
        assert asked(one, sober)
        one.submit({"memory_mb": 960, "time_s": 60})
        assert not asked(one, sober)  # whose memory it would be then is not known
        one.coordinator.cancel([], list(one.coordinator.job_table.entries))
        one.until(1)
        one.submit({"cores": 4, "time_s": 20})
        (soon,) = one.submit(wide)
        assert not asked(one, soon)  # 20 s are not worth it


def test_an_unknown_run_time(tmp_path: Path) -> None:
    """Nobody knows when the first job ends; beside it there is room at once."""
    with virtual(tmp_path, Cluster((Pool("core", 2),)), "easy") as one:
        one.engine.ends = {}
        unknown = one.coordinator
        one.engine.start = lambda jobs: None  # type: ignore[method-assign]
        _, job = one.submit({}, {"cores": 2})
        assert unknown.why(job).expected_start_s is None
        (told,) = asked(one, job)
        assert told.change == "1 core in place of 2" and told.expected_start_s == one.engine.now
