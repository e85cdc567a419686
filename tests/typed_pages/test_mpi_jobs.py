"""docs/mpi-jobs.md, typed in."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.typed_pages import type_in


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_mpi_jobs(tmp_path: Path) -> None:
    type_in("mpi-jobs", tmp_path)
