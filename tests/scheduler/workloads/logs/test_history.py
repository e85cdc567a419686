"""A coordinator's own history as a workload."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from profiles.errors import BadInput
from scheduler.model.clusters import parse_cluster
from scheduler.workloads import load
from tests.support.coordinator import Up


def test_the_history_of_a_coordinator_is_read_again(up: Up, tmp_path: Path) -> None:
    up.start("--cores", "2")
    for cores, options in ((1, {"time_s": 60.0}), (2, {}), (1, {"name": "other"})):
        up.client.submit(["sleep", "0.2"], cores=cores, **options).wait(60)
    file = tmp_path / "history.csv"
    file.write_text(up.run("history", "--csv").stdout)
    workload = load(str(file), parse_cluster("2"))
    arrivals = list(workload.arrivals)
    rows = sorted(json.loads(up.run("history", "--json", "1-3").stdout), key=lambda row: row["submit_s"])
    assert [a.job.units for a in arrivals] == [row["cores"] for row in rows] == [1, 2, 1]
    assert [a.run_s for a in arrivals] == pytest.approx([row["running_s"] for row in rows])
    assert [a.job.estimate_s for a in arrivals] == [row["time_limit_s"] for row in rows]
    apart_s = [row["submit_s"] - rows[0]["submit_s"] for row in rows]
    assert [a.job.submit_s for a in arrivals] == pytest.approx(apart_s)
    assert {a.job.user for a in arrivals} == {row["user"] for row in rows}
    assert arrivals[2].job.program == "other" and not workload.skipped


HEAD = "id,name,user,submit_s,end_s,running_s,cores,peak_memory_mb,time_limit_s\n"


def test_jobs_that_run_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "history.csv"
    file.write_text(f"{HEAD}2,a,me,1007.5,,3,1,,\n1,a,me,1000.5,1003,2.5,2,10,60\n3,b,me,1000,,,1,,\n")
    workload = load(str(file), parse_cluster("2"))
    (arrival,) = workload.arrivals
    job, run_s = arrival.job, arrival.run_s
    assert (job.submit_s, job.units, job.estimate_s, job.memory_mb, run_s) == (0.0, 2, 60.0, 10.0, 2.5)
    assert sum(workload.skipped.values()) == 2


def test_submissions_lie_on_the_grid_of_instants(tmp_path: Path) -> None:
    """As seconds since 1970 they are off by parts of a microsecond."""
    file = tmp_path / "history.csv"
    file.write_text(f"{HEAD}1,a,me,1700000000.1,1700000009,1,1,,\n2,a,me,1700000000.4,1700000009,1,1,,\n")
    first, second = load(str(file), parse_cluster("2")).arrivals  # type: ignore[misc]
    assert (first.job.submit_s, second.job.submit_s) == (0.0, 0.3)


def test_jobs_take_their_gpus_where_the_cluster_has_some(tmp_path: Path) -> None:
    file = tmp_path / "history.csv"
    lines = "1,a,me,1000,1003,3,4,100,,2\n2,b,me,1001,1002,1,2,,,0\n"
    file.write_text(f"{HEAD.strip()},gpus_asked\n{lines}")
    workload = load(str(file), parse_cluster("1xnode[cores=8,memory_mb=1000,gpu=4]"))
    demands = [(a.job.units, a.job.demand) for a in workload.arrivals]  # type: ignore[union-attr]
    assert demands == [(1, (4.0, 100.0, 2.0)), (2, (1.0, 0.0, 0.0))] and not workload.remarks
    for cluster in ("8", "1xnode[cores=8]"):
        workload = load(str(file), parse_cluster(cluster))
        assert [a.job.units for a in workload.arrivals][1] == 2  # type: ignore[union-attr]
        assert workload.remarks["it took gpu, which the cluster does not have"] == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no job"),
        ("id,name\n1,a\n", "no cores, end_s"),
        (f"{HEAD}1,a,me,x,2,1,1,,\n", "could not convert"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "history.csv"
    file.write_text(text)
    with pytest.raises(BadInput, match=words) as error:
        load(str(file), parse_cluster("2"))
    assert "tenbin history --csv" in error.value.remedy
