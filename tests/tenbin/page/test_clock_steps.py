"""A clock that was ahead and is set right: the page asks on as before."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tenbin.page import explainer
from tenbin.page.explainer import Explainer
from tenbin.page.mirror import Mirror


class Clock:
    """Stands for the module ``time``; the wall clock can be set."""

    def __init__(self) -> None:
        self.passed_s, self.wall_s = 100.0, 1e9

    def monotonic(self) -> float:
        return self.passed_s

    def time(self) -> float:
        return self.wall_s

    def step_back(self) -> None:
        self.passed_s, self.wall_s = self.passed_s + 60.0, self.wall_s - 3600.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(explainer, "time", clock)
    return clock


def test_the_reason_of_a_wait_is_asked_for_again(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer(_self: Explainer, _path: str) -> dict[str, Any]:
        return {"why": "waits", "expected_start_s": None}

    monkeypatch.setattr(Explainer, "_call", answer)
    mirror = SimpleNamespace(rows={1: SimpleNamespace(stage="waiting")})
    reasons = Explainer(tmp_path, cast(Mirror, mirror))
    reasons.watch([1])
    assert reasons._next() == 1
    asyncio.run(reasons._ask(1))
    assert reasons._next() is None
    clock.step_back()
    reasons.watch([1])
    assert reasons._next() == 1
