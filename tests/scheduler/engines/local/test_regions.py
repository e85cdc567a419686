"""Regions of this machine: jobs run on the cores of their own region only."""

from __future__ import annotations

import os
from pathlib import Path

from scheduler.engines.local.cores import Cores
from scheduler.jobs.entry import Entry
from scheduler.jobs.specs import JobSpec
from scheduler.model.jobs import Cluster, Placement, Pool, Region
from tests.support.coordinator import Up
from tests.support.labs.components import require

FIXED = "regions,bounds=1/2,sizes=1/1"


def entry(number: int, region: str, units: int, cores: Cores) -> Entry:
    job = Entry(number, JobSpec(command=("true",), folder="/"), "", 0.0)
    job.placement = Placement("core", units, region=region)
    cores.place(job, job.placement)
    return job


def test_cores_are_those_of_the_region_also_after_a_restart(tmp_path: Path) -> None:
    cluster, numbers = Cluster((Pool("core", 6),)), [[2, 3, 4, 7, 8, 9]]
    cores = Cores(tmp_path, cluster, numbers, {}, whole=False)
    cores.cut("core", (Region("1.1", 4, 1), Region("1.2", 2, 2)))
    jobs = [entry(1, "1.2", 2, cores), entry(2, "1.1", 1, cores), entry(3, "1.1", 1, cores)]
    assert [job.cores for job in jobs] == [(8, 9), (2,), (3,)]
    cores.cut("core", (Region("2.1", 1, 1), Region("2.2", 5, 2)))
    later = entry(4, "2.2", 2, cores)
    assert later.cores == (4, 7)
    owners = cores.places()
    cores = Cores(tmp_path, cluster, numbers, {}, whole=False)
    cores.cut("core", (Region("2.1", 1, 1), Region("2.2", 5, 2)))
    for job in (*jobs, later):
        cores.occupy(job)
    assert cores.places() == owners
    for job in jobs:
        cores.free(job)
    assert len(entry(5, "2.2", 3, cores).cores) == 3 and len(entry(6, "2.1", 1, cores).cores) == 1
    assert cores.places() == owners


def test_jobs_run_on_their_region_s_core_only(up: Up) -> None:
    """The other core stays idle: no job is of the sizes of its region."""
    require(len(os.sched_getaffinity(0)) > 1, "two cores")
    up.start("--cores", "2", "--policy", FIXED)
    show = ["python3", "-c", "import os; print(sorted(os.sched_getaffinity(0)))"]
    jobs = [up.client.submit(show) for _ in range(3)]
    assert [job.result(30) for job in jobs] == [0] * 3
    up.kill()
    up.start("--cores", "2", "--policy", FIXED)
    jobs += [up.client.submit(show) for _ in range(2)]
    assert [job.result(30) for job in jobs] == [0] * 5
    first = str(min(os.sched_getaffinity(0)))
    assert {up.client.output(job.id) for job in jobs} == {f"[{first}]\n".encode()}
    (pool,) = up.client.call("GET", "/nodes")
    assert [region["job_units"] for region in pool["regions"]] == [[1, 1], [2, 2]]
    assert pool["regions"][0]["places"] == {first: 1}
    assert f"region 1.1, jobs of 1: 0 of 1 used; {first}" in up.run("nodes").stdout
    assert "region 1.1" in up.run("info", "1").stdout and jobs[0].info()["region"] == "1.1"
    refused = up.run("submit", "-n", "2", "--", "true")
    assert refused.returncode == 2 and "its region has 1" in refused.stderr
