"""The start of a job's command: few imports, and paths and JSON as Python has them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import agent
from agent.processes.fast_imports import parse, suppress

LONG = {"signal", "enum", "json", "re", "contextlib", "functools", "pathlib", "typing", "dataclasses"}
TEXT = st.text(st.characters(codec=None))  # with halves of pairs, as environments have them
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@given(VALUES, st.booleans())
def test_what_json_says(value: object, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    assert repr(parse(text)) == repr(json.loads(text))


@pytest.mark.parametrize("text", ["", "{", '{"a": }', "nul", '{"a": 1', "'a'", '["\n"]'])
def test_what_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse(text)


def test_only_what_is_meant_is_suppressed() -> None:
    with suppress(FileNotFoundError, KeyError):
        {}["a"]
    with suppress(OSError):
        raise FileNotFoundError
    with pytest.raises(KeyError), suppress(OSError):
        {}["a"]


def test_nothing_that_takes_long_is_imported_before_a_command() -> None:
    root = Path(agent.__file__).parents[1]
    program = "import sys; sys.path.insert(0, sys.argv[1]); import agent.supervisor.allocation_reuse\n"
    program += "print(*sorted(sys.modules))"
    words = [sys.executable, "-I", "-S", "-c", program, str(root)]
    imported = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    assert "agent.attempts.begin" in imported and "agent.supervisor.supervisor" not in imported
    assert not LONG & set(imported)
