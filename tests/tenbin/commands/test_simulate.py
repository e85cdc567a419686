"""``tenbin simulate``: table, JSON, picture, and one line for bad input."""

from __future__ import annotations

import csv
import json
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings

from scheduler.model.jobs import Cluster, Job, Pool
from scheduler.policies.registry import create
from scheduler.simulator.trace import Arrival
from tenbin.client import profiles as client
from tenbin.commands.simulate import complete_workload
from tenbin.report.schedule import figures, files_of, lanes, means, page, waits
from tests.support import programs
from tests.support.amounts import examples
from tests.support.scheduling.random_policy import Chaos
from tests.support.scheduling.worlds import World, counted, power, run

WORKLOAD = "generator:lublin,jobs=200,load=0.9"


def tenbin(*arguments: str) -> subprocess.CompletedProcess[str]:
    return programs.tenbin("simulate", *arguments)


def test_table_compares_the_policies() -> None:
    done = tenbin("-p", "fcfs", "-p", "easy", "-w", WORKLOAD, "-c", "128")
    assert done.returncode == 0, done.stderr
    assert re.search(r"fcfs +easy", done.stdout) and "wait, mean" in done.stdout and "200" in done.stdout


def test_json_has_units_in_its_keys() -> None:
    done = tenbin(
        "-p", "easy", "-p", "conservative,depth=5", "-w", WORKLOAD, "-c", "64", "--seed", "3", "--json"
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [r["policy"] for r in found["results"]] == ["easy", "conservative,depth=5"]
    wanted = (
        "mean_wait_s mean_turnaround_s bsld_mean p99_slowdown max_wait_s makespan_s utilisation_ratio "
        "preemptions migrations energy_j jobs_per_s refused skipped"
    )
    assert all(result.keys() >= set(wanted.split()) for result in found["results"])
    assert found["results"][0]["jobs"] + found["results"][0]["refused"] == 200


def test_gantt_is_one_page_without_links(tmp_path: Path) -> None:
    path = tmp_path / "gantt.html"
    done = tenbin("-p", "fcfs", "-w", WORKLOAD, "-c", "128", "--limit", "50", "--gantt", str(path))
    assert done.returncode == 0, done.stderr
    text = path.read_text()
    assert "Schedule of node" in text and "Utilisation" in text and "<script src" not in text
    assert "Mean wait" in text
    named = tenbin("-p", "fcfs", "-w", WORKLOAD, "-c", "128", "--gantt", str(tmp_path / "gantt.pdf"))
    assert named.returncode == 2 and f"name it {path}" in named.stderr


def test_waits_are_drawn_as_they_were() -> None:
    """Four jobs of one unit each, on one unit: they wait 0, 9, 18 and 27 s."""
    world = World(
        Cluster((Pool("node", 1),)), tuple(Arrival(Job(i + 1, float(i), 1, 10.0), 10.0) for i in range(4))
    )
    outcomes, _ = run(create("fcfs"), world)
    shares, over_time = waits([("fcfs", outcomes)])
    assert list(shares.data[0].x)[::100] == [0.0, 27.0] and list(shares.data[0].y)[::100] == [0.0, 100.0]
    assert list(over_time.data[0].y) == [0.0, 9.0, 18.0, 27.0]
    assert waits([("fcfs", [])]) == []


BASE = f"-w {WORKLOAD} -c 16"
EASY, TWO = f"{BASE} -p easy", f"{BASE} -p easy -p fcfs --resamples 20"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (f"{BASE} -p esay", "unknown policy 'esay'; did you mean easy"),
        ("-p easy -w nothing.swf -c 16", "nothing.swf: no such file"),
        (f"-p easy -w {WORKLOAD} -c 16x", "'16x' is not understood"),
        (f"-p regions -w {WORKLOAD} -c 16xa+16xb", "schedules one class of units"),
        (f"{EASY} --gantt /nowhere/x.html", "--gantt /nowhere/x.html"),
        (f"{EASY} --jobs-out x.txt", "neither .csv nor .swf"),
        (f"{EASY} --jobs-out /nowhere/x.csv", "--jobs-out /nowhere/x.csv"),
        (f"{EASY} --warm-up 100%", "--warm-up '100%' is none of its"),
        (f"{EASY} --warm-up x", "a share below 100%, a time as 2d"),
        (f"{EASY} --warm-up 900d", "leave none of 200 jobs"),
        (f"{EASY} --resamples 20", "at least two policies"),
        (f"{EASY} --seed -1", "'--seed': must be at least 0; see: tenbin simulate --help"),
        (f"{TWO} --block 90d", "0 whole blocks of 90 days"),
        (f"{TWO} --block 0:00", "--block '0:00' is too short; write at least 1s"),
        (
            "-p las -w generator:multiresource,jobs=50,closed_load=1 -c 4xnode[cpu=1,memory=1] --warm-up 5%",
            "reacts to the schedule",
        ),
    ],
)
def test_bad_input_is_one_line(words: str, message: str) -> None:
    done = tenbin(*words.split())
    assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1


def test_refused_and_skipped_jobs_are_told(tmp_path: Path) -> None:
    log = tmp_path / "log.swf"
    log.write_text("1 0 -1 5 4 -1 -1 4 9\n2 1 -1 5 99 -1 -1 99 9\nbroken\n")
    done = tenbin("-p", "fcfs", "-w", str(log), "-c", "16")
    assert "refused: 1 job: it needs 99 nodes, there are 16" in done.stdout
    assert "skipped: 1 job: fewer than 9 fields" in done.stdout


# Jobs 2 and 3 state no run time (-1 and 0). On 2 units EASY lets job 3 (1 unit, 5 s) pass job 2 (2 units,
# which can start at 10) only if it should end by then: waits of 0, 10 and 0 s. Else 0, 10 and 13 s.
UNSTATED = """; a log
1 0 -1 10 1 -1 -1 1 10
2 0 -1 4 2 -1 -1 2 -1
3 1 -1 5 1 -1 -1 1 0
"""


@pytest.mark.parametrize(
    ("choice", "wait_s", "taken"),
    [
        ("unknown", 23 / 3, "unknown"),
        ("actual", 10 / 3, "the run time itself"),
        ("3s", 10 / 3, "3s"),
        ("1h", 23 / 3, "1h"),
    ],
)
def test_jobs_that_state_no_run_time_are_counted_and_given_one(
    tmp_path: Path, choice: str, wait_s: float, taken: str
) -> None:
    log = tmp_path / "log.swf"
    log.write_text(UNSTATED)
    arguments = ("-p", "easy", "-w", str(log), "-c", "2", "--without-estimate", choice)
    done = tenbin(*arguments)
    assert done.returncode == 0, done.stderr
    assert f"2 of 3 jobs state no run time; policies took: {taken}" in done.stdout
    assert "in the log: 1 job: a requested time of 0, which counts as none" in done.stdout
    found = json.loads(tenbin(*arguments, "--json").stdout)
    assert found["without_estimate"] == choice
    (result,) = found["results"]
    assert result["without_estimate"] == 2 and result["killed"] == 0
    assert result["mean_wait_s"] == pytest.approx(wait_s)


def test_a_workload_that_states_all_run_times_says_nothing_of_it() -> None:
    assert "state no run time" not in tenbin("-p", "easy", "-w", WORKLOAD, "-c", "128").stdout


@pytest.mark.parametrize("jobs", ["1 0 -1 5 99 -1 -1 99 9\n", "; nothing\n", "broken\n"])
def test_no_job_to_run_is_an_error(tmp_path: Path, jobs: str) -> None:
    log = tmp_path / "log.swf"
    log.write_text(jobs)
    done = tenbin("-p", "fcfs", "-w", str(log), "-c", "16")
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
    assert "log.swf" in done.stderr and "no job to run" in done.stderr


def test_policies_that_refuse_other_jobs_are_named(tmp_path: Path) -> None:
    log = tmp_path / "log.swf"
    log.write_text("1 0 -1 5 1 -1 -1 1 9\n2 1 -1 5 9 -1 -1 9 9\n")
    done = tenbin(
        "-p", "fcfs", "-p", "regions,bounds=4/16,sizes=8/8", "-w", str(log), "-c", "16", "--seed", "1"
    )
    assert (
        "refused by regions,bounds=4/16,sizes=8/8: 1 job: it needs 9 nodes, its region has 8" in done.stdout
    )
    assert "refused by fcfs" not in done.stdout and "refused: " not in done.stdout


def test_many_reasons_are_few_lines(tmp_path: Path) -> None:
    log = tmp_path / "log.swf"
    sizes = [99, 99, *range(17, 27), 1]
    log.write_text("".join(f"{i} {i} -1 5 {n} -1 -1 {n} 9\n" for i, n in enumerate(sizes, 1)))
    lines = [
        line
        for line in tenbin("-p", "fcfs", "-w", str(log), "-c", "16").stdout.splitlines()
        if "refused" in line
    ]
    assert len(lines) == 6 and lines[0] == "refused: 2 jobs: it needs 99 nodes, there are 16"
    assert lines[-1] == "refused: 6 jobs: 6 other reasons (--json names all)"


# The hand-worked schedule of tests/scheduler/simulator/test_window.py
WORKED = "1 0 -1 10 2 -1 -1 2 20\n2 5 -1 10 1 -1 -1 1 20\n3 6 -1 10 2 -1 -1 2 20\n4 30 -1 4 1 -1 -1 1 20\n"


@pytest.fixture
def worked(tmp_path: Path) -> Path:
    path = tmp_path / "worked.swf"
    path.write_text(WORKED)
    return path


def test_jobs_are_written_as_csv(worked: Path, tmp_path: Path) -> None:
    out = tmp_path / "jobs.csv"
    window = ("--warm-up", "1job", "--cool-down", "25%")
    done = tenbin("-p", "fcfs", "-w", str(worked), "-c", "2", "--jobs-out", str(out), *window)
    assert done.returncode == 0 and f"jobs of fcfs: {out}" in done.stdout, done.stderr
    assert "counted: 2 of 4 jobs, submitted from 5 s before 30 s" in done.stdout
    with out.open(newline="") as lines:
        found = list(csv.DictReader(lines))
    columns = ("job", "start_s", "end_s", "wait_s", "turnaround_s", "bounded_slowdown", "how", "counted")
    assert [tuple(row[column] for column in columns) for row in found] == [
        ("1", "0.0", "10.0", "0.0", "10.0", "1.0", "done", "no"),
        ("2", "10.0", "20.0", "5.0", "15.0", "1.5", "done", "yes"),
        ("3", "20.0", "30.0", "14.0", "24.0", "2.4", "done", "yes"),
        ("4", "30.0", "34.0", "0.0", "4.0", "1.0", "done", "no"),
    ]


def test_jobs_of_several_policies_go_to_a_file_each(worked: Path, tmp_path: Path) -> None:
    policies = ("-p", "fcfs", "-p", "regions,bounds=1/2,sizes=1/2", "-p", "regions,bounds=1-2,sizes=1/2")
    assert tenbin(*policies[:2], "-w", str(worked), "-c", "2", "--jobs-out", "jobs.txt").returncode == 2
    done = tenbin(*policies[:4], "-w", str(worked), "-c", "3", "--jobs-out", str(tmp_path / "jobs.swf"))
    assert done.returncode == 0, done.stderr
    first = (tmp_path / "jobs.fcfs.swf").read_text().splitlines()
    assert first[-1] == "4 30 0 4 1 -1 -1 1 20 -1 1 -1 -1 -1 -1 1 -1 -1"
    assert (tmp_path / "jobs.regions-bounds=1-2-sizes=1-2.swf").exists() and not (
        tmp_path / "jobs.swf"
    ).exists()
    names = list(files_of(Path("jobs.csv"), policies[1::2]).values())
    assert names[1:] == [Path(f"jobs.regions-bounds=1-2-sizes=1-2{more}.csv") for more in ("", "-2")]


def test_an_own_log_of_results_gives_the_same_schedule(worked: Path, tmp_path: Path) -> None:
    first, again = tmp_path / "first.swf", tmp_path / "again.swf"
    assert tenbin("-p", "fcfs", "-w", str(worked), "-c", "2", "--jobs-out", str(first)).returncode == 0
    assert tenbin("-p", "fcfs", "-w", str(first), "-c", "2", "--jobs-out", str(again)).returncode == 0
    jobs = [[row for row in file.read_text().splitlines() if row[0] != ";"] for file in (first, again)]
    assert jobs[0] == jobs[1] and len(jobs[0]) == 4


def test_differences_have_intervals() -> None:
    arguments = ("-p", "fcfs", "-p", "easy", "-w", "generator:lublin,jobs=600,load=0.9", "-c", "128")
    arguments += ("--resamples", "10", "--block", "1d")
    done = tenbin(*arguments)
    assert done.returncode == 0, done.stderr
    assert "easy less fcfs" in done.stdout and "intervals: 10 resampled workloads" in done.stdout
    found = json.loads(tenbin(*arguments, "--json").stdout)
    first, second = found["results"]
    assert found["comparison"]["against"] == "fcfs"
    for one in found["comparison"]["differences"]["easy"]:
        assert one["difference"] == pytest.approx(second[one["metric"]] - first[one["metric"]])
        assert one["low"] <= one["difference"] <= one["high"]
        certain = one["low"] > 0 or one["high"] < 0
        assert certain == (one["verdict"] in ("better", "worse"))


def test_a_policy_that_does_not_suit_the_cluster_is_named_and_the_others_go_on() -> None:
    arguments = ("-p", "regions", "-p", "easy", "-p", "mct", "-w", WORKLOAD, "-c", "64xa+64xb")
    done = tenbin(*arguments)
    assert done.returncode == 0 and re.search(r"easy +mct", done.stdout), done.stderr
    assert "regions cannot run: policy regions schedules one class of units" in done.stdout
    found = json.loads(tenbin(*arguments, "--json").stdout)
    assert [result["policy"] for result in found["results"]] == ["easy", "mct"]
    assert list(found["unsuitable"]) == ["regions"]


def test_users_programs_are_warned_of_a_policy_that_does_not_suit() -> None:
    with pytest.warns(UserWarning, match="policy regions is left out: policy regions schedules one class"):
        (found,) = client.simulate(
            ["regions", "easy"], WORKLOAD, "64xa+64xb", warm_up="50jobs", cool_down="10%"
        )
    assert found["policy"] == "easy" and (found["jobs"], found["not_counted"]) == (130, 70)


def test_those_that_suit_are_named_where_none_does() -> None:
    done = tenbin("-p", "parm", "-p", "pair", "-w", WORKLOAD, "-c", "64xa+64xb")
    assert done.returncode == 2 and not done.stdout and done.stderr.count("\n") == 1
    assert "parm: policy parm schedules units of one class" in done.stderr
    assert "pair: jobs can share" in done.stderr
    assert "policies for this cluster: weigh, easy, conservative, fcfs" in done.stderr


@settings(max_examples=examples(50))
@given(counted(most=12))
def test_no_two_bars_lie_on_one_unit_at_one_time(world: World) -> None:
    outcomes, _ = run(create("easy"), world)
    bars = lanes(outcomes, world.cluster.pools[0])
    for i, (_, a, low_a, high_a) in enumerate(bars):
        assert 0 <= low_a < high_a <= world.cluster.units
        for _, b, low_b, high_b in bars[i + 1 :]:
            together = a.start_s < b.end_s and b.start_s < a.end_s
            assert not (together and low_a < high_b and low_b < high_a)


@settings(max_examples=10)
@given(power(most=8))
def test_power_is_drawn_where_it_is_known(world: World) -> None:
    outcomes, _ = run(Chaos(), world)
    drawn = figures(outcomes, world.cluster)
    assert [f.layout.title.text for f in drawn] == [
        "Schedule of node",
        "Utilisation",
        "Power of the units in use",
    ]
    times, values = means([(s.start_s, s.end_s, s.placement.units) for o in outcomes for s in o.segments])
    area = sum(s.placement.units * (s.end_s - s.start_s) for o in outcomes for s in o.segments)
    assert sum(values) * (times[1] - times[0]) == pytest.approx(area, rel=1e-6)


def test_workloads_are_completed(tmp_path: Path) -> None:
    (tmp_path / "log.swf").touch()
    (tmp_path / "logs").mkdir()
    assert "generator:lublin" in complete_workload("gen") and "google2011:" in complete_workload("goo")
    assert complete_workload(f"{tmp_path}/l") == [f"{tmp_path}/log.swf", f"{tmp_path}/logs/"]


def test_trace_of_tasks(tmp_path: Path) -> None:
    trace = tmp_path / "batch_task.csv"
    trace.write_text("50,90,1,1,3,Terminated,50,0.25\n60,70,1,2,1,Terminated,50,2\n61,,1,3,1,Waiting,,\n")
    done = tenbin("-p", "fcfs", "-w", str(trace), "-c", "8", "--json")
    found = json.loads(done.stdout)
    (result,) = found["results"]
    assert (result["jobs"], result["skipped_reasons"]) == (2, {"status waiting": 1})
    assert "Alibaba" in found["source"] and "runs as long as its task" in found["note"]


def test_page_of_nothing() -> None:
    assert "0 jobs" in page([("fcfs", [])], Cluster((Pool("node", 1),)))
