"""Amounts of work: ``tests/run`` takes some cases of a sweep, ``--all`` all of them; both take some examples.

These are the same in each run. ``TENBIN_DRILL=SEED`` takes all examples, and runs all drills long.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from typing import Any

import pytest

ALL = os.environ.get("TENBIN_TESTS") == "all"
DRILL = os.environ.get("TENBIN_DRILL")
SMALLER = {"parm-ga": "parm-ga,population=20,parents=4,generations=4"}  # as it stands, a search takes 0.3 s


def examples(most: int) -> int:
    """Return the number of examples for hypothesis: all under ``TENBIN_DRILL``, else an eighth."""
    return most if DRILL else max(6, most // 8)


def sweep(cases: Iterable[Any], quick: Collection[Any]) -> list[Any]:
    """Mark all cases of one parameter slow but those in ``quick``."""
    return [case if case in quick else slow(case) for case in cases]


def slow(*case: Any) -> Any:
    """Mark one case of several parameters slow."""
    return pytest.param(*case, marks=pytest.mark.slow)
