"""Speed-up over cores, for programs with known times: they sleep instead of computing."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from agent.job_profile import scaling
from agent.job_profile.scaling import ScalingOrder, check_counts, measure
from agent.job_profile.trial import CommandFailed
from probes.mpi.runner import find_mpi
from probes.topology import usable_cores
from profiles.errors import BadInput, Unavailable
from profiles.files.store import JobStore
from profiles.models import downey
from profiles.records import NodeKind
from scheduler.jobs.sizes import CORE, sized, speed_of
from scheduler.jobs.specs import JobSpec
from scheduler.model.jobs import Pool
from scheduler.prediction.profiles import ProfiledJobs
from tenbin.report import drawings as report
from tests.support.job_profiles import make_job, samples
from tests.support.labs.components import require
from tests.support.programs import tenbin

pytestmark = pytest.mark.usefixtures("own_lock")
KIND = NodeKind(key="0123456789ab", title="Example 9000, 2 cores, 7 GiB")
AMDAHL = (
    "import os, time; n = int(os.environ['TENBIN_TASKS']); assert int('{n}') == n; time.sleep(0.3 + 1.2 / n)"
    "; assert not os.listdir(os.environ['TENBIN_JOB_FOLDER'])"
)


def find_mpi_here() -> bool:
    try:
        find_mpi()
    except Unavailable:
        return False
    return True


def order(program: str, *counts: int, limit_s: float = 100.0) -> ScalingOrder:
    command = (sys.executable, "-S", "-c", program)
    return ScalingOrder(command, "/", counts, (0,) * max(counts), limit_s, quick=True)


def test_the_program_hears_of_its_cores() -> None:
    """0.3 s serial, 1.2 s parallel, on 1, 2 and 4: 1.5, 0.9, 0.6 s and what starting takes."""
    table, doubt = measure(order(AMDAHL, 1, 2, 4))
    assert not doubt
    assert sorted(set(table["cores"])) == [1, 2, 4] and len(table) == 9
    least = table.groupby("cores")["wall_s"].min()
    assert all(least[n] >= 0.3 + 1.2 / n for n in (1, 2, 4))
    assert least[1] > least[2] > least[4]


def test_ranks_are_started_as_many() -> None:
    """--mpi: each of them sees the others."""
    require(find_mpi_here(), "an MPI")
    program = (
        "from mpi4py import MPI; import os; assert MPI.COMM_WORLD.size == int(os.environ['TENBIN_TASKS'])"
    )
    cpus = usable_cores()
    require(len(cpus) > 1, "two cores")
    table, _ = measure(ScalingOrder((sys.executable, "-c", program), "/", (1, 2), cpus, quick=True, mpi=True))
    assert len(table) == 6


def test_what_cannot_be_measured_says_on_how_many_cores() -> None:
    with pytest.raises(CommandFailed, match="on 2 cores with exit code 3"):
        measure(order("import os, sys; sys.exit(3 if os.environ['OMP_NUM_THREADS'] == '2' else 0)", 1, 2))
    with pytest.raises(CommandFailed, match=r"still ran on 1 core after 0\.3 s"):
        measure(order("import time; time.sleep(60)", 1, limit_s=0.3))


@pytest.mark.parametrize("counts", [(2, 4), (1,), (1, 5)])
def test_counts_that_say_nothing(counts: tuple[int, ...]) -> None:
    with pytest.raises(BadInput, match="--scale"):
        check_counts(counts, 4)
    assert check_counts((4, 1, 2, 2), 4) == (1, 2, 4)


@pytest.mark.parametrize(("A", "sigma", "top", "bounded"), [(4.0, 0.3, 16, True), (64.0, 0.5, 8, False)])
def test_known_laws_come_back(A: float, sigma: float, top: int, bounded: bool) -> None:
    """3 % noise: A within its interval where the counts reach beyond 2 A; else A >= x with x below A."""
    rng = np.random.default_rng(7)
    rows = [
        {"cores": n, "wall_s": float(downey.run_s(n, 20.0, A, sigma)) * float(np.exp(rng.normal(0, 0.03)))}
        for n in (1, 2, 4, 8, 16)
        if n <= top
        for _ in range(8)
    ]
    model = scaling.fit(pd.DataFrame(rows))
    parallelism, words = model["A"], downey.verdict(model)
    assert parallelism.low is not None and parallelism.low <= A * 1.02
    if bounded:
        assert parallelism.high is not None and parallelism.high >= A * 0.98 and words.startswith("A = ")
    else:
        assert parallelism.high is None and words.startswith("A ≥ ")


def test_a_job_of_many_sizes_takes_its_profile_s_speed(tmp_path: Path) -> None:
    """Between its owner's word, which counts first, and the machine's; fixed once it is submitted."""
    rows = [(n, float(downey.run_s(n, 10.0, 4.0, 0.0))) for n in (1, 2, 4, 8, 16) for _ in range(4)]
    table = pd.DataFrame(rows, columns=["cores", "wall_s"])
    job = make_job("lu", kind=KIND, scaling=scaling.fit(table))
    JobStore(tmp_path).save(job, {"scaling": table})
    measured = ProfiledJobs(JobStore(tmp_path), KIND)
    spec = JobSpec(command=("lu",), folder="/", tasks=1, max_tasks=8, job_profile="lu")
    profiled = sized(spec, measured.scaling, CORE)
    assert profiled.speedup[1] == 1.0 and profiled.speedup[2] == pytest.approx(2.0, rel=0.02)
    assert profiled.speedup[8] == pytest.approx(4.0, rel=0.02)
    speed = speed_of(profiled, Pool("core", 8), CORE, 1, most=8)
    assert speed is not None and speed(2, None) == pytest.approx(2.0, rel=0.02)
    for other in (
        spec.model_copy(update={"speedup": {1: 1.0, 8: 2.0}}),
        spec.model_copy(update={"job_profile": "other"}),
        spec.model_copy(update={"max_tasks": None}),
    ):
        assert sized(other, measured.scaling, CORE) == other
    elsewhere = ProfiledJobs(JobStore(tmp_path), NodeKind(key="ffffffffffff", title="Other"))
    assert elsewhere.scaling("lu") is None and elsewhere.runs("lu") == []


def test_the_report_shows_it() -> None:
    """A curve as far as it was measured, the verdict, and what it needs of a device."""
    rows = [(n, float(downey.run_s(n, 10.0, 4.0, 0.0))) for n in (1, 2, 4, 8, 16) for _ in range(4)]
    model = scaling.fit(pd.DataFrame(rows, columns=["cores", "wall_s"]))
    runs, windows = samples()
    job = make_job("lu", runs.assign(kernels=40.0, compile_s=0.25), windows, scaling=model)
    curve = next(
        figure for figure in report.job_figures([job]) if "Speed-up" in figure.layout.title.text
    ).data[0]
    assert curve.x[-1] == 16 and curve.y[1] == pytest.approx(2.0, rel=0.02) and curve.name == "lu"
    (row,) = report.job_table([job])
    assert len(row) == len(report.JOB_COLUMNS) and row[-2].startswith("A = ")
    assert row[-1] == "40 kernels, 0.25 s to build (K)"
    (plain,) = report.job_table([make_job("plain")])
    assert plain[-2:] == ("-", "-")


def test_the_command_line_refuses_before_it_measures(tmp_path: Path) -> None:
    for counts, says in (("2,4", "needs 1"), ("1,x", "no list of counts"), ("1,99999", "may use")):
        done = tenbin("program", "profile", "x", "--scale", counts, "--", "true", store=tmp_path)
        assert done.returncode == 2 and says in done.stderr, done.stderr
    JobStore(tmp_path).save(make_job("plain", kind=KIND), {})
    done = tenbin("program", "list", "--json", store=tmp_path)
    assert json.loads(done.stdout)["job_profiles"][0]["parallelism"] is None
