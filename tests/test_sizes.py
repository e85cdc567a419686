"""Sizes of files and folders: one subject each, seen at a glance."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.support.paths import ROOT

FLOORS = ("agent", "probes", "profiles", "scheduler", "tenbin")
MODULES, LINES = 15, 400


def modules(*folders: str) -> list[Path]:
    """List the Python files of these folders, but those of packages themselves."""
    files = (file for folder in folders for file in sorted((ROOT / folder).rglob("*.py")))
    return [file for file in files if file.name != "__init__.py"]


def test_no_folder_has_many_modules() -> None:
    counts = Counter(file.parent for file in modules(*FLOORS, "tests"))
    assert {str(folder.relative_to(ROOT)): n for folder, n in counts.items() if n > MODULES} == {}


def test_no_file_is_long() -> None:
    lengths = {str(file.relative_to(ROOT)): file.read_text().count("\n") for file in modules(*FLOORS)}
    assert {file: n for file, n in lengths.items() if n > LINES} == {}
