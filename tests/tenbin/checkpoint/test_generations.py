"""Generations of a checkpoint: an old copy that writes late replaces nothing and is not taken up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.attempts.folder import Attempt
from agent.attempts.records import Order
from tenbin.checkpoint import CheckpointError, Generations, Part, Superseded, read_header
from tests.support.amounts import examples
from tests.support.labs.interleaving import CALLS, Stepped
from tests.support.paths import ROOT
from tests.support.waiting import until

PROGRAM, SIZE = "p", 5000
Files = Callable[[int], Generations]


class Content(NamedTuple):
    """The content of a checkpoint: the attempt that has computed it, and its step."""

    by: int
    step: int


def header(path: Path) -> tuple[dict[str, Any], dict[str, Part]]:
    return read_header(path, PROGRAM)


def save(files: Generations, content: Content) -> None:
    def fill(memory: memoryview, at: int) -> None:
        memory[:] = bytes([content.by * 16 + content.step]) * len(memory)

    files.save(PROGRAM, content._asdict(), [Part("a", SIZE)], [fill])


def taken(files: Generations) -> Content | None:
    """Return the checkpoint from which an attempt goes on, its data checked against its description."""
    found = files.take_up(header)
    if found is None:
        return None
    path, (state, parts) = found
    content, data = Content(**state), bytearray(SIZE)

    def take(memory: memoryview, at: int) -> None:
        data[at : at + len(memory)] = memory

    files.read(path, list(parts.values()), [take])
    assert data == bytes([content.by * 16 + content.step]) * SIZE
    return content


def begin(folder: Path, attempt: int) -> None:
    """As the coordinator does before an attempt can begin."""
    order = Order(1, attempt, "m", ("true",), {}, "/", "/dev/null", "/dev/null")
    Attempt(folder / f"attempt-{attempt}").place(order)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    def of(generation: int) -> Generations:
        return Generations(tmp_path / "checkpoint.tenbin", generation, tmp_path)

    return of


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if "tenbin" in path.name or "data" in path.name)


# -- any order of what two attempts do ---------------------------------------------------------------------

SAVES = 2


def attempt_of(files: Generations, found: list[Content | None]) -> None:
    """Make an attempt: take up the checkpoint found, and save."""
    found.append(taken(files))
    for step in range(1, SAVES + 1):
        save(files, Content(files.generation or 0, step))


def held(folder: Path, generation: int) -> Content | None:
    """Read what lies under the name of an attempt."""
    try:
        return Content(**header(folder / f"checkpoint.tenbin.g{generation}")[0])
    except FileNotFoundError:
        return None


@dataclass
class Story:
    """Attempts of a job that run beside each other, call by call.

    Attributes:
        found: what each attempt has taken up; empty: it has not yet.
        past: what lay under the names of the first two after each call.
    """

    folder: Path
    actors: dict[int, Stepped] = field(default_factory=dict)
    found: dict[int, list[Content | None]] = field(default_factory=dict)
    past: list[tuple[Content | None, Content | None]] = field(default_factory=lambda: [(None, None)])

    def enter(self, number: int) -> None:
        begin(self.folder, number)
        files = Generations(self.folder / "checkpoint.tenbin", number, self.folder)
        self.found[number] = []
        self.actors[number] = Stepped(lambda: attempt_of(files, self.found[number]))

    def step(self, number: int) -> None:
        """Check after each step that what is whole stays so until the third attempt is about to remove it."""
        self.actors[number].step()
        now, before = (held(self.folder, 1), held(self.folder, 2)), self.past[-1]
        self.past.append(now)
        assert now[0] is None or now[0].by == 1
        if not self.found.get(3):
            assert now[1] or not before[1], "the second one's is gone"
            assert now[0] or now[1] or not before[0], "the first one's is gone, and none instead"
            if before[1] and now[1] != before[1]:
                assert number == 2 and now[1] is not None and now[1].by == 2

    def play(self, moves: list[tuple[int, str]]) -> None:
        """Let attempts go on in this order, each by at least one call and up to a certain one.

        The third does not go beyond its beginning.
        """
        for number, last in moves:
            actor = self.actors[number]
            self.step(number)
            while not (actor.done or actor.next == last or (number == 3 and self.found[3])):
                self.step(number)


def moves(*numbers: int) -> st.SearchStrategy[list[tuple[int, str]]]:
    """Draw the attempt that goes on, and the call up to which it runs."""
    return st.lists(st.tuples(st.sampled_from(numbers), st.sampled_from(sorted(CALLS))), max_size=10)


@settings(max_examples=examples(150))
@given(moves(1), moves(1, 2), moves(1, 2, 3), st.permutations((1, 2, 3)))
def test_whatever_the_order_of_their_writes(
    alone: list[tuple[int, str]],
    both: list[tuple[int, str]],
    three: list[tuple[int, str]],
    ends: list[int],
) -> None:
    """The first attempt runs alone, then beside the second (nobody could end it), then both beside the third.

    The third gets what the second had put there, and only if that is nothing what the first had.
    """
    with TemporaryDirectory(prefix="generations-") as name:
        story = Story(Path(name))
        try:
            story.enter(1)
            story.play(alone)
            at_second = story.past[-1][0]
            story.enter(2)
            story.play(both)
            first, second = story.past[-1]
            story.enter(3)
            begun = len(story.past)
            story.play(three)
            while not story.found[3] and not story.actors[3].done:
                story.step(3)
            assert story.found[3], story.actors[3].error
            later = [one for pair in story.past[begun:] for one in pair if one]
            if second:
                assert story.found[3][0] in {second, *(one for one in later if one.by == 2)}
            elif first:
                assert story.found[3][0] in {first, *later}
            else:
                assert story.found[3][0] in {None, *later}
            if story.found[2] and at_second:
                assert story.found[2][0] is not None and story.found[2][0] >= at_second
            for number in ends:
                while not story.actors[number].done:
                    story.step(number)
            errors = [story.actors[number].error for number in (1, 2)]
            assert all(isinstance(error, Superseded | None) for error in errors), errors
            assert story.actors[3].error is None
            assert held(story.folder, 3) == Content(3, SAVES)
            fourth = Generations(story.folder / "checkpoint.tenbin", 4, story.folder)
            assert taken(fourth) == Content(3, SAVES)
        finally:
            for actor in story.actors.values():
                actor.give_up()


# -- a real copy that stands still -------------------------------------------------------------------------

COPY = """
import os, signal, sys
from pathlib import Path
from tenbin.checkpoint import Generations
from tests.tenbin.checkpoint.test_generations import Content, header, save, taken

mine = Generations.here(Path("checkpoint.tenbin"))

def stop(event, arguments):
    if event == "os.rename":
        os.kill(os.getpid(), signal.SIGSTOP)

print(taken(mine), flush=True)
if "first" in sys.argv:
    save(mine, Content(mine.generation, 1))
if "stop" in sys.argv:
    sys.addaudithook(stop)
save(mine, Content(mine.generation, 2))
"""


def copy(folder: Path, generation: int, *words: str) -> subprocess.Popen[str]:
    told = {"TENBIN_GENERATION": str(generation), "TENBIN_JOB_FOLDER": str(folder)}
    return subprocess.Popen(
        [sys.executable, "-c", COPY, *words],
        cwd=folder,
        env={**os.environ, **told, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def stopped(process: subprocess.Popen[str]) -> None:
    """Wait until it stands still, between its write and its rename."""
    until(lambda: os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOHANG))


def test_a_copy_that_stood_still_cannot_put_its_checkpoint_there(tmp_path: Path) -> None:
    """The attempt had looked and had written all its data; meanwhile the next attempt has saved."""
    begin(tmp_path, 1)
    old = copy(tmp_path, 1, "first", "stop")
    stopped(old)
    assert names(tmp_path) == [".checkpoint.tenbin.g1.part", "checkpoint.tenbin.g1"]
    begin(tmp_path, 2)
    new = copy(tmp_path, 2)
    assert new.communicate(timeout=60)[0] == f"{Content(1, 1)}\n" and new.returncode == 0
    old.send_signal(signal.SIGCONT)
    _, said = old.communicate(timeout=60)
    assert old.returncode == 1
    assert "attempt 2 of this job has begun; this is attempt 1" in said.splitlines()[-1]
    assert names(tmp_path) == ["checkpoint.tenbin.g2"]
    assert taken(Generations(tmp_path / "checkpoint.tenbin", 3, tmp_path)) == Content(2, 2)


def test_a_rename_that_arrives_late_is_not_taken_up(tmp_path: Path, files: Files) -> None:
    """As from a node whose last words to the file server come when all is over."""
    save(files(1), Content(1, 1))
    late = (tmp_path / "checkpoint.tenbin.g1").read_bytes()
    begin(tmp_path, 2)
    assert taken(files(2)) == Content(1, 1)
    save(files(2), Content(2, 1))
    (tmp_path / "checkpoint.tenbin.g1").write_bytes(late)
    assert taken(files(3)) == Content(2, 1)
    save(files(3), Content(3, 1))
    assert names(tmp_path) == ["checkpoint.tenbin.g3"]


def test_one_that_is_late_but_before_the_next_has_looked_counts(tmp_path: Path) -> None:
    """Its work is the job's own: nothing is lost."""
    begin(tmp_path, 1)
    old = copy(tmp_path, 1, "first", "stop")
    stopped(old)
    begin(tmp_path, 2)
    old.send_signal(signal.SIGCONT)
    assert old.wait(60) == 0
    new = copy(tmp_path, 2)
    assert new.communicate(timeout=60)[0] == f"{Content(1, 2)}\n"


def test_killed_between_write_and_rename_it_leaves_no_litter(tmp_path: Path, files: Files) -> None:
    """The half-written data make room for the next attempt's."""
    old = copy(tmp_path, 1, "first", "stop")
    stopped(old)
    old.kill()
    old.wait()
    begin(tmp_path, 2)
    assert taken(files(2)) == Content(1, 1)
    assert names(tmp_path) == ["checkpoint.tenbin.g1", "checkpoint.tenbin.g2"]


# -- names, and files of others ----------------------------------------------------------------------------


def test_an_attempt_that_does_not_count_says_so(tmp_path: Path, files: Files) -> None:
    begin(tmp_path, 1)
    assert not (tmp_path / "generation").exists()
    save(files(1), Content(1, 1))
    begin(tmp_path, 2)
    for deed in (lambda: save(files(1), Content(1, 2)), lambda: taken(files(1)), lambda: files(1).clear()):
        with pytest.raises(Superseded, match="attempt 2 of this job has begun; this is attempt 1"):
            deed()
    assert taken(files(2)) == Content(1, 1)
    (tmp_path / "generation").write_text("x")
    with pytest.raises(CheckpointError, match="generation is no number; remove it"):
        files(2).check()


def test_one_of_before_there_were_generations_is_taken_up(tmp_path: Path, files: Files) -> None:
    """A checkpoint of an older tenbin goes once there is a newer one."""
    save(Generations(tmp_path / "checkpoint.tenbin"), Content(0, 5))
    assert names(tmp_path) == ["checkpoint.tenbin"]
    assert taken(files(2)) == Content(0, 5)
    save(files(2), Content(2, 1))
    assert names(tmp_path) == ["checkpoint.tenbin.g2"]
    files(2).clear()
    assert names(tmp_path) == []


def test_outside_tenbin_there_is_one_name(tmp_path: Path) -> None:
    """Nothing that a job's file says counts there."""
    (tmp_path / "generation").write_text("9")
    variables = {"TENBIN_JOB_FOLDER": str(tmp_path)}
    plain = Generations.here(tmp_path / "data", variables)
    assert plain.file == tmp_path / "data" and taken(plain) is None
    save(plain, Content(0, 1))
    assert names(tmp_path) == ["data"] and taken(plain) == Content(0, 1)
    plain.clear()
    assert names(tmp_path) == []


def test_a_job_goes_on_where_another_has_left_it(tmp_path: Path) -> None:
    """A file in a folder that jobs share: first a job's own, else the newest, of whatever attempt."""
    jobs = tmp_path / "jobs"
    told = {"TENBIN_GENERATION": "3", "TENBIN_JOB_FOLDER": str(jobs / "5"), "TENBIN_JOB_KEY": "5-100"}
    fifth = Generations.here(tmp_path / "data", told)
    assert fifth.file == tmp_path / "data.5-100.g3"
    save(fifth, Content(3, 1))
    told |= {"TENBIN_GENERATION": "1", "TENBIN_JOB_FOLDER": str(jobs / "9"), "TENBIN_JOB_KEY": "9-200"}
    ninth = Generations.here(tmp_path / "data", told)
    plain = Generations(tmp_path / "data")
    assert taken(plain) == taken(ninth) == Content(3, 1)
    save(ninth, Content(1, 2))
    assert names(tmp_path) == ["data.9-200.g1"]
    save(fifth, Content(3, 4))  # an old copy of the other job: newer, and yet not this job's own
    again = Generations.here(tmp_path / "data", told | {"TENBIN_GENERATION": "2"})
    assert taken(again) == Content(1, 2)
    others = ["data.5-100.g1.more", "data2", "data.g1.g2.part", ".data.9-200.g7.part.old"]
    for name in others:
        (tmp_path / name).touch()
    again.clear()
    assert names(tmp_path) == sorted(others)


def test_in_the_jobs_own_folder_it_is_not_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told = {"TENBIN_GENERATION": "2", "TENBIN_JOB_FOLDER": str(tmp_path), "TENBIN_JOB_KEY": "5-100"}
    assert Generations.here(Path("data"), told).file == Path("data.g2")
    with pytest.raises(CheckpointError, match="TENBIN_GENERATION='two' is no number"):
        Generations.here(Path("data"), told | {"TENBIN_GENERATION": "two"})


def test_without_second_names_it_is_read_where_it_is(
    files: Files, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On a file system that has no hard links."""

    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    save(files(1), Content(1, 1))
    monkeypatch.setattr(os, "link", refused)
    assert taken(files(2)) == Content(1, 1)
    assert names(tmp_path) == ["checkpoint.tenbin.g1"]
    save(files(2), Content(2, 1))
    assert names(tmp_path) == ["checkpoint.tenbin.g2"]
