"""The family of MCT on real jobs in real time, against the simulator's forecast of the same list.

Two classes of devices: PoCL's serial device, made ``SLOW_BY`` times slower by an OpenCL layer (emulated: it
sleeps after each kernel, so that jobs side by side hardly slow each other down). Measured first, in the same
run: a profile of checkpoint costs; each kind of job alone, on both devices at once as in the list (which is
what is expected of it), and with nothing to do. What the last takes (to be launched, to import, to open the
device, to build kernels, to leave) is part of each run time, and again of each restart; what moves data comes
from the profile. ``tenbin up`` and the simulator are given the same profile and the same expected times.
A machine's speed drifts (guests share their host): each round measures the kinds anew and runs the policies
in another order; the median of the rounds counts. Beside it is the error against a forecast that knows how
fast the machine was meanwhile, by the jobs that were not moved: what is left is not the machine's.

Each class has one device, and each job takes one: there are no holes to fill, mctb decides as mct does.
``TENBIN_BENCHMARK_PROFILE`` names a stored profile to take instead of a new one.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from profiles.files.store import Store
from profiles.records import Profile
from scheduler.engines.local.discovery import devices_of_machine
from scheduler.engines.protocol import Machine
from scheduler.model.costs import LinearCosts
from scheduler.model.jobs import Cluster, EstimateKind, Job, Stop
from scheduler.policies.registry import create
from scheduler.simulator.simulator import Simulator
from scheduler.simulator.trace import Arrival, Outcome, OutcomeRecorder, SimulationSettings
from tests.benchmarks import FULL, SMALL, amount
from tests.benchmarks.checkpoint_costs import store_costs
from tests.support.coordinator import Up
from tests.support.labs.components import require
from tests.support.paths import EXAMPLES, ROOT
from tests.support.programs import opencl_devices

POLICIES = amount(*2 * [("mct", "mctb", "mctm", "mctbm", "weigh")], ("weigh",))
LAYER = ROOT / "tests" / "support" / "opencl_layers" / "slow_device.c"
SLOW_BY = (4, 12)
JOBS, ROUNDS = amount((14, 3), (6, 1), (2, 1))
RUNS = amount(3, 1, 1)  # of each kind on the slower class
SEED = 6

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(3600)]


@dataclass(frozen=True)
class Kind:
    """A program with its options; the same with nothing to do; MB that a checkpoint of it has."""

    program: str
    options: tuple[str, ...]
    nothing: tuple[str, ...]
    memory_mb: float

    @property
    def name(self) -> str:
        return self.program.removesuffix(".py")

    def command(self, options: tuple[str, ...]) -> list[str]:
        return [sys.executable, str(EXAMPLES / self.program), *options]


STENCIL, NBODY = ("--cells", "512", "--steps"), ("--bodies", "512", "--steps")
KINDS = [
    Kind("stencil.py", (*STENCIL, amount("2500", "600", "100")), (*STENCIL, "0"), 4.2),
    Kind("nbody.py", (*NBODY, amount("800", "200", "40")), (*NBODY, "0"), 0.03),
]
if SMALL:
    del KINDS[1:]
if FULL:
    KINDS += [
        Kind("sort.py", ("--values", "25000"), ("--values", "2"), 0.28),
        Kind("chebyshev.py", ("--degrees", "60", "--points", "500000"), ("--degrees", "0"), 8.0),
    ]


@dataclass
class Seen:
    """Measurements of one kind of job: run times, by class while both are busy, and output."""

    alone_s: float
    runs_s: dict[str, float]
    nothing_s: float
    output: str


@pytest.fixture
def devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two classes, in this process's environment."""
    require(shutil.which("cc"), "a C compiler (Debian: gcc)")
    layer = tmp_path / "slow_device.so"
    built = subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(layer), str(LAYER)], check=False)
    require(built.returncode == 0, "OpenCL headers (Debian: opencl-c-headers)")
    monkeypatch.setenv("POCL_DEVICES", "basic basic")
    monkeypatch.setenv("OPENCL_LAYERS", str(layer))
    monkeypatch.setenv("SLOW_BY", ",".join(map(str, SLOW_BY)))
    require(
        [device["key"] for device in opencl_devices()] == ["pocl-0", "pocl-1"], "two OpenCL devices (PoCL)"
    )
    yield


def test_turnaround_as_forecast(
    devices: None, up: Up, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = os.environ.get("TENBIN_BENCHMARK_PROFILE")
    if profile is None:
        monkeypatch.setenv("TENBIN_STORE", str(tmp_path / "profiles"))
        profile = "last"
        store_costs(tmp_path)
    measured = Store().load(profile)
    machine = devices_of_machine("mct", measured)
    errors: dict[str, list[tuple[float, float]]] = {policy: [] for policy in POLICIES}
    for number in range(ROUNDS):
        seen = measure(up)
        told(seen)
        arrivals = a_list(seen)
        for policy in (*POLICIES[number:], *POLICIES[:number]):
            real = run_for_real(up, policy, profile, arrivals, seen=seen)
            forecast = simulate(policy, arrivals, seen, machine, begin=begin_s(measured))
            error = report(policy, real, forecast)
            slower = slower_than(seen, real)
            told_so = simulate(policy, arrivals, seen, machine, begin=begin_s(measured), slower=slower)
            rest = mean_s(real) / mean_of(told_so) - 1
            print(
                f"BENCH {policy}: runs took {slower:.2f} times as long as measured; beyond that {rest:+.1%}"
            )
            errors[policy].append((error, rest))
    for policy, each in errors.items():
        all_errors, rests = [error for error, _ in each], [rest for _, rest in each]
        print(
            f"BENCH {policy}: mean turnaround against its forecast, median of {ROUNDS} rounds: "
            f"{statistics.median(all_errors):+.1%} ({min(all_errors):+.1%} to {max(all_errors):+.1%}); "
            f"beyond the machine's drift {statistics.median(rests):+.1%}"
        )


# -- each kind of job ---------------------------------------------------------------------------------------


def measure(up: Up) -> dict[str, Seen]:
    """Each kind; its first run, which compiles, does not count."""
    up.start("--devices", "--policy", "fcfs")
    found = {}
    for kind in KINDS:
        whole, nothing = kind.command(kind.options), kind.command(kind.nothing)
        for _ in range(2):
            alone, output = run(up, whole, ["pocl-0"])
        both, _ = run(up, whole, RUNS * ["pocl-1", *["pocl-0"] * (SLOW_BY[1] // SLOW_BY[0])])
        found[kind.name] = Seen(alone["pocl-0"], both, run(up, nothing, ["pocl-0"] * 3)[0]["pocl-0"], output)
    up.kill(signal.SIGTERM)
    return found


def run(up: Up, command: list[str], devices: list[str]) -> tuple[dict[str, float], str]:
    """Median run time by device, from the start by the coordinator to the end, and what they all print."""
    needs = {"checkpoint_signal": int(signal.SIGURG)}
    jobs = [up.client.submit(command, device=device, **needs).wait for device in devices]
    times: dict[str, list[float]] = {}
    outputs = set()
    for wait in jobs:
        job = wait(600)
        assert job["stage"] == "done", job
        times.setdefault(job["placement"], []).append(job["end_s"] - job["start_s"])
        outputs.add(Path(job["stdout"]).read_text())
    (output,) = outputs
    return {device: statistics.median(each) for device, each in times.items()}, output


def told(seen: dict[str, Seen]) -> None:
    for name, one in seen.items():
        runs = ", ".join(f"{device} {seconds:.2f} s" for device, seconds in one.runs_s.items())
        print(
            f"BENCH {name} alone: pocl-0 {one.alone_s:.2f} s, nothing to do {one.nothing_s:.2f} s; "
            f"both devices busy: {runs} (pocl-0 x {one.runs_s['pocl-0'] / one.alone_s:.2f})"
        )


# -- the list -----------------------------------------------------------------------------------------------


def a_list(seen: dict[str, Seen]) -> list[tuple[float, Kind]]:
    """(submission, kind) of each job: at random, so dense that the faster class alone could not keep up."""
    chance = random.Random(SEED)
    kinds = [KINDS[number % len(KINDS)] for number in range(JOBS)]
    chance.shuffle(kinds)
    gap_s = 0.7 * statistics.mean(one.runs_s["pocl-0"] for one in seen.values())
    at, found = 0.0, []
    for kind in kinds:
        found.append((round(at, 3), kind))
        at += chance.expovariate(1 / gap_s)
    return found


def run_for_real(
    up: Up, policy: str, profile: str, arrivals: list[tuple[float, Kind]], *, seen: dict[str, Seen]
) -> list[dict[str, Any]]:
    """Run the list; return what ``tenbin info`` says of each job at its end."""
    up.start("--devices", "--policy", policy, "--profile", profile)
    begin, jobs = time.time(), []
    for at, kind in arrivals:
        time.sleep(max(begin + at - time.time(), 0.0))
        jobs.append(
            up.client.submit(
                kind.command(kind.options),
                name=kind.name,
                expect_s=seen[kind.name].runs_s,
                checkpoint_signal=int(signal.SIGURG),
            )
        )
    found = [job.wait(600) for job in jobs]
    up.kill(signal.SIGTERM)
    for (_, kind), job in zip(arrivals, found, strict=True):
        assert job["stage"] == "done", job
        assert Path(job["stdout"]).read_text() == seen[kind.name].output
    return found


def slower_than(seen: dict[str, Seen], real: list[dict[str, Any]]) -> float:
    """Compare jobs that were not moved with measurements made before: the median ratio of run times."""
    return statistics.median(
        (job["end_s"] - job["start_s"]) / seen[job["name"]].runs_s[job["placement"]]
        for job in real
        if not job["migrations"]
    )


def simulate(
    policy: str,
    arrivals: list[tuple[float, Kind]],
    seen: dict[str, Seen],
    machine: Machine,
    *,
    begin: float,
    slower: float = 1.0,
) -> list[Outcome]:
    """Simulate the same list with the same expectations and costs; return the outcomes by number.

    slower: jobs take so many times as long as expected.
    """
    assert isinstance(machine.costs, LinearCosts)
    again = {name: max(one.nothing_s - begin, 0.0) for name, one in seen.items()}
    costs = replace(machine.costs, compile_s=again)
    record = OutcomeRecorder()
    stream = [
        Arrival(
            job_of(number, at, kind, seen[kind.name]),
            0.0,
            {device: took * slower for device, took in seen[kind.name].runs_s.items()},
        )
        for number, (at, kind) in enumerate(arrivals)
    ]
    Simulator(
        Cluster(machine.cluster.pools), stream, create(policy), SimulationSettings(costs), sinks=[record]
    ).run()
    return sorted(record.outcomes, key=lambda outcome: outcome.job.id)


def begin_s(profile: Profile) -> float:
    """Return the time in both the profile's restart and an empty run: opening the device, building."""
    context, kernels = profile.find("context_s"), profile.find("compile_s", cache="warm")
    assert context is not None and kernels is not None, "the profile has no costs of a restart"
    return context["context"].value + kernels["K"].value


def job_of(number: int, at: float, kind: Kind, seen: Seen) -> Job:
    return Job(
        number,
        at,
        memory_mb=kind.memory_mb,
        estimate_kind=EstimateKind.PREDICTED,
        stop=Stop.CHECKPOINT,
        estimates_s=seen.runs_s,
        program=kind.name,
    )


def mean_s(real: list[dict[str, Any]]) -> float:
    return statistics.mean(job["end_s"] - job["submit_s"] for job in real)


def mean_of(forecast: list[Outcome]) -> float:
    return statistics.mean(outcome.end_s - outcome.job.submit_s for outcome in forecast)


def report(policy: str, real: list[dict[str, Any]], forecast: list[Outcome]) -> float:
    """Of the mean turnaround: how much longer it was than forecast, as a ratio."""
    took = [job["end_s"] - job["submit_s"] for job in real]
    expected = [outcome.end_s - outcome.job.submit_s for outcome in forecast]
    error = mean_s(real) / mean_of(forecast) - 1
    each = statistics.median(abs(a / b - 1) for a, b in zip(took, expected, strict=True))
    moves = sum(job["migrations"] for job in real), sum(outcome.migrations for outcome in forecast)
    begin = real[0]["submit_s"]
    for job, outcome in zip(real, forecast, strict=True):
        spans = [(one.placement.pool, one.start_s, one.end_s) for one in outcome.segments]
        print(
            f"  {job['name']:9} at {job['submit_s'] - begin:6.2f}: {job['start_s'] - begin:6.2f} to "
            f"{job['end_s'] - begin:6.2f}, on {job['placement']}, {job['migrations']} moves; forecast "
            + ", ".join(f"{pool} {start:.2f} to {end:.2f}" for pool, start, end in spans)
        )
    print(
        f"BENCH {policy}, {len(real)} jobs: mean turnaround {mean_s(real):.2f} s, forecast "
        f"{mean_of(forecast):.2f} s, error {error:+.1%}; of single jobs {each:.1%} in the median; "
        f"migrations {moves[0]}, forecast {moves[1]}"
    )
    return error
