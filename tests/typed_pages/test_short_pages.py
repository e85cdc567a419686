"""Pages of a few commands, typed in."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.typed_pages import type_in


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_submit_from_programs(tmp_path: Path) -> None:
    type_in("submit-from-programs", tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_run_times(tmp_path: Path) -> None:
    type_in("run-times", tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_share_a_workstation(tmp_path: Path) -> None:
    type_in("share-a-workstation", tmp_path)
