"""Docstrings say what a thing is or does: none begins with a question word or a pronoun, none asks."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.support.paths import ROOT

OPENINGS = ["What", "Which", "Who", "Whose", "Whom", "Whether", "How", "Where", "Why", "It", "That"]
BANNED = re.compile(rf"(?:{'|'.join(OPENINGS)}|One that)\b|.*\?$")
FOLDERS = ("agent", "probes", "profiles", "scheduler", "tenbin", "tests", "examples")


def first_lines(file: Path) -> list[tuple[int, str]]:
    """Return the first line of each docstring of the file, with its number."""
    kinds = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
    nodes = (node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, kinds))
    return [(node.body[0].lineno, text.split("\n")[0]) for node in nodes if (text := ast.get_docstring(node))]


@pytest.mark.parametrize("folder", FOLDERS)
def test_docstrings_begin_plainly(folder: str) -> None:
    found = [
        f"{file.relative_to(ROOT)}:{number}: {line}"
        for file in sorted((ROOT / folder).rglob("*.py"))
        for number, line in first_lines(file)
        if BANNED.match(line)
    ]
    assert not found, "\n".join(found)


def test_what_is_banned() -> None:
    assert all(map(BANNED.match, ("What a job is.", "It ends.", "One that waits.", "Is it there?")))
    assert not any(map(BANNED.match, ("Item of a list.", "Return what is there.", "However long.")))
