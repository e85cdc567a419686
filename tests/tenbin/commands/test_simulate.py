"""``tenbin simulate``: table, JSON, picture, and one line for bad input."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings

from scheduler.model.jobs import Cluster, Pool
from scheduler.policies.registry import create
from tenbin.commands.simulate.simulate import complete_workload
from tenbin.report.schedule import figures, lanes, means, page
from tests.support import programs
from tests.support.random_policy import Chaos
from tests.support.worlds import World, counted, power, run

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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-p", "esay", "-w", WORKLOAD, "-c", "16"), "unknown policy 'esay'; did you mean easy"),
        (("-p", "easy", "-w", "nothing.swf", "-c", "16"), "nothing.swf: no such file"),
        (("-p", "easy", "-w", WORKLOAD, "-c", "16x"), "'16x' is not understood"),
        (("-p", "regions", "-w", WORKLOAD, "-c", "16xa+16xb"), "schedules one class of units"),
        (("-p", "easy", "-w", WORKLOAD, "-c", "16", "--gantt", "/nowhere/x.html"), "--gantt /nowhere/x.html"),
    ],
)
def test_bad_input_is_one_line(arguments: tuple[str, ...], message: str) -> None:
    done = tenbin(*arguments)
    assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1


def test_refused_and_skipped_jobs_are_told(tmp_path: Path) -> None:
    log = tmp_path / "log.swf"
    log.write_text("1 0 -1 5 4 -1 -1 4 9\n2 1 -1 5 99 -1 -1 99 9\nbroken\n")
    done = tenbin("-p", "fcfs", "-w", str(log), "-c", "16")
    assert "refused: 1 job: it needs 99 units, node has 16" in done.stdout
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
        "refused by regions,bounds=4/16,sizes=8/8: 1 job: it needs 9 units, its region has 8" in done.stdout
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
    assert len(lines) == 6 and lines[0] == "refused: 2 jobs: it needs 99 units, node has 16"
    assert lines[-1] == "refused: 6 jobs: 6 other reasons (--json names all)"


@settings(max_examples=50, deadline=None, derandomize=True, database=None)
@given(counted(most=12))
def test_no_two_bars_lie_on_one_unit_at_one_time(world: World) -> None:
    outcomes, _ = run(create("easy"), world)
    bars = lanes(outcomes, world.cluster.pools[0])
    for i, (_, a, low_a, high_a) in enumerate(bars):
        assert 0 <= low_a < high_a <= world.cluster.units
        for _, b, low_b, high_b in bars[i + 1 :]:
            together = a.start_s < b.end_s and b.start_s < a.end_s
            assert not (together and low_a < high_b and low_b < high_a)


@settings(max_examples=10, deadline=None, derandomize=True, database=None)
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
