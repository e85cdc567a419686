"""docs/functions.md: every block runs as a program of its own, and prints what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from tests.support.coordinator import Up
from tests.support.paths import ROOT
from tests.test_run_jobs_page import FENCE, matches

PAGE = ROOT / "docs" / "functions.md"


def test_the_programs_of_the_page_print_what_it_says(up: Up, tmp_path: Path) -> None:
    up.start("--cores", "2")
    environment = {**os.environ, "TENBIN_HOME": str(up.home)}
    found = FENCE.findall(PAGE.read_text())
    assert len(found) >= 10 and [kind for kind, _, _ in found] == ["python", "text"] * (len(found) // 2)
    for (_, needs, program), (_, _, said) in zip(found[::2], found[1::2], strict=True):
        if needs and find_spec(needs) is None:
            continue
        file = tmp_path / "program.py"
        file.write_text(program)
        done = subprocess.run(
            [sys.executable, file], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert matches(said, done.stdout), (program, done.stdout)


def test_headings_of_the_table_are_those_of_the_page() -> None:
    text = PAGE.read_text()
    linked = re.findall(r"^\| .*\[(.+?)\]\(#", text, re.MULTILINE)
    assert linked == re.findall(r"^## (.+)$", text, re.MULTILINE)
