"""The walks of docs/developing.md: 12 steps at most, each of which names files and functions that exist."""

from __future__ import annotations

import ast
import re

import pytest

from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "developing.md").read_text()
WALKS = re.findall(r"^## (The way of [^\n]+)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)


def names(file: str) -> set[str]:
    """List the functions, classes and methods (``Class.method``) that a file defines."""
    found = set[str]()

    def add(body: list[ast.stmt], prefix: str) -> None:
        for part in body:
            if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(prefix + part.name)
            if isinstance(part, ast.ClassDef):
                add(part.body, f"{part.name}.")

    add(ast.parse((ROOT / file).read_text()).body, "")
    return found


def test_there_are_three_walks() -> None:
    assert [title for title, _ in WALKS] == [
        "The way of one sample",
        "The way of one local job",
        "The way of one Slurm job",
    ]


@pytest.mark.parametrize(("title", "text"), WALKS, ids=[title for title, _ in WALKS])
def test_each_step_names_what_exists(title: str, text: str) -> None:
    steps = re.findall(r"^\d+\. (.*?)(?=^\d+\. |^\n|\Z)", text, re.M | re.S)
    assert 5 <= len(steps) <= 12
    for step in steps:
        places = re.findall(r"`([\w/]+\.py)`: `([\w.]+)`", step)
        assert places, f"{title}: a step without a file and a function: {step}"
        for file, name in places:
            assert name in names(file), f"{title}: {file} has no {name}"
