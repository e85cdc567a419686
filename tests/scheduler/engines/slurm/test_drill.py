"""The fault drill: jobs of all kinds while nodes, links, daemons and the coordinator fail at random instants.

The clock of the coordinator is set meanwhile (nodes and Slurm keep theirs), and its journal is damaged and
recovered. A third of the jobs leave a process that has left its environment.

``TENBIN_SLURM_DRILL=SEED`` runs all of it, 100 jobs and 30 blows; without, a part.
"""

from __future__ import annotations

import heapq
import itertools
import os
import random
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from scheduler.coordinator.ends import MOST_FAILURES
from scheduler.coordinator.journal.journal import Journal
from scheduler.jobs.entry import Entry, Stage
from tenbin.errors import TenbinError
from tests.scheduler.coordinator.drills.test_drill import recover, set_by, set_clock, using
from tests.support.coordinator import Up
from tests.support.labs.slurm_lab import SlurmLab, require_slurm, slurmlab

FULL = os.environ.get("TENBIN_SLURM_DRILL")
JOBS, BLOWS = (100, 30) if FULL else (18, 5)
SEED = int(FULL or 20261122)
START = ("--engine", "slurm", "--unit", "1", "--lease", "3")
MODULUS = 1_000_003
CHECKPOINT = signal.SIGURG

# One that computes step by step, signs what it does, and can leave where it was told that it may.
STEPS = """
sign() {
    set -- $1 $TENBIN_JOB_ID ${TENBIN_MARK##*:} $(hostname) $(date +%s.%N)
    echo "$*" >>"$LOG"
}
[ $((TENBIN_JOB_ID % 3)) -gt 0 ] || env -i setsid tail -f "$LOG" >/dev/null &
leave=; k=0; x=1; kept=kept-$TENBIN_JOB_ID
[ $KEEPS = 1 ] && trap 'leave=1' URG && [ -e $kept ] && read -r k x <$kept
sign begin
while [ $k -lt $STEPS ]; do
    [ $leave ] && { sign left; exit 85; }
    sleep 0.2
    x=$(( (x * 31 + k) % 1000003 )); k=$(( k + 1 ))
    [ $KEEPS = 1 ] && echo $k $x >$kept.${TENBIN_MARK##*:} && mv $kept.${TENBIN_MARK##*:} $kept
    sign alive
done
echo $x >>result-$TENBIN_JOB_ID
sign end
exit $CODE
"""

# The same by ranks, each of which adds its part to every step.
RANKS = """
import os, time
from mpi4py import MPI
comm, job, mark = MPI.COMM_WORLD, os.environ["TENBIN_JOB_ID"], os.environ["TENBIN_MARK"].rpartition(":")[2]
log = os.open(os.environ["LOG"], os.O_WRONLY | os.O_APPEND)
def sign(what):
    os.write(log, f"{what} {job} {mark} {os.uname().nodename} {time.time()}\\n".encode())
sign("begin")
x = 1
for k in range(int(os.environ["STEPS"])):
    time.sleep(0.2)
    x = comm.allreduce((x * 31 + k) * (comm.rank + 1)) % 1000003
    sign("alive")
if comm.rank == 0:
    with open(f"result-{job}", "a") as file:
        file.write(f"{x}\\n")
sign("end")
"""


class Kind(NamedTuple):
    """A job as it must end."""

    steps: int
    code: int = 0
    ranks: int = 0
    keeps: bool = False
    retries: int = 0

    def result(self) -> int:
        x, factor = 1, sum(range(1, self.ranks + 1)) or 1
        for k in range(self.steps):
            x = (x * 31 + k) * factor % MODULUS
        return x


class Sign(NamedTuple):
    """A line of the log."""

    what: str
    job: int
    attempt: int
    node: str
    at_s: float


@dataclass
class Drill:
    """Breaks things, and mends them later."""

    up: Up
    lab: SlurmLab
    chance: random.Random
    folder: Path
    kinds: dict[int, Kind] = field(default_factory=dict)
    blows: Counter[str] = field(default_factory=Counter)
    recoveries: Counter[str] = field(default_factory=Counter)
    options: tuple[str, ...] = START
    _broken: set[str] = field(default_factory=set)
    _repairs: list[tuple[float, int, str, Callable[[], object]]] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @property
    def log(self) -> Path:
        return self.folder / "signs"

    # -- jobs -----------------------------------------------------------------------------------------

    def submit(self) -> None:
        """One, or an array of some, one member at a time."""
        chance = self.chance
        sort = chance.choices(("ranks", "short", "steps", "keeps", "array"), (15, 30, 25, 20, 10))[0]
        if sort == "ranks":
            kind = Kind(chance.randint(1, 20), 0, chance.choice((2, 3, 4)))
        else:
            steps = chance.randint(0, 2) if sort in ("short", "array") else chance.randint(3, 40)
            code = chance.choice((0, 0, 0, 3))
            kind = Kind(steps, code, 0, sort == "keeps", chance.choice((0, 2)) if code else 0)
        spec = self._spec(kind)
        arrays = {0: range(chance.randint(2, 5))} if sort == "array" else {}
        if arrays:
            spec["array_limit"] = 1
        environment = {**os.environ, "LOG": str(self.log)}
        del environment["PYTHONPATH"], environment["DRILL_CLOCK"]  # which are the coordinator's
        for job in self.up.client.submit_all([spec], environment, arrays=arrays):
            self.kinds[job.id] = kind

    def _spec(self, kind: Kind) -> dict[str, Any]:
        env = {"STEPS": str(kind.steps), "CODE": str(kind.code), "KEEPS": str(int(kind.keeps))}
        spec: dict[str, Any] = {"folder": str(self.folder), "env": env, "time_s": 300.0, "grace_s": 2.0}
        if kind.ranks:
            command = [sys.executable, "-m", "mpi4py", "-c", RANKS]
            # With as many cores for each as a node has, every rank is on a node of its own.
            cores = 1 if kind.ranks > 2 else 2
            return spec | {"command": command, "mpi": True, "tasks": kind.ranks, "cores": cores}
        if kind.retries:
            spec |= {"retries": kind.retries, "retry_pause_s": 0.5}
        if kind.keeps:
            spec["checkpoint_signal"] = int(CHECKPOINT)
        return spec | {"command": ["bash", "-c", STEPS]}

    # -- blows ----------------------------------------------------------------------------------------

    def strike(self) -> None:
        """One blow."""
        sound = [node for node in self.lab.nodes if node not in self._broken]
        what = self.chance.choice(("slurmd", "power", "link", "slurmctld", "clock", "journal", "coordinator"))
        if what in ("slurmd", "power", "link") and len(sound) > len(self.lab.nodes) - 2:
            node = self.chance.choice(sound)
            blow, repair = {
                "slurmd": (self.lab.kill_slurmd, self.lab.start_slurmd),
                "power": (self.lab.power_off, self.lab.power_on),
                "link": (self.lab.cut, self.lab.join),
            }[what]
            self._broken.add(node)
            blow(node)
            self._later(self.chance.choice((2.0, 10.0, 40.0)), node, lambda: repair(node))
        elif what == "slurmctld" and what not in self._broken:
            self._broken.add(what)
            self.lab.kill_slurmctld()
            self._later(4.0, what, self.lab.start_slurmctld)
        elif what == "clock":
            set_clock(self.folder / "clock", self.chance)
        else:
            self.up.kill()
            time.sleep(self.chance.uniform(0.0, 1.0))
            while "slurmctld" in self._broken:  # without it there is no coordinator
                self.mend()
                time.sleep(0.1)
            if what == "journal":
                recover(self.up, self.chance, self.recoveries, self.options)
            else:
                what = "coordinator"
                self.up.start(*self.options)
        self.blows[what] += 1

    def move(self) -> None:
        """Move a job that can leave to another node, if there is room."""
        able = [job for job, kind in self.kinds.items() if kind.keeps]
        with suppress(TenbinError):
            wish = {"ids": [self.chance.choice(able or [0])], "to": self.chance.choice(self.lab.nodes)}
            self.up.client.call("POST", "/migrate", wish)

    def _later(self, most_s: float, what: str, repair: Callable[[], object]) -> None:
        at = time.monotonic() + self.chance.uniform(0.0, most_s)
        heapq.heappush(self._repairs, (at, next(self._numbers), what, repair))

    def mend(self, everything: bool = False) -> None:
        """Mend what is due; as an administrator, resume nodes that Slurm has drained."""
        while self._repairs and (everything or self._repairs[0][0] <= time.monotonic()):
            _, _, what, repair = heapq.heappop(self._repairs)
            repair()
            self._broken.discard(what)
        if "slurmctld" not in self._broken:
            with suppress(AssertionError, TimeoutError):
                for line in self.lab.call("sinfo", "-h", "-N", "-o", "%N %T").splitlines():
                    node, state = line.split()
                    if state.startswith("drain"):
                        self.lab.call("scontrol", "update", f"nodename={node}", "state=resume")

    # -- what must be seen ----------------------------------------------------------------------------

    def signs(self) -> dict[int, list[Sign]]:
        found: dict[int, list[Sign]] = defaultdict(list)
        for line in self.log.read_text().splitlines():
            what, job, attempt, node, at_s = line.split()
            found[int(job)].append(Sign(what, int(job), int(attempt), node, float(at_s)))
        return found


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmLab]:
    require_slurm()
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder:
        Path(folder).chmod(0o755)
        with slurmlab(Path(folder), nodes=4) as lab:
            for name, value in lab.env.items():
                monkeypatch.setenv(name, value)
            try:
                yield lab
            finally:
                if FULL and (kept := os.environ.get("TENBIN_SLURM_DRILL_LOGS")):
                    shutil.copytree(Path(folder) / "log", kept, dirs_exist_ok=True)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("mpi")
def test_no_job_is_lost_and_none_runs_twice_at_once(
    cluster: SlurmLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_by(tmp_path / "clock", monkeypatch)
    up = Up(tmp_path / "home")
    drill = Drill(up, cluster, random.Random(SEED), tmp_path)
    if drill.chance.random() < 0.5:
        drill.options = (*START, "--set-down")
    drill.log.touch()
    up.start(*drill.options)
    try:
        while sum(drill.blows.values()) < BLOWS or len(drill.kinds) < JOBS:
            if len(drill.kinds) < JOBS:
                with suppress(TenbinError):
                    drill.submit()
            time.sleep(drill.chance.uniform(0.0, 1.0))
            drill.mend()
            drill.move()
            if sum(drill.blows.values()) < BLOWS and drill.chance.random() < 0.5:
                drill.strike()
        deadline = time.monotonic() + 600
        while open_jobs := up.client.call("GET", "/jobs"):
            assert time.monotonic() < deadline, told(up, open_jobs)
            drill.mend()
            time.sleep(0.5)
        drill.mend(everything=True)
        blows = dict(drill.blows + drill.recoveries)
        print(f"\ndrill {SEED}, {' '.join(drill.options)}: {blows}, {len(drill.kinds)} jobs")
        up.until(lambda: not cluster.call("squeue", "-h"), 120)
        up.until(lambda: not processes(up.home) and not using(drill.log), 60)
        up.kill(signal.SIGTERM)
    finally:
        up.sweep()
    check(drill)


def told(up: Up, jobs: list[dict[str, Any]]) -> str:
    """Say which jobs are left, and why."""
    found = [up.client.job(job["id"]).info() for job in jobs]
    log = (up.home.parent / "coordinator.log").read_text()[-3000:]
    return f"{[(one['id'], one['stage'], one['why'], one['history'][-5:]) for one in found]}\n{log}"


def processes(home: Path) -> list[int]:
    """Find processes left of jobs, on all nodes; their environment names their folder."""
    sought, found = f"TENBIN_JOB_FOLDER={home}".encode(), []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and sought in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return found


def check(drill: Drill) -> None:
    """No job is lost, none ran twice at once, and what each has computed is right."""
    with sqlite3.connect(drill.up.home / "journal.sqlite") as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    journal = Journal(drill.up.home)
    entries = {entry.id: entry for entry in journal.entries()}
    journal.close()
    assert drill.kinds.keys() <= entries.keys()
    signs = drill.signs()
    given_up = 0
    for job, kind in drill.kinds.items():
        check_runs(signs[job], max(kind.ranks, 1))
        if struck_too_often(entries[job]):
            given_up += 1
        else:
            check_end(drill, entries[job], kind, signs[job])
    assert given_up <= len(drill.kinds) // 20
    check_arrays(entries, signs)
    again = Counter(entry.attempt for entry in entries.values())
    print(
        f"drill: jobs by attempts: {dict(again)}, lost attempts: {sum(e.failures for e in entries.values())}"
    )


def check_runs(signs: list[Sign], ranks: int) -> None:
    """Each attempt began once, and none before the last sign of the one before."""
    runs: dict[int, list[Sign]] = defaultdict(list)
    for sign in signs:
        runs[sign.attempt].append(sign)
    for run in runs.values():
        assert sum(sign.what == "begin" for sign in run) <= ranks, run
    for one, other in pairwise(sorted(runs)):
        last, first = max(sign.at_s for sign in runs[one]), min(sign.at_s for sign in runs[other])
        assert last < first, (runs[one][-3:], runs[other][:3])


def struck_too_often(entry: Entry) -> bool:
    """Its attempts were lost so often that tenbin has given it up, and says so."""
    return entry.failures >= MOST_FAILURES and entry.stage is Stage.FAILED and entry.code is None


def check_end(drill: Drill, entry: Entry, kind: Kind, signs: list[Sign]) -> None:
    assert (entry.stage, entry.code) == (Stage.FAILED if kind.code else Stage.DONE, kind.code), entry
    results = (drill.folder / f"result-{entry.id}").read_text().split()
    assert set(results) == {str(kind.result())}, (entry, results)
    ends = sum(sign.what == "end" for sign in signs) / max(kind.ranks, 1)
    # What was lost between its last step and the note of its result has run to its end once more.
    assert entry.retried == kind.retries
    assert 1 <= ends - entry.retried <= 1 + entry.failures


def check_arrays(entries: dict[int, Entry], signs: dict[int, list[Sign]]) -> None:
    """Of each array one member ran at a time."""
    arrays: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for job, found in signs.items():
        array = entries[job].array
        for attempt in {sign.attempt for sign in found} if array is not None else ():
            times = [sign.at_s for sign in found if sign.attempt == attempt]
            arrays[array].append((min(times), max(times)))
    for array, spans in arrays.items():
        assert all(one[1] <= other[0] for one, other in pairwise(sorted(spans))), array
