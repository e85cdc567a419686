"""``tenbin program``: real programs measured beside real writers, what cannot be measured, and the store."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
import typer

from agent.job_profile.profiler import choose_areas, choose_clock, choose_cpus, make_job_profile
from agent.job_profile.session import JobOrder, JobProgress, Session, plan_visits
from agent.job_profile.trial import CommandFailed, RunOutcome, Trial
from agent.node_profile.identity import node_kind
from probes.memory import Stream, WriterPool
from probes.memory_plan import Spot
from probes.order_process import ProcessLost
from probes.topology import LogicalCpu, Topology
from profiles.errors import BadInput, Unavailable
from profiles.files.store import JobStore, load_job
from profiles.fits.job import fit
from profiles.models.contention import slowdown_beside
from tenbin.commands.job import examples
from tests.support.job_profiles import make_job, over_hosts, samples, shorten_sessions
from tests.support.labs.components import processes_below, require
from tests.support.programs import TENBIN, tenbin
from tests.support.records import make_inventory

pytestmark = pytest.mark.usefixtures("own_lock")
CPUS = sorted(os.sched_getaffinity(0))
PROGRAM = """
import sys, time
kept = bytearray(60_000_000)
with open(sys.argv[1], "wb") as file:
    file.write(kept[:5_000_000])
time.sleep(float(sys.argv[2]))
"""


def trial(*command: str, limit_s: float = 60.0, cpus: list[int] = CPUS[:1]) -> RunOutcome:
    with Trial(command, "/", cpus, limit_s=limit_s) as running:
        while (ended := running.ended(1.0)) is None:
            pass
    return ended


def python(program: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-S", "-c", program, *arguments)


# --- one run


def test_a_run_tells_what_its_whole_tree_used(tmp_path: Path) -> None:
    """Memory of two processes at once, CPU time and I/O of one that is not waited for by the main one."""
    child = "import time; kept = bytearray(80_000_000); [i for i in range(2_000_000)]; time.sleep(1)"
    program = f"""
import os, subprocess, sys
one = subprocess.Popen([sys.executable, "-S", "-c", {child!r}])
two = subprocess.Popen([sys.executable, "-S", "-c", {child!r}])
open({str(tmp_path / "file")!r}, "wb").write(bytes(3_000_000))
one.wait(), two.wait()
"""
    ended = trial(*python(program))
    assert (ended.code, ended.trouble, ended.left, ended.strayed) == (0, "", 0, False)
    assert ended.peak_memory_mb > 160
    assert 3.0 <= ended.written_mb < 4.0
    assert ended.cpu_s > 0 and ended.wall_s >= 1.0


def test_a_small_program_is_not_charged_for_our_own_memory() -> None:
    assert trial("sleep", "0.3").peak_memory_mb < 10


def test_what_the_command_does_wrong_is_told() -> None:
    assert trial("/nowhere/program").trouble == "/nowhere/program: No such file or directory"
    assert trial("sh", "-c", "echo no licence >&2; exit 3").last_words == "no licence"
    assert trial("sh", "-c", "kill -9 $$").code == -9
    assert trial("sleep", "600", limit_s=0.3).overdue
    assert trial("cat").code == 0  # reads the terminal: there is nothing to read
    assert trial("sh", "-c", "sleep 600 & setsid sleep 600 & sleep 0.1").left == 2
    assert not processes_below()


def test_a_program_that_takes_other_cpus_is_put_back() -> None:
    require(len(CPUS) > 1, "two CPUs")
    program = f"""
import os, time
os.sched_setaffinity(0, {set(CPUS)})
while len(os.sched_getaffinity(0)) > 1: time.sleep(0.01)
"""
    ended = trial(*python(program))
    assert ended.strayed and ended.code == 0


def test_a_run_ends_with_its_parent() -> None:
    program = "from agent.job_profile.trial import Trial; import time\n"
    program += f"with Trial(['sleep', '600'], '/', [{CPUS[0]}], limit_s=600): "
    program += "print(1, flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None and parent.stdout.readline()
        below = psutil.Process(parent.pid).children(recursive=True)
        parent.kill()
    assert below and not psutil.wait_procs(below, timeout=30)[1]


# --- writers beside


def test_writers_write_on_window_after_window() -> None:
    spots = [Spot(cpu, 0, cpu) for cpu in CPUS[:2]]
    with WriterPool(8) as pool:
        with Stream(pool, dict.fromkeys(spots, 1.0), 0.05) as stream:
            windows = [stream.step() for _ in range(4)]
        assert [row.spot for rows in windows for row in rows] == spots * 4
        starts = [rows[0].written.start_s for rows in windows]
        assert starts == sorted(starts)
        assert sum(row.written.bytes for rows in windows for row in rows) > 0
        with Stream(pool, {spots[1]: 1.0}, 0.05, most=2) as stream:
            several = [stream.step() for _ in range(2)]
        assert [row.spot for rows in several for row in rows] == [spots[1]] * 2
        with Stream(pool, {spots[0]: 0.3}, 0.1) as stream:  # nothing is left over from the last one
            [row] = stream.step()
        assert row.written.thread_cpu_s <= 0.45 * max(row.written.wall_s, 0.1)
        with pytest.raises(ProcessLost), Stream(pool, {spots[0]: 1.0}, 0.05) as stream:
            os.kill(pool.pids[spots[0].core], signal.SIGKILL)
            for _ in range(5):
                stream.step()


def test_the_job_and_its_neighbour_get_cores_of_their_own() -> None:
    cpus = tuple(LogicalCpu(i, i % 4, 0, 0, 0) for i in range(8))  # four cores of two threads
    topology = Topology(cpus, (0,), 32.0, 64)
    job, probes = choose_cpus(topology, 2)
    assert [s.core for s in job] == [0, 1] and [s.core for s in probes] == [2, 3]
    job, probes = choose_cpus(topology, 3)
    assert len(job) == 3 and [s.core for s in probes] == [3]
    with pytest.raises(BadInput, match="may use 4 cores, and memprobe needs one"):
        choose_cpus(topology, 4)
    with pytest.raises(Unavailable, match="one core only"):
        choose_cpus(Topology(cpus[:1], (0,), 32.0, 64), 1)


def test_writers_that_share_a_cache_share_the_area_that_it_takes() -> None:
    """Four cores of two caches of 32 MB; areas of 4 x 32 MB for each cache and side."""
    topology = Topology(tuple(LogicalCpu(i, i, i // 8 * 8, 0, 0) for i in range(16)), (0,), 32.0, 64)
    for cores, each_mb in ((1, 128), (4, 32), (8, 16), (12, 32)):
        job, probes = choose_cpus(topology, cores)
        area_mb, _ = choose_areas(topology, job, probes, 10_000)
        assert area_mb == each_mb, cores
    job, probes = choose_cpus(topology, 1)
    assert choose_areas(topology, job, probes, 256)[0] == 128
    with pytest.raises(Unavailable, match=r"memprobe needs 256 MB for 2 writers, 250 MB can be taken"):
        choose_areas(topology, job, probes, 250)
    with pytest.raises(Unavailable, match="no memory for memprobe"):
        choose_areas(topology, job, probes, 10)


# --- whole profiles


def test_a_real_job_is_measured_stored_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require(len(CPUS) > 1, "two CPUs")
    shorten_sessions(monkeypatch, 2, (0.0, 50.0, 100.0))
    fractions: list[float] = []
    command = python(PROGRAM, str(tmp_path / "file"), "0.3")
    order = JobOrder("sleeper", command, str(tmp_path), quick=True)
    made, tables = make_job_profile(order, lambda progress: fractions.append(progress.fraction))
    assert made.repetitions == 2 and made.kind == node_kind() and not made.interrupted
    assert fractions == sorted(fractions) and fractions[-1] < 1
    runs = tables["runs"]
    assert runs.groupby("intensity_percent").size().to_dict() == {0.0: 2, 50.0: 2, 100.0: 2}
    assert (runs["wall_s"] >= 0.3).all()
    needs = {c.name: c.value for c in made.alone}
    assert needs["peak_memory_mb"] > 60 and 5.0 <= needs["written_mb"] < 6.0
    [wall] = [c for c in made.sensitivity if c.clock == "wall"]
    assert [level.intensity_percent for level in wall.levels] == [0, 50, 100]
    assert wall.levels[0].slowdown.value == 1.0
    assert {p.clock for p in made.pressure} == {"wall", "cpu"}
    store = JobStore(tmp_path / "store")
    store.save(made, tables)
    shown = tenbin("program", "show", "sleeper", store=tmp_path / "store")
    assert shown.returncode == 0 and "memprobe is slowed down" in shown.stdout
    assert "straight between 0, 50 and 100 %" in shown.stdout
    printed = tenbin("program", "show", "sleeper", "--json", store=tmp_path / "store")
    assert json.loads(printed.stdout)["name"] == "sleeper"
    assert not processes_below()


def test_a_profile_of_runs_of_five_seconds_takes_three_minutes_a_quick_one_less_than_one() -> None:
    """By the seconds that runs, references and starts take; two repetitions are made, whatever they take."""

    def repetitions(
        order: JobOrder, first_s: float, turn_s: float, ratios: Sequence[float] = (1.0, 2.0)
    ) -> tuple[int, float]:
        """``ratios``: the slow-downs, one repetition after the other and over again."""
        clock, steps = [first_s], [("", 0.0), ("memory", 50.0), ("memory", 100.0)]
        rng = np.random.default_rng(1)
        visits = plan_visits(order, steps, rng, run_s=first_s, spent_s=lambda: clock[0])
        for visit in visits:
            clock[0] += turn_s / len(steps)
            visit.values.append(ratios[visit.count % len(ratios)])
        assert len({point.count for point in visits.points}) == 1
        return visit.count, clock[0]

    quick, full = (JobOrder("a", ("a",), "/", quick=quick) for quick in (True, False))
    assert repetitions(quick, 5.2, 5.2 + 5.2 * 1.25 + 5.2 * 1.5 + 3) == (2, pytest.approx(50.2))
    assert repetitions(quick, 3.2, 3.2 * 3 + 3) == (3, pytest.approx(41.0))
    assert repetitions(quick, 60.0, 180.0)[0] == 2
    assert repetitions(full, 5.2, 30.0) == (5, pytest.approx(155.2))
    assert repetitions(full, 1.2, 10.0) == (16, pytest.approx(161.2))
    assert repetitions(full, 100.0, 600.0)[0] == 3
    assert repetitions(replace(full, budget_s=1200.0), 5.2, 30.0)[0] == 20
    assert repetitions(full, 2.0, 13.0, ratios=[1.0]) == (6, pytest.approx(80.0))  # narrow


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["sh", "-c", "echo no input >&2; exit 4"], r"failed with exit code 4: no input"),
        (["sleep", "0.05"], r"ended after 0\.\d+ s, too soon to measure; give it work for 1 s at least"),
        (["sleep", "600"], r"still ran after 3 s \(--limit\)"),
        (["sh", "-c", "sleep 60 & sleep 1.1"], r"left 1 processes running; keep it in the foreground"),
        (["/nowhere"], r"cannot be started: /nowhere: No such file"),
    ],
)
def test_what_cannot_be_measured_is_said_in_one_line(tmp_path: Path, command: list[str], says: str) -> None:
    require(len(CPUS) > 1, "two CPUs")
    with pytest.raises(CommandFailed, match=says):
        make_job_profile(JobOrder("bad", tuple(command), str(tmp_path), limit_s=3.0))
    assert not processes_below()


def test_an_interrupt_before_anything_is_known_stores_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    require(len(CPUS) > 1, "two CPUs")
    command = [*TENBIN, "program", "profile", "long", "--store", str(tmp_path), "--", "sleep", "61.7"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        first = process.stderr.readline()
        if "another profile is measuring" in first:
            process.wait()
            pytest.skip("this machine is being profiled by somebody else")
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
        process.wait(60)
    assert process.returncode == 130
    assert said.endswith("tenbin: ended before the first repetition was whole; nothing is stored\n")
    assert not JobStore(tmp_path).paths()
    assert not processes_below()


def test_what_the_store_cannot_take_is_kept_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store becomes a plain file while the program runs."""
    require(len(CPUS) > 1, "two CPUs")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    store = tmp_path / "store"
    program = f"rm -rf {store}; touch {store}; sleep 1"
    options = ("--quick", "--budget", "1s", "--store", str(store))
    done = tenbin("program", "profile", "tiny", *options, "--", "sh", "-c", program)
    assert done.returncode == 1, done.stderr
    (refuge,) = tmp_path.glob("tenbin-*")
    assert "the profile is kept: tenbin program show tiny@" in done.stderr and str(refuge) in done.stderr
    assert [load_job(path).name for path in JobStore(refuge).paths()] == ["tiny"]


def test_an_interrupt_keeps_the_repetitions_that_are_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require(len(CPUS) > 1, "two CPUs")
    shorten_sessions(monkeypatch, 2, (0.0, 50.0, 100.0))

    def listen(progress: JobProgress) -> None:
        if progress.doing.startswith("repetition 2: beside"):
            (tmp_path / "now").touch()

    interrupt = f"[ ! -e now ] || kill -INT {os.getpid()}"
    command = ("sh", "-c", f"sleep 0.2; {interrupt}; sleep 0.3")
    made, tables = make_job_profile(JobOrder("cut", command, str(tmp_path), quick=True), listen)
    assert made.interrupted and made.repetitions == 1
    assert set(tables["runs"]["repetition"]) == set(tables["windows"]["repetition"]) == {1}
    reference = tables["windows"][tables["windows"]["phase"] == "reference"]
    by_round = reference[reference["measured"]].groupby("round")["intensity_percent"]
    assert [sorted(percents) for _, percents in by_round] == [[0.0, 50.0, 100.0]] * 3
    assert made.sensitivity and made.need("run_s") is not None
    assert slowdown_beside(made, [made]) is None or made.pressure_by() is not None
    assert not processes_below()


def test_a_trial_whose_parent_is_interrupted_before_its_order_is_quiet() -> None:
    command = [sys.executable, "-P", "-m", "agent.job_profile.trial", str(os.getpid())]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"")


def test_a_trial_that_cannot_be_told_its_order_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaf = tmp_path / "deaf"
    deaf.write_text("#!/bin/sh\nexec <&-\nexec sleep 60\n")
    deaf.chmod(0o700)
    monkeypatch.setattr("agent.job_profile.trial.sys.executable", str(deaf))
    with pytest.raises(BrokenPipeError):
        Trial(["true"], "/", CPUS, limit_s=9.0, variables={"LONG": "x" * 2_000_000})
    assert not processes_below()


def test_too_many_threads_are_noted_once_whatever_each_run_had(monkeypatch: pytest.MonkeyPatch) -> None:
    order = JobOrder("crowd", ("crowd",), "/", budget_s=0.0)  # the least repetitions: three
    session = Session(order, None, None, None, [Spot(0, 0, 0)], [], lambda progress: None)  # type: ignore[arg-type]
    runs = [
        RunOutcome(ended_s=1.0, cpu_s=c, most_threads=n) for n, c in ((4, 1.0), (6, 1.0), (5, 1.0), (9, 0.5))
    ]
    monkeypatch.setattr(session, "_trial", lambda load, intensity: runs[0])
    monkeypatch.setattr(session, "_look_at_device", lambda: None)
    monkeypatch.setattr(session, "_visit", lambda step, number, place: session._check(runs[number]) or 1.0)
    monkeypatch.setattr(session, "_drop_incomplete", lambda repetition: None)
    session.run()
    assert session.notes == [
        "up to 6 threads on 1 core(s): give it more with -n"
    ]  # nine that wait crowd nobody


def test_a_busy_machine_is_predicted_by_cpu_time() -> None:
    fitted, quiet = fit(*samples()), make_job("a").condition
    assert choose_clock(quiet, fitted) == ("wall", "")
    busy = quiet.model_copy(update={"others_ratio": 0.4})
    clock, doubt = choose_clock(busy, fitted)
    assert clock == "cpu" and "40%" in doubt
    only_wall = fitted._replace(sensitivity=fitted.sensitivity[:1])
    assert choose_clock(busy, only_wall)[0] == "wall"
    over = fit(*over_hosts(samples(), samples()))
    clock, doubt = choose_clock(busy, over)
    assert over.network is not None and clock == "wall" and "40%" in doubt and "CPU time" in doubt
    of_one_kernel = over.network.model_copy(update={"emulated": True})
    assert choose_clock(busy, over._replace(network=of_one_kernel)) == ("wall", "")


# --- the store, and bad input


def test_a_name_keeps_all_its_profiles_and_the_newest_is_meant(tmp_path: Path) -> None:
    store, kind = JobStore(tmp_path), make_job("a").kind.key
    for name, made in (("a", "20260101T000000Z"), ("a", "20260102T000000Z"), ("b", "20260101T000000Z")):
        store.save(make_job(name, id=made), {})
    assert store.names() == ["a", "b"]
    assert store.load("a", kind).id == "20260102T000000Z"
    assert store.load("a@20260101", kind).id == "20260101T000000Z"
    assert list(store.newest(kind)) == ["a", "b"] and store.newest("another") == {}
    with pytest.raises(BadInput, match=r"no job profile 'c' in .*there are: a, b"):
        store.find("c", kind)
    for selector in ("", "*", "../a", "a@2030"):
        with pytest.raises(BadInput):
            store.find(selector, kind)


def test_this_kind_of_node_comes_before_another(tmp_path: Path) -> None:
    store, other = JobStore(tmp_path), make_job("a").kind.model_copy(update={"key": "another"})
    store.save(make_job("a", id="20260101T000000Z"), {})
    store.save(make_job("a", id="20260105T000000Z", kind=other), {})
    assert store.load("a", make_job("a").kind.key).id == "20260101T000000Z"
    assert store.load("a", "another").id == "20260105T000000Z"
    assert store.load("a", "a third").id == "20260105T000000Z"


def test_kinds_differ_by_what_decides_interference_only() -> None:
    inventory = make_inventory()
    assert node_kind(inventory) == node_kind(make_inventory(kernel="7.0", hostname="other"))
    assert node_kind(inventory).key != node_kind(make_inventory(memory_mb=99_000.0)).key
    assert node_kind(inventory).title == "Example 9000, 2 cores, 7 GiB"


def test_a_profile_of_another_kind_of_node_is_said_to_be_one(tmp_path: Path) -> None:
    JobStore(tmp_path).save(make_job("a"), {})
    shown = tenbin("program", "show", "a", store=tmp_path)
    assert "OF ANOTHER KIND OF NODE" in shown.stdout
    assert "tenbin program profile a -n 1 -- sleep 10" in shown.stdout
    listed = tenbin("program", "list", store=tmp_path)
    assert "other node" in listed.stdout


def test_a_damaged_profile_is_named_and_costs_no_other(tmp_path: Path) -> None:
    store = JobStore(tmp_path)
    store.save(make_job("a"), {})
    broken = store.save(make_job("b"), {}) / "profile.json"
    broken.write_text(broken.read_text().replace('"command"', '"commando"'))
    with pytest.raises(BadInput, match="field command"):
        load_job(broken)
    listed = tenbin("program", "list", "--json", store=tmp_path)
    assert listed.returncode == 2
    profiles = json.loads(listed.stdout)
    assert [row["name"] for row in profiles["job_profiles"]] == ["a"] and len(profiles["damaged"]) == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["../x", "--", "true"], "NAME '../x' cannot be a name"),
        (["x", "-n", "4096", "--", "true"], "memprobe needs one beside the job"),
        (["x", "--limit", "soon", "--", "true"], "'soon'"),
        (["x", "--chdir", "/nowhere", "--", "true"], "--chdir /nowhere: not a folder"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, arguments: list[str], says: str) -> None:
    require(len(CPUS) > 1, "two CPUs")
    done = tenbin("program", "profile", *arguments, store=tmp_path)
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert line.startswith("tenbin: ") and says in line


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_kernels_are_profiled_by_one_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the tiny class: it is stored under its name, and repeated for about as long as was asked for."""
    require(len(CPUS) > 1, "two CPUs")
    shorten_sessions(monkeypatch)
    monkeypatch.setattr("agent.job_profile.trial.KERNELS", {"ep": "S"})
    with pytest.raises(typer.Exit) as ended:
        examples(None, seconds=0.3, store=tmp_path)
    assert ended.value.exit_code == 0
    assert "tenbin program pairs" in capsys.readouterr().out
    job = JobStore(tmp_path).load("ep", node_kind().key)
    run = job.need("run_s")
    assert job.quick and run is not None and run.value > 0.2 and job.command[-2] == "--repeat"
    assert int(job.command[-1]) >= 1 and job.command[:2] == (sys.executable, "-P")
    with pytest.raises(BadInput, match="no kernel 'is'; choose from ep"):
        examples(["is"], store=tmp_path)
    assert not processes_below()
