"""Replacements and combinations of ``tenbin map``, compared with GNU parallel's own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.errors import BadInput
from tenbin.commands.jobs.map import check, combinations, expand, split
from tests.support.labs.components import require

SHOW = ("printf", r"%s\0", "a job:")  # each word up to a zero byte
ARGUMENTS = (
    *(
        "a",
        "",
        " ",
        "a b",
        "a  b",
        "a\nb",
        "é名",
        "'",
        '"',
        "$HOME",
        "`id`",
        "\\",
        "\\n",
        "{}",
        "{1}",
        "-n",
        "~",
    ),
    *("x/y.tar.gz", "/x", "/", "//", "x/", "x//", "/x/y/", "x//y", "./x", "..", ".x", "x.", "a.b/c", "a.b\n"),
    *("a/b\nc/d", "*", "a;b", "\t", "#", "!", "a=b", "\x1b"),
)
FORMS = (
    *("{}", "{.}", "{/}", "{//}", "{/.}", "{#}"),
    *("{1}", "{1.}", "{1/}", "{1//}", "{1/.}", "{-1}", "x{}y", "{1}{.}"),
)
COMMANDS = (
    (),
    ("{1}",),
    ("x{}y", "{#}"),
    ("{2}", "{-2/}", "{-1.}"),
    ("{#}",),
    ("-{}-{1}-", "{}"),
    ("{x}", "{}{", "{1}}"),
    ("{print $1}",),
    ("{..}", "{ }", "{+/}", "{##}", "{a,b}"),
    ("{01}", "{2//}"),
)
SOURCES = (
    "::: a b ::: c d e",
    "::: a b :::+ c d ::: 1 2",
    "::: a b c :::+ d e",
    ":::: three two",
    ":::: three ::: x y",
    "::: x :::: two three",
    ":::: three ::::+ two",
    "::: a b :::: - :::+ 1 2 3",
)


@pytest.fixture
def lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write two lists, which ``SOURCES`` name, to the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "three").write_text("1\n\n3 x\n")
    (tmp_path / "two").write_text("y\nlast")
    return tmp_path


def by_parallel(command: tuple[str, ...], words: list[str], *options: str) -> list[list[str]]:
    """Run ``parallel`` with ``p`` and ``q`` as input; return the words that each of its jobs got."""
    require(shutil.which("parallel"), "GNU parallel (Debian: parallel)")
    start = ["parallel", "--will-cite", "-k", "-q", *options, *SHOW, *command, *words]
    done = subprocess.run(start, capture_output=True, check=True, input=b"p\nq\n")
    jobs = done.stdout.decode().split(f"{SHOW[-1]}\0")[1:]
    return [job.split("\0")[:-1] for job in jobs]


def by_tenbin(command: tuple[str, ...], words: list[str]) -> list[list[str]]:
    """Return the words of each job."""
    whole = ["show", *command]
    found = combinations(words)
    check(whole, len(found[0]))
    return [expand(whole, arguments, number)[1:] for number, arguments in enumerate(found, 1)]


def test_every_form_of_every_argument_is_that_of_parallel() -> None:
    words = [":::", *ARGUMENTS]
    assert by_tenbin(FORMS, words) == by_parallel(FORMS, words, "-0")  # else it would split at line breaks


@pytest.mark.parametrize("command", COMMANDS, ids=repr)
def test_several_arguments_in_one_command_are_as_in_parallel(command: tuple[str, ...]) -> None:
    words = [":::", "a.b", "c  d", ":::", "x/y", ""]
    assert by_tenbin(command, words) == by_parallel(command, words)


@pytest.mark.parametrize("source", SOURCES)
def test_combinations_are_those_of_parallel(
    lists: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    words = source.split()
    expected = by_parallel((), words)
    with (lists / "input").open("w+") as given:
        given.write("p\nq\n")
        given.seek(0)
        monkeypatch.setattr(sys, "stdin", given)
        assert by_tenbin((), words) == expected


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0")), min_size=1, max_size=3))
def test_an_argument_in_a_place_of_its_own_comes_as_it_is(arguments: list[str]) -> None:
    places = [f"{{{place}}}" for place in range(1, len(arguments) + 1)]
    assert expand(["show", *places], arguments, 1) == ["show", *arguments]
    assert expand(["show"], arguments, 1) == ["show", *arguments]


def test_the_command_ends_at_the_first_source() -> None:
    assert split(["a", "{}", ":::", "b", "::::", "c"]) == (["a", "{}"], [":::", "b", "::::", "c"])
    assert split(["a", "::"]) == (["a", "::"], [])


@pytest.mark.parametrize("word", ["{%}", "x{= $_++ =}", "{2}", "{-2}", "{0}", "{1#}", "{1%}"])
def test_a_replacement_that_cannot_be_made_is_named(word: str) -> None:
    with pytest.raises(BadInput) as raised:
        check(["show", "{}", word], 1)
    assert word.removeprefix("x") in raised.value.what
