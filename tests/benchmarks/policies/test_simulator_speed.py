"""The simulator's speed: against AccaSim on the same log, interleaved, and over the length of queues."""

from __future__ import annotations

import gzip
import io
import json
import math
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import IO

import pytest

from scheduler.model.jobs import Cluster, Job, Pool
from scheduler.policies.base import View
from scheduler.policies.registry import create
from scheduler.simulator.metrics import Accumulator
from scheduler.simulator.simulator import Simulator
from scheduler.simulator.trace import Arrival
from scheduler.workloads import load
from scheduler.workloads.logs import swf
from tests.benchmarks import PEERS, SMALL, amount, few
from tests.scheduler.policies.backfill.test_logs import HPC2N, KTH, log
from tests.support.labs.components import require
from tests.support.paths import SHARED_DATA

HERE = Path(__file__).parent
JOBS = amount(12_000, 12_000, 500)  # of each log; the whole of it takes AccaSim minutes
MANY = amount(1_000_000, 100_000, 2_000)
ROUNDS, FEW, CROWD, DECISIONS = amount(*2 * [(3, 1_000, 100_000, 2_000)], (1, 100, 1_000, 200))

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(1800)]


def accasim() -> str:
    """Find a Python that has AccaSim 1.1.3: the peers' own, or what TENBIN_ACCASIM_PYTHON names."""
    python = os.environ.get("TENBIN_ACCASIM_PYTHON", PEERS)
    found = subprocess.run(
        [python, "-c", "import importlib.util as u; raise SystemExit(u.find_spec('accasim') is None)"],
        check=False,
    )
    require(found.returncode == 0, "AccaSim is not installed: pip install accasim==1.1.3")
    return python


def lines_of(name: str) -> IO[str]:
    if not SMALL or (SHARED_DATA / name).exists():
        return gzip.open(log(name), "rt")
    text = io.StringIO()
    jobs = load(f"generator:lublin,jobs={JOBS},load=0.9", Cluster((Pool("node", 64),))).arrivals
    swf.write(jobs, text)  # type: ignore[arg-type]
    # AccaSim reads whole numbers.
    whole = (
        " ".join(str(math.ceil(float(field))) for field in row.split())
        for row in text.getvalue().splitlines()
    )
    return io.StringIO("".join(f"{row}\n" for row in whole))


def cut(name: str, folder: Path) -> Path:
    """Write the first jobs of the log as AccaSim can read them: no comments, requests above 0.

    In the small a model's jobs take the place of a log that is not here.
    """
    path = folder / "cut.swf"
    with lines_of(name) as lines, path.open("w") as out:
        rows = [row.split() for row in lines if not row.startswith(";")][:JOBS]
        for row in rows:
            row[7] = row[7] if int(row[7]) > 0 else row[4]
            row[9] = "1"
            out.write(" ".join(row) + "\n")
    return path


def seconds(python: str, script: str, *arguments: object, folder: Path) -> float:
    """Processor time that one run says it took."""
    command = [python, str(HERE / script), *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    cpu: float = json.loads(done.stdout.splitlines()[-1])["cpu_s"]
    return cpu


@pytest.mark.parametrize(("name", "nodes"), few([(KTH, 100), (HPC2N, 240)]))
@pytest.mark.parametrize(("method", "policy"), [("fifo", "fcfs"), ("easy", "easy")])
@pytest.mark.parametrize("kept", ["schedule", "figures"])
def test_faster_than_accasim(
    name: str, nodes: int, method: str, policy: str, *, kept: str, tmp_path: Path
) -> None:
    """``schedule``: both keep it (AccaSim's default); ``figures``: only means."""
    python, path = accasim(), cut(name, tmp_path)
    ratios = []
    for _ in range(ROUNDS):
        ours = seconds(sys.executable, "tenbin_run.py", path, nodes, policy, kept, folder=tmp_path)
        theirs = seconds(python, "accasim_run.py", path, nodes, method, kept, folder=tmp_path)
        ratios.append(theirs / ours)
    ratio = statistics.median(ratios)
    print(f"BENCH tenbin/AccaSim jobs/s, {name} {policy}, {kept}: ratio {ratio:.1f} (median of {ROUNDS})")
    assert ratio > 0


def crowd(waiting: int) -> Iterator[Arrival]:
    """So many jobs at once, then one every 10 s."""
    rng = random.Random(1)
    for i in range(waiting + 100_000):
        units = min(512, int(2 ** rng.uniform(0, 9.5)) + rng.randrange(3))
        run_s = math.ceil(math.exp(rng.gauss(6, 1.5)))
        submit = float(max(0, 10 * (i - waiting)))
        yield Arrival(Job(i, submit, units, run_s * rng.choice((1, 2, 5))), run_s)


@pytest.mark.parametrize("policy", ["fcfs", "easy"])
def test_a_long_queue_costs_little_more(policy: str) -> None:
    mean = {}
    for waiting in (FEW, CROWD):
        times: list[float] = []

        def watch(view: View, times: list[float] = times) -> None:
            if view.now >= 10:
                times.append(time.process_time())
                if len(times) > DECISIONS:
                    raise StopIteration

        simulator = Simulator(Cluster((Pool("node", 1024),)), crowd(waiting), create(policy), observer=watch)
        with pytest.raises(StopIteration):
            simulator.run()
        mean[waiting] = statistics.mean(b - a for a, b in pairwise(times))
    ratio = mean[CROWD] / mean[FEW]
    print(f"BENCH {policy} a decision with {CROWD:,} waiting / with {FEW:,} ratio {ratio:.2f}")


def test_very_many_jobs_on_a_hundred_thousand_nodes() -> None:
    cluster = Cluster((Pool("node", 100_000),))
    metrics = Accumulator(cluster)
    workload = load(f"generator:lublin,jobs={MANY},load=0.9", cluster)
    summary = Simulator(cluster, workload.arrivals, create("easy"), sinks=[metrics]).run()
    print(
        f"BENCH easy, {MANY:,} jobs on 100,000 nodes: {summary.jobs / summary.wall_s:,.0f} jobs/s, "
        f"at most {summary.most_in_system} jobs in the system"
    )
    assert summary.jobs == MANY
