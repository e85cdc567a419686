"""Arguments that are no fields of a job, and fields that the client must know."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Unpack, get_type_hints

import pytest

import tenbin
from tenbin.client.client import words_of
from tenbin.fields import JobFields


@pytest.mark.parametrize("call", [tenbin.submit, tenbin.Client.submit, tenbin.Executor.__init__])
def test_editors_and_mypy_know_the_arguments(call: Callable[..., Any]) -> None:
    assert get_type_hints(call)["needs"] == Unpack[JobFields]
    assert (Path(tenbin.__file__).parent / "py.typed").is_file()


def test_a_misspelt_argument_names_the_near_ones(tmp_path: Path) -> None:
    client = tenbin.Client(tmp_path)  # nobody answers there: the arguments are looked at first
    for call in (
        lambda: client.submit(["true"], core=2),
        lambda: tenbin.submit(["true"], core=2),
        lambda: tenbin.Executor(home=tmp_path, core=2),
    ):
        with pytest.raises(TypeError, match=r"no argument 'core'; did you mean .*cores") as found:
            call()
        assert isinstance(found.value, tenbin.TenbinError) and found.value.exit_code == 2
    with pytest.raises(TypeError, match="did you mean max_workers"):
        tenbin.Executor(home=tmp_path, max_worker=2)
    with pytest.raises(TypeError, match=r"no argument 'zzzzz'; there are: account, "):
        client.submit(["true"], zzzzz=1)
    for name in ("mpi", "array_index"):  # which make no sense for a function
        with pytest.raises(TypeError, match=f"Executor has no argument '{name}'"):
            tenbin.Executor(home=tmp_path, **{name: 1})
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            "sleep 1",
            "command 'sleep 1' is one text, and no list of words; write ['sleep', '1'], or",
        ),
        (b"true", "command 'true' is one text"),
        (5, "command 5 is no list of words; write for instance ['sleep', '10']"),
        (None, "command None is no list of words"),
        (["head", "-n", 5], "command[2] is 5, and no text; write str(5)"),
    ],
)
def test_a_command_that_is_no_list_of_words_is_refused_and_never_taken_apart(
    tmp_path: Path, command: Any, message: str
) -> None:
    client = tenbin.Client(tmp_path)
    for call in (
        lambda: client.submit(command),
        lambda: tenbin.submit(command),
        lambda: client.submit_all([{"command": command}]),
    ):
        with pytest.raises(TypeError) as caught:
            call()
        assert str(caught.value).startswith(message)
        assert isinstance(caught.value, tenbin.TenbinError) and caught.value.exit_code == 2


def test_a_path_is_a_word() -> None:
    assert words_of((Path("/bin/cat"), "x")) == ["/bin/cat", "x"]
