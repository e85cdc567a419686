"""Fixtures for sessions that profile jobs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from probes import c_library

MADE: dict[tuple[Path, str | None], bytes] = {}  # by source and compiler


@pytest.fixture(autouse=True)
def compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each session compiles the same libraries, which takes longer than a short job."""
    compiled = c_library.build

    def build(source: Path, folder: Path, options: Sequence[str], *, what: str, remedy: str) -> Path:
        key, library = (source, c_library.find_compiler()), folder / f"{source.stem}.so"
        if key in MADE:
            library.write_bytes(MADE[key])
        else:
            MADE[key] = compiled(source, folder, options, what=what, remedy=remedy).read_bytes()
        return library

    monkeypatch.setattr(c_library, "build", build)
