"""Regions on a cluster: jobs run on their own region's nodes only."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.coordinator.conftest import Up
from tests.slurmlab import SlurmLab, require_slurm, slurmlab

CPUS = 4
START = ("--engine", "slurm", "--unit", "1")
FIXED = (*START, "--policy", "regions,bounds=1/8,sizes=4/8")  # one node, and two
# Cut into two after three seconds, then anew: jobs of one unit, and those of two.
MOVING = (*START, "--policy", "regions,interval_s=3,fixed=2,largest=2")
WAITS = "until [ -e go-$0 ]; do sleep 0.05; done"


@pytest.fixture(scope="module")
def _cluster() -> Iterator[SlurmLab]:
    require_slurm()
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder, slurmlab(Path(folder), cpus=CPUS) as lab:
        Path(folder).chmod(0o755)
        yield lab


@pytest.fixture
def lab(_cluster: SlurmLab, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmLab]:
    """A Slurm cluster of three nodes with 4 CPUs each."""
    for name, value in _cluster.env.items():
        monkeypatch.setenv(name, value)
    yield _cluster
    _cluster.mend()


@pytest.fixture
def up(lab: SlurmLab, tmp_path: Path) -> Iterator[Up]:
    one = Up(tmp_path / "home")
    yield one
    one.sweep()


def in_slurm(lab: SlurmLab, form: str) -> dict[int, list[str]]:
    """Of each job that runs, by tenbin's number, what squeue says."""
    lines = lab.call("squeue", "-h", "-t", "R", "-o", f"%k|{form}").splitlines()
    rows = [line.split("|") for line in lines if line.startswith("tenbin:")]
    return {int(row[0].split(":")[2]): row[1:] for row in rows}


def submit(up: Up, folder: Path, cores: int, waits_for: str = "", count: int = 1) -> list[int]:
    """Jobs of one task that say where they are, and go on until they are told to end, if at all."""
    script = f"echo $(hostname) $TENBIN_JOB_ID >>{folder}/where; " + (WAITS if waits_for else "sleep 0.3")
    spec = {"command": ["sh", "-c", script, waits_for], "folder": str(folder), "tasks": cores}
    return [job.id for job in up.client.submit_all([spec] * count)]


def nodes(up: Up) -> list[dict[str, Any]]:
    return [node for node in up.client.call("GET", "/nodes") if "up" in node]


def regions(up: Up) -> list[dict[str, Any]]:
    return list(up.client.call("GET", "/nodes")[0]["regions"])


def check_inside(up: Up) -> int:
    """No region's jobs have more of any node than the region has; how many jobs that were."""
    table, found = up.client.call("GET", "/nodes"), up.client.call("GET", "/jobs")
    infos = [up.client.job(job["id"]).info() for job in found if job["stage"] == "running"]
    if up.client.call("GET", "/nodes") != table:
        return 0  # somebody came or went meanwhile
    for number, node in enumerate(node for node in table if "up" in node):
        for region in table[0]["regions"]:
            own = [cpu for info in infos if info["region"] == region["name"] for cpu in info["cpus"]]
            there = sum(cpu // CPUS == number for cpu in own)
            assert there <= node["regions"].get(region["name"], 0), (node, region, infos)
    return len(infos)


def test_jobs_run_in_their_region_only_also_after_a_kill(up: Up, lab: SlurmLab, tmp_path: Path) -> None:
    up.start(*FIXED)
    small, large = submit(up, tmp_path, 1, count=12), submit(up, tmp_path, 4, count=4)
    small += submit(up, tmp_path, 1, "end", 2)
    up.until(lambda: up.client.job(large[0]).info()["stage"] == "done", 60)
    assert [list(region["places"]) for region in regions(up)] == [["node1"], ["node2", "node3"]]
    assert "region 1.2, jobs of 2 to 8: " in up.run("nodes").stdout
    assert "node3: jobs: " in up.run("nodes").stdout and "; region 1.2" in up.run("nodes").stdout
    up.kill()
    up.start(*FIXED)
    large += submit(up, tmp_path, 8)
    (tmp_path / "go-end").touch()
    assert [up.client.job(job).result(90) for job in (*small, *large)] == [0] * (len(small) + len(large))
    where: dict[str, set[int]] = {}
    for line in (tmp_path / "where").read_text().splitlines():
        host, job = line.split()
        where.setdefault(host, set()).add(int(job))
    assert where.pop("node1") == set(small)
    assert set.union(*where.values()) == set(large)
    assert set(up.client.job(large[-1]).info()["hosts"]) == {"node2", "node3"}
    assert "region 1.1" in up.run("info", str(small[0])).stdout


def test_regions_that_move_keep_their_jobs_apart(up: Up, lab: SlurmLab, tmp_path: Path) -> None:
    """Many small jobs, then large ones; a kill while jobs from before a move still run."""
    up.start(*MOVING)
    old = submit(up, tmp_path, 1, "old", 6)
    up.until(lambda: len(regions(up)) == 2, 60)
    up.until(lambda: len(in_slurm(lab, "%N")) == 6)
    cuts, checked, killed, ids = set(), 0, False, list(old)
    deadline = time.monotonic() + 120
    while len(cuts) < 3 or checked < 10:
        assert time.monotonic() < deadline, (cuts, checked)
        mostly_small = regions(up)[0]["units"] > 3
        ids += submit(up, tmp_path, 2 if mostly_small else 1, count=2)
        time.sleep(0.4)
        checked += check_inside(up) > 0
        cuts.add(regions(up)[0]["name"])
        if len(cuts) == 2 and not killed:
            killed = True
            up.kill()
            up.start(*MOVING)
    (tmp_path / "go-old").touch()
    assert [up.client.job(job).result(90) for job in ids] == [0] * len(ids)
    assert killed and all(up.client.job(job).info()["attempt"] == 1 for job in old)
