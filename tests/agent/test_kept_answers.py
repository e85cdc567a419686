"""What was tried is kept until something of it changes, and said; what failed is tried each time."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from agent import kept_answers
from agent.kept_answers import Answer, KeptAnswers
from profiles.records import Missing, Mpi
from tests.support.programs import tenbin
from tests.support.records import make_gpu

FOUND = Answer(mpi=Mpi(library="MPICH 5.0.2", launcher="/usr/bin/mpiexec"))


class Machine:
    """Something to be tried, with a library."""

    def __init__(self, folder: Path, found: Answer = FOUND) -> None:
        self.library, self.found, self.times = folder / "libmpi.so", found, 0
        self.library.write_text("one")

    def attempt(self) -> Answer:
        self.times += 1
        return self.found

    def is_tried(self, *more: Path, again: bool = False, about: str = "") -> bool:
        before, examined = self.times, KeptAnswers(keeps=True, again=again)
        files = [self.library, self.library.parent / "absent.so", *more]
        assert examined.answer("MPI", files, self.attempt, about) == self.found
        assert (self.times > before) == (not examined.kept_s)
        return self.times > before


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tenbin" / "answers"


def test_an_answer_is_kept_until_something_changes(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(tmp_path)
    assert machine.is_tried() and not machine.is_tried() and machine.is_tried(again=True)
    machine.library.write_text("another")
    assert machine.is_tried() and not machine.is_tried()
    (tmp_path / "absent.so").touch()
    assert machine.is_tried() and not machine.is_tried()
    machine.library.unlink()
    assert machine.is_tried() and not machine.is_tried()
    assert machine.is_tried(tmp_path / "another.so") and machine.is_tried(about="/captured/sys")
    monkeypatch.setenv("OCL_ICD_VENDORS", "/opt/vendors")
    assert machine.is_tried() and not machine.is_tried()
    monkeypatch.setenv("COLUMNS", "90")
    assert not machine.is_tried()
    (kept,) = cache.iterdir()
    for damaged in ("", "[]", "{}", kept.read_text().replace("MPICH", "\\")):
        kept.write_text(damaged)
        assert machine.is_tried() and not machine.is_tried(), damaged


def test_an_answer_is_kept_for_a_day(cache: Path, tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    assert machine.is_tried()
    (kept,) = cache.iterdir()
    for age_s, is_old in (
        (kept_answers.LONGEST_S - 600, False),
        (kept_answers.LONGEST_S + 1, True),
        (-60, True),
    ):
        kept.write_text(json.dumps({**json.loads(kept.read_text()), "at_s": time.time() - age_s}))
        assert machine.is_tried() == is_old


def test_an_answer_rests_on_the_libraries_that_were_loaded(cache: Path, tmp_path: Path) -> None:
    driver = tmp_path / "driver.so"
    driver.write_text("one")
    machine = Machine(tmp_path, Answer(files=(str(driver),)))
    assert machine.is_tried() and not machine.is_tried()
    driver.write_text("another")
    assert machine.is_tried() and not machine.is_tried()


@pytest.mark.parametrize(
    "found",
    [Answer(missing=(Missing(what="mpi", reason="none", remedy="install"),)), Answer(gpus=(make_gpu(),))],
)
def test_what_failed_and_what_gpus_say_is_asked_each_time(cache: Path, tmp_path: Path, found: Answer) -> None:
    machine = Machine(tmp_path, found)
    assert machine.is_tried() and machine.is_tried()


def test_without_a_folder_all_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    machine = Machine(tmp_path)
    assert machine.is_tried() and machine.is_tried()


def test_the_doctor_says_what_was_not_tried(cache: Path) -> None:
    """And the same of all else, but for the load of the machine."""

    def findings(*options: str) -> tuple[list[str], list[str]]:
        done = tenbin("doctor", "--json", *options)
        assert done.returncode == 0, done.stderr
        whole = [f"{row['topic']}: {row['what']}" for row in json.loads(done.stdout)]
        kept = [text for text in whole if " ago, nothing of them has changed since" in text]
        return kept, [text for text in whole if not text.startswith("machine")]

    (none, first), (kept, second), (again, third) = findings(), findings(), findings("--again")
    assert not none and not again and len(kept) == 1 and first == second == third
