"""Slips in commands that are refused before a job is accepted; the limits are the kernel's (execve(2))."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from profiles.errors import BadInput
from scheduler.jobs.files import OF_TENBIN, check_commands, check_length, check_program, longest_together
from scheduler.jobs.specs import JobSpec


@pytest.mark.parametrize("word", ["sleep 10", "./sim --steps 3", "no such\tprogram", "'sleep' 10"])
def test_a_whole_line_in_place_of_a_program_is_refused(word: str, tmp_path: Path) -> None:
    (tmp_path / "sim").touch(mode=0o755)
    with pytest.raises(BadInput, match="there is no program") as caught:
        check_program(word, str(tmp_path), os.environ["PATH"])
    assert "words one by one" in caught.value.remedy and "sh -c" in caught.value.remedy


def test_a_program_with_blanks_in_its_name_is_one(tmp_path: Path) -> None:
    program = tmp_path / "my programs" / "my job"
    program.parent.mkdir()
    program.touch(mode=0o755)
    check_program(str(program), "/", None)
    check_program("my programs/my job", str(tmp_path), None)
    check_program("my job", "/", f"/nowhere:{program.parent}")
    for word in ("no-such-program", "./not-made-yet", "./not made/yet"):  # there when the job starts, maybe
        check_program(word, str(tmp_path), None)


def test_the_job_is_named_and_a_script_has_any_name(tmp_path: Path) -> None:
    specs = [JobSpec(command=(word,), folder=str(tmp_path)) for word in ("true", "sleep 10")]
    with pytest.raises(BadInput, match="job 2 of 2: there is no program 'sleep 10'"):
        check_commands(specs, {}, script=False)
    check_commands(specs, {}, script=True)


@pytest.mark.parametrize("text", ["a" * 131_071, "é" * 65_535 + "a", "\udce9" * 131_071])
def test_the_longest_argument_is_the_kernels(text: str) -> None:
    check_length("argument 1", text)
    assert subprocess.run(["true", text], check=False).returncode == 0
    with pytest.raises(OSError):
        subprocess.run(["true", text + "a"], check=False)
    with pytest.raises(BadInput, match="argument 1 has 131,072 bytes, a program takes 131,071; put it"):
        check_length("argument 1", text + "a")


def test_a_variable_counts_with_its_name() -> None:
    check_commands([JobSpec(command=("true",), env={"AB": "x" * 131_068})], {}, script=False)
    with pytest.raises(BadInput, match="env AB has 131,072 bytes"):
        check_commands([JobSpec(command=("true",), env={"AB": "x" * 131_069})], {}, script=False)


def test_what_a_program_can_be_given_together_is_the_kernels() -> None:
    """What is accepted runs; a little more would not."""
    environment = {"PATH": os.environ["PATH"], "A": "x" * 100_000}
    given = sum(len(f"{name}={value}") + 9 for name, value in environment.items())
    room = longest_together() - OF_TENBIN - given - len("true") - 9
    words = ["x" * 99_991] * (room // 100_000)
    words.append("x" * (room - len(words) * 100_000 - 9))
    check_commands([JobSpec(command=("true", *words))], environment, script=False)
    assert subprocess.run(["true", *words], env=environment, check=False).returncode == 0
    with pytest.raises(BadInput, match="arguments and variables have 1 bytes more than a program takes"):
        check_commands([JobSpec(command=("true", *words[:-1], words[-1] + "x"))], environment, script=False)
    with pytest.raises(OSError, match="Argument list too long"):
        subprocess.run(["true", *words, "x" * OF_TENBIN], env=environment, check=False)


@pytest.mark.parametrize("word", ["", " "])
def test_a_program_without_a_name_is_refused(word: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="the name of the program is empty"):
        check_program(word, str(tmp_path), None)
