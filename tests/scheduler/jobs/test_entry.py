"""The one record of a job: what of it is journalled."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from scheduler.jobs.entry import FINAL, Entry, Phase, Stage
from scheduler.jobs.rows import COLUMNS, as_row, entry_of
from scheduler.jobs.specs import JobSpec
from scheduler.model.jobs import Placement

DERIVED = {"job", "works_from_s", "lag_s", "whole_s", "expected_end_s"}
GOALS = {"moves_to", "fallbacks"}
SPEC = JobSpec(command=("true",), folder="/")


def test_all_of_an_entry_is_journalled_but_what_follows_from_the_rest() -> None:
    assert {field.name for field in fields(Entry)} - DERIVED - GOALS == set(COLUMNS) - {"goals"}


@pytest.mark.parametrize(
    ("phase", "changes"),
    [
        (Phase.HELD, {"stage": Stage.HELD}),
        (Phase.WAITING, {"stage": Stage.WAITING, "alive": True, "want": "pause"}),
        (Phase.RUNNING, {"stage": Stage.RUNNING, "alive": True, "want": "run"}),
        (Phase.CHECKPOINTING, {"stage": Stage.STOPPING, "alive": True, "want": "checkpoint"}),
        (Phase.PARKING, {"stage": Stage.STOPPING, "alive": True, "want": "park", "held_by_user": True}),
        (Phase.MOVING, {"stage": Stage.STOPPING, "alive": True, "want": "move"}),
        (Phase.PAUSED, {"stage": Stage.SUSPENDED, "alive": True, "want": "pause"}),
        (Phase.SUSPENDED, {"stage": Stage.SUSPENDED}),
        (Phase.SUSPENDED_BY_OWNER, {"stage": Stage.HELD, "held_by_user": True}),
        *(
            (Phase.ENDING, {"stage": stage, "alive": True, "want": "end"})
            for stage in Stage
            if not stage.final
        ),
        *((Phase(stage.value), {"stage": stage, "want": "end"}) for stage in FINAL),
    ],
)
def test_the_phase_follows_from_the_record(phase: Phase, changes: dict[str, Any]) -> None:
    entry = Entry(1, SPEC, "", 0.0, **changes)
    assert entry.phase is phase
    suspended = phase is Phase.SUSPENDED_BY_OWNER
    assert entry.shown is (Stage.SUSPENDED if suspended else entry.stage)


def test_a_job_that_moves_has_both_places_again() -> None:
    moving = entry_of(as_row(_moving(), COLUMNS))
    assert moving.moves_to == Placement("there", 1) and moving.works_from_s == 5.0
    assert moving.places == (Placement("here", 1), Placement("there", 1))
    assert moving.goals == (Placement("there", 1), Placement("here", 1))


def _moving() -> Entry:
    return Entry(
        *(1, SPEC, "", 0.0),
        stage=Stage.STOPPING,
        want="move",
        since_s=5.0,
        placement=Placement("here", 1),
        alive=True,
        moves_to=Placement("there", 1),
        fallbacks=(Placement("here", 1),),
    )


def test_a_journal_from_before_version_7_has_the_index_in_the_specification_only() -> None:
    spec = SPEC.model_copy(update={"array_index": 3})
    row = as_row(Entry(1, spec, "", 0.0, stage=Stage.DONE), COLUMNS)
    assert row[COLUMNS.index("array_index")] is None and entry_of(row).array_index == 3
