"""The script of ``tenbin map``: each command's words reach the program byte by byte, under each shell."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.errors import BadInput
from tenbin.commands.jobs.map import LARGEST_SCRIPT, script_of
from tests.support.amounts import examples
from tests.support.labs.components import require

SHOW = [shutil.which("printf") or "printf", r"%s\0", "words:"]  # the program, and not the shell's own
WORDS = st.binary(max_size=30).map(lambda text: text.replace(b"\0", b"\n"))


def run(script: bytes, index: int, shell: str, folder: Path) -> subprocess.CompletedProcess[bytes]:
    """Run the command of a member."""
    path = folder / "map"
    path.write_bytes(script)
    environment = {**os.environ, "TENBIN_ARRAY_INDEX": str(index)}
    return subprocess.run([shell, str(path)], env=environment, capture_output=True, check=False)


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_words_of_any_bytes_reach_the_program(shell: str, tmp_path: Path) -> None:
    require(shutil.which(shell), f"the shell {shell}")

    @settings(max_examples=examples(120))
    @given(st.lists(st.lists(WORDS, max_size=3), min_size=1, max_size=4))
    def try_them(commands: list[list[bytes]]) -> None:
        script = script_of([[*SHOW, *map(os.fsdecode, words)] for words in commands])
        for number, words in enumerate(commands, 1):
            printed = run(script, number, shell, tmp_path).stdout
            assert printed.split(b"\0") == [b"words:", *words, b""]

    try_them()


def test_a_program_that_is_not_there_ends_with_127(tmp_path: Path) -> None:
    done = run(script_of([["no-such-program", "a"]]), 1, "/bin/sh", tmp_path)
    assert done.returncode == 127 and b"no-such-program" in done.stderr


def test_the_last_of_ten_thousand_is_found(tmp_path: Path) -> None:
    script = script_of([["echo", f"{number}", "a\nb"] for number in range(1, 10_001)])
    assert run(script, 10_000, "/bin/sh", tmp_path).stdout == b"10000 a\nb\n"


@pytest.mark.parametrize(
    ("commands", "words"),
    [
        ([["-c", "x"]], "'-c' is no program"),
        ([["", "x"]], "'' is no program"),
        ([["echo", "x" * 131_072]], "has 131,072 bytes"),
        ([["echo", "x" * 100_000]] * (LARGEST_SCRIPT // 100_000 + 1), "more than 4 MiB together"),
    ],
)
def test_commands_that_cannot_be_run_are_refused(commands: list[list[str]], words: str) -> None:
    with pytest.raises(BadInput) as raised:
        script_of(commands)
    assert words in raised.value.what
