"""The first rank to die: guards tell it, launchers where no guard is left; and the doubt between."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from probes.mpi import rank_failure, rank_guard
from probes.mpi.rank_failure import describe_failure, how_ended, sweep_segments
from probes.mpi.rank_guard import RankEnd

GUARD = [sys.executable, "-I", "-S", rank_guard.__file__]
AS_RANK_1 = os.environ | {"PMI_RANK": "1"}

# --- the guard --------------------------------------------------------------------------------------------


def guarded(code: str, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*GUARD, *options, sys.executable, "-P", "-c", code],
        env=AS_RANK_1,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def reports(stderr: str) -> list[RankEnd]:
    return [end for line in stderr.splitlines() if (end := RankEnd.from_line(line))]


@pytest.mark.parametrize(
    ("deed", "code", "words"),
    [
        ("os._exit(3)", 3, "exit code 3"),
        ("os.kill(os.getpid(), signal.SIGKILL)", -9, "signal 9 (SIGKILL)"),
        ("os.kill(os.getpid(), signal.SIGTERM)", -15, "signal 15 (SIGTERM)"),
        (
            "os.kill(os.getpid(), signal.SIGPIPE)",
            -13,
            "signal 13 (SIGPIPE)",
        ),  # Python's own are not passed on
        ("os.kill(os.getpid(), signal.SIGINT)", -2, "signal 2 (SIGINT)"),
        ("os.kill(os.getpid(), 40)", -40, "signal 40"),
        ("os.abort()", -6, "signal 6 (SIGABRT)"),
    ],
)
def test_a_guard_tells_how_its_rank_ended_and_ends_alike(deed: str, code: int, words: str) -> None:
    process = guarded(
        "import os, resource, signal, sys; resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
        "signal.signal(signal.SIGPIPE, signal.SIG_DFL); signal.signal(signal.SIGINT, signal.SIG_DFL)\n"
        f"sys.stderr.write('unfinished'); sys.stderr.flush(); {deed}"
    )
    _, errors = process.communicate(timeout=30)
    (end,) = reports(errors)
    assert process.returncode == code
    assert errors.startswith("unfinished\n")
    assert (end.rank, how_ended(end.wait_status), end.host) == (1, words, os.uname().nodename)
    assert time.time() - 30 < end.unix_s <= time.time()


def test_a_guard_has_nothing_to_say_of_a_good_end() -> None:
    process = guarded(
        "import os; print(sorted(os.sched_getaffinity(0)))", "--cores", f"999,{min(os.sched_getaffinity(0))}"
    )
    assert process.communicate(timeout=30) == (f"[{min(os.sched_getaffinity(0))}]\n", "")
    assert process.returncode == 0


def test_a_guard_tells_of_a_program_that_cannot_start() -> None:
    done = subprocess.run(
        [*GUARD, "/no/such/program"], env=AS_RANK_1, capture_output=True, text=True, check=False
    )
    assert done.returncode == 127
    assert "/no/such/program: No such file" in done.stderr
    assert how_ended(reports(done.stderr)[0].wait_status) == "exit code 127"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_what_the_launcher_ends_dies_unsaid(number: signal.Signals) -> None:
    """Launchers signal the group of the process that they started; that takes the guard along."""
    process = guarded("import time; print('up', flush=True); time.sleep(100)")
    assert process.stdout is not None and process.stdout.readline() == "up\n"
    os.killpg(process.pid, number)
    assert reports(process.communicate(timeout=30)[1]) == []


def test_a_rank_does_not_outlive_its_guard() -> None:
    process = guarded("import time; print('up', flush=True); time.sleep(100)")
    assert process.stdout is not None and process.stdout.readline() == "up\n"
    (rank,) = psutil.Process(process.pid).children()
    process.kill()
    process.communicate(timeout=30)  # which ends when the rank has closed its output
    with suppress(psutil.NoSuchProcess):
        rank.wait(timeout=30)
    assert not rank.is_running()


# --- what is made of the reports --------------------------------------------------------------------------


def end(rank: int, status: int, at_s: float, boot: str = "x") -> RankEnd:
    return RankEnd(rank, status, 1e9 + at_s, boot, f"host{rank}")


def test_a_report_survives_its_way() -> None:
    report = RankEnd(3, 9, 1.795276e9 + 0.123456, "4325ce5f-ab67", "node7")
    assert RankEnd.from_line(f"unfinished{report.to_line()}\n") == report
    assert RankEnd.from_line("tenbin-rank-ended 3") is None
    assert RankEnd.from_line("something else") is None
    alone = RankEnd(None, 9, 1.5e9, "4325ce5f-ab67", "node7")  # under a launcher of another MPI
    assert RankEnd.from_line(alone.to_line()) == alone
    assert describe_failure(1, [], [alone], ranks=2) == "a rank on node7 ended with signal 9 (SIGKILL)"


LOST = " (or its MPI lost another rank before, together with the guard that would have told)"
ABORTED = ["[a:0] *** MPI_ERRORS_ARE_FATAL (processes in this communicator will now abort,"]


@pytest.mark.parametrize(
    ("ends", "errors", "words"),
    [
        ([end(1, 9, 0.0)], [], "rank 1 on b ended with signal 9 (SIGKILL)"),
        # Open MPI's rank 0 lost its peer; its guard was faster by 1 ms.
        ([end(0, 14 << 8, 0.0), end(1, 9, 0.001)], [], "rank 1 on b ended with signal 9 (SIGKILL)"),
        ([end(0, 14 << 8, 0.5), end(1, 3 << 8, 0.0)], [], "rank 1 on b ended with exit code 3"),
        (
            [end(0, 14 << 8, 0.001), end(1, 3 << 8, 0.0)],
            [],
            "rank 1 on b ended with exit code 3 (or rank 0 on a went first, with exit code 14)",
        ),
        (  # clocks of two machines
            [end(0, 14 << 8, 0.5, boot="y"), end(1, 3 << 8, 0.0)],
            [],
            "rank 1 on b ended with exit code 3 (or rank 0 on a went first, with exit code 14)",
        ),
        ([end(0, 14 << 8, 0.0, boot="y"), end(1, 9, 5.0)], [], "rank 1 on b ended with signal 9 (SIGKILL)"),
        (
            [end(0, 9, 0.0), end(1, 15, 0.01)],
            [],
            "rank 0 on a ended with signal 9 (SIGKILL) (or rank 1 on b went first, with signal 15 (SIGTERM))",
        ),
        (  # rank 1 was killed with its guard, and rank 0 missed it
            [end(0, 14 << 8, 0.0)],
            ABORTED,
            f"rank 0 on a ended with exit code 14{LOST}; last words: {ABORTED[0]}",
        ),
        ([end(0, 11, 0.0)], [], f"rank 0 on a ended with signal 11 (SIGSEGV){LOST}"),
        ([end(0, 11, 0.0), end(1, 9, 0.0)], [], "rank 1 on b ended with signal 9 (SIGKILL)"),
    ],
)
def test_guards_tell_who_died_first(ends: list[RankEnd], errors: Sequence[str], words: str) -> None:
    assert describe_failure(255, errors, ends, ranks=2, hosts=["a", "b"]) == words


def test_guards_know_more_than_the_launcher() -> None:
    account = "[mpiexec@vm] Exit codes: [a] 9 [b] 0"  # seen when rank 1 had been killed
    assert (
        describe_failure(9, [account], [end(1, 9, 0.0)], ranks=2, hosts=["a", "b"])
        == "rank 1 on b ended with signal 9 (SIGKILL)"
    )
    assert (
        describe_failure(9, [account], [], ranks=2, hosts=["a", "b"])
        == f"rank 0 on a ended with signal 9 (SIGKILL){DOUBT}"
    )


# --- what is made of mpiexec's account --------------------------------------------------------------------

OPEN_MPI_EXIT = """--------------------------------------------------------------------------
prterun detected that one or more processes exited with non-zero status,
thus causing the job to be terminated. The first process to do so was:

   Process name: [prterun-node7-8090@1,1]
   Exit code:    3
--------------------------------------------------------------------------"""
OPEN_MPI_KILLED = """out of memory
--------------------------------------------------------------------------
mpirun noticed that process rank 2 with PID 8104 on node node7 exited on
signal 9 (Killed).
--------------------------------------------------------------------------"""
MPICH_KILLED = """out of memory
===================================================================================
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID 7952 RUNNING AT node7
=   EXIT CODE: 9
===================================================================================
[mpiexec@node1] Exit codes: [node6] 0 [node7] 9"""

MPICH_KILLED_ON_A_HOST = """[proxy:0@a] HYD_pmcd_pmip_control_cmd_cb (pmip_cb.c:490): assert (!closed) failed
[mpiexec@vm] main (mpiexec.c:270): process manager error waiting for completion
===================================================================================
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID 27331 RUNNING AT b
=   EXIT CODE: 9
=   CLEANING UP REMAINING PROCESSES
==================================================================================="""

DOUBT = " (or another rank: MPICH ended the rest by signal too)"

MPICH_KILLED_AND_OTHERS_ENDED = f"{MPICH_KILLED_ON_A_HOST}\n[mpiexec@vm] Exit codes: [a] 9 [b] 9"


@pytest.mark.parametrize(
    ("text", "hosts", "words"),
    [
        (OPEN_MPI_EXIT, ["a", "b"], "rank 1 on b ended with exit code 3"),
        (OPEN_MPI_KILLED, [], "rank 2 on node7 ended with signal 9 (SIGKILL); last words: out of memory"),
        (
            MPICH_KILLED,
            ["a", "b"],
            f"rank 1 on b ended with signal 9 (SIGKILL){DOUBT}; last words: out of memory",
        ),
        (MPICH_KILLED_ON_A_HOST, ["a", "b"], f"rank 1 on b ended with signal 9 (SIGKILL){DOUBT}"),
        (MPICH_KILLED_AND_OTHERS_ENDED, ["a", "b"], f"rank 1 on b ended with signal 9 (SIGKILL){DOUBT}"),
        ("[mpiexec@vm] Exit codes: [vm] 9,768,15", [], "rank 1 on vm ended with exit code 3"),
        ("", [], "a rank ended with exit code 1"),
    ],
)
def test_both_families_tell_who_died(text: str, hosts: list[str], words: str) -> None:
    assert describe_failure(1, text.splitlines(), [], ranks=2, hosts=hosts) == words


def test_one_rank_leaves_no_doubt() -> None:
    failure = describe_failure(9, ["Exit codes: [vm] 9"], [], ranks=1)
    assert failure == "rank 0 on vm ended with signal 9 (SIGKILL)"


# --- shared memory


@pytest.mark.parametrize(
    ("began_s", "now_s", "lasted_s", "stays"),
    [
        pytest.param(-10, 0, 10, False, id="made meanwhile"),
        pytest.param(3600, 0, 10, False, id="made after the clock was set back by an hour"),
        pytest.param(-10, 3600, 10, False, id="made before the clock was set forward by an hour"),
        pytest.param(3590, 3600, 10, True, id="made before the run"),
    ],
)
def test_segments_of_a_run_are_removed_though_the_clock_was_set(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    began_s: float,
    now_s: float,
    lasted_s: float,
    stays: bool,
) -> None:
    monkeypatch.setattr(rank_failure, "SHARED", tmp_path)
    monkeypatch.setattr(rank_failure, "SETTLE_S", 0.0)
    segment, other = tmp_path / "mpich_shm_1", tmp_path / "of_somebody_else"
    segment.touch()
    other.touch()
    made_s = segment.stat().st_ctime
    monkeypatch.setattr(time, "time", lambda: made_s + now_s)
    sweep_segments(made_s + began_s, lasted_s)
    assert segment.exists() == stays and other.exists()
