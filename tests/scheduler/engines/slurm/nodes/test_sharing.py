"""Jobs that share nodes of a Slurm cluster: by their job profiles, each on cores of its own."""

from __future__ import annotations

import os
import sqlite3
import sys
from pathlib import Path

import pytest

from agent.node_profile.identity import node_kind
from agent.processes.tree import cpus_of_places
from probes.topology import read_topology
from profiles.errors import BadInput
from profiles.files.store import JobStore
from scheduler.coordinator.journal.journal import read_predictions
from scheduler.engines.slurm.discovery import slurm_cluster
from tenbin.errors import TenbinError
from tests.support.coordinator import Up
from tests.support.job_profiles import make_job, samples
from tests.support.labs.components import require
from tests.support.labs.slurm_lab import SlurmLab

SHARED = ("--engine", "slurm", "--policy", "match")
SAYS = "import os, sys, time; print(*os.sched_getaffinity(0), flush=True)\n"
WAITS = SAYS + "while not os.path.exists(sys.argv[1]): time.sleep(0.05)"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobStore:
    """Store profiles: a streamer, a program that computes, a program from another kind of node."""
    monkeypatch.setenv("TENBIN_STORE", str(tmp_path / "store"))
    store, kind = JobStore(), node_kind()
    store.save(make_job("stream", *samples(suffers=0.08, pressure_gbs=9.0), kind=kind), {})
    store.save(make_job("compute", *samples(suffers=0.01, pressure_gbs=0.5), kind=kind), {})
    store.save(make_job("elsewhere"), {})
    return store


def test_two_jobs_on_each_node_each_on_its_own_core(
    up: Up, lab: SlurmLab, store: JobStore, tmp_path: Path
) -> None:
    cores = [cpu.index for cpu in read_topology(Path("/sys"), os.sched_getaffinity(0)).cores]
    require(len(cores) >= lab.cpus and len(os.sched_getaffinity(0)) == os.cpu_count(), "whole cores, two")
    up.start(*SHARED)
    go = tmp_path / "go"
    command = [sys.executable, "-S", "-c", WAITS, str(go)]
    names = ["stream", "stream", "stream", "compute", "compute", "compute"]
    specs = [{"command": command, "job_profile": name, "name": name, "folder": "/"} for name in names]
    jobs = up.client.submit_all(specs)
    up.until(lambda: all(up.client.output(job.id) for job in jobs), 90)
    on: dict[str, list[tuple[str, str]]] = {}
    for job, name in zip(jobs, names, strict=True):
        (host,) = job.info()["hosts"]
        on.setdefault(host, []).append((name, up.client.output(job.id).decode().strip()))
    up.client.call("POST", "/suspend", {"ids": [jobs[0].id]})
    up.until(lambda: jobs[0].info()["stage"] == "suspended")
    up.client.call("POST", "/resume", {"ids": [jobs[0].id]})
    up.until(lambda: jobs[0].info()["stage"] == "running", 60)
    go.touch()
    assert [job.result(60) for job in jobs] == [0] * 6
    assert set(on) == set(lab.nodes)
    for there in on.values():
        assert sorted(name for name, _ in there) == ["compute", "stream"]
        assert sorted(cpu for _, cpu in there) == sorted(str(cpu) for cpu in cores[:2])
    with sqlite3.connect(up.home / "journal.sqlite") as db:
        predicted = {
            one.job: one for one in read_predictions(db, job=None, kind="pairing", last=None, open=False)
        }
    assert set(predicted) == {job.id for job in jobs}
    with pytest.raises(TenbinError, match="'elsewhere' was made on another kind of node"):
        up.client.submit(["true"], job_profile="elsewhere")


def test_what_cannot_be_shared_is_said(lab: SlurmLab, store: JobStore, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="--unit 1: policy match places on nodes"):
        slurm_cluster("match", tmp_path / "home", cores=1, lease_s=30.0)
    for policy in ("match,most=3", "weigh,most=3"):
        with pytest.raises(BadInput, match="a node has 2 cores, too few for 3 jobs"):
            slurm_cluster(policy, tmp_path / "home", lease_s=30.0)
    lab.call("scontrol", "update", "partitionname=main", "OverSubscribe=EXCLUSIVE")
    try:
        with pytest.raises(BadInput, match="OverSubscribe=EXCLUSIVE of partition main: Slurm gives whole"):
            slurm_cluster("match", tmp_path / "home", lease_s=30.0)
    finally:
        lab.call("scontrol", "update", "partitionname=main", "OverSubscribe=NO")


def test_places_are_cores_of_this_node() -> None:
    """A process that is bound already stays as it is."""
    allowed = os.sched_getaffinity(0)
    cores = [cpu.index for cpu in read_topology(Path("/sys"), allowed).cores]
    if len(allowed) == os.cpu_count():
        assert cpus_of_places((0,)) == (cores[0],) and cpus_of_places(tuple(range(len(cores)))) == tuple(
            cores
        )
    assert cpus_of_places((0, len(cores))) == ()
    if len(allowed) > 1:
        os.sched_setaffinity(0, {min(allowed)})
        try:
            assert cpus_of_places((0,)) == ()
        finally:
            os.sched_setaffinity(0, allowed)
