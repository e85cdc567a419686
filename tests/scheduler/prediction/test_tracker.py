"""Predictions beside what happened: in the journal, over crashes, and as users see them."""

from __future__ import annotations

import math
import os
import random
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from agent.attempts.checked import Phase, read_phases
from profiles.errors import BadInput
from scheduler.coordinator.job_table import JobTable
from scheduler.coordinator.journal.journal import Journal
from scheduler.coordinator.journal.journal_file import APPLICATION_ID
from scheduler.jobs.entry import Entry
from scheduler.jobs.specs import JobSpec
from scheduler.model.costs import FREE, LinearCost, LinearCosts
from scheduler.model.jobs import Cluster, Job, Placement, Pool, Stop
from scheduler.prediction.predictions import OpenPredictions
from scheduler.prediction.tracker import LearnedMigrationCosts, restart_parts, stop_parts

CLUSTER = Cluster((Pool("core", 2),))


def test_predictions_outlive_the_process(tmp_path: Path) -> None:
    """Journalled with the decision, completed after a restart, at most one open of a kind and job."""
    journal = Journal(tmp_path)
    job_table = JobTable(journal, CLUSTER)
    (entry,) = job_table.add([JobSpec(command=("true",), folder="/")], {}, 1.0)
    predictions = job_table.predictions
    predictions.predict(entry.id, 1, 10.0, "migration", value=2.0, to="gpu", bytes=5)
    predictions.predict(entry.id, 1, 10.0, "pairing", value=0.8, emulated=True)
    job_table.commit()
    journal.close()

    journal = Journal(tmp_path)
    job_table = JobTable(journal, CLUSTER)
    assert [f.kind for f in journal.predictions(open=True)] == ["migration", "pairing"]
    job_table.predictions.measure(entry.id, "migration", 2.5, phase="all")
    assert job_table.predictions.measure(entry.id, "migration", 9.9) is None
    job_table.predictions.predict(entry.id, 2, 20.0, "pairing", value=0.7, emulated=True)
    job_table.commit()
    done, old, new = journal.predictions()
    assert (done.predicted, done.measured, done.detail) == (
        2.0,
        2.5,
        {"to": "gpu", "bytes": 5, "phase": "all"},
    )
    assert old.void == "predicted anew" and old.emulated and not old.open
    assert new.open and new.number == 3 and new.attempt == 2
    assert journal.predictions(kind="pairing", last=1) == [new] and journal.predictions(job=99) == []

    job_table.drop(entry)
    job_table.commit()
    assert journal.predictions(open=True) == []
    journal.close()


def test_a_journal_of_an_older_version_is_gone_on_with(tmp_path: Path) -> None:
    """Nobody's queue is lost: columns are added, a newer version is refused and stays as it is."""
    journal = Journal(tmp_path)
    spec = JobSpec(command=("true",), folder="/")
    entry = Entry(journal.next_id(), spec, journal.keep_environment({}), 1.0, fallbacks=(Placement("b", 1),))
    journal.commit((), added=[entry])
    assert journal.open_jobs() == [entry]
    journal.close()
    with sqlite3.connect(tmp_path / "journal.sqlite") as db:
        for column in ("goals", "asked", "sum"):
            db.execute(f"ALTER TABLE jobs DROP COLUMN {column}")
        db.execute("DROP TABLE forecasts")
        db.execute("DROP TABLE tally")
        db.execute("PRAGMA application_id = 0")
        db.execute("PRAGMA user_version = 1")
    (tmp_path / "journal.tally").unlink()
    journal = Journal(tmp_path)
    (found,) = journal.open_jobs()
    assert found == replace(entry, fallbacks=())
    journal.commit([replace(found, fallbacks=(Placement("a", 2), Placement("b", 1)))])
    assert [goal.pool for goal in journal.open_jobs()[0].goals] == ["a", "b"]
    journal.close()
    with sqlite3.connect(tmp_path / "journal.sqlite") as db:
        db.execute("PRAGMA user_version = 99")
        db.execute(f"PRAGMA application_id = {APPLICATION_ID ^ 99}")
    with pytest.raises(BadInput, match="of version 99"):
        Journal(tmp_path)


def test_what_was_not_written_is_written_next_time() -> None:
    """A full disk: nothing is lost of what the journal could not take."""
    predictions = OpenPredictions(7)
    one = predictions.predict(1, 1, 0.0, "restart", value=1.0)
    assert predictions.changed() == [one] == predictions.changed() and one.number == 8
    predictions.committed()
    predictions.void(1, "it was lost")
    assert predictions.changed() == [one] and one.void == "it was lost"


# -- what is believed of costs ------------------------------------------------------------------------------

# Paper A, table 3, GPU; context and kernels of the measured program take 0.3 s of the 0.89 s.
GPU = LinearCosts({"gpu": LinearCost(1.4e-2, 0.85)}, {"gpu": LinearCost(9.6e-3, 0.89)}, begin_s={"gpu": 0.3})


def job(number: int, limit_mb: float | None = 1000.0, program: str = "python3") -> Job:
    return Job(number, 0.0, memory_mb=limit_mb, stop=Stop.CHECKPOINT, program=program)


def test_a_profile_alone_is_believed_as_it_stands() -> None:
    learned = LearnedMigrationCosts(GPU)
    assert learned.stop_s(job(1), "gpu") == pytest.approx(14 + 0.85)
    assert learned.restart_s(job(1), "gpu") == pytest.approx(9.6 + 0.89)
    assert learned.stop_s(job(1), "cpu") == learned.restart_s(job(1), "cpu") == 0.0
    pausing = replace(job(1), stop=Stop.PAUSE)
    assert learned.stop_s(pausing, "gpu") == learned.restart_s(pausing, "gpu") == 0.0


def test_what_a_job_has_registered_counts_not_its_limit() -> None:
    learned = LearnedMigrationCosts(GPU)
    learned.introduce(job(1), "stencil", 100.0)
    assert learned.stop_s(job(1), "gpu") == pytest.approx(1.4 + 0.85)
    assert learned.stop_s(job(2), "gpu") == pytest.approx(14 + 0.85)
    learned.forget(1)
    assert learned.stop_s(job(1), "gpu") == pytest.approx(14 + 0.85)


def test_parts_are_learnt_from_the_likeliest() -> None:
    """Of the job itself before its program, of its program before all others; here before elsewhere."""
    learned = LearnedMigrationCosts(GPU)
    for number, program in ((1, "stencil"), (2, "stencil"), (3, "n-body")):
        learned.introduce(job(number), program, 100.0)
    first = {"launch": 0.1, "start": 2.0, "context": 0.2, "compile": 1.5, "restore": 2.0}
    learned.learn(job(1), "gpu", first)
    for number in (1, 2, 3, 4):
        parts = learned.restart_parts(job(number), "gpu")
        assert (parts["launch"], parts["start"], parts["context"]) == (0.1, 2.0, 0.2)
        assert parts["compile"] == (1.5 if number < 3 else 0.0)
    learned.learn(job(1), "gpu", {"compile": 0.1, "start": 3.0})  # the driver had kept the kernels
    assert learned.restart_parts(job(1), "gpu")["compile"] == 0.1
    assert learned.restart_parts(job(1), "gpu")["start"] == 2.5
    learned.learn(job(2), "gpu", {"start": 7.0})
    assert learned.restart_parts(job(2), "gpu")["start"] == 7.0
    assert learned.restart_parts(job(1), "cpu")["context"] == 0.2


def test_half_of_the_way_between_two_safe_points() -> None:
    learned = LearnedMigrationCosts(GPU)
    learned.learn(job(1), "gpu", {"pace": 3.0})
    assert learned.stop_parts(job(1), "gpu")["reach"] == 1.5
    learned.learn(job(1), "gpu", {"reach": 0.4, "drain": 0.1, "leave": 0.2})
    parts = learned.stop_parts(job(1), "gpu")
    assert (parts["reach"], parts["drain"], parts["leave"]) == (0.4, 0.1, 0.2)


@pytest.mark.parametrize("profile", [GPU, FREE])
def test_a_machine_that_has_become_slower_is_learnt(profile: LinearCosts) -> None:
    """The truth: 1.5 times what was profiled (nothing profiled: proportional to memory), with 10 % noise."""
    chance, learned = random.Random(4), LearnedMigrationCosts(profile)

    def truth(mb: float) -> float:
        return 1.5 * (1.4e-2 * mb + (0.85 if profile is GPU else 0.0))

    for number in range(30):
        mb = chance.uniform(50, 2000)
        learned.introduce(job(number), "p", mb)
        learned.learn(job(number), "gpu", {"save": truth(mb) * chance.uniform(0.9, 1.1)})
    for mb in (60.0, 400.0, 1900.0):
        learned.introduce(job(99), "p", mb)
        assert learned.stop_parts(job(99), "gpu")["save"] == pytest.approx(truth(mb), rel=0.08)


def test_quantiles_of_a_move_are_those_of_its_parts_once_enough_are_known() -> None:
    """Below eight outcomes the profile's, in proportion; then eight of ten saves take 1.1 to 1.9 s."""
    line = LinearCost(0.0, 1.0, 0.0, 0.1)
    learned, half = LearnedMigrationCosts(LinearCosts({"gpu": line}, {"gpu": line})), 0.1 * math.sqrt(2)
    assert learned.move_s(job(1), "gpu", "gpu") == pytest.approx((2.0 - half, 2.0, 2.0 + half))
    for _ in range(6):
        learned.learn(job(2), "gpu", {"save": 1.5})
    assert learned.move_s(job(1), "gpu", "gpu") == pytest.approx(
        tuple(2.5 * (1.0 + off / 2.0) for off in (-half, 0.0, half))
    )
    for number in range(1, 20):
        learned.learn(job(2), "gpu", {"save": 1.0 + number / 20})
    assert learned.move_s(job(1), "gpu", "gpu") == pytest.approx((2.1, 2.5, 2.9), abs=0.05)
    assert learned.move_s(replace(job(1), stop=Stop.PAUSE), "gpu", "gpu") == (0.0, 0.0, 0.0)


def test_the_parts_are_the_whole() -> None:
    phases = [
        Phase("context", 0.2, 0, 12.0, "p"),
        Phase("compile", 0.3, 0, 12.5, "p"),
        Phase("compile", 0.1, 0, 12.7, "p"),
        Phase("restore", 1.0, 5e6, 14.0, "p"),
        Phase("ready", 0.0, 5e6, 14.0, "p"),
        Phase("save", 9.0, 5e6, 29.0, "p"),  # by itself, before it was asked
        Phase("drain", 0.5, 0, 33.0, "p"),
        Phase("save", 2.0, 5e6, 35.0, "p"),
    ]
    restart = restart_parts(phases, 10.0, 10.5, 14.0)
    whole = {"launch": 0.5, "start": 1.9, "context": 0.2, "compile": 0.4, "restore": 1.0}
    assert restart == pytest.approx(whole) and sum(restart.values()) == pytest.approx(14.0 - 10.0)
    stop = stop_parts(phases, 30.0, 35.5)
    assert stop == pytest.approx({"reach": 2.5, "drain": 0.5, "save": 2.0, "leave": 0.5})
    assert sum(stop.values()) == pytest.approx(35.5 - 30.0)
    assert stop_parts([], 30.0, 35.5) == {"leave": 5.5}
    assert stop_parts(phases[:5], 30.0, 35.5) == {}


def test_a_program_may_write_anything_into_its_phases(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.phases.jsonl"
    assert read_phases(tmp_path) == []
    good = '{"phase": "save", "time_s": 1, "bytes": 2, "at_s": 3, "program": "p", "more": []}'
    bad = ("", "{", "[]", "3", "null", "[" * 9999, good.replace("1", "NaN"), good.replace("1", '"x"'))
    path.write_text("\n".join([*bad, good.replace("2", "-2"), good, good[:-4]]))
    assert read_phases(tmp_path) == [Phase("save", 1.0, 2.0, 3.0, "p")]
    path.write_bytes(b"\xff" * 10_000_000 + b"\n" + good.encode())
    assert read_phases(tmp_path) == [Phase("save", 1.0, 2.0, 3.0, "p")]
    path.unlink()
    os.mkfifo(path)  # nobody writes: opening it must not wait
    assert read_phases(tmp_path) == []
