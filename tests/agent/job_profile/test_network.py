"""Jobs beside comprobe, and the time that their ranks are inside MPI: real ranks, hosts with shaped links."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agent.job_profile import profiler
from agent.job_profile.pair_trials import Program, run_pairs
from agent.job_profile.profiler import make_job_profile, plan_scaling
from agent.job_profile.scaling import Hosts, fit, measure
from agent.job_profile.session import JobOrder, Network, cores_of, lay_out
from agent.job_profile.trial import CommandFailed, RunOutcome, Trial
from probes import c_library
from probes.mpi.runner import MpiInstall
from probes.network import Comprobe, RankPlaces
from profiles.errors import BadInput, Unavailable
from tests.support.job_profiles import shorten_sessions
from tests.support.labs.components import processes_below, require
from tests.support.labs.network_lab import NetLab

CPUS = sorted(os.sched_getaffinity(0))
WAITING = """
import sys, time
from mpi4py import MPI
comm, inside = MPI.COMM_WORLD, 0.0
comm.Barrier()
for _ in range(2):
    time.sleep(0.4 if comm.rank == 0 else 0.0)
    begin = time.monotonic()
    comm.Barrier()
    inside += time.monotonic() - begin
    time.sleep(0.1)
open(f"{sys.argv[1]}/{comm.rank}", "w").write(str(inside))
"""
WAITING_C = r"""
#include <mpi.h>
#include <stdio.h>
#include <unistd.h>
int main(int argc, char **argv) {
    int rank;
    double inside = 0;
    char path[4096];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; i < 2; i++) {
        if (rank == 0) usleep(400000);
        double begin = MPI_Wtime();
        MPI_Barrier(MPI_COMM_WORLD);
        inside += MPI_Wtime() - begin;
        usleep(100000);
    }
    snprintf(path, sizeof path, "%s/%d", argv[1], rank);
    FILE *file = fopen(path, "w");
    fprintf(file, "%f", inside);
    fclose(file);
    MPI_Finalize();
    return 0;
}
"""
EXCHANGE = """
import sys
import numpy as np
from mpi4py import MPI
send, receive = np.zeros(2 << 20, np.uint8), np.zeros(2 << 20, np.uint8)
for _ in range(int(sys.argv[1])):
    MPI.COMM_WORLD.Alltoall([send, 1 << 20, MPI.BYTE], [receive, 1 << 20, MPI.BYTE])
"""


@pytest.fixture(autouse=True)
def small_area(own_lock: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiler, "choose_area", lambda topology, free_mb: (16.0, []))


@pytest.fixture
def lab(two_hosts: NetLab, monkeypatch: pytest.MonkeyPatch) -> NetLab:
    for name, value in two_hosts.env.items():
        monkeypatch.setenv(name, value)
    two_hosts.shape(500, "htb")
    return two_hosts


# --- inside MPI


def counted(
    command: list[str], folder: Path, more: dict[str, str]
) -> tuple[RunOutcome, list[c_library.MpiShare]]:
    library, counts = c_library.build_mpi_library(folder), folder / "counts"
    counts.mkdir()
    variables = c_library.mpi_variables(library, counts) | more
    with Trial(command, str(folder), CPUS, limit_s=120.0, variables=variables) as trial:
        while (ended := trial.ended(1.0)) is None:
            pass
    return ended, c_library.read_mpi_shares(counts)


@pytest.mark.parametrize("language", ["mpi4py", "c"])
def test_time_inside_mpi_is_what_the_program_itself_sees(
    mpi: MpiInstall, tmp_path: Path, language: str
) -> None:
    """Rank 1 waits in a barrier while rank 0 sleeps; the rank's own clock around its calls is the truth."""
    require(shutil.which("cc"), "a C compiler")
    own = tmp_path / "own"
    own.mkdir()
    if language == "c":
        compiler = mpi.launcher.with_name("mpicc")
        require(compiler.exists(), "mpicc")
        (tmp_path / "waiting.c").write_text(WAITING_C)
        built = [str(compiler), str(tmp_path / "waiting.c"), "-o", str(tmp_path / "waiting")]
        subprocess.run(
            built, check=True, env=os.environ | {"PATH": f"{compiler.parent}:{os.environ['PATH']}"}
        )
        program = [str(tmp_path / "waiting"), str(own)]
    else:
        program = [sys.executable, "-P", "-c", WAITING, str(own)]
    command = mpi.job_command(2, program, [])
    libraries = {"LD_LIBRARY_PATH": str(mpi.launcher.parent.parent / "lib")}
    ended, ranks = counted(command, tmp_path, mpi.environment(120.0) | libraries)
    assert ended.code == 0, ended.last_words
    truth = sum(float(path.read_text()) for path in own.iterdir())
    assert len(ranks) == 2 and truth > 0.75
    inside_s = sum(rank.seconds for rank in ranks)
    assert 0.8 * truth < inside_s  # with the first barrier, in which one waits for the other to start
    first_s = max(rank.seconds for rank in ranks)
    assert first_s <= ended.wall_s and min(rank.calls for rank in ranks) >= 3
    assert c_library.mpi_share(ranks, ended.wall_s) == pytest.approx(min(inside_s / 2 / ended.wall_s, 1.0))


def test_a_program_without_mpi_leaves_no_counts_and_works(tmp_path: Path) -> None:
    require(shutil.which("cc"), "a C compiler")
    ended, ranks = counted(["sh", "-c", "echo done > file"], tmp_path, {})
    assert ended.code == 0 and not ranks and (tmp_path / "file").read_text() == "done\n"


def test_without_a_compiler_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match="no C compiler"):
        c_library.build_mpi_library(tmp_path)


@pytest.mark.slow
def test_a_job_of_ranks_here_has_a_share_and_says_why_it_has_no_network(
    mpi: MpiInstall, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require(len(CPUS) > 1, "two CPUs")
    require(shutil.which("cc"), "a C compiler")
    shorten_sessions(monkeypatch)
    command = (sys.executable, "-P", "-c", WAITING, str(tmp_path))
    made, tables = make_job_profile(JobOrder("waiting", command, "/", quick=True, mpi=True))
    share = made.need("mpi_share")
    assert share is not None and 0 <= share.value < 0.5  # one rank waits for nobody
    assert made.mpi and made.ranks == 1 and made.network is None
    assert "pressure on the network (comprobe)" in [a.what for a in made.absent]
    assert tables["runs"]["mpi_share"].notna().all()


def test_a_rank_that_dies_is_named(mpi: MpiInstall) -> None:
    require(len(CPUS) > 1, "two CPUs")
    program = (sys.executable, "-P", "-c", "import sys; from mpi4py import MPI; sys.exit(3)")
    with pytest.raises(CommandFailed, match=r"failed with exit code 3: rank 0 .*ended with exit code 3"):
        make_job_profile(JobOrder("bad", program, "/", mpi=True))
    assert not processes_below()


# --- beside comprobe


def test_comprobe_is_slower_beside_itself_and_ends_when_its_hosts_are_silent(
    mpi: MpiInstall, lab: NetLab
) -> None:
    """Two all-to-alls share a link that is full: together they send no more than it carries."""
    require(len(CPUS) > 1, "two CPUs")
    places = [RankPlaces(lab.hosts, (cpu, cpu)) for cpu in CPUS[:2]]
    with Comprobe(mpi, places[0], 1.0, preflight=True) as first, Comprobe(mpi, places[1], 1.0) as other:
        assert not first.doubts
        first.windows(), other.windows()
        seen = [probe.windows(4) for probe in (first, other)]
        rates = [sum(w.bytes for w in rows) / sum(w.wall_s for w in rows) for rows in seen]
        assert sum(rates) * 8 / 1e6 < 1.15 * 500
    with Comprobe(mpi, places[0], 0.25) as slow:
        rows = slow.windows(3)
        assert sum(w.inside_s for w in rows) < 0.4 * sum(w.wall_s for w in rows)
        link = ["ip", "-n", f"{lab.prefix}n2", "link", "set", "eth0"]
        subprocess.run([*link, "down"], check=True)
        begin = time.monotonic()
    assert time.monotonic() - begin < 30
    subprocess.run([*link, "up"], check=True)
    assert not processes_below()


@pytest.mark.slow
def test_a_job_over_hosts_is_measured_beside_both_probes(
    mpi: MpiInstall, lab: NetLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    require(len(CPUS) > 1, "two CPUs")
    require(shutil.which("cc"), "a C compiler")
    shorten_sessions(monkeypatch)
    command = (sys.executable, "-P", "-c", EXCHANGE, "20")
    steps: list[str] = []
    order = JobOrder("exchange", command, "/", 2, quick=True, mpi=True, hosts=lab.hosts)
    made, tables = make_job_profile(order, lambda progress: steps.append(progress.doing))
    runs, windows = tables["runs"], tables["windows"]
    assert sorted(zip(runs["beside"], runs["intensity_percent"], strict=True)) == [
        ("", 0.0),
        ("memory", 100.0),
        ("network", 100.0),
    ]
    beside = windows[(windows["probe"] == "network") & (windows["phase"] == "run")]
    took = runs[runs["beside"] == "network"]["wall_s"].iloc[0]
    assert len(beside) and (beside["at_s"] >= 0).all() and (beside["at_s"] + beside["wall_s"] <= took).all()
    half, share = made.network, made.need("mpi_share")
    assert half is not None and half.emulated and half.sensitivity and half.pressure
    assert half.pressure.slowdown.value > 0.5 and share is not None and share.value > 0.1
    assert made.sensitivity and made.hosts == lab.hosts and (made.ranks, made.cores) == (2, 1)
    assert any("comprobe beside itself" in doing for doing in steps)
    assert not processes_below()


@pytest.mark.slow
def test_a_pair_over_hosts_has_cores_of_its_own_on_each(mpi: MpiInstall, lab: NetLab) -> None:
    require(len(CPUS) > 1, "two CPUs")
    cores, _ = cores_of(lab.hosts, mpi)
    command = (sys.executable, "-P", "-c", EXCHANGE, "10")
    programs = [
        Program(name, command, "/", 1, mpi, 2, lab.hosts, tuple(cores)) for name in ("exchange", "another")
    ]
    starts = [program.start(CPUS, i, 60.0) for i, program in enumerate(programs)]
    for i, start in enumerate(starts):
        assert f"{cores[0][i]},{cores[1][i]}" in start.command
    times = run_pairs(programs, [(0, 1)], CPUS, 1, limit_s=120.0)
    assert len(times.slowdowns("exchange", "another", "wall")) == 1
    assert len(times.slowdowns("another", "exchange", "wall")) == 1
    assert not processes_below()


def test_what_does_not_fit_on_the_hosts_is_said(mpi: MpiInstall, lab: NetLab) -> None:
    cores = len(CPUS)
    with pytest.raises(BadInput, match="-n 1: fewer ranks than the 2 hosts"):
        lay_out(lab.hosts, 1, mpi)
    with pytest.raises(
        Unavailable, match=r"cores for \d+ ranks, and comprobe needs one beside them; -n \d+ at"
    ):
        lay_out(lab.hosts, 2 * cores, mpi)
    with pytest.raises(Unavailable, match="cannot be reached"):
        lay_out([lab.hosts[0], "no-such-host"], 2, mpi)
    layout = lay_out(lab.hosts, 2, mpi)
    assert layout.here and layout.one_kernel and layout.per_host == 1 and len(layout.job_cores) == 2


def test_messages_that_do_not_leave_the_hosts_are_refused_before_the_job_runs(
    mpi: MpiInstall, lab: NetLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    require(len(CPUS) > 1, "two CPUs")
    require(mpi.family == "mpich", "an MPI that takes shared memory between namespaces")
    monkeypatch.delenv("UCX_TLS")
    network = Network(mpi, lay_out(lab.hosts, 2, mpi))
    with pytest.raises(Unavailable, match="through shared memory; keep MPI to the network: UCX_TLS"):
        network.check()
    assert not processes_below()


# --- over more and fewer ranks


RANKS = """
import os, sys, time
from mpi4py import MPI
comm = MPI.COMM_WORLD
assert comm.size == int(sys.argv[1]) == int(os.environ["TENBIN_TASKS"])
if comm.size > 1:
    assert len(set(comm.allgather(os.uname().nodename))) == 2
time.sleep(0.3 + 1.2 / comm.size)
comm.Barrier()
"""


def test_ranks_lie_on_the_hosts_in_turns() -> None:
    """As many on each but the last, as launchers do; hosts of one machine share no core in vain."""
    apart = Hosts(("a", "b", "c"), ((0, 1, 2), (4, 5, 6, 7), (0, 2, 4)), ("x", "y", "z"))
    assert apart.most == 9 and not apart.emulated
    assert apart.ranks(1) == (("a",), (0,))
    assert apart.ranks(3) == (("a", "b", "c"), (0, 4, 0))
    assert apart.ranks(4) == (("a", "b"), (0, 1, 4, 5))
    assert apart.ranks(8) == (("a", "b", "c"), (0, 1, 2, 4, 5, 6, 0, 2))
    together = Hosts(("a", "b"), ((0, 1), (0, 1)), ("x", "x"))
    assert together.most == 4 and together.emulated
    assert together.ranks(2) == (("a", "b"), (0, 1)) and together.ranks(4) == (("a", "b"), (0, 1, 0, 1))


@pytest.mark.slow
def test_a_program_is_measured_over_ranks_on_two_hosts(mpi: MpiInstall, lab: NetLab, tmp_path: Path) -> None:
    """0.3 s that no rank shortens and 1.2 s that all share: the ranks of 2 and 4 are on both hosts."""
    require(len(CPUS) > 1, "two CPUs")
    program = (sys.executable, "-P", "-c", RANKS, "{n}")
    order = JobOrder(
        "job", program, str(tmp_path), quick=True, limit_s=120.0, budget_s=600.0, mpi=True, hosts=lab.hosts
    )
    scaling = plan_scaling((1, 2, 4), order)
    table, _ = measure(scaling)
    assert sorted(set(table["cores"])) == [1, 2, 4] and not processes_below()
    least = table.groupby("cores")["wall_s"].min()
    assert all(least[n] >= 0.3 + 1.2 / n for n in (1, 2, 4))
    model = fit(table, scaling.hosts)
    assert model.emulated and model.labels == {"hosts": ",".join(lab.hosts)}
    with pytest.raises(BadInput, match=rf"--scale {4 * len(CPUS)}: these hosts have"):
        plan_scaling((1, 4 * len(CPUS)), order)
