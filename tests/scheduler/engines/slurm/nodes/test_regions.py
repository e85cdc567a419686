"""Regions on a cluster: jobs run on their own region's nodes only, and regions can be partitions of Slurm."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from profiles.errors import BadInput
from scheduler.engines.slurm.discovery import partitioned, slurm_cluster
from scheduler.engines.slurm.slurm_commands import parse_hosts
from tests.scheduler.engines.slurm.client.test_bad_input import refused
from tests.support.coordinator import Up
from tests.support.labs.slurm_lab import SlurmLab, short_slurmlab

CPUS = 4
START = ("--engine", "slurm", "--unit", "1")
FIXED = (*START, "--policy", "regions,bounds=1/8,sizes=4/8")  # one node, and two
# Cut into two after three seconds, then anew: jobs of one unit, and those of two.
MOVING = (*START, "--policy", "regions,interval_s=3,fixed=2,largest=2")
WAITS = "until [ -e go-$0 ]; do sleep 0.05; done"
NOBODY = 65534


@pytest.fixture(scope="module")
def _cluster() -> Iterator[SlurmLab]:
    with short_slurmlab(cpus=CPUS) as lab:
        yield lab


@pytest.fixture
def lab(lab: SlurmLab) -> Iterator[SlurmLab]:
    """Yield a Slurm cluster of three nodes with 4 CPUs each; no partition outlives a test."""
    yield lab
    lab.mend()
    for name in partitions(lab):
        if name != "main":
            lab.call("scontrol", "delete", f"PartitionName={name}")


def partitions(lab: SlurmLab) -> dict[str, str]:
    """Their nodes, as Slurm has them."""
    found = lab.call("scontrol", "-o", "show", "partition").splitlines()
    words = [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in found]
    return {one["PartitionName"]: one["Nodes"] for one in words}


def in_slurm(lab: SlurmLab, form: str) -> dict[int, list[str]]:
    """Of each job that runs, by tenbin's number, what squeue says."""
    lines = lab.call("squeue", "-h", "-t", "R", "-o", f"%k|{form}").splitlines()
    rows = [line.split("|") for line in lines if line.startswith("tenbin:")]
    return {int(row[0].split(":")[2]): row[1:] for row in rows}


def submit(up: Up, folder: Path, cores: int, waits_for: str = "", *, count: int = 1) -> list[int]:
    """Jobs of one task that say where they are, and go on until they are told to end, if at all."""
    script = f"echo $(hostname) $TENBIN_JOB_ID >>{folder}/where; " + (WAITS if waits_for else "sleep 0.3")
    spec = {"command": ["sh", "-c", script, waits_for], "folder": str(folder), "tasks": cores}
    return [job.id for job in up.client.submit_all([spec] * count)]


def regions(up: Up) -> list[dict[str, Any]]:
    return list(up.client.call("GET", "/nodes")[0]["regions"])


def test_regions_are_partitions(up: Up, lab: SlurmLab, tmp_path: Path) -> None:
    """Made, found again, taken away; others' are left alone."""
    lab.call("scontrol", "create", "PartitionName=tb-x", "Nodes=node1")
    up.start(*FIXED, "--partitions", "tb")
    small, large = submit(up, tmp_path, 1, "end", count=2), submit(up, tmp_path, 4, "end")
    up.until(lambda: len(in_slurm(lab, "%P")) == 3)
    ours = {"tb-1": "node1", "tb-2": "node[2-3]"}
    theirs = {"main": "node[1-3]", "tb-x": "node1"}
    assert partitions(lab) == {**ours, **theirs}
    expected = {job: ["tb-1"] for job in small} | {job: ["tb-2"] for job in large}
    assert in_slurm(lab, "%P") == expected
    up.kill()
    lab.call("scontrol", "update", "PartitionName=tb-1", "Nodes=node1,node3")  # somebody meddles
    up.start(*FIXED, "--partitions", "tb")
    up.until(lambda: partitions(lab) == {**ours, **theirs})
    small += submit(up, tmp_path, 1, "end")
    up.until(lambda: in_slurm(lab, "%P").get(small[-1]) == ["tb-1"])
    up.run("down")
    assert partitions(lab) == {**ours, **theirs}  # there are jobs in them
    up.start(*FIXED)
    (tmp_path / "go-end").touch()
    assert [up.client.job(job).result(60) for job in (*small, *large)] == [0] * 4
    up.until(lambda: partitions(lab) == theirs, 90)
    up.run("down")
    up.start(*FIXED, "--partitions", "tb")
    up.until(lambda: partitions(lab) == {**ours, **theirs})
    assert up.run("down").returncode == 0
    assert partitions(lab) == theirs


@pytest.mark.slow
def test_partitions_follow_regions_that_move(up: Up, lab: SlurmLab, tmp_path: Path) -> None:
    """Jobs that run where they were sent before a move go on."""
    up.start(*MOVING, "--partitions", "tb")
    old = submit(up, tmp_path, 1, "old", count=6)
    up.until(lambda: len(in_slurm(lab, "%P")) == 6 and set(partitions(lab)) == {"main", "tb-1", "tb-2"}, 60)
    first, others = regions(up)[0]["name"], []
    deadline = time.monotonic() + 60
    while regions(up)[0]["name"] == first:
        assert time.monotonic() < deadline
        others += submit(up, tmp_path, 2)
        time.sleep(0.5)
    up.until(lambda: all(up.client.job(job).info()["stage"] == "done" for job in others), 60)
    assert set(in_slurm(lab, "%P")) >= set(old)
    (tmp_path / "go-old").touch()
    assert [up.client.job(job).result(60) for job in old] == [0] * 6
    assert all(up.client.job(job).info()["attempt"] == 1 for job in old)
    up.until(lambda: {"main": set(lab.nodes), **belongs(up)} == nodes_in(partitions(lab)), 60)


def belongs(up: Up) -> dict[str, set[str]]:
    """Return the nodes of each region, under the names of their partitions."""
    return {f"tb-{number}": set(region["places"]) for number, region in enumerate(regions(up), 1)}


def nodes_in(table: dict[str, str]) -> dict[str, set[str]]:
    return {name: set(parse_hosts(nodes)) for name, nodes in table.items()}


def as_nobody(what: Callable[[], object]) -> str:
    """Call ``what`` as a plain user, in a process of his own; return what he is told."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        said = "nothing was refused"
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            what()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    return said


def test_who_may_not_make_partitions_is_told_at_once(lab: SlurmLab, tmp_path: Path) -> None:
    home = tmp_path / "home"
    machine = slurm_cluster("regions", home, lease_s=30.0)
    said = as_nobody(lambda: partitioned(machine, "regions", "tb", home))
    assert said.startswith("BadInput: --partitions: nobody may not make partitions (there is no accounting")
    assert said.endswith("; leave it out, or see: tenbin slurm doctor") and "\n" not in said
    assert set(partitions(lab)) == {"main"}


def test_bad_input(lab: SlurmLab, tmp_path: Path) -> None:
    cluster = ("--engine", "slurm", "--home", str(tmp_path / "home"))
    for options, words in (
        (
            (*cluster, "--policy", "easy"),
            "policy easy has no regions of its own nodes; choose --policy regions",
        ),
        ((*cluster, "--policy", "soft-regions"), "policy soft-regions has no regions of its own nodes"),
        ((*cluster, "--policy", "regions", "--take-over", "/tmp/lease"), "--take-over with --partitions"),
        ((), "--partitions is of a Slurm cluster; add --engine slurm"),
    ):
        code, sentence = refused(*options, "--partitions", "tb")
        assert code == 2 and words in sentence
    assert "'a b' is no name" in refused(*cluster, "--partitions", "a b", "--policy", "regions")[1]


def test_a_partition_of_somebody_else_is_not_taken(lab: SlurmLab, tmp_path: Path) -> None:
    lab.call("scontrol", "create", "PartitionName=tb-2", "Nodes=node1")
    home = tmp_path / "home"
    machine = slurm_cluster("regions", home, lease_s=30.0)
    with pytest.raises(BadInput, match="there is a partition tb-2 that this coordinator has not made"):
        partitioned(machine, "regions", "tb", home)
    (home / "partitions.json").write_text(json.dumps(["tb-1", "tb-2"]))
    assert partitioned(machine, "regions", "tb", home).site is not None


@pytest.mark.slow
def test_a_slurmctld_that_forgets_the_partitions(up: Up, lab: SlurmLab, tmp_path: Path) -> None:
    """They are made again, and the jobs that it has ended run again."""
    up.start(*FIXED, "--partitions", "tb")
    jobs = submit(up, tmp_path, 1, "end", count=2)
    up.until(lambda: len(in_slurm(lab, "%P")) == 2)
    lab.keep()
    lab.kill_slurmctld()
    lab.start_slurmctld()
    up.until(lambda: all(up.client.job(job).info()["attempt"] == 2 for job in jobs), 60)
    up.until(lambda: in_slurm(lab, "%P") == {job: ["tb-1"] for job in jobs}, 60)
    assert set(partitions(lab)) == {"main", "tb-1", "tb-2"}
    (tmp_path / "go-end").touch()
    assert [up.client.job(job).result(60) for job in jobs] == [0, 0]
