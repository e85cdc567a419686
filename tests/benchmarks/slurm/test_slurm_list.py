"""One list of real jobs on a Slurm cluster under tenbin's policies, and under Slurm's own backfill.

The cluster is the lab of the tests: real daemons, nodes that share this machine's cores; so the jobs sleep,
and do not slow each other down. Beside each figure is the simulator's forecast of the same list, with what
starts take in another list, and a pause and going on where one job is alone, measured before (a start is part
of the run time). slurmctld starts jobs once a second, so a start takes longer or shorter by chance, and other
jobs come first: the forecast is the median of several lists with starts drawn anew. Behind it is a simulation
with the starts as they were: what is left there is the simulator's own error.
Slurm plans by whole minutes, tenbin's policies by seconds; ``regions`` cuts anew at intervals that suit a
list of minutes.
``TENBIN_BENCHMARK_POLICIES`` names policies to run in place of all, separated by spaces.
"""

from __future__ import annotations

import os
import random
import shlex
import signal
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agent.node_profile.identity import node_kind
from profiles.files.store import JobStore
from scheduler.engines.protocol import Machine
from scheduler.engines.slurm.discovery import slurm_cluster
from scheduler.jobs.policy_view import as_job
from scheduler.jobs.specs import JobSpec
from scheduler.model.costs import LinearCosts
from scheduler.policies.registry import create, policy_class
from scheduler.simulator.simulator import Simulator
from scheduler.simulator.trace import Arrival, OutcomeRecorder, SimulationSettings
from tenbin.client.client import Job
from tests.benchmarks import amount
from tests.support.coordinator import Up
from tests.support.job_profiles import make_job, samples
from tests.support.labs.slurm_lab import SlurmLab

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(7200)]
CUT = ",interval_s=60,target_s=20"
ALL = amount(("fcfs", "easy", "weigh", f"regions{CUT}", "las", "match"), ("weigh", "las"), ("weigh",))
POLICIES = tuple(os.environ.get("TENBIN_BENCHMARK_POLICIES", " ".join(ALL)).split())
JOBS, SHORTEST_S, LONGEST_S, LOAD, ALONE, TRIED = amount(
    (60, 2.0, 40.0, 1.2, 5, 20), (5, 0.2, 0.8, 2.0, 1, 3), (2, 0.2, 0.4, 2.0, 1, 2)
)
DRAWS = 20  # of a forecast
SIZES = (1, 1, 1, 2, 2, 4, 6)
NARROW = (1, 1, 1, 2, 2)
SLACK_S = 5.0  # of limits, beyond a factor: no job is killed because the machine is busy
SLEEPER = "sleeper"
SILENCE_S = 1.0  # a job that is at work tells far more often
# Sleeps for so many seconds in all, in which it was not stopped; with a second word it tells when that was.
AT_WORK = """
import sys, time
left_s, now = float(sys.argv[1]), time.monotonic()
while left_s > 0:
    time.sleep(min(left_s, 0.02))
    before, now = now, time.monotonic()
    left_s -= min(now - before, 0.05)
    if sys.argv[2:]:
        print(time.time(), flush=True)
"""


class Sleeper(NamedTuple):
    """A job of the list."""

    at_s: float
    tasks: int
    run_s: float
    limit_s: float

    @property
    def command(self) -> tuple[str, ...]:
        return (sys.executable, "-ISc", AT_WORK, f"{self.run_s:.3f}")

    def spec(self, shared: bool, *words: str) -> dict[str, Any]:
        known = {"job_profile": SLEEPER} if shared else {}
        needs = {"tasks": self.tasks, "time_s": self.limit_s, **known}
        return {"command": (*self.command, *words), "folder": "/", **needs}


class Overheads(NamedTuple):
    """How much longer than they sleep some jobs took, and what it takes to pause one and to let it go on."""

    begins_s: Sequence[float]
    pause_s: float
    go_on_s: float

    def drawn(self, count: int, seed: int) -> list[float]:
        return random.Random(seed).choices(self.begins_s, k=count)


class Course(NamedTuple):
    """The course of a list: each job from submission to end, and all together; how much longer each ran."""

    turnarounds_s: list[float]
    makespan_s: float
    begins_s: Sequence[float] = ()

    def figures(self, jobs: list[Sleeper]) -> tuple[float, float, float, float]:
        """Makespan, mean turnaround, mean wait, mean slow-down."""
        begins_s = self.begins_s or [0.0] * len(jobs)
        waits = [
            max(took - job.run_s - begin_s, 0.0)
            for took, job, begin_s in zip(self.turnarounds_s, jobs, begins_s, strict=True)
        ]
        slowdowns = [1 + wait / job.run_s for wait, job in zip(waits, jobs, strict=True)]
        return (
            self.makespan_s,
            statistics.mean(self.turnarounds_s),
            statistics.mean(waits),
            statistics.mean(slowdowns),
        )


@pytest.fixture
def up(lab: SlurmLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Up]:
    """With a job profile of sleepers: they neither press nor suffer."""
    monkeypatch.setenv("TENBIN_STORE", str(tmp_path / "store"))
    sleeper = make_job(SLEEPER, *samples(suffers=0.001, pressure_gbs=0.1), kind=node_kind())
    JobStore().save(sleeper, {})
    one = Up(tmp_path / "home")
    yield one
    one.sweep()


def a_list(
    cores: int,
    sizes: Sequence[int] = SIZES,
    number: int = JOBS,
    *,
    seed: int = 11,
    longest_s: float = LONGEST_S,
) -> list[Sleeper]:
    """Few are large or long; as much work as ``LOAD`` times what the cores can do while it comes."""
    chance, found, at = random.Random(seed), [], 0.0
    for _ in range(number):
        tasks = chance.choice(sizes)
        run_s = SHORTEST_S * (longest_s / SHORTEST_S) ** (chance.random() ** 2)
        found.append(Sleeper(at, tasks, run_s, run_s * chance.uniform(1.0, 3.0) + SLACK_S))
        at += chance.expovariate(LOAD * cores / (tasks * run_s)) / LOAD**2
    return found


def test_a_list_under_each_policy(lab: SlurmLab, up: Up, tmp_path: Path) -> None:
    cores = lab.cpus * len(lab.nodes)
    jobs = a_list(cores)
    overheads = measured(up, a_list(cores, NARROW, TRIED, seed=5, longest_s=8 * SHORTEST_S))
    starts_s = statistics.quantiles(overheads.begins_s, n=10)
    print(f"\nBENCH {JOBS} sleepers; a start takes {starts_s[0]:.2f} .. {starts_s[-1]:.2f} s (10 .. 90 %)")
    print(f"BENCH to pause a job takes {overheads.pause_s:.2f} s, to let it go on {overheads.go_on_s:.2f} s")
    print("BENCH policy, (forecast; with starts as they were): makespan, mean turnaround, wait, slow-down")
    told("Slurm's backfill", by_slurm(lab, jobs, tmp_path).figures(jobs))
    for policy in POLICIES:
        machine = machine_for(policy, tmp_path / "forecast")
        real = by_tenbin(up, policy, jobs)
        replayed = simulated(policy, jobs, overheads, machine, begins_s=real.begins_s).figures(jobs)
        told(policy, real.figures(jobs), forecast(policy, jobs, overheads, machine), replayed)
        print(f"BENCH {policy.removesuffix(CUT):16} starts took {statistics.mean(real.begins_s):.2f} s")


def forecast(policy: str, jobs: list[Sleeper], overheads: Overheads, machine: Machine) -> list[float]:
    """Return the median of each figure over several simulations."""
    draws = (overheads.drawn(len(jobs), seed) for seed in range(DRAWS))
    rows = [
        simulated(policy, jobs, overheads, machine, begins_s=begins_s).figures(jobs) for begins_s in draws
    ]
    return [statistics.median(column) for column in zip(*rows, strict=True)]


def told(name: str, real: Sequence[float], *predictions: Sequence[float]) -> None:
    units = ("s", "s", "s", "")
    cells = []
    for number, (one, unit) in enumerate(zip(real, units, strict=True)):
        others = "; ".join(f"{prediction[number]:.1f}" for prediction in predictions)
        cells.append(f"{one:.1f}{unit and ' '}{unit}" + (f" ({others})" if others else ""))
    print(f"BENCH {name.removesuffix(CUT):16} {', '.join(cells)}")


def options(policy: str) -> list[str]:
    counts = "counted" in policy_class(policy).suits
    return ["--engine", "slurm", "--policy", policy, *(("--unit", "1") if counts else ())]


def machine_for(policy: str, home: Path) -> Machine:
    counts = "counted" in policy_class(policy).suits
    return slurm_cluster(policy, home, cores=1 if counts else None, lease_s=30.0)


def measured(up: Up, jobs: list[Sleeper]) -> Overheads:
    """Measure what starts take in a list, and the medians of pausing a job and letting it go on."""
    begins_s = by_tenbin(up, "fcfs", jobs).begins_s
    up.start(*options("fcfs"))
    pauses, resumptions = list[float](), list[float]()
    (job,) = up.client.submit_all([Sleeper(0.0, 1, 100.0 * ALONE, 3600.0).spec(False, "tell")])
    up.until(lambda: ticks(up, job))
    for _ in range(ALONE):
        begin = time.time()
        job.suspend()
        up.until(lambda: time.time() - ticks(up, job)[-1] > SILENCE_S)
        pauses.append(max(ticks(up, job)[-1] - begin, 0.0))
        begin = time.time()
        job.resume()
        up.until(partial(goes_on, up, job, begin))
        resumptions.append(min(tick for tick in ticks(up, job) if tick > begin) - begin)
    job.cancel()
    up.until(lambda: job.info()["stage"] == "cancelled")
    up.kill(signal.SIGTERM)
    return Overheads(begins_s, statistics.median(pauses), statistics.median(resumptions))


def ticks(up: Up, job: Job) -> list[float]:
    """When a job that tells was at work."""
    return [float(line) for line in up.client.output(job.id).split(b"\n")[:-1]]


def goes_on(up: Up, job: Job, since: float) -> bool:
    return ticks(up, job)[-1] > since


def by_tenbin(up: Up, policy: str, jobs: list[Sleeper], *more: str) -> Course:
    up.start(*(more or options(policy)))
    shared, begin, handles = policy_class(policy).suits == {"sharing"}, time.time(), []
    for job in jobs:
        time.sleep(max(begin + job.at_s - time.time(), 0.0))
        handles += up.client.submit_all([job.spec(shared)])
    found = finished(up, handles)
    ends = [one["end_s"] for one in found]
    turnarounds = [end - one["submit_s"] for end, one in zip(ends, found, strict=True)]
    begins_s = [
        one["end_s"] - one["start_s"] - (one["usage"]["wall_s"] - one["usage"]["running_s"]) - job.run_s
        for one, job in zip(found, jobs, strict=True)
    ]
    return Course(turnarounds, max(ends) - begin, begins_s)


def finished(up: Up, handles: list[Job]) -> list[dict[str, Any]]:
    """Wait for all jobs, stop the coordinator; return what ``tenbin info`` says of each job."""
    found = [handle.wait(3600) for handle in handles]
    up.kill(signal.SIGTERM)
    troubles = [(one["id"], one["stage"], one["trouble"]) for one in found if one["stage"] != "done"]
    assert not troubles, troubles
    return found


def by_slurm(lab: SlurmLab, jobs: list[Sleeper], folder: Path) -> Course:
    return by_sbatch(
        lab,
        [
            (job.at_s, [f"--ntasks={job.tasks}", minutes(job.limit_s)], shlex.join(job.command))
            for job in jobs
        ],
        folder,
    )


def minutes(limit_s: float) -> str:
    """Write a time limit as Slurm plans by it."""
    return f"--time={int(limit_s // 60) + 1}"


def by_sbatch(lab: SlurmLab, jobs: Sequence[tuple[float, list[str], str]], folder: Path) -> Course:
    """Jobs (when they come, options, a line of shell) under Slurm's own scheduler."""
    begin, submitted, files = time.time(), [], []
    for number, (at_s, options, line) in enumerate(jobs):
        time.sleep(max(begin + at_s - time.time(), 0.0))
        submitted.append(time.time())
        files.append(folder / f"end-{number}")
        lab.call("sbatch", *options, "--output=/dev/null", "--wrap", f"{line}; date +%s%N >{files[-1]}")
    while lab.call("squeue", "-h").strip():
        time.sleep(0.1)
    ends = [int(file.read_text()) / 1e9 for file in files]
    return Course([end - at for end, at in zip(ends, submitted, strict=True)], max(ends) - begin)


def simulated(
    policy: str, jobs: list[Sleeper], overheads: Overheads, machine: Machine, *, begins_s: Sequence[float]
) -> Course:
    shared, record = machine.job_profiles is not None, OutcomeRecorder()
    if machine.job_profiles is not None:
        machine.job_profiles.introduce([SLEEPER])
    arrivals = []
    for number, (job, begin_s) in enumerate(zip(jobs, begins_s, strict=True)):
        spec = JobSpec(**job.spec(shared))
        seen = as_job(number, job.at_s, spec, machine.cluster, user="me", unit=machine.unit)
        arrivals.append(Arrival(seen, job.run_s + begin_s))
    costs = LinearCosts(pause_s=overheads.pause_s, go_on_s=overheads.go_on_s)
    settings = SimulationSettings(costs, kill_at_limit=False)
    if machine.job_profiles is not None:
        settings = SimulationSettings(costs, kill_at_limit=False, slowdowns=machine.job_profiles)
    Simulator(machine.cluster, arrivals, create(policy), settings, sinks=[record]).run()
    outcomes = sorted(record.outcomes, key=lambda outcome: outcome.job.id)
    turnarounds = [outcome.end_s - outcome.job.submit_s for outcome in outcomes]
    return Course(turnarounds, max(outcome.end_s for outcome in outcomes), begins_s)
