"""A world for the coordinator: virtual time, simulated supervisors, faults by seed.

A history is a list of steps that a seed draws: jobs are submitted and asked for things, time passes, the
coordinator is killed around a commit, a start or a request, the last commit is torn, the disk is full,
messages are lost, the clock is set. The coordinator and its journal are the real ones. After each turn the
rules are looked at (``History.check``). A history that breaks one is cut down to the steps that matter, and
tells its story:

    .venv/bin/python -m tests.support.world 0-500            policies and machines in turn
    .venv/bin/python -m tests.support.world 17 --policy fcfs --machine cores

What an attempt does is drawn from the seed, the job and the attempt (``Fate``), not from when it is asked: so
a step that is left out changes nothing but what follows from it.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import random
import shutil
import sqlite3
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from errno import ENOSPC
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from agent.attempts.records import Result, RunState, Usage, Want
from agent.notifier import Notice
from agent.supervisor.parking import NOT_USED
from profiles.errors import BadInput, UserError
from profiles.files.store import JobStore
from profiles.jobs import JobProfile
from scheduler.coordinator.coordinator import Coordinator, Update
from scheduler.coordinator.ends import MOST_FAILURES
from scheduler.coordinator.idle_gpus import RULE
from scheduler.coordinator.job_table import NoRoom
from scheduler.coordinator.journal.journal import Journal
from scheduler.coordinator.journal.journal_file import TALLY
from scheduler.engines.local.cores import Cores
from scheduler.engines.protocol import DeviceTrials, Engine, GpuTable, IdleGpus, Report
from scheduler.jobs.entry import Entry, Phase, Stage
from scheduler.jobs.gpus import GpuKind
from scheduler.jobs.sizes import CORE, Unit
from scheduler.jobs.specs import JobSpec
from scheduler.model.events import Checkpointed, Event, Failed, Finished
from scheduler.model.jobs import Cluster, Placement, Pool, Region, instant
from scheduler.model.state import RuleBroken
from scheduler.policies.registry import POLICIES, policy_class
from scheduler.prediction.profiles import ProfiledSlowdowns
from tenbin.page.mirror import Mirror
from tenbin.server.descriptions import describe
from tenbin.server.job_list import JobList, list_jobs
from tests.support.amounts import SMALLER
from tests.support.job_profiles import make_job, samples
from tests.support.trials import trial_of

BEGIN_S = 1_700_000_000.0
SWEEP_S = 5.0  # after a message was lost, the engine looks by itself
LONG_S = 40_000.0  # more than all jobs of a history take, and more than the clock is set back
REFUSED = "it cannot"
REFUSALS = (REFUSED, NOT_USED, "it had not gone on yet")  # of supervisors, and of who was too quick
IDLE_S = 3.0  # without work on GPUs, after which the rule for that is applied
TRIAL_S = 3.0  # so long a program is tried
USAGE = Usage(1.0, 1.0, 1.0, 0.0, 10.0)
TURNS = 5000  # without an end: the coordinator asks to be woken at once, for ever
LOG = logging.getLogger("tenbin")
SHARED_MEMORY = Path("/dev/shm")  # a disk on which nothing waits


class Broken(Exception):
    """A rule that did not hold."""

    def __init__(self, rule: str, detail: str) -> None:
        super().__init__(f"{rule}: {detail}")
        self.rule = rule


class Killed(BaseException):
    """The coordinator is killed here: nothing may catch this."""


# -- machines ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """A machine, the sorts of policy that schedule it (all of these), and what jobs may ask for there."""

    suits: str
    cluster: Cluster
    unit: Unit = CORE
    asks: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    @property
    def devices(self) -> bool:
        return bool(self.cluster.pools[0].kind)


ESTIMATES: tuple[dict[str, float], ...] = (
    {},
    {"gpu": 5.0, "cpu": 20.0},
    {"gpu": 20.0, "cpu": 10.0},
    {"cpu": 10.0},
)
ALTERNATIVES = ({"cores": 3, "time_s": 20.0}, {"gpus": 2, "gpu_kind": "b", "memory_mb": 100.0})
TWO_CORES = ({"cores": 2, "time_s": 20.0},)
SETTINGS = {
    "cores": Setting("counted", Cluster((Pool("core", 4),)), asks={"cores": (1, 1, 1, 2, 3, 4)}),
    "memory": Setting(
        "counted",
        Cluster((Pool("core", 4),), memory_mb=1000.0),
        asks={
            "cores": (1, 1, 2, 4),
            "memory_mb": (None, 300.0, 400.0, 600.0),
            "alternatives": ((), (), TWO_CORES, (*TWO_CORES, {"cores": 1, "memory_mb": 100.0})),
        },
    ),
    "devices": Setting(
        "classes",
        Cluster((Pool("gpu", 1, kind="gpu"), Pool("cpu", 1, 1, kind="cpu"))),
        asks={"device": ("any", "any", "gpu", "cpu"), "expect_s": ESTIMATES},
    ),
    "device counts": Setting(
        "classes",
        Cluster((Pool("gpu", 3, kind="gpu"), Pool("cpu", 2, 1, kind="cpu"))),
        asks={
            "tasks": (1, 1, 2),
            "max_tasks": (2, 3),
            "speedup": ({}, {1: 1.0, 2: 1.9, 3: 2.5}),
            "device": ("any", "any", "any", "gpu", "cpu"),
            "expect_s": ESTIMATES,
        },
    ),
    "capped classes": Setting(
        "classes power",
        Cluster(
            (
                Pool("node", 2, base_w=10.0, peak_w=60.0, caps_w=(30.0, 40.0, 60.0)),
                Pool("old", 2, 1, peak_w=60.0, caps_w=(30.0, 60.0)),
            ),
            budget_w=150.0,
        ),
        Unit(node=True, cores=2, package=True, emulated="intel-2s"),
        asks={
            "tasks": (1, 2, 4),
            "max_tasks": (None, None, 6),
            "cap_curve": (None, (60.0, 0.01), (60.0, 0.01)),
        },
    ),
    "nodes": Setting(
        "nodes",
        Cluster((Pool("node", 2, resources=("cores", "memory_mb"), capacity=(2.0, 500.0)),), memory_mb=600.0),
        Unit(node=True, cores=2),
        asks={"tasks": (1, 1, 2), "cores": (1, 1, 2), "memory_mb": (None, 100.0, 300.0)},
    ),
    "gpus": Setting(
        "nodes",
        Cluster(
            (Pool("node", 1, resources=("cores", "memory_mb", "gpu:a", "gpu:b"), capacity=(4, 900, 2, 3)),),
            memory_mb=900.0,
        ),
        Unit(node=True, cores=4, gpus=(GpuKind("gpu:a", "a", 1e4, 2), GpuKind("gpu:b", "b", 2e4, 3))),
        asks={
            "cores": (1, 1, 2),
            "tasks": (1, 1, 2),
            "memory_mb": (None, None, 200.0),
            "gpus": (None, None, 1, 2),
            "gpu_kind": ("", "", "a"),
            "alternatives": ((), (), ALTERNATIVES[:1], ALTERNATIVES),
        },
    ),
    "packages": Setting(
        "power",
        Cluster((Pool("node", 3, peak_w=60.0, caps_w=(30.0, 40.0, 60.0)),), budget_w=120.0),
        Unit(node=True, cores=2, package=True, emulated="intel-2s"),
        asks={"tasks": (1, 2, 4), "max_tasks": (None, None, 6)},
    ),
    "shared": Setting(
        "sharing",
        Cluster(
            (Pool("node", 2, resources=("cores", "memory_mb"), capacity=(2.0, 1000.0)),), memory_mb=2000.0
        ),
        Unit(node=True, cores=2),
        asks={"tasks": (1, 2, 4), "job_profile": ("", "quiet", "quiet", "loud")},
    ),
    "choices": Setting(
        "nodes",
        Cluster((Pool("node", 2, resources=("cores", "memory_mb"), capacity=(2.0, 500.0)),), memory_mb=600.0),
        Unit(node=True, cores=2),
        asks={
            "tasks": (1, 1, 2),
            "cores": (1, 1, 2),
            "memory_mb": (None, 100.0, 300.0),
            "alternatives": ((), TWO_CORES, (*TWO_CORES, {"tasks": 2, "memory_mb": 100.0})),
        },
    ),
}


@cache
def programs() -> tuple[JobProfile, ...]:
    """Make the profiles of programs that disturb others hardly, and much."""
    return tuple(make_job(name, *samples(pressure_gbs=gbs)) for name, gbs in (("quiet", 1.0), ("loud", 9.0)))


# -- what is there without any coordinator -----------------------------------------------------------------


@dataclass
class Fate:
    """Behaviour of an attempt, by itself and when it is asked for something."""

    work_s: float
    end: str  # "done", "fails", "lost", "cannot start"
    obeys: str  # of parks and moves: "yes", "refuses", "later", "unused" (it has nothing on its device)
    checkpoint_s: float  # it takes so long to write one
    leaves_s: float  # and so long to leave, when told to end
    idle: bool  # it does nothing on its GPUs

    @classmethod
    def of(cls, seed: int, job: int, attempt: int) -> Fate:
        draw = random.Random(f"{seed} {job} {attempt}")
        ends = ("done", "fails", "lost", "cannot start")
        return cls(
            draw.choice([1.0, 2.0, 5.0, 10.0, 20.0]),
            draw.choices(ends, (70, 14, 14, 2))[0],
            draw.choices(("yes", "refuses", "later", "unused"), (70, 13, 12, 5))[0],
            draw.choice([0.5, 0.5, 3.0]),
            draw.choice([0.0, 0.0, 3.0]),
            draw.random() < 0.3,
        )


@dataclass
class Attempt:
    """An attempt as its folder and its processes tell of it, whoever looks.

    Attributes:
        left_s, limit_s: work and time that are left to it. since_s: when it went on last, or was looked at.
        ran_s: so long it has worked.
        due_s: when it writes the checkpoint, or leaves because it was asked to; infinite: it was not.
    """

    job: int
    number: int
    spec: JobSpec
    fate: Fate
    placement: Placement
    left_s: float
    limit_s: float
    since_s: float
    works: bool = True
    want: Want | None = None
    due_s: float = math.inf
    done: int = 0
    state: RunState | None = None
    result: Result | None = None
    lost: bool = False
    ran_s: float = 0.0

    @property
    def over(self) -> bool:
        return self.lost or self.result is not None

    @property
    def next_s(self) -> float:
        """The time at which it does something by itself."""
        if self.over:
            return math.inf
        by_itself = self.since_s + max(0.0, min(self.left_s, self.limit_s)) if self.works else math.inf
        return min(self.due_s, by_itself)


class Machine:
    """The machine, which outlives coordinators: its time, its attempts, its disk.

    Attributes:
        now: seconds that nobody sets. ahead_s: by so much the clock on the wall is ahead of them. latest: the
            latest time that this clock has shown.
        mail: what supervisors have reported and nobody has read. lost_mail: so many of the next are lost.
        full: so many of the next writes find no room. kill_in: the coordinator is killed at that one of the
            instants at which it may be from now on; None: not. torn: then the commit is torn.
        rule: what becomes of jobs that do nothing on their GPUs; "": nothing.
    """

    def __init__(self, seed: int, setting: Setting, story: Callable[..., None]) -> None:
        self.seed, self.setting, self.story = seed, setting, story
        self.now, self.ahead_s, self.latest = BEGIN_S, 0.0, BEGIN_S
        self.attempts: dict[tuple[int, int], Attempt] = {}
        self.revoked: set[tuple[int, int]] = set()  # never started, and never will be
        self.mail: list[Report] = []
        self.lost_mail = self.full = 0
        self.kill_in: int | None = None
        self.torn = False
        self.rule: Literal["", "end", "park"] = ("end", "park")[seed // 2 % 2]

    @property
    def clock(self) -> float:
        """Time that the clock on the wall shows."""
        return self.now + self.ahead_s

    @property
    def clock_there(self) -> float:
        """Time that the clock of whoever supervises shows."""
        return self.clock

    def may_be_killed(self) -> None:
        """Kill the coordinator here, if this is the instant."""
        if self.kill_in is not None:
            self.kill_in -= 1
            if self.kill_in < 0:
                self.kill_in = None
                raise Killed

    def write(self) -> None:
        """Raise OSError if the disk is full."""
        if self.full:
            self.full -= 1
            raise OSError(ENOSPC, "No space left on device")

    def report(self, attempt: Attempt, what: Any, **more: Any) -> None:
        if self.lost_mail:
            self.lost_mail -= 1
            self.story(f"a message is lost: {what} of job {attempt.job}")
        else:
            self.mail.append(Report(attempt.job, attempt.number, what, self.clock, **more))

    def start(self, job: Entry) -> None:
        """Start an attempt, with a supervisor of its own."""
        key, fate = (job.id, job.attempt), Fate.of(self.seed, job.id, job.attempt)
        assert job.placement is not None
        if (job.spec.begin_s or 0.0) > self.latest:
            raise Broken("no job begins early", f"job {job.id}")
        limit_s = job.way.time_s or math.inf
        attempt = Attempt(*key, job.way, fate, job.placement, fate.work_s, limit_s, self.now)
        self.attempts[key] = attempt
        self.story(f"starts: attempt {key[1]} of job {key[0]} on {job.placement}; {fate.end}")
        if fate.end == "cannot start":
            self._over(
                attempt, Result("not-started", self.clock_there, usage=USAGE, trouble="no such program")
            )
            return
        attempt.state = RunState(1, 1, self.clock_there)
        self.report(attempt, "started")

    def ask(self, attempt: Attempt, number: int, want: Want, goal: str) -> None:
        """Hand on a request, which the supervisor carries out at once, or when the program does."""
        if attempt.over or number <= attempt.done:
            return
        self._work(attempt)
        attempt.want, attempt.done = want, number
        if want == "end":
            attempt.due_s = min(attempt.due_s, self.now + attempt.fate.leaves_s)
            return
        if want == "checkpoint":
            attempt.due_s, attempt.works = self.now + attempt.fate.checkpoint_s, True
            return
        changes: dict[str, Any] = {"paused": want == "pause"}
        if want in ("park", "move"):
            changes = {"parked_mb": 1.0, "paused": True} if want == "park" else {"device": goal}
            if attempt.fate.obeys != "yes":
                refused = NOT_USED if attempt.fate.obeys == "unused" else REFUSED
                changes = {"refused": refused, "for_now": attempt.fate.obeys == "later"}
        elif want == "run":
            changes |= {"parked_mb": None, "refused": "", "device": goal}
        attempt.works = not changes.get("paused", not attempt.works)
        assert attempt.state is not None
        attempt.state = RunState(1, 1, attempt.state.started_s, done=number, **changes)
        self.report(attempt, "obeyed", done=number, state=attempt.state)

    def limit(self, attempt: Attempt, limit_s: float) -> None:
        """Give an attempt another limit of run time."""
        if not attempt.over:
            self._work(attempt)
            attempt.limit_s = limit_s - attempt.ran_s

    def note_time(self) -> None:
        """Note the time that the clock shows, as the coordinator reads it."""
        self.latest = max(self.latest, instant(self.clock))

    def look(self) -> None:
        """Let all happen that is due by now."""
        self.note_time()
        for attempt in self.attempts.values():
            if attempt.next_s <= self.now + 1e-6:
                self._work(attempt)
                self._over(attempt, self._end(attempt))

    def _work(self, attempt: Attempt) -> None:
        if attempt.works:
            attempt.left_s -= self.now - attempt.since_s
            attempt.limit_s -= self.now - attempt.since_s
            attempt.ran_s += self.now - attempt.since_s
        attempt.since_s = self.now

    def _end(self, attempt: Attempt) -> Result | None:
        if attempt.left_s > 1e-6 and attempt.limit_s <= 1e-6:
            return Result("time-limit", self.clock_there, signal=9, usage=USAGE)
        if attempt.left_s > 1e-6 and attempt.want == "end":
            return Result("cancelled", self.clock_there, code=0, usage=USAGE)
        if attempt.left_s > 1e-6:  # a signal for a checkpoint cannot be taken back
            return Result("checkpointed", self.clock_there, code=attempt.spec.checkpoint_code, usage=USAGE)
        if attempt.fate.end == "lost":
            return None
        return Result("exited", self.clock_there, code=0 if attempt.fate.end == "done" else 3, usage=USAGE)

    def _over(self, attempt: Attempt, result: Result | None) -> None:
        attempt.result, attempt.lost, attempt.works = result, result is None, False
        if result is None:
            self.report(attempt, "lost")
        else:
            self.report(attempt, "ended", result=result)


class SimulatedGpus(GpuTable):
    """The GPUs of one life of the coordinator; what jobs did there before it began is not known."""

    able = True

    def __init__(self, engine: SimulatedEngine) -> None:
        self._engine = engine
        self._first_s: dict[tuple[int, int], float] = {}  # when an attempt was seen first
        self._ruled: set[tuple[int, int]] = set()

    def idle(self) -> list[IdleGpus]:
        news = list[IdleGpus]()
        machine = self._engine.machine
        for key in self._engine.watched:
            attempt, entry = machine.attempts[key], self._engine.owners.get(key[0])
            first_s = self._first_s.setdefault(key, machine.now)
            idle = attempt.fate.idle and attempt.works and machine.now >= first_s + IDLE_S
            if idle and machine.rule and entry is not None and entry.devices and key not in self._ruled:
                self._ruled.add(key)
                news += [IdleGpus(key[0], "told"), IdleGpus(key[0], "ruled", machine.rule)]
        return news


class SimulatedTrials(DeviceTrials):
    """The trials of one life of the coordinator; the one under way ends with it, and nobody hears of it."""

    able = True

    def __init__(self, engine: SimulatedEngine) -> None:
        self._engine = engine
        self._key: tuple[int, int] | None = None
        self._pool, self._ends_s = "", 0.0

    @property
    def busy(self) -> bool:
        return self._key is not None

    def begin(self, job: Entry, state: RunState, pool: str) -> bool:
        attempt, held = self._engine.machine.attempts[job.id, job.attempt], self._engine.held
        if job.id not in held or pool in {place.pool for place in held.values()}:
            raise Broken("who has a place is tried where nobody is", f"job {job.id} on {pool}: {held}")
        if not attempt.works:  # its end was not heard of yet
            return False
        self._key, self._pool = (job.id, job.attempt), pool
        self._ends_s = self._engine.machine.now + TRIAL_S
        return True

    def give_up(self, why: str) -> None:
        self._ends_s = self._engine.machine.now

    def reports(self) -> list[Report]:
        """Take the report of a trial that has ended: in vain if it was given up, or the program is gone."""
        machine, key = self._engine.machine, self._key
        if key is None or machine.now < self._ends_s:
            return []
        attempt, draw = machine.attempts[key], random.Random(f"{machine.seed} {key} {self._pool}")
        self._key = None
        kernel = 10, 1.0, draw.choice([0.25, 1.0, 4.0])
        differing = draw.choice([0, 0, 4])
        trial = trial_of(kernel, busy_s=10.0, compared_bytes=100, differing_bytes=differing)
        trial = replace(trial, device=attempt.placement.pool, on=self._pool, at_s=machine.clock)
        if attempt.over or draw.random() < 0.3:
            return [Report(*key, "tried", machine.clock, trouble=REFUSED, for_now=draw.random() < 0.5)]
        return [Report(*key, "tried", machine.clock, trial=trial)]


class SimulatedEngine(Engine):
    """The engine of one life of the coordinator, on a machine that outlives it."""

    moves = True

    def __init__(self, machine: Machine) -> None:
        self.machine, self.cluster = machine, machine.setting.cluster
        self.held: dict[int, Placement] = {}
        self.cuts: dict[str, tuple[Region, ...]] = {}
        self.owners: dict[int, Entry] = {}
        self.gpus_and_cores = numbered(machine.setting) if machine.setting.unit.gpus else None
        self.watched: dict[tuple[int, int], int] = {}  # and the request whose outcome is awaited
        self.known: set[tuple[int, int]] = set()  # ends that were reported
        self.reports: list[Report] = []
        self.next_sweep_s = machine.now + SWEEP_S
        self.regions = self
        if self.cluster.budget_w is not None:
            self.caps = self
        if machine.setting.devices:
            self.device_moves, self.trials = self, SimulatedTrials(self)
        if machine.setting.unit.gpus:
            self.gpus = SimulatedGpus(self)
        machine.mail.clear()  # nobody has listened

    # -- units -----------------------------------------------------------------------------------------

    def place(self, job: Entry, placement: Placement) -> None:
        if self.gpus_and_cores is not None:
            self.gpus_and_cores.place(job, placement)
        self._hold(job, placement)

    def occupy(self, job: Entry) -> None:
        assert job.placement is not None
        if self.gpus_and_cores is not None:
            self.gpus_and_cores.occupy(job)
        self._hold(job, job.placement)

    def _hold(self, job: Entry, placement: Placement) -> None:
        if job.id in self.held:
            raise Broken(
                "a job has one place", f"job {job.id} is placed on {placement}, and has {self.held[job.id]}"
            )
        self.held[job.id], self.owners[job.id] = placement, job
        check_units(self.machine.setting, self.held)
        if self.gpus_and_cores is not None:
            check_numbers(self.owners.values())

    def free(self, job: Entry) -> None:
        if self.held.pop(job.id, None) is not None and self.gpus_and_cores is not None:
            self.gpus_and_cores.free(job)
        self.owners.pop(job.id, None)

    # -- capabilities ----------------------------------------------------------------------------------

    def cut(self, pool: str, regions: Sequence[Region]) -> None:
        self.cuts[pool] = tuple(regions)

    def places(self) -> Mapping[str, Mapping[str, int]]:
        return {}

    def cap(self, jobs: Sequence[Entry], lower: bool) -> None:
        self.machine.may_be_killed()
        for job in jobs:
            attempt = self.machine.attempts.get((job.id, job.attempt))
            if attempt is not None and job.placement is not None:
                before, after = (place.cap_w or math.inf for place in (attempt.placement, job.placement))
                if (after < before) == lower:
                    attempt.placement = job.placement

    def rest_w(self) -> float:
        return 0.0

    able = True
    trials = DeviceTrials()

    def why_not(self, spec: JobSpec, devices: Sequence[int] = ()) -> str:
        return "" if spec.move else "it was submitted with --no-move"

    def readiness(self, job: Entry, state: RunState | None) -> str:
        return self.why_not(job.spec)

    # -- attempts --------------------------------------------------------------------------------------

    def start(self, jobs: Sequence[tuple[Entry, dict[str, str]]]) -> None:
        self.machine.may_be_killed()
        self.machine.write()
        for job, _ in jobs:
            key = job.id, job.attempt
            if key in self.machine.attempts or key in self.machine.revoked:
                raise Broken("an attempt starts once", f"attempt {key[1]} of job {key[0]}")
            if job.stage.final:
                raise Broken("what has ended does not start", f"job {job.id} is {job.stage}")
            if job.id not in self.held:
                raise Broken("who starts has a place", f"job {job.id}, which is {job.stage}, has none")
            self.machine.start(job)
            self.watched[key] = 0
            self.machine.may_be_killed()

    def ask(self, job: Entry, want: Want) -> None:
        self.machine.may_be_killed()
        attempt = self.machine.attempts.get((job.id, job.attempt))
        if attempt is not None:
            goal = job.goals[0] if want == "move" and job.goals else job.placement
            if want == "run" and job.placement is not None:
                attempt.placement = job.placement
            self.machine.limit(attempt, job.way.time_s or math.inf)
            self.machine.ask(attempt, job.request, want, goal.pool if goal else "")
            self.watched[job.id, job.attempt] = job.request

    def recover(self, job: Entry) -> None:
        key = job.id, job.attempt
        if key in self.machine.attempts:
            self.watched[key] = job.request
            self._look(key)
        else:
            self.machine.revoked.add(key)
            self.reports.append(Report(*key, "never", self.machine.clock))

    def _look(self, key: tuple[int, int]) -> None:
        """Look at an attempt's folder."""
        attempt, now = self.machine.attempts[key], self.machine.clock
        if attempt.result is not None:
            self.reports.append(Report(*key, "ended", attempt.result.ended_s, attempt.result))
        elif attempt.lost:
            self.reports.append(Report(*key, "lost", now))
        elif attempt.state is not None and attempt.state.done and attempt.state.done >= self.watched[key]:
            self.reports.append(Report(*key, "obeyed", now, done=attempt.state.done, state=attempt.state))

    def poll(self) -> list[Report]:
        self.machine.look()
        self.reports += self.machine.mail
        self.machine.mail.clear()
        if isinstance(self.trials, SimulatedTrials):
            self.reports += self.trials.reports()
        if self.machine.now >= self.next_sweep_s:
            self.next_sweep_s = self.machine.now + SWEEP_S
            for key in self.watched:
                self._look(key)
        reports, self.reports = self.reports, []
        reports = [report for report in reports if (report.job_id, report.attempt) not in self.known]
        over = {(r.job_id, r.attempt) for r in reports if r.what in ("ended", "lost", "never")}
        self.known |= over
        self.watched = {key: request for key, request in self.watched.items() if key not in over}
        return reports

    def urgent(self) -> bool:
        return bool(self.reports or self.machine.mail)

    def fileno(self) -> int:
        raise NotImplementedError

    def close(self) -> None: ...


def check_units(setting: Setting, places: Mapping[int, Placement]) -> None:
    """Look whether any unit is given twice."""
    for pool in setting.cluster.pools:
        here = {job: place for job, place in places.items() if place.pool == pool.name}
        given = Counter[int]()
        for place in here.values():
            given.update({0: place.units} if pool.counted else dict(place.nodes))
        most = pool.units if pool.counted else pool.capacity_of(0)[0]
        if max(given.values(), default=0) > most:
            raise Broken("no unit is given twice", f"{dict(given)} of {most:g} of {pool.name}: {here}")


def numbered(setting: Setting) -> Cores:
    """Make the real count of the cores and GPUs of a node."""
    pool, numbers = setting.cluster.pools[0], iter(range(100))
    gpus = {kind.resource: [next(numbers) for _ in range(kind.number)] for kind in setting.unit.gpus}
    cores = [list(range(setting.unit.cores))] * pool.units
    return Cores(
        Path("/"),
        setting.cluster,
        cores,
        gpus,
        whole=False,
        choose_gpus=lambda free, _, count: list(free)[:count],
    )


def check_numbers(jobs: Iterable[Entry]) -> None:
    """Look whether each job has as many cores and GPUs as it asks for, and none is given twice."""
    given = Counter[tuple[str, int]]()
    for job in jobs:
        numbers = job.way.tasks * job.way.cores, job.way.gpus_asked
        if (len(job.cores), len(job.devices)) != numbers:
            raise Broken(
                "a job has what it asks for", f"job {job.id}: {job.cores}, {job.devices} of {numbers}"
            )
        given.update([*(("core", core) for core in job.cores), *(("GPU", gpu) for gpu in job.devices)])
    if given and max(given.values()) > 1:
        raise Broken("no unit is given twice", f"{given}")


class WorldJournal(Journal):
    """The real journal, on a disk that may be full, whose last commit may be torn by a crash."""

    machine: Machine
    torn: tuple[int, bytes] | None = None  # size of the log, and the tally, before the commit that is torn
    behind = False  # the last commit found no room

    def commit(self, *arguments: Any, **named: Any) -> None:
        self.machine.may_be_killed()
        try:
            self.machine.write()
        except OSError:
            self.behind = True
            raise sqlite3.OperationalError("database or disk is full") from None
        log = self.store / "journal.sqlite-wal"
        before = log.stat().st_size if log.exists() else 0, (self.store / TALLY).read_bytes()
        super().commit(*arguments, **named)
        self.behind = False
        try:
            self.machine.may_be_killed()
        except Killed:
            self.torn = before if self.machine.torn else None
            raise

    def ends(self) -> dict[int, tuple[Stage, float | None]]:
        """Return the stage of each job, and when it ended."""
        rows = self._db.execute("SELECT id, stage, end_s FROM jobs")
        return {job: (Stage(stage), end_s) for job, stage, end_s in rows}


# -- histories -----------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """A step of a history: what happens, and the number by which its details are drawn."""

    what: str
    draw: int


UPDATES = (
    *(Update(time_s) for time_s in (3.0, 30.0, math.inf)),
    *(Update(more_s=more_s) for more_s in (-10.0, 10.0)),
    Update(20.0, priority=4),
)
WEIGHTS = {
    "submit": 12,
    "advance": 12,
    "cancel": 2,
    "suspend": 4,
    "resume": 4,
    "retry": 2,
    "migrate": 3,
    "priority": 1,
    "restart": 2,
    "outage": 2,
    "kill": 3,
    "full disk": 1,
    "lost mail": 1,
    "set clock": 1,
    "look": 1,
    "hold": 1,
}


def plan(seed: int, steps: int, weights: Mapping[str, int] = WEIGHTS) -> list[Step]:
    """Draw the steps of a history."""
    draw = random.Random(seed)
    names = draw.choices(list(weights), list(weights.values()), k=steps)
    return [Step(name, draw.getrandbits(32)) for name in names]


class History:
    """One history as it is lived through.

    Attributes:
        story: what happened, in lines. ended: jobs that were seen to have ended, and how.
        arrays: the members of each array, by their index.
        gone: jobs that were cancelled, and the attempt that was their last.
        name: of the world whose histories these are. settings, weights: its machines and steps.
    """

    name, settings, weights = "world", SETTINGS, WEIGHTS

    def __init__(
        self, seed: int, policy: str, machine: str, folder: Path, *, faults: Sequence[BaseException] = ()
    ) -> None:
        self.policy, self.setting, self.folder = policy, self.settings[machine], folder
        self.policy_text = SMALLER.get(policy, policy)
        if policy == "weigh" and seed % 2:
            self.policy_text += ",pause=true"
        self.faults, self.story = faults, list[str]()
        self.machine = self.new_machine(seed)
        self.lives = 0
        self.ids: list[int] = []
        self.arrays: dict[int, dict[int, int]] = {}
        self.deadlines = set[int | None]()  # jobs that have one
        self.cancelled, self.retried = set[int](), set[int]()  # or may have been
        self.ended: dict[int, tuple[Stage, float | None]] = {}
        self.gone: dict[int, int] = {}
        self.told: dict[int, int] = {}  # of each job, how many of its ends
        self.placed: set[int] | None = None  # jobs that have a place while the queue is suspended
        self.goals: dict[int, tuple[Placement, int, int]] = {}  # of jobs that write checkpoints to move there
        self.begin(self.folder / "0")

    def say(self, line: str) -> None:
        self.story.append(f"{self.machine.now - BEGIN_S:8.2f}  {line}")

    @property
    def jobs(self) -> Mapping[int, Entry]:
        """The jobs that have not ended."""
        return self.coordinator.job_table.entries

    def new_machine(self, seed: int) -> Machine:
        return Machine(seed, self.setting, self.say)

    # -- lives of the coordinator ------------------------------------------------------------------------

    def begin(self, home: Path) -> None:
        self.engine = SimulatedEngine(self.machine)
        self.coordinate(home, self.engine)
        self.coordinator.folders.state = self._state  # type: ignore[method-assign]

    def coordinate(self, home: Path, engine: Engine) -> None:
        """Begin a life of the coordinator."""
        self.home = home
        self.journal = WorldJournal(home)
        self.journal.machine = self.machine
        self.coordinator = Coordinator(
            self.journal,
            engine,
            self.policy_text,
            clock=lambda: self.machine.clock,
            steady=lambda: self.machine.now,
            unit=self.setting.unit,
            profiles=self._profiles(),
            on_event="tell",
        )
        self.coordinator.notifier.tell = self._told  # type: ignore[method-assign]
        self._watch_policy()

    def _profiles(self) -> ProfiledSlowdowns | None:
        if self.setting.suits != "sharing":
            return None
        store = JobStore(self.folder / "programs")
        for profile in programs() if not store.root.exists() else ():
            store.save(profile, {})
        return ProfiledSlowdowns(store, programs()[0].kind)

    def _state(self, job: Entry) -> RunState | None:
        attempt = self.machine.attempts.get((job.id, job.attempt))
        return attempt.state if attempt is not None else None

    def _told(self, notices: Iterable[Notice]) -> None:
        """Look whether the ends that are told are durable, and told once."""
        for notice in notices:
            if notice.about["TENBIN_EVENT"] == "idle":
                continue
            array, _, index = notice.about["TENBIN_JOB"].removesuffix("]").partition("[")
            (job,) = self.journal.members(int(array), int(index), int(index)) if index else (int(array),)
            history = self.journal.history(job)
            ends = [kind for _, kind, _ in history if kind in tuple(Stage) and Stage(kind).final]
            said, told = notice.about["TENBIN_STATE"], self.told.get(job, 0)
            if said not in ends[told:]:
                raise Broken("an end is told once, when it is durable", f"{notice}: {history}")
            self.told[job] = ends.index(said, told) + 1

    def _watch_policy(self) -> None:
        """Look whether the policy is told of each job that leaves its place, and how it has ended."""
        machine = self.coordinator.machine
        cluster, ask = machine.state.cluster, machine._ask_policy
        running = set(cluster.running)

        def watched(event: Event | None) -> None:
            nonlocal running
            job = event.job.id if isinstance(event, Finished | Checkpointed | Failed) else None
            gone = running - cluster.running.keys() - {job}
            if gone and not (machine.state.stale or cluster.overtaken):
                raise Broken("the policy is told who leaves", f"jobs {gone} have left; it is told {event}")
            limited = job not in self.ids or job in self.deadlines
            if isinstance(event, Finished) and event.how == "killed" and not limited:
                results = [a.result for a in self.machine.attempts.values() if a.job == job and a.result]
                if not results or results[-1].how != "time-limit":
                    raise Broken("the policy is told how a job ended", f"{event}: {results[-1:]}")
            ask(event)
            running = set(cluster.running)

        machine._ask_policy = watched  # type: ignore[method-assign]

    def killed(self) -> None:
        """Begin again after a kill with the files as they are then, or as a torn write leaves them."""
        self.say("the coordinator is killed")
        self.placed = None
        for _ in range(100):
            self.lives += 1
            home, old = self.folder / str(self.lives), self.journal
            shutil.copytree(self.home, home)
            log = home / "journal.sqlite-wal"
            if old.torn is not None and log.exists() and log.stat().st_size > old.torn[0]:
                os.truncate(log, random.Random(self.lives).randrange(old.torn[0], log.stat().st_size))
                (home / TALLY).write_bytes(old.torn[1])
                self.say("the last commit is torn")
                self.told.clear()  # its ends come once more
            with suppress(sqlite3.Error, OSError):
                old.close()
            shutil.rmtree(self.home, ignore_errors=True)
            try:
                self.begin(home)
                self.coordinator.turn()
                return
            except Killed:
                self.say("it is killed again")
        raise Broken("a restart ends", "it is killed each time")

    def stop(self) -> None:
        self.journal.close()

    # -- steps -------------------------------------------------------------------------------------------

    def run(self, steps: Sequence[Step]) -> None:
        """Live through the steps, then let all jobs come to their ends."""
        for step in steps:
            try:
                getattr(self, step.what.replace(" ", "_"))(random.Random(step.draw))
            except Killed:
                self.killed()
            self.check()
        self.finish()

    def submit(self, draw: random.Random) -> None:
        now = math.floor(self.machine.clock)
        fields: dict[str, Any] = {
            "command": ("true",),
            "folder": "/",
            "priority": draw.choice([0, 0, 0, -1, 5]),
        }
        fields |= {name: draw.choice(values) for name, values in self.setting.asks.items()}
        seldom = {
            "time_s": (0.85, (2.0, 10.0, 20.0, 100.0)),
            "retries": (0.3, (1, 2)),
            "begin_s": (0.15, (now + 1.0, now + 10.0)),
            "deadline_s": (0.2, (now + 5.0, now + 10.0, now + 20.0)),
            "requeue": (0.15, (False,)),
            "move": (0.1, (False,)),
            "checkpoint_signal": (0.25, (23,)),
        }
        for name, (share, values) in seldom.items():
            if draw.random() < share:
                fields[name] = draw.choice(values)
        if self.ids and draw.random() < 0.3:
            fields[draw.choice(["after", "after_any", "after_not_ok"])] = (draw.choice(self.ids),)
        arrays = {}
        if draw.random() < 0.2:
            arrays = {0: list(range(1, draw.choice([2, 4]) + 1))}
            fields["array_limit"] = draw.choice([None, 1])
        indices = set(arrays.get(0, ()))
        likely = [array for array, members in self.arrays.items() if indices <= members.keys()]
        if likely and draw.random() < 0.3:
            kinds = ["after_corr"] if indices else ["after", "after_any", "after_not_ok"]
            fields[draw.choice(kinds)] = (draw.choice(likely),)
        spec = JobSpec(**{name: value for name, value in fields.items() if value is not None})
        details = spec.model_dump(exclude_defaults=True, exclude={"command", "folder"})
        try:
            entries = self.coordinator.submit([spec], {}, arrays=arrays)
        except UserError as error:
            self.say(f"submit {details} is refused: {error}")
            small = spec.tasks == spec.cores == 1 and spec.memory_mb is None
            if isinstance(error, BadInput) and small and spec.deadline_s is None:
                raise Broken("who fits is accepted", str(error)) from None
            return
        self.say(f"submit {[entry.id for entry in entries]} {details}")
        self.ids += [entry.id for entry in entries]
        for entry in entries:
            if entry.array is not None and entry.array_index is not None:
                self.arrays.setdefault(entry.array, {})[entry.array_index] = entry.id
        self.deadlines.update(entry.id for entry in entries if spec.deadline_s is not None)

    def ask(self, draw: random.Random, name: str, *arguments: Any) -> list[int]:
        """Ask for something for one of the jobs, or an array; return for which, if it was granted."""
        if not self.ids:
            return []
        number = draw.choice(self.ids)
        jobs = [number]
        array = next((a for a, members in self.arrays.items() if number in members.values()), None)
        if array is not None and draw.random() < 0.3:
            number, jobs = array, list(self.arrays[array].values())
        try:
            getattr(self.coordinator, name)([number], *arguments)
        except Killed:
            self.may_happen(name, jobs)
            raise
        except UserError as error:
            self.say(f"{name} {number} is refused: {error}")
            self._check_refusal(name, number, jobs, error)
            if isinstance(error, NoRoom):
                self.may_happen(name, jobs)
            return []
        self.say(f"{name} {number} {' '.join(map(str, arguments))}")
        if not self.coordinator.job_table.is_durable:
            raise Broken("what was granted is durable", f"{name} {number}")
        self.cancelled.update(jobs if name == "cancel" else ())
        self.retried.update(jobs if name == "retry" else ())
        return jobs

    def _check_refusal(self, name: str, number: int, jobs: Sequence[int], error: UserError) -> None:
        """Look whether what was refused could not be granted."""
        is_open = any(job in self.jobs for job in jobs)
        if name == "cancel" and is_open and not isinstance(error, NoRoom):
            raise Broken("who has not ended can be cancelled", f"{number}: {error}")

    def may_happen(self, name: str, jobs: Sequence[int]) -> None:
        """Note what was refused for want of room, or cut short by a kill, and may happen all the same."""
        self.cancelled.update(jobs if name == "cancel" else ())
        if name == "retry":
            self.retried.update(jobs)
            self.ended.clear()
            self.gone.clear()

    def cancel(self, draw: random.Random) -> None:
        for job in self.ask(draw, "cancel"):
            if not self.journal.behind:
                entry = self.coordinator.job_table.entry(job)
                self.gone[job] = entry.attempt if entry is not None else 0

    def suspend(self, draw: random.Random) -> None:
        self.ask(draw, "suspend")

    def resume(self, draw: random.Random) -> None:
        self.ask(draw, "resume")

    def hold(self, draw: random.Random) -> None:
        """Suspend the queue, or let it go on."""
        suspended = draw.random() < 0.7
        self.say(f"the queue {'is suspended' if suspended else 'goes on'}")
        self.placed = None
        self.coordinator.suspend_queue(suspended)
        if draw.random() < 0.7:
            self.pass_s(10)

    def retry(self, draw: random.Random) -> None:
        for job in self.ask(draw, "retry"):
            if self.ended.get(job, (None,))[0] is not Stage.DONE:
                self.ended.pop(job, None)
            self.gone.pop(job, None)

    def migrate(self, draw: random.Random) -> None:
        to = [pool.name for pool in self.setting.cluster.pools] + ["node0", "node1"]
        self.ask(draw, "migrate", draw.choice(to))

    def priority(self, draw: random.Random) -> None:
        if self.ids:
            with suppress(UserError):
                self.coordinator.set_priority([draw.choice(self.ids)], draw.choice([-5, 0, 9]))
            if draw.random() < 0.5:
                self.ask(draw, "update", draw.choice(UPDATES))

    def advance(self, draw: random.Random) -> None:
        self.pass_s(draw.choice([1, 3, 10, 40]))

    def restart(self, draw: random.Random) -> None:
        """Stop in order and begin again: nothing may change by that."""
        self.machine.full = 0
        self.coordinator.turn()
        before, learned = self.snapshot(), self.coordinator.machine.state.tracker.learned.pause_s()
        self.stop()
        self.begin(self.home)
        self.say("restart")
        after = self.snapshot()
        if before != after:
            changed = {job: (before.get(job), after.get(job)) for job in before | after}
            changed = {job: pair for job, pair in changed.items() if pair[0] != pair[1]}
            raise Broken("a restart changes nothing", str(changed))
        if (anew := self.coordinator.machine.state.tracker.learned.pause_s()) != learned:
            raise Broken("a restart forgets nothing", f"a pause took {learned:g} s, now {anew:g} s")
        self.coordinator.turn()

    def outage(self, draw: random.Random) -> None:
        """Let no coordinator run for a time."""
        until_s = self.machine.now + draw.choice([0, 1, 10, 30])
        self.stop()
        self.say(f"no coordinator until {until_s - BEGIN_S:g}")
        while (
            next_s := min((a.next_s for a in self.machine.attempts.values()), default=math.inf)
        ) <= until_s:
            self.machine.now = max(self.machine.now, next_s)
            self.machine.look()
        self.machine.now = until_s
        self.begin(self.home)
        self.coordinator.turn()

    def kill(self, draw: random.Random) -> None:
        """Have the coordinator killed at one of the next instants at which that may be."""
        self.machine.kill_in, self.machine.torn = draw.randrange(6), draw.random() < 0.3
        self.pass_s(draw.choice([1, 10]))

    def full_disk(self, draw: random.Random) -> None:
        self.machine.full = draw.choice([1, 3])
        self.say(f"the disk is full for {self.machine.full} writes")

    def lost_mail(self, draw: random.Random) -> None:
        self.machine.lost_mail = draw.choice([1, 3])

    def set_clock(self, draw: random.Random) -> None:
        """Set the clock on the wall, which may have been wrong."""
        self.machine.ahead_s += draw.choice([-3600.0, -5.0, 5.0, 3600.0])
        self.say(f"the clock is set, by now to {self.machine.ahead_s:+g} s")
        self.coordinator.turn()

    def look(self, draw: random.Random) -> None:
        """Look at the lists that users see."""
        self.machine.full = 0
        self.coordinator.turn()
        if not self.settled():
            return
        mirror = Mirror(self.home)
        mirror.refresh()
        rows = {row.id: row for row in mirror.rows.values()}
        for job in self.ids:
            entry, row = self.coordinator.job_table.entry(job), rows.get(job)
            assert entry is not None
            truth = entry.shown, entry.priority, entry.way.time_s
            if row is None or (Stage(row.stage), row.priority, row.time_limit_s) != truth:
                raise Broken("the page tells the truth", f"job {job} is {entry.shown}, the page has {row}")
            describe(self.coordinator, job)
        for members in (True, False):
            list_jobs(self.coordinator, JobList(all=True, members=members))

    def pass_s(self, seconds: float) -> None:
        """Let time pass."""
        until_s = self.machine.now + seconds
        for _ in range(TURNS):
            times = [attempt.next_s for attempt in self.machine.attempts.values()]
            times += [self.engine.next_sweep_s] if self.engine.watched else []
            timer_s = self.coordinator.next_timer_s()
            times += [timer_s - self.machine.ahead_s] if timer_s is not None else []
            next_s = max(self.machine.now, min(times, default=math.inf))
            if next_s > until_s:
                self.machine.now = until_s
                self.coordinator.turn()
                return
            self.machine.now = next_s
            self.coordinator.turn()
            self.check()
        raise Broken("time passes", f"{TURNS} turns, and it is {self.machine.now - BEGIN_S:g}")

    def finish(self) -> None:
        """Let everything come to its end without further faults."""
        self.machine.kill_in, self.machine.full, self.machine.lost_mail = None, 0, 0
        self.machine.rule = ""
        self.say("nothing disturbs any more")
        self.coordinator.suspend_queue(False)
        self.coordinator.turn()
        for entry in [entry for entry in self.jobs.values() if entry.held_by_user]:
            with suppress(UserError):
                self.coordinator.resume([entry.id])
        self.pass_s(LONG_S)
        stuck = {
            job: (entry.shown.value, self.coordinator.why(job).sentence) for job, entry in self.jobs.items()
        }
        if stuck:
            raise Broken("every job ends", str(stuck))
        for job in self.ids:
            self._check_end(job)
        self.look(random.Random(0))

    # -- rules ---------------------------------------------------------------------------------------------

    def _check_end(self, job_id: int) -> None:
        """Compare the end of a job with what has happened."""
        entry = self.coordinator.job_table.entry(job_id)
        assert entry is not None
        attempts = [attempt for attempt in self.machine.attempts.values() if attempt.job == job_id]
        attempt = self.machine.attempts.get((job_id, entry.attempt))
        result = attempt.result if attempt is not None else None
        how, code = (result.how, result.code) if result is not None else ("", None)
        good = {
            Stage.DONE: how == "exited" and code == 0,
            Stage.FAILED: (how in ("exited", "not-started") and code != 0)
            or entry.failures >= MOST_FAILURES
            or (not entry.spec.requeue and attempt is not None),
            Stage.CANCELLED: self.may_be_cancelled(entry),
            Stage.KILLED: how == "time-limit" or entry.spec.deadline_s is not None,
        }
        self._check_idle(entry)
        for _, kind, why in self.journal.history(job_id):
            if kind in ("not parked", "not moved") and not why.endswith(REFUSALS):
                raise Broken("a refusal is told as it was", f"job {job_id} is {kind}: {why}")
        if not good[entry.stage]:
            raise Broken("an end is told as it was", f"job {job_id} is {entry.stage}, was {result}")
        failures = [a for a in attempts if a.result and a.result.how == "exited" and a.result.code != 0]
        lost = [a for a in failures if self.may_be_lost(a)]
        least, most, tries = len(failures) - len(lost), len(failures), 1 + entry.spec.retries
        by_itself = entry.stage is Stage.FAILED and how == "exited"
        by_itself = by_itself and (entry.spec.requeue or attempt not in lost)
        by_itself = by_itself and job_id not in self.cancelled and entry.spec.deadline_s is None
        by_itself = by_itself and not any(
            why.startswith("ruled") for _, _, why in self.journal.history(job_id)
        )
        if job_id not in self.retried and (least > tries or (by_itself and most < tries)):
            raise Broken("who fails is tried as often as it may", f"job {job_id}: {most} of {tries} times")

    def _check_idle(self, entry: Entry) -> None:
        """Look whether the rule for idle GPUs was applied to attempts that did nothing there, and once."""
        attempts = [attempt for attempt in self.machine.attempts.values() if attempt.job == entry.id]
        idle = sum(attempt.fate.idle and bool(attempt.spec.gpus_asked) for attempt in attempts)
        whys = [why for _, kind, why in self.journal.history(entry.id) if kind == "idle"]
        ended, left = (
            sum(why.endswith(end) for why in whys) for end in ("it is ended", f"resume {entry.label}")
        )
        if ended + left > idle or (left and entry.spec.checkpoint_signal is None):
            raise Broken("who works on its GPUs is left alone", f"job {entry.id}: {idle} idle, {whys}")
        if RULE in entry.trouble and not (entry.stage is Stage.CANCELLED and attempts[-1].fate.idle):
            raise Broken("a job is ended by the rule", f"job {entry.id} is {entry.stage}: {entry.trouble}")

    def may_be_cancelled(self, entry: Entry) -> bool:
        spec = entry.spec
        waits = spec.after or spec.after_any or spec.after_not_ok or spec.after_corr
        waits = waits or spec.deadline_s is not None
        return bool(waits or entry.id in self.cancelled or RULE in entry.trouble)

    def may_be_lost(self, attempt: Attempt) -> bool:
        """Tell if an exit code need not be the program's own."""
        return False

    def _check_order(self, attempt: Attempt) -> None:
        """Look whether the jobs have ended for which one had to wait."""
        spec, table = attempt.spec, self.coordinator.job_table
        entry = table.entry(attempt.job)  # of an array whose submission was cut short too
        own = entry.array_index if entry is not None else None
        for kind in ("after", "after_any", "after_not_ok", "after_corr"):
            for number in getattr(spec, kind):
                members = self.arrays.get(number, {0: number})
                jobs = [members[own]] if kind == "after_corr" and own in members else [*members.values()]
                if self.retried & set(jobs):
                    continue
                stages = [before.stage for job in jobs if (before := table.entry(job)) is not None]
                done = all(stage is Stage.DONE for stage in stages)
                holds = {"after_any": True, "after_not_ok": not done}.get(kind, done)
                if not (holds and all(stage.final for stage in stages)):
                    what = f"job {attempt.job} runs, {kind} {number}: {', '.join(stages)}"
                    raise Broken("who waits for others runs after them", what)

    def snapshot(self) -> dict[int, tuple[Any, ...]]:
        """Return what users know of each job that has not ended."""
        return {
            entry.id: (entry.shown, entry.attempt, entry.placement, entry.priority, entry.retried)
            for entry in self.jobs.values()
        }

    def settled(self) -> bool:
        """Tell if all that was decided has been carried out."""
        behind = self.machine.full or self.journal.behind or not self.coordinator.job_table.is_durable
        return not behind and self.coordinator.machine.settled()

    def check(self) -> None:
        """Look at the rules, which hold after each turn that was carried out."""
        if self.faults:
            raise self.faults[0]
        if not self.settled():
            return
        self._check_jobs()
        self._check_queue()
        self._check_attempts()
        self._check_places()

    def _check_places(self) -> None:
        """Look whether all places of jobs are charged, and who moves by a checkpoint goes there."""
        cluster = self.coordinator.machine.state.cluster
        engine = self.coordinator.engine
        if isinstance(engine, SimulatedEngine) and engine.cuts != cluster.regions:
            raise Broken("pools are cut as the policy says", f"{engine.cuts}, {cluster.regions}")
        counted = {pool.name for pool in cluster.cluster.pools if pool.counted}
        held = dict.fromkeys(counted, 0)
        for place in (place for state in cluster.running.values() for place in state.places):
            if place.pool in counted:
                held[place.pool] += place.units
        charged = {name: cluster.in_service[name] - cluster.free[name] for name in counted}
        if charged != held:
            raise Broken("what jobs hold is charged", f"{charged}, they hold {held}")
        for job, (goal, stops, failures) in self.goals.items():
            entry = self.jobs.get(job)
            if entry is None or entry.stage is not Stage.RUNNING or not entry.job.runs_on(goal.pool):
                continue
            went_on = (entry.preemptions, entry.failures) == (stops + 1, failures)
            if went_on and entry.place.pool != goal.pool:
                raise Broken("who moves has a place there", f"job {job} is on {entry.place}, not {goal}")
        self.goals = {
            entry.id: (entry.goals[0], entry.preemptions, entry.failures)
            for entry in self.jobs.values()
            if entry.phase is Phase.CHECKPOINTING and entry.moves_to and entry.moves_to.pool in counted
        }

    def _check_queue(self) -> None:
        placed = {job for job, entry in self.jobs.items() if entry.stage in (Stage.RUNNING, Stage.STOPPING)}
        suspended = self.coordinator.machine.state.hold.of_queue
        if suspended and self.placed is not None and (started := placed - self.placed):
            raise Broken("a suspended queue starts nothing", f"jobs {started}")
        self.placed = placed if suspended else None

    def _check_jobs(self) -> None:
        ends = self.journal.ends()
        for job in self.ids:
            entry = self.jobs.get(job)
            if entry is None:
                if job not in ends:
                    raise Broken("no job is lost", f"job {job}")
                stage, _ = end = ends[job]
                if not stage.final or self.ended.setdefault(job, end) != end:
                    raise Broken("an end is an end", f"job {job} had {self.ended.get(job)}, has {stage}")
                continue
            if job in self.ended:
                raise Broken("an end is an end", f"job {job} had {self.ended[job]}, is {entry.stage}")
            if entry.stage not in (Stage.RUNNING, Stage.STOPPING) and not self._reason(job):
                raise Broken("every wait has a reason", f"job {job} is {entry.shown}")
            early = (entry.spec.begin_s or 0.0) > self.machine.clock + 1e-6
            if early and entry.stage is Stage.WAITING and not entry.attempt:
                raise Broken("no job waits for a place before its begin", f"job {job}")
            deadline_s = entry.spec.deadline_s
            if (
                deadline_s is not None
                and deadline_s <= self.machine.clock
                and entry.phase is not Phase.ENDING
            ):
                raise Broken("a deadline ends a job", f"job {job} is {entry.stage}")
            if job in self.gone and entry.attempt > self.gone[job]:
                raise Broken(
                    "a cancelled job does not go on", f"job {job} is {entry.stage}, attempt {entry.attempt}"
                )

    def _reason(self, job: int) -> str:
        return self.coordinator.why(job).sentence

    def _check_attempts(self) -> None:
        alive = [attempt for attempt in self.machine.attempts.values() if not attempt.over]
        places = {}
        for attempt in alive:
            entry, key = self.jobs.get(attempt.job), f"attempt {attempt.number} of job {attempt.job}"
            if entry is None or entry.attempt != attempt.number or not entry.alive:
                raise Broken("nothing runs that nobody knows", key)
            self._check_order(attempt)
            if attempt.works and attempt.want != "end":
                if attempt.job not in self.engine.held:
                    raise Broken("who works has a place", f"{key}, which is {entry.stage}")
                places[attempt.job] = attempt.placement
            reached = entry.phase is Phase.RUNNING and attempt.done >= entry.request
            limit_s = entry.way.time_s or math.inf
            if reached and not math.isclose(attempt.ran_s + attempt.limit_s, limit_s, abs_tol=1e-6):
                what = f"{key} has {attempt.ran_s + attempt.limit_s:g} s, its job {limit_s:g} s"
                raise Broken("a limit is what it was changed to", what)
            if entry.phase is Phase.RUNNING and not attempt.works:
                raise Broken("who runs works", f"{key} is paused")
        check_units(self.setting, places)
        self._check_sums(alive, places)

    def _check_sums(self, alive: Sequence[Attempt], places: Mapping[int, Placement]) -> None:
        cluster = self.setting.cluster
        memory = {a.job: (a.spec.memory_mb or 0.0) * a.spec.tasks for a in alive}
        if sum(memory.values()) > cluster.memory_mb + 1e-6:
            raise Broken("memory is enough", f"{memory} of {cluster.memory_mb:g} MB")
        if cluster.budget_w is not None:
            power = {job: cluster[at.pool].power_w(at.units, at.cap_w) for job, at in places.items()}
            if sum(power.values()) > cluster.budget_w + 1e-6:
                raise Broken("the power is within its budget", f"{power} of {cluster.budget_w:g} W")
        arrays = Counter(
            entry.array
            for entry in self.jobs.values()
            if entry.array and entry.spec.array_limit and entry.alive
        )
        for array, count in arrays.items():
            if count > 1:
                raise Broken("an array keeps its limit", f"{count} members of array {array} run")


class Faults(logging.Handler):
    """Keeps what a coordinator has survived; nothing that it logs is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[BaseException] = []

    def __enter__(self) -> Faults:
        LOG.addHandler(self)
        LOG.propagate = False
        return self

    def __exit__(self, *_: object) -> None:
        LOG.removeHandler(self)
        LOG.propagate = True

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            self.seen.append(record.exc_info[1])
        elif record.args and isinstance(record.args[-1], RuleBroken):  # type: ignore[index]
            self.seen.append(record.args[-1])  # type: ignore[index]


# -- many histories, and one that fails -------------------------------------------------------------------


class Outcome(NamedTuple):
    """Outcome of a history: the rule that it broke ("": none), the whole sentence, and its story."""

    rule: str = ""
    detail: str = ""
    story: tuple[str, ...] = ()
    jobs: int = 0


def live(
    seed: int, policy: str, machine: str, steps: Sequence[Step], *, world: type[History] = History
) -> Outcome:
    """Live through a history in a folder of its own."""
    where = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="tenbin-world-", dir=where) as folder, Faults() as faults:
        history = world(seed, policy, machine, Path(folder), faults=faults.seen)
        try:
            history.run(steps)
            rule = detail = ""
        except Broken as error:
            rule, detail = error.rule, str(error)
        except Exception as error:  # a fault of the coordinator
            last = traceback.extract_tb(error.__traceback__)[-1]
            rule = f"{type(error).__name__} in {Path(last.filename).name}, {last.name}"
            detail = "".join(traceback.format_exception(error))
        finally:
            with suppress(sqlite3.Error, OSError):
                history.stop()
        return Outcome(rule, detail, tuple(history.story), len(history.ids))


def cut_down(
    seed: int, policy: str, machine: str, steps: Sequence[Step], *, world: type[History] = History
) -> list[Step]:
    """Leave out steps for as long as the same rule is broken."""
    rule, left = live(seed, policy, machine, steps, world=world).rule, list(steps)
    size = max(1, len(left) // 2)
    while True:
        position, smaller = 0, False
        while position < len(left):
            fewer = left[:position] + left[position + size :]
            if live(seed, policy, machine, fewer, world=world).rule == rule:
                left, smaller = fewer, True
            else:
                position += size
        if size == 1 and not smaller:
            return left
        size = max(1, size // 2)


def tell(seed: int, policy: str, machine: str, steps: int, *, world: type[History] = History) -> str:
    """Tell the story of a history that fails, cut down; "": it does not fail."""
    planned = plan(seed, steps, world.weights)
    outcome = live(seed, policy, machine, planned, world=world)
    if not outcome.rule:
        return ""
    fewer = cut_down(seed, policy, machine, planned, world=world)
    outcome = live(seed, policy, machine, fewer, world=world)
    again = (
        f"python -m tests.support.{world.name} {seed} --policy {policy} --machine {machine} --steps {steps}"
    )
    return "\n".join(
        [outcome.detail, f"seed {seed}, {policy} on {machine}, {len(fewer)} steps:", *outcome.story, again]
    )


def pairs(world: type[History] = History) -> list[tuple[str, str]]:
    """List every policy with each machine that it schedules."""
    return [
        (policy, name)
        for policy in POLICIES
        for name, setting in world.settings.items()
        if policy_class(policy).suits.issuperset(setting.suits.split())
    ]


def main(world: type[History] = History) -> int:
    parser = argparse.ArgumentParser(description="Live through histories of a coordinator in a world.")
    parser.add_argument("seeds", help="one seed, or FIRST-LAST")
    parser.add_argument("--policy", action="append", choices=list(POLICIES))
    parser.add_argument("--machine", action="append", choices=list(world.settings))
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    first, _, last = options.seeds.partition("-")
    chosen = [
        (policy, machine)
        for policy, machine in pairs(world)
        if policy in (options.policy or POLICIES) and machine in (options.machine or world.settings)
    ]
    if not chosen:
        parser.error("no such policy schedules such a machine")
    began, lived, jobs, broken = time.perf_counter(), 0, 0, Counter[tuple[str, str, str]]()
    for seed in range(int(first), int(last or first) + 1):
        for policy, machine in chosen if not last else [chosen[seed % len(chosen)]]:
            outcome = live(seed, policy, machine, plan(seed, options.steps, world.weights), world=world)
            lived, jobs = lived + 1, jobs + outcome.jobs
            if outcome.rule and not broken[policy, machine, outcome.rule]:
                print(tell(seed, policy, machine, options.steps, world=world), end="\n\n", flush=True)
            broken[policy, machine, outcome.rule] += bool(outcome.rule)
    for (policy, machine, rule), times in (+broken).items():
        print(f"{times} times: {policy} on {machine}: {rule}")
    took_s = time.perf_counter() - began
    print(f"{lived} histories, {jobs} jobs, {took_s:.1f} s, {broken.total()} fail")
    return bool(broken.total())


if __name__ == "__main__":
    sys.exit(main())
