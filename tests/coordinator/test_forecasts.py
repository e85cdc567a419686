"""What was predicted, beside what happened: in the journal, over crashes, and as its users see it."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from profiles.errors import BadInput
from scheduler.coordination.forecasts import Forecasts
from scheduler.coordination.journal import Entry, Journal
from scheduler.coordination.ledger import Ledger
from scheduler.coordination.specs import JobSpec
from scheduler.model import Cluster, Placement, Pool

CLUSTER = Cluster((Pool("core", 2),))


def test_predictions_outlive_the_process(tmp_path: Path) -> None:
    """Journalled with the decision, completed after a restart, at most one open of a kind and job."""
    journal = Journal(tmp_path)
    ledger = Ledger(journal, CLUSTER)
    (entry,) = ledger.take_in([JobSpec(command=("true",), folder="/")], {}, 1.0)
    forecasts = ledger.forecasts
    forecasts.predict(entry.id, 1, 10.0, "migration", 2.0, to="gpu", bytes=5)
    forecasts.predict(entry.id, 1, 10.0, "cap", 0.8, emulated=True)
    ledger.commit()
    journal.close()

    journal = Journal(tmp_path)
    ledger = Ledger(journal, CLUSTER)
    assert [f.kind for f in journal.forecasts(open=True)] == ["migration", "cap"]
    ledger.forecasts.measure(entry.id, "migration", 2.5, phase="all")
    assert ledger.forecasts.measure(entry.id, "migration", 9.9) is None
    ledger.forecasts.predict(entry.id, 2, 20.0, "cap", 0.7, emulated=True)
    ledger.commit()
    done, old, new = journal.forecasts()
    assert (done.predicted, done.measured, done.detail) == (
        2.0,
        2.5,
        {"to": "gpu", "bytes": 5, "phase": "all"},
    )
    assert old.void == "predicted anew" and old.emulated and not old.open
    assert new.open and new.number == 3 and new.attempt == 2
    assert journal.forecasts(kind="cap", last=1) == [new] and journal.forecasts(job=99) == []

    ledger.drop(entry)
    ledger.commit()
    assert journal.forecasts(open=True) == []
    journal.close()


def test_a_journal_of_an_older_version_is_gone_on_with(tmp_path: Path) -> None:
    """Nobody's queue is lost: columns are added, a newer version is refused and stays as it is."""
    journal = Journal(tmp_path)
    spec = JobSpec(command=("true",), folder="/")
    entry = Entry(journal.next_id(), spec, journal.keep_environment({}), 1.0, goals=(Placement("b", 1),))
    journal.commit((), added=[entry])
    assert journal.open_jobs() == [entry]
    journal.close()
    with sqlite3.connect(tmp_path / "journal.sqlite") as db:
        db.execute("ALTER TABLE jobs DROP COLUMN goals")
        db.execute("DROP TABLE forecasts")
        db.execute("PRAGMA user_version = 1")
    journal = Journal(tmp_path)
    (found,) = journal.open_jobs()
    assert found == replace(entry, goals=())
    journal.commit([replace(found, goals=(Placement("a", 2), Placement("b", 1)))])
    assert [goal.pool for goal in journal.open_jobs()[0].goals] == ["a", "b"]
    journal.close()
    with sqlite3.connect(tmp_path / "journal.sqlite") as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(BadInput, match="of version 99"):
        Journal(tmp_path)


def test_what_was_not_written_is_written_next_time() -> None:
    """A full disk: nothing is lost of what the journal could not take."""
    forecasts = Forecasts(7)
    one = forecasts.predict(1, 1, 0.0, "restart", 1.0)
    assert forecasts.changed() == [one] == forecasts.changed() and one.number == 8
    forecasts.committed()
    forecasts.void(1, "it was lost")
    assert forecasts.changed() == [one] and one.void == "it was lost"
