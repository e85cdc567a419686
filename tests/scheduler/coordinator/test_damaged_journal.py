"""A damaged journal: all of its jobs, or a refusal; never fewer in silence.

``TENBIN_DRILL=SEED`` damages it 3,000 times, without it 150 times.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from profiles.errors import BadInput
from scheduler.coordinator.job_table import JobTable
from scheduler.coordinator.journal.journal import Journal
from scheduler.coordinator.journal.journal_file import TallyFile, read_only, read_tally
from scheduler.coordinator.journal.recovery import recover
from scheduler.jobs.entry import Entry
from scheduler.model.jobs import Cluster, Pool

FULL = os.environ.get("TENBIN_DRILL")
SEED, DAMAGES = int(FULL or 20261123), 3000 if FULL else 150
# Commits as a coordinator makes them, and says after each which jobs are safe; it never ends by itself.
WRITER = """
import random, sys
from pathlib import Path
from scheduler.coordinator.journal.journal import Journal
from scheduler.jobs.entry import Stage
from scheduler.coordinator.job_table import JobTable
from scheduler.coordinator.journal.recovery import recover
from scheduler.coordinator.journal.journal_file import TallyFile, read_tally
from scheduler.jobs.specs import JobSpec
from scheduler.model.jobs import Cluster, Placement, Pool, Region

home, seed, jobs = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
chance, journal = random.Random(seed), Journal(home)
job_table, number = JobTable(journal, Cluster((Pool("core", 4),))), 0
print("begun", flush=True)
while True:
    if number < jobs:
        count = min(chance.randint(1, 5), jobs - number)
        specs = [JobSpec(command=("echo", "é" * chance.randint(1, 400)), folder="/") for _ in range(count)]
        number = job_table.add(specs, {"HOME": "/", "N": str(chance.randint(1, 3))}, 1.0)[-1].id
        print("safe", number, flush=True)
    else:
        print("all", flush=True)
    for entry in chance.sample(list(job_table.entries.values()), min(3, len(job_table.entries))):
        if entry.stage is Stage.WAITING and chance.random() < 0.5:
            entry.stage, entry.attempt, entry.alive = Stage.RUNNING, 1, True
            entry.placement, entry.cores, entry.start_s = Placement("core", 1), (entry.id % 4,), 2.5
            job_table.record(entry, 2.0, "start", "attempt 1")
            job_table.predictions.predict(entry.id, 1, 2.0, "run-time", value=7.25, pool="core")
        elif entry.stage is Stage.RUNNING:
            entry.stage, entry.alive, entry.code, entry.end_s = Stage.DONE, False, 0, 9.5
            entry.usage = {"wall_s": 7.0}
            job_table.record(entry, 9.5, "done")
            job_table.drop(entry)
    job_table.commit([(5.0, ("tag", 1))], {"core": [Region("r", 4, 4)]})
    if chance.random() < 0.1:
        journal.tidy(now=True)
"""


def write(home: Path, seed: int, jobs: int, turns: int | None = None) -> int:
    """Let a process write a journal, and kill it after so many turns (None: when all jobs are in).

    Returns: the last job that was safe.
    """
    words = [sys.executable, "-c", WRITER, str(home), str(seed), str(jobs)]
    safe = 0
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for turn, line in enumerate(process.stdout):
            if line == "all\n" or turn == turns:
                process.kill()  # what it had said before that is still read
            if line.startswith("safe"):
                safe = int(line.split()[1])
    assert process.returncode == -signal.SIGKILL
    return safe


def read(home: Path, whole: bool = True) -> dict[int, Entry]:
    """All jobs, as a coordinator that starts there takes them up; all else is read too.

    Args:
        whole: every job has its environment, else only one that nobody holds.
    """
    journal = Journal(home)
    try:
        job_table = JobTable(journal, Cluster((Pool("core", 4),)))
        entries = {entry.id: entry for entry in journal.entries()}
        assert job_table.entries.items() <= entries.items()
        for entry in entries.values():
            journal.history(entry.id)
            if not entry.stage.final and (whole or not entry.held_by_user):
                assert journal.environment(entry.environment)["HOME"] == "/"
        journal.predictions()
        assert journal.timers() in ([], [(5.0, ("tag", 1))]) and len(journal.regions()) < 2
        assert sum(journal.count_ended().values()) == len(entries) - len(job_table.entries)
        return entries
    finally:
        journal.close()


@pytest.mark.parametrize("seed", range(SEED, SEED + 6))
def test_a_crash_alone_is_no_damage(tmp_path: Path, seed: int) -> None:
    """Killed at a random instant it opens again with all jobs that were said to be safe; also twice over."""
    chance, safe = random.Random(seed), 0
    for jobs in (40, 80):
        enough = chance.choice((f"safe {chance.randint(1, 3)}", "all"))
        safe = max(safe, write(tmp_path, chance.randrange(1 << 30), jobs, enough))
        assert set(read(tmp_path)) >= set(range(1, safe + 1))


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Journals of 38 jobs whose process was killed, and one that was closed.

    All that they have was told to be safe: none was killed between a commit and the word of it.
    """
    made: list[Path] = []
    for number in range(40):
        home = tmp_path_factory.mktemp("killed")
        assert write(home, SEED + number, 38) == 38
        with closing(read_only(home / "journal.sqlite")) as db:
            if read_tally(home) == db.execute("SELECT * FROM tally").fetchone():
                made.append(home)
        if len(made) == 4:
            break
    assert len(made) == 4
    copy = tmp_path_factory.mktemp("carried") / "over"
    shutil.copytree(made[0], copy)
    Journal(copy).close()
    return [*made, copy]


def damage(path: Path, chance: random.Random) -> str:
    """Flip one bit, cut it, zero a block, or delete it; what was done."""
    content = bytearray(path.read_bytes())
    how = chance.choice(("flip", "flip", "flip", "cut", "zero", "delete"))
    at = chance.randrange(len(content))
    if how == "delete":
        path.unlink()
        return how
    if how == "flip":
        content[at] ^= 1 << chance.randrange(8)
    elif how == "cut":
        del content[at:]
    else:
        size = chance.choice((16, 512, 4096))
        at -= at % size
        content[at : at + size] = bytes(len(content[at : at + size]))
    path.write_bytes(content)
    return f"{how} at {at}"


def go_on(home: Path, truth: dict[int, Entry], what: str) -> None:
    """Its owner goes on without what is lost, and is told how much that is."""
    said = recover(home)
    found = read(home, whole=False)
    assert all(entry.spec == truth[number].spec for number, entry in found.items()), what
    assert ("; lost, because no folder tells of them: job" in said) == (len(found) < len(truth)), (what, said)
    journal = Journal(home)
    assert journal.next_id() == 39, what
    journal.close()


def test_what_nobody_was_told_of_may_be_torn(killed: list[Path], tmp_path: Path) -> None:
    """A machine that died in the last commit: the log ends anywhere in it, and the journal has all before."""
    for number in range(3):
        home = tmp_path / str(number)
        shutil.copytree(killed[1], home)
        tally, truth = read_tally(home), read(home)
        assert tally is not None
        journal = Journal(home)
        done = replace(truth[38], trouble="torn")
        journal.commit([done], [(1.0, 38, "torn", "x" * 9000)])
        log = home / "journal.sqlite-wal"
        content = log.read_bytes()
        (tmp_path / "log").write_bytes(content[: len(content) * number // 3])
        shutil.copy(home / "journal.sqlite", tmp_path / "main")
        journal.close()
        shutil.move(tmp_path / "log", log)
        shutil.move(tmp_path / "main", home / "journal.sqlite")
        TallyFile(home, tally).close()  # as it was before that commit
        assert read(home) == truth


def test_no_damage_loses_a_job_in_silence(killed: list[Path], tmp_path: Path) -> None:
    chance, outcomes = random.Random(SEED), Counter[str]()
    truths = []
    for number, home in enumerate(killed):
        shutil.copytree(home, tmp_path / f"truth-{number}")
        truths.append(read(tmp_path / f"truth-{number}"))
        assert len(truths[-1]) == 38
    for number in range(DAMAGES):
        which = chance.randrange(len(killed))
        home = tmp_path / "damaged"
        shutil.copytree(killed[which], home)
        files = [path for path in home.glob("journal.sqlite*") if "shm" not in path.name]
        path = chance.choice([file for file in files if file.stat().st_size])
        what = f"{number}: {path.name} of {which}: {damage(path, chance)}"
        try:
            found = read(home)
        except BadInput as error:
            assert error.remedy and "\n" not in str(error), (what, str(error))
            outcomes["refused"] += 1
            if "of version" not in str(error):
                go_on(home, truths[which], what)
        else:
            assert found == truths[which], what
            outcomes["works"] += 1
        shutil.rmtree(home)
    print(dict(outcomes))
    assert outcomes["refused"] > DAMAGES / 3


@pytest.mark.parametrize("damage", ["60", "60A0"])
def test_a_damaged_table_is_told_in_one_line(tmp_path: Path, damage: str) -> None:
    """SQLite quotes the whole of it, with its lines, also where it is no text any more."""
    Journal(tmp_path).close()
    with sqlite3.connect(tmp_path / "journal.sqlite") as db:
        db.execute("PRAGMA writable_schema = ON")
        changed = f"replace(sql, 'cores', CAST(X'{damage}' AS TEXT) || 'cores')"
        db.execute(f"UPDATE sqlite_master SET sql = {changed} WHERE name = 'jobs'")
    with pytest.raises(BadInput, match="journal") as caught:
        Journal(tmp_path)
    assert "\n" not in str(caught.value) and "tenbin up --recover" in str(caught.value)
    assert "journal is made anew" in recover(tmp_path)
    Journal(tmp_path).close()
