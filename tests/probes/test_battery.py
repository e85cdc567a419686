"""The slices of a check: all are taken, interleaved, and a part that is missing costs its own only.

Those of this machine: ``tests/agent/node_check/test_faults.py``.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, nullcontext
from pathlib import Path

import pandas as pd
import pytest

from probes import battery
from probes.battery import FULL_ROUNDS, Reading, Slice, measure
from probes.run import Run, collect
from profiles.records import Settings


def made_up(monkeypatch: pytest.MonkeyPatch, slices: list[Slice]) -> None:
    monkeypatch.setattr(battery, "_prepare", lambda run, stack: slices)


def reading(quantity: str) -> Slice:
    return Slice(quantity, lambda: iter([Reading(quantity, {}, 1.0, "x")]))


def test_preparing_leaves_half_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large caches, and a cap on processor time, take more than all of it to prepare."""

    def prepare(run: Run, stack: ExitStack) -> list[Slice]:
        time.sleep(1.5 * run.settings.budget_s)
        return [reading("a"), reading("b")]

    monkeypatch.setattr(battery, "_prepare", prepare)
    rows, _ = collect("battery", Settings(quick=True, budget_s=0.4), measure)
    assert (rows.groupby("quantity").size() > 3).all()


def test_slices_take_turns_in_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    once = Slice("c", reading("c").take, each_round=1)
    made_up(monkeypatch, [reading("a"), reading("b"), once])
    rows, _ = collect("battery", Settings(budget_s=0.2), measure)
    assert set(rows.part) == set(range(FULL_ROUNDS))
    assert (rows[rows.quantity == "c"].groupby("part").size() == 1).all()
    counts = rows.groupby(["part", "quantity"]).size().unstack()
    assert (counts["a"] / counts["b"]).between(0.5, 2).all()
    order = rows[rows.quantity != "c"].quantity.tolist()
    runs = pd.Series(order).ne(pd.Series(order).shift()).cumsum().value_counts()
    assert runs.max() <= 3  # never long the same


def test_a_slice_that_fails_is_said_once_and_costs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise OSError("the disk is gone")

    made_up(monkeypatch, [reading("a"), Slice("disk", broken)])  # type: ignore[arg-type]
    rows, absent = collect("battery", Settings(quick=True, budget_s=0.1), measure)
    assert set(rows.quantity) == {"a"}
    assert [(record.what, record.reason) for record in absent] == [("disk", "the disk is gone")]


def test_storage_that_is_missing_costs_storage_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(battery, "memory_slices", lambda run: nullcontext([reading("a")]))
    monkeypatch.setattr(battery, "core_slices", lambda run: nullcontext([reading("b")]))
    monkeypatch.setattr(battery, "message_slices", lambda run: [reading("c")])
    settings = Settings(quick=True, budget_s=0.1, storage=(tmp_path / "nowhere",))
    rows, absent = collect("battery", settings, measure)
    assert [record.what for record in absent] == [f"storage {tmp_path}/nowhere"]
    assert set(rows.quantity) == {"a", "b", "c"}
