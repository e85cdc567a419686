"""The verbs by which owners change their jobs, and what follows: in virtual time."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from profiles.errors import BadInput
from scheduler.model.jobs import Cluster, Pool
from tests.support.scheduling.manual_engine import ManualEngine, shown, submit, why

DEVICES = Cluster((Pool("pocl-0", 1, kind="cpu"), Pool("pocl-1", 1, rank=1, kind="cpu")))


def test_the_policy_decides_and_says_why(tmp_path: Path) -> None:
    """fcfs: the wide job holds up the narrow one behind it; easy would let it pass."""
    engine = ManualEngine(2)
    with engine.coordinator(tmp_path) as coordinator:
        first, wide, narrow = submit(coordinator), submit(coordinator, cores=2), submit(coordinator, time_s=1)
        assert shown(coordinator, first, wide, narrow) == ["running", "waiting", "waiting"]
        reason = coordinator.why(wide)
        assert reason[:2] == ("waits for 2 cores (1 of 2 free)", engine.now + 100.0)
        assert (
            why(coordinator, narrow)
            == f"waits for 1 core (1 of 2 free); behind job {wide}, which waits for 2 cores"
        )
        engine.end_all(coordinator)
        assert engine.begun == [(job, 1) for job in (first, wide, narrow)]


def test_who_asks_for_more_than_is_left_is_told_how_to_have_it(tmp_path: Path) -> None:
    engine = ManualEngine()
    engine.left_to_others = "left to others: core 1 of A; to use them too: tenbin up --share"
    with engine.coordinator(tmp_path) as coordinator:
        with pytest.raises(BadInput, match=f"; ask for fewer; {engine.left_to_others}"):
            submit(coordinator, cores=2)
        with pytest.raises(BadInput, match=r"no GPUs are scheduled(?!.*left to others)"):
            submit(coordinator, gpus=1)


def test_dependencies(tmp_path: Path) -> None:
    engine = ManualEngine(2)
    with engine.coordinator(tmp_path) as coordinator:
        good, bad = submit(coordinator), submit(coordinator)
        after_good = submit(coordinator, after=(good,))
        after_both = submit(coordinator, after=(good, bad))
        assert f"waits for job {good} to succeed" in why(coordinator, after_good)
        engine.end(bad, code=1)
        coordinator.turn()
        assert shown(coordinator, after_good, after_both) == ["held", "cancelled"]
        entry = coordinator.job_table.entry(after_both)
        assert entry is not None and f"job {bad}" in entry.trouble
        engine.end(good)
        coordinator.turn()
        assert shown(coordinator, after_good) == ["running"]
        with pytest.raises(BadInput, match="no job 99"):
            submit(coordinator, after=(99,))


def test_suspended_jobs_give_their_cores_away(tmp_path: Path) -> None:
    """A job that is named twice is meant once."""
    engine = ManualEngine()
    with engine.coordinator(tmp_path) as coordinator:
        first, second = submit(coordinator), submit(coordinator)
        coordinator.suspend([first, first])
        assert shown(coordinator, first, second) == ["suspended", "running"]
        assert f"tenbin resume {first}" in why(coordinator, first)
        with pytest.raises(BadInput, match="suspended already"):
            coordinator.suspend([first])
        coordinator.resume([first, first])
        assert shown(coordinator, first) == ["waiting"]
        engine.end(second)
        coordinator.turn()
        assert shown(coordinator, first) == ["running"]
        assert engine.asks == [(first, "pause"), (first, "run")]
        assert engine.begun == [(first, 1), (second, 1)]


def test_cancel_wherever_a_job_is(tmp_path: Path) -> None:
    engine = ManualEngine()
    with engine.coordinator(tmp_path) as coordinator:
        running, waiting = submit(coordinator), submit(coordinator)
        held, last = submit(coordinator, after=(waiting,)), submit(coordinator)
        coordinator.cancel([waiting, waiting])
        assert shown(coordinator, waiting, held) == ["cancelled", "cancelled"]
        coordinator.suspend([running])
        coordinator.cancel([running])
        engine.end(running, "cancelled")
        coordinator.turn()
        assert shown(coordinator, running, last) == ["cancelled", "running"]
        assert engine.begun == [(running, 1), (last, 1)]
        with pytest.raises(BadInput, match=f"job {running} has ended"):
            coordinator.cancel([running])


@pytest.mark.parametrize("gone", [False, True])
def test_a_move_survives_the_coordinator(tmp_path: Path, gone: bool) -> None:
    """The next one knows where it was to go, and keeps that free; if that is gone it goes on as before."""
    engine = ManualEngine(cluster=DEVICES)
    with engine.coordinator(tmp_path) as coordinator:
        job = submit(coordinator, device="any", checkpoint_signal=signal.SIGURG.value)
        coordinator.migrate([job], "pocl-1")
        assert shown(coordinator, job) == ["stopping"] and engine.asks == [(job, "checkpoint")]
        other = submit(coordinator, device="any")
        assert shown(coordinator, other) == ["waiting"]
    if gone:
        engine.cluster = Cluster(DEVICES.pools[:1])
    with engine.coordinator(tmp_path) as coordinator:
        coordinator.turn()
        assert shown(coordinator, job, other) == ["stopping", "waiting"]
        engine.end(job, "checkpointed", 85)
        coordinator.turn()
        entry = coordinator.job_table.open(job)
        assert entry.place.pool == ("pocl-0" if gone else "pocl-1")
        assert (entry.shown, entry.attempt, entry.migrations) == ("running", 2, 0 if gone else 1)
        assert shown(coordinator, other) == ["waiting" if gone else "running"]


def test_a_job_that_is_bound_to_a_device_stays_there(tmp_path: Path) -> None:
    with ManualEngine(cluster=DEVICES).coordinator(tmp_path) as coordinator:
        job = submit(coordinator, device="pocl-0", checkpoint_signal=signal.SIGURG.value)
        with pytest.raises(BadInput, match="it does not run on pocl-1"):
            coordinator.migrate([job], "pocl-1")


@pytest.mark.parametrize("policy", ["mctbm", "weigh"])
def test_a_policy_moves_a_job_to_the_better_device(tmp_path: Path, policy: str) -> None:
    """A job begins on the worse one and moves when the better one is free."""
    engine = ManualEngine(cluster=DEVICES)
    with engine.coordinator(tmp_path, policy) as coordinator:
        first = submit(coordinator, expect_s={"pocl-0": 20.0, "pocl-1": 100.0}, device="pocl-0")
        expect_s = {"pocl-0": 5.0, "pocl-1": 50.0}
        second = submit(coordinator, expect_s=expect_s, checkpoint_signal=signal.SIGURG.value)
        entry = coordinator.job_table.open(second)
        assert entry.place.pool == "pocl-1"
        engine.wait(1.0)
        engine.end(first)
        coordinator.turn()
        assert shown(coordinator, first, second) == ["done", "stopping"]
        engine.end(second, "checkpointed", 85)
        coordinator.turn()
        engine.wait(0.1)
        coordinator.turn()
        assert (entry.place.pool, entry.shown, entry.migrations) == ("pocl-0", "running", 1)


def test_regions_are_cut_anew_on_another_number_of_cores(tmp_path: Path) -> None:
    """A region of two cores, then of one, then of two again."""
    engine = ManualEngine()
    for cores in (2, 1, 2):
        engine.cluster = Cluster((Pool("core", cores),))
        with engine.coordinator(tmp_path, "regions") as coordinator:
            job = submit(coordinator, cores=cores)
            assert shown(coordinator, job) == ["running"]
            engine.end(job)
            coordinator.turn()
