"""The coordinator that the tests of a module share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.coordinator import Up


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield the folder of a coordinator with two cores."""
    up = Up(tmp_path_factory.mktemp("client") / "home")
    up.start("--cores", "2")
    yield up.home
    up.sweep()
