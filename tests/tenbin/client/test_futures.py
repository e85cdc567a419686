"""The client in the shape of ``concurrent.futures``: jobs, their output, and their fields."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, FIRST_EXCEPTION, CancelledError
from itertools import pairwise
from pathlib import Path
from typing import Any, Unpack, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tenbin
from tenbin.client.client import lines, pieces, words_of
from tenbin.fields import JobFields
from tests.support.coordinator import Up


def gate(up: Up, name: str, then: str = "") -> tenbin.Job:
    """Return a job that ends when a file of that name is there."""
    return up.client.submit(
        ["sh", "-c", f"while ! [ -e {name} ]; do sleep 0.02; done; {then}"], folder=str(up.home)
    )


def test_a_job_is_a_future(up: Up, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENBIN_HOME", str(up.home))
    up.start("--cores", "1")
    job = gate(up, "go", "exit 3")
    up.until(job.running)
    assert not job.done() and not job.cancelled()
    with pytest.raises(TimeoutError):
        job.result(0.05)
    waiting = tenbin.submit(["true"])
    assert not waiting.running() and waiting != job and tenbin.job(waiting.id) == waiting
    (up.home / "go").touch()
    assert job.result(timeout=30) == 3 and job.exception() is None and job.done()
    assert waiting.result(30) == 0
    assert job.cancel() is False
    long = tenbin.submit(["sleep", "60"])
    assert long.cancel() is True
    for ask in (long.result, long.exception):
        with pytest.raises(CancelledError):
            ask(30)
    with pytest.raises(tenbin.TenbinError, match="was cancelled"):
        long.result(30)
    assert long.cancelled() and long.done()
    missing = tenbin.submit(["no-such-program"], after_any=[job.id])
    assert "could not be started" in str(missing.exception(30))
    with pytest.raises(tenbin.TenbinError, match="could not be started"):
        missing.result()
    assert {job, tenbin.job(job.id)} == {job}


def test_wait_and_as_completed(up: Up) -> None:
    up.start("--cores", "2")
    slow, quick = gate(up, "slow"), gate(up, "quick", "exit 5")
    nothing = tenbin.wait([slow, quick], timeout=0.1, return_when=FIRST_COMPLETED)
    assert nothing.done == set() and nothing.not_done == {slow, quick}
    (up.home / "quick").touch()
    assert tenbin.wait([slow, quick], 30, FIRST_COMPLETED) == ({quick}, {slow})
    assert tenbin.wait([slow, quick], 30, FIRST_EXCEPTION) == ({quick}, {slow})
    with pytest.raises(TimeoutError, match="1 jobs have not ended"):
        list(tenbin.as_completed([slow, quick], 0.2))
    (up.home / "slow").touch()
    assert tenbin.wait([slow, quick]) == ({slow, quick}, set())
    many = up.client.submit_all([{"command": ["true"], "folder": "/"}] * 20)
    assert {job.id for job in tenbin.as_completed(many, 170)} == {job.id for job in many}
    assert list(tenbin.as_completed([])) == [] and tenbin.wait([]) == (set(), set())
    with pytest.raises(ValueError, match="SOMETIMES"):
        tenbin.wait([slow], return_when="SOMETIMES")
    with pytest.raises(tenbin.TenbinError, match="no job 99"):
        tenbin.wait([up.client.job(99)])


def test_callbacks_come_once_also_over_a_restart(up: Up) -> None:
    up.start("--cores", "2")
    one, two = gate(up, "one"), gate(up, "two")
    seen: list[tuple[int, str]] = []
    arrived = threading.Semaphore(0)

    def note(job: tenbin.Job) -> None:
        seen.append((job.id, job.info()["stage"]))
        arrived.release()
        raise RuntimeError("a callback that fails harms nobody")

    for job in (one, two, two):
        job.add_done_callback(note)
    (up.home / "one").touch()
    assert arrived.acquire(timeout=30)
    up.kill()
    (up.home / "two").touch()
    up.start("--cores", "2")
    assert arrived.acquire(timeout=30) and arrived.acquire(timeout=30)
    one.add_done_callback(note)  # at once, in this thread
    assert seen == [(one.id, "done"), (two.id, "done"), (two.id, "done"), (one.id, "done")]
    until = time.monotonic() + 10
    while any(thread.name == "tenbin-callbacks" for thread in threading.enumerate()):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_the_client_imports_nothing_but_the_standard_library(tmp_path: Path) -> None:
    code = (
        "import sys; before = set(sys.modules); import tenbin; tenbin.Client, tenbin.wait, tenbin.submit\n"
        "new = {n.partition('.')[0] for n in set(sys.modules) - before} - {'tenbin'}\n"
        "print(sorted(new - set(sys.stdlib_module_names)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# Output of jobs, from a program.


@given(st.text(alphabet="aé€\n\r😀"), st.lists(st.integers(0, 40)))
def test_lines_are_those_of_the_whole_text(text: str, cuts: list[int]) -> None:
    data, places = text.encode(), [0, *sorted(cuts), None]
    parts = [data[a:b] for a, b in pairwise(places)]
    found = list(lines(parts))
    assert "".join(found) == text
    assert all(line.endswith("\n") for line in found[:-1])
    assert all("\n" not in line[:-1] and line for line in found)


def test_what_is_not_utf_8_is_replaced() -> None:
    assert list(lines([b"a\xff\nb\xe2", b"\x82"])) == ["a�\n", "b�"]


def test_nothing_is_lost_that_is_written_before_the_end() -> None:
    written, looks = [b"one"], iter([False, True])

    def has_ended() -> bool:
        written.append(b" more")
        return next(looks)

    found = b"".join(pieces(lambda start: b"".join(written)[start : start + 2], has_ended, follow=True))
    assert found == b"one more more"


@pytest.mark.parametrize(
    "text", [b"", b"\n", b"one", b"one\n", b"one\n\n", b"a\nb\r\nc\rd\ne", b"a\n\nb\n" * 9]
)
@pytest.mark.parametrize("count", [1, 2, 5, 40])
def test_the_last_lines_are_those_of_tail(text: bytes, count: int) -> None:
    wanted = subprocess.run(["tail", "-n", str(count)], input=text, stdout=subprocess.PIPE, check=True).stdout
    assert b"".join(pieces(lambda start: text[start : start + 3], lambda: True, tail=count)) == wanted


def test_after_the_last_lines_comes_all_that_is_written_then() -> None:
    written, ends = [b"one\ntwo\nthr"], iter([False, False, True])

    def has_ended() -> bool:
        end = next(ends)
        written.append(b"ee\nfour\nfive\n" if end else b"")
        return end

    found = pieces(lambda start: b"".join(written)[start:], has_ended, follow=True, tail=2)
    assert list(found) == [b"two\nthr", b"ee\nfour\nfive\n"]


def test_output_of_a_job(up: Up, tmp_path: Path) -> None:
    up.start("--cores", "1")
    script = "echo out; echo err >&2; while ! [ -e go ]; do sleep 0.02; done; printf 'grün\\377'"
    job = up.client.submit(["sh", "-c", script], folder=str(tmp_path))
    followed = job.logs(follow=True)
    assert next(followed) == "out\n"
    assert job.stdout() == "out\n" and list(job.logs()) == ["out\n"] and not job.done()
    (tmp_path / "go").touch()
    assert list(followed) == ["grün�"] and job.done()
    assert job.stdout() == "out\ngrün�" and job.stderr() == "err\n"
    assert list(job.logs(stream="stderr")) == ["err\n"]
    assert list(job.output()) == ["out\ngrün".encode() + b"\xff"]


# Arguments that are no fields of a job, and fields that the client must know.


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
