"""A coordinator on the cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.coordinator import Up
from tests.support.labs.slurm_lab import SlurmLab


@pytest.fixture
def up(lab: SlurmLab, tmp_path: Path) -> Iterator[Up]:
    """Yield a coordinator for the cluster, which the test starts itself; remove everything at the end."""
    one = Up(tmp_path / "home")
    yield one
    one.sweep()
