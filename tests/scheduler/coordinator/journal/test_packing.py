"""The files of jobs that ended long ago are packed, and everybody reads them there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from agent.attempts.folder import Attempt
from agent.attempts.records import Order
from agent.processes.samples import Sample
from profiles.errors import BadInput
from profiles.files.safe_files import try_lock
from scheduler.coordinator.journal import packing
from scheduler.coordinator.journal.journal import Journal
from scheduler.coordinator.journal.packing import Packer
from scheduler.coordinator.journal.recovery import check_folders, recover
from scheduler.engines.common import job_folders
from scheduler.engines.common.job_folders import JobFolders
from scheduler.jobs.entry import Entry, Stage
from scheduler.jobs.specs import JobSpec
from tenbin.page import jobs as job_view
from tests.support.amounts import ALL
from tests.support.coordinator import Up
from tests.support.killed import killed

JOBS = range(1, 31)
OPEN = (3, 30)  # jobs that have not ended
SAMPLES = ",".join(Sample._fields) + "\n" + "".join(f"{at},1.5,20.0,0.0,0.0,1,1,\n" for at in (10.0, 11.0))


def files(home: Path) -> list[Path]:
    return [Path(place, name) for place, _, names in os.walk(home / "jobs") for name in names]


def read(home: Path) -> list[Any]:
    """All that users can read of the jobs' files."""
    folders, told = JobFolders(home), []
    with closing(Journal(home)) as journal:
        entries = journal.entries()
    for entry in entries:
        paths = [folders.output(entry, "stdout"), folders.output(entry, "stderr")]
        told.append([folders.piece(path, start) for path in paths for start in (0, 3, 99)])
        told.append([folders.piece(path, 0, last) for path in paths for last in (1, 4)])
        told.append(job_view.output(home, entry, "stdout", None))
        told.append(folders.samples(entry.id, 1))
        told.append(folders.order(entry.id, 1))
    return told


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a store of 30 jobs, two of which have not ended."""
    monkeypatch.setattr(packing, "SETTLED_S", -1e9)
    home = tmp_path / "home"
    with closing(Journal(home)) as journal:
        key, spec, added = journal.keep_environment({}), JobSpec(command=("true",), folder="/"), []
        for number in JOBS:
            folder = home / "jobs" / str(number)
            out, err, attempt = folder / "stdout", folder / "stderr", Attempt(folder / "attempt-1")
            attempt.place(Order(number, 1, "m", ("true",), {"N": "é"}, "/", str(out), str(err)))
            assert attempt.claim()
            (attempt.path / "alive").touch()
            attempt.samples.write_text(SAMPLES)
            out.write_text(f"output of {number}\n")
            err.touch()
            stage = Stage.RUNNING if number in OPEN else Stage.DONE
            added.append(Entry(number, spec, key, 1.0, stage=stage, attempt=1, code=0, end_s=2.0))
        journal.commit((), (), added)
    return home


def test_all_but_the_last_jobs_are_packed_and_read_as_before(home: Path) -> None:
    truth, before = read(home), len(files(home))
    Packer(home, 10).pack()
    assert {int(path.name) for path in (home / "jobs").iterdir()} == {3, *range(20, 31)}
    assert len(files(home)) == before * 12 // 30
    assert read(home) == truth
    Packer(home, 0).pack()
    assert {int(path.name) for path in (home / "jobs").iterdir()} == set(OPEN)
    assert read(home) == truth


def test_what_is_not_tenbins_or_large_or_still_used_stays(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs, truth = home / "jobs", read(home)
    (jobs / "1" / "model.ckpt").write_text("mine")
    monkeypatch.setattr(job_folders, "LARGEST", 50_000)
    large = "x" * 60_000
    (jobs / "2" / "stderr").write_text(large)
    used = try_lock(jobs / "4" / "attempt-1" / "alive")
    assert used is not None
    packer = Packer(home, 0)
    packer.pack()
    left = {path.relative_to(jobs).as_posix() for path in files(home)}
    left = {name for name in left if int(name.split("/")[0]) not in OPEN}
    of_four = {name for name in left if name.startswith("4/")}
    assert left - of_four == {"1/model.ckpt", "2/stderr"}
    assert "4/attempt-1/order.json" in of_four and "4/stdout" not in of_four
    os.close(used)
    assert (jobs / "2" / "stderr").read_text() == large
    (jobs / "2" / "stderr").write_text("")
    assert read(home) == truth


def test_jobs_that_may_be_run_again_stay(home: Path) -> None:
    with closing(Journal(home)) as journal:
        failed = journal.entry(5)
        assert failed is not None
        failed.stage = Stage.FAILED
        journal.commit([failed])
    Packer(home, 0).pack()
    assert {int(path.name) for path in (home / "jobs").iterdir()} == {5, *OPEN}


def test_jobs_that_have_just_ended_stay(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "SETTLED_S", 60.0)
    monkeypatch.setattr(packing.time, "time", lambda: 61.0)
    Packer(home, 0).pack()
    assert len(list((home / "jobs").iterdir())) == len(JOBS)


def test_packing_that_was_killed_anywhere_goes_on(home: Path, tmp_path: Path) -> None:
    truth, copy = read(home), tmp_path / "copy"
    shutil.copytree(home, copy, symlinks=True)
    for step in count(1, 19 if ALL else 41):
        came = killed(step, lambda: Packer(home, 10).pack())
        assert read(home) == truth, step
        Packer(home, 10).pack()
        assert len(list((home / "jobs").iterdir())) == 12 and read(home) == truth, step
        if not came:
            break
        shutil.rmtree(home)
        shutil.copytree(copy, home)
    assert step > 300


def test_packed_jobs_are_recovered_as_they_ended(home: Path) -> None:
    """A journal that is lost, or an older one, has all of them again; none runs again."""
    with closing(Journal(home)) as journal:
        truth = [entry for entry in journal.entries() if entry.stage.final]
    Packer(home, 0).pack()
    shutil.rmtree(home / "jobs")
    for path in home.glob("journal.*"):
        path.unlink()
    with closing(Journal(home)) as journal:
        assert journal.next_id() == 30
        with pytest.raises(BadInput, match=r"of jobs 1-2, 4-29 there is more in jobs/"):
            check_folders(journal)
    assert "28 of its jobs could be read" in recover(home)
    with closing(Journal(home)) as journal:
        assert journal.entries() == truth
        check_folders(journal)
        older = Entry(30, truth[0].spec, truth[0].environment, 1.0)
        journal.commit((), (), [older])
        check_folders(journal)
        journal.commit([Entry(7, truth[0].spec, truth[0].environment, 1.0)])  # as before its end
        with pytest.raises(BadInput, match="of job 7 there is more"):
            check_folders(journal)
    recover(home)
    with closing(Journal(home)) as journal:
        assert journal.entries()[:-1] == truth


def test_a_script_stays_as_long_as_a_job_may_need_it(home: Path) -> None:
    folders = JobFolders(home)
    paths = [folders.keep_script("fit.sh", b"#!/bin/sh\n# %d" % number) for number in range(7)]
    done, runs_again, runs, argument, recent, renamed, nobodys = paths
    also = folders.keep_script("other name.sh", done.read_bytes())
    with closing(Journal(home)) as journal:
        key, added = journal.keep_environment({}), []
        for number, (words, stage) in enumerate(
            [
                ((str(done),), Stage.DONE),
                ((str(also), "1"), Stage.DONE),
                ((str(runs_again),), Stage.CANCELLED),
                ((str(runs),), Stage.RUNNING),
                (("sh", str(argument)), Stage.HELD),
            ],
            31,
        ):
            spec = JobSpec(command=words, folder="/")
            (home / "jobs" / str(number)).mkdir()
            added.append(Entry(number, spec, key, 1.0, stage=stage, attempt=1, end_s=2.0))
        journal.commit((), (), added)
    (home / "jobs" / "31" / "of its program").touch()  # its folder stays
    Packer(home, 100).pack()
    assert all(path.exists() for path in (*paths, also))  # kept a moment ago
    for path in (*paths, also):
        os.utime(path, (1.0, 1.0))
    assert folders.keep_script("fit.sh", recent.read_bytes()) == recent  # submitted once more
    folders.keep_script("new name.sh", renamed.read_bytes())
    Packer(home, 100).pack()
    assert [path for path in paths if not path.exists()] == [nobodys] and also.exists()
    Packer(home, 1).pack()  # job 32 stays
    assert done.exists() and also.exists()
    Packer(home, 0).pack()
    assert {path for path in paths if path.exists()} == {runs_again, runs, argument, recent, renamed}
    assert {path.parent for path in paths if path.exists()} == set((home / "scripts").iterdir())


@pytest.fixture
def damaged(home: Path) -> Iterator[Path]:
    Packer(home, 0).pack()
    (home / "jobs.sqlite").write_bytes(b"x" * 4096)
    return home


def test_a_damaged_pack_is_said_in_one_line(damaged: Path) -> None:
    with pytest.raises(BadInput, match=r"jobs.sqlite: file is not a database; .* move it away"):
        Journal(damaged)
    (damaged / "jobs.sqlite").unlink()
    Journal(damaged).close()


def test_logs_and_info_of_a_packed_job(up: Up, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "SETTLED_S", -1e9)
    up.start("--cores", "1", "--keep", "7")
    job = up.client.submit(["sh", "-c", "echo out; echo err >&2"])
    assert job.result(30) == 0
    folder = up.home / "jobs" / "1"
    up.until(lambda: not Attempt(folder / "attempt-1").lives())
    before = up.client.job(1).info()
    assert not before["packed"] and (folder / "stdout").exists()
    Packer(up.home, 0).pack()
    assert not folder.exists()
    assert up.client.output(1) == b"out\n" and up.client.output(1, "stderr") == b"err\n"
    assert up.run("logs", "1").stdout == up.run("logs", "1", "--tail", "1").stdout == "out\n"
    assert up.client.job(1).info() == before | {"packed": True}
    assert "its folder is packed, see: tenbin logs 1" in up.run("info", "1").stdout
    assert up.client.submit(["true"]).result(30) == 0
