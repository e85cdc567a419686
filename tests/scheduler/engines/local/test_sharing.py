"""Real jobs that share a node: who shares with whom is decided by their job profiles."""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from agent.node_profile.identity import node_kind
from probes.topology import read_topology
from profiles.errors import BadInput
from profiles.files.store import JobStore
from scheduler.coordinator.coordinator import Coordinator
from scheduler.coordinator.journal.journal_file import read_predictions
from scheduler.engines.local.discovery import divide
from scheduler.jobs.sizes import Unit
from scheduler.model.interference import PACKED, SPREAD
from scheduler.model.jobs import Cluster, Pool
from scheduler.prediction.predictions import TrackedPrediction
from scheduler.prediction.profiles import ProfiledSlowdowns
from scheduler.prediction.tracker import overall
from tenbin.errors import TenbinError
from tests.support.coordinator import Up
from tests.support.job_profiles import make_job, samples
from tests.support.labs.components import require
from tests.support.paths import ROOT
from tests.support.scheduling.manual_engine import ManualEngine, a_job

CORES = [cpu.index for cpu in read_topology(Path("/sys"), os.sched_getaffinity(0)).cores]
STREAM = [sys.executable, str(ROOT / "examples" / "stream.py"), "--mb", "20", "--passes", "40"]
COMPUTE = [sys.executable, "-S", "-c", "sum(i * i for i in range(10_000_000))"]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JobStore]:
    """Store profiles: a streamer, a program that computes, a program from another kind of node."""
    monkeypatch.setenv("TENBIN_STORE", str(tmp_path / "store"))
    store, kind = JobStore(), node_kind()
    store.save(make_job("stream", *samples(suffers=0.08, pressure_gbs=9.0), kind=kind), {})
    store.save(make_job("compute", *samples(suffers=0.01, pressure_gbs=0.5), kind=kind), {})
    store.save(make_job("elsewhere"), {})
    yield store


def job(name: str, command: list[str], **more: Any) -> dict[str, Any]:
    return {"command": command, "name": name, "job_profile": name, "folder": "/", **more}


def pairings(up: Up) -> dict[int, TrackedPrediction]:
    with sqlite3.connect(up.home / "journal.sqlite") as db:
        return {one.job: one for one in read_predictions(db, job=None, kind="pairing", last=None, open=False)}


# --- what is predicted


def test_the_prediction_is_the_sensitivity_at_the_pressures_of_those_beside(store: JobStore) -> None:
    known = ProfiledSlowdowns(store, node_kind())
    assert known.pressure("stream") is None and known.factor("stream", SPREAD, ["compute"]) == 1.0
    known.introduce(["stream", "compute", ""])
    assert known.factor("stream", SPREAD, ["stream"]) == pytest.approx(1 + 0.08 * 9)
    assert known.factor("stream", SPREAD, ["compute", "compute"]) == pytest.approx(1 + 0.08 * 1)
    assert known.factor("compute", SPREAD, ["stream"]) == pytest.approx(1 + 0.01 * 9)
    assert known.factor("stream", PACKED, ["stream"]) == known.factor("stream", SPREAD, []) == 1.0
    assert known.factor("stream", SPREAD, ["nobody knows it"]) == 1.0
    pressure = known.pressure("stream")
    assert pressure is not None and pressure.memory_percent == pytest.approx(100 * 0.05 * 9)
    assert known.alone_s("stream") == pytest.approx(10.0)


def test_a_profile_that_is_measured_anew_is_used_from_the_next_job_on(store: JobStore) -> None:
    known = ProfiledSlowdowns(store, node_kind())
    known.introduce(["stream"])
    newer = make_job(
        "stream", *samples(suffers=0.02, pressure_gbs=9.0), kind=node_kind(), id="20260202T000000Z"
    )
    store.save(newer, {})
    assert known.factor("stream", SPREAD, ["stream"]) == pytest.approx(1 + 0.08 * 9)
    known.introduce(["stream"])
    assert known.factor("stream", SPREAD, ["stream"]) == pytest.approx(1 + 0.02 * 9)


def test_what_cannot_be_used_here_is_said(store: JobStore) -> None:
    known = ProfiledSlowdowns(store, node_kind())
    with pytest.raises(BadInput, match=r"no job profile 'nobody'.*there are: compute, elsewhere, stream"):
        known.introduce(["nobody"])
    with pytest.raises(BadInput, match="'elsewhere' was made on another kind of node"):
        known.introduce(["elsewhere"])
    runs, windows = samples()
    store.save(make_job("mute", runs, windows[windows["phase"] == "reference"], kind=node_kind()), {})
    with pytest.raises(BadInput, match="'mute' says nothing about pressure"):
        known.introduce(["mute"])
    known.recall(["nobody", "compute", "mute"])
    assert known.pressure("compute") is not None and known.pressure("mute") is None


def test_the_slow_down_over_changing_company_is_time_over_work() -> None:
    """100 s at half speed and 100 s alone do 150 s of work."""
    company = [
        {"since_s": 0.0, "beside": ["a"], "factor": 2.0},
        {"since_s": 100.0, "beside": [], "factor": 1},
    ]
    one = TrackedPrediction(1, 1, 1, "pairing", 0.0, 2.0, detail={"company": company})
    assert overall(one, 200.0) == pytest.approx(200 / 150)
    assert overall(one, 100.0) == pytest.approx(2.0)


def test_the_machine_is_divided_into_nodes_that_can_be_shared(store: JobStore) -> None:
    require(len(CORES) > 1, "two cores")
    for policy in ("match", "weigh,most=2"):
        machine = divide(policy, None, None)
        assert machine.cores == [CORES] and machine.job_profiles is not None
        assert machine.cluster.pools[0].capacity[0] == len(CORES)
    assert divide("weigh", None, None).job_profiles is None
    with pytest.raises(
        BadInput, match=f"--nodes {len(CORES)}: of {len(CORES)} cores no node has enough for 2"
    ):
        divide("match", None, len(CORES))
    with pytest.raises(BadInput, match="enough for 4096 jobs; choose another"):
        divide("match,most=4096", None, None)
    assert len(divide("exclusive", None, len(CORES)).cores) == len(CORES)


# --- jobs in virtual time

NODE = Cluster((Pool("node", 1, resources=("cores", "memory_mb"), capacity=(2.0, 1000.0)),))


class Shared:
    """A node of two cores, and a coordinator whose jobs share it."""

    def __init__(self, home: Path, policy: str) -> None:
        self.engine, self.home, self.policy = ManualEngine(cluster=NODE), home, policy

    def coordinator(self) -> AbstractContextManager[Coordinator]:
        profiles = ProfiledSlowdowns(JobStore(), node_kind())
        return self.engine.coordinator(
            self.home, self.policy, unit=Unit(node=True, cores=2), profiles=profiles
        )


@pytest.mark.parametrize("policy", ["match", "pair", "weigh,most=2"])
@pytest.mark.usefixtures("store")
def test_who_shares_outlives_the_coordinator(tmp_path: Path, policy: str) -> None:
    """Two of each, submitted at once; by order the streamers would be a pair."""
    shared = Shared(tmp_path / "home", policy)
    names = ["stream", "stream", "compute", "compute"]
    with shared.coordinator() as coordinator:
        coordinator.submit([a_job(name=name, job_profile=name) for name in names], {})
        first = [job for job, _ in shared.engine.begun]
        assert sorted(names[job - 1] for job in first) == ["compute", "stream"]
        shared.engine.wait(20.0)
    with shared.coordinator() as coordinator:
        for job in first:
            shared.engine.end(job, ran_s=20.0)
        coordinator.turn()
        assert sorted(shared.engine.begun) == [(job, 1) for job in (1, 2, 3, 4)]
        kept = {forecast.job: forecast for forecast in coordinator.journal.predictions(kind="pairing")}
        for job, other in (first, first[::-1]):
            assert kept[job].detail["company"][0]["beside"] == [names[other - 1]]
            assert kept[job].measured == pytest.approx(2.0), "alone it takes 10 s"


@pytest.mark.usefixtures("store")
def test_a_job_of_which_nothing_is_known_has_the_node_for_itself(tmp_path: Path) -> None:
    shared = Shared(tmp_path / "home", "match")
    with shared.coordinator() as coordinator:
        coordinator.submit([a_job(), a_job(job_profile="compute"), a_job()], {})
        for count in (1, 2, 3):
            assert len(coordinator.cluster.running) == 1 and len(shared.engine.begun) == count
            shared.engine.end(next(iter(coordinator.cluster.running)))
            coordinator.turn()
        assert not coordinator.job_table.entries


# --- real jobs


@pytest.mark.parametrize("policy", ["match", "weigh,most=2"])
def test_streamers_run_beside_those_that_compute(up: Up, store: JobStore, policy: str) -> None:
    """Two of each, submitted at once, on one node of two cores; by order the streamers would be a pair."""
    require(len(CORES) > 1, "two cores")
    up.start("--policy", policy, "--cores", "2")
    stream, compute = job("stream", STREAM), job("compute", COMPUTE)
    ids = up.client.submit_all([stream, stream, compute, compute])
    assert [one.result() for one in ids] == [0, 0, 0, 0]
    found = {one.id: one.info() for one in ids}
    first = sorted(found, key=lambda i: (found[i]["start_s"], i))[:2]
    assert {found[i]["name"] for i in first} == {"stream", "compute"}
    assert found[first[0]]["start_s"] == found[first[1]]["start_s"]
    a, b = (set(found[i]["cpus"]) for i in first)
    assert len(a) == len(b) == 1 and not a & b and a | b == set(CORES[:2])
    kept = pairings(up)
    assert set(kept) == set(found)
    for number, one in kept.items():
        took = found[number]["usage"]["running_s"]
        assert one.measured == pytest.approx(took / 10.0)
        assert 1.0 <= one.predicted <= 1 + 0.08 * 9
    assert kept[first[0]].detail["company"][0]["beside"] == [found[first[1]]["name"]]


def test_a_job_profile_that_cannot_be_used_is_refused_at_submission(up: Up, store: JobStore) -> None:
    require(len(CORES) > 1, "two cores")
    up.start("--policy", "match", "--cores", "2")
    with pytest.raises(TenbinError, match="made on another kind of node"):
        up.client.submit_all([job("elsewhere", ["true"])])
    done = up.run("submit", "--job-profile", "nobody", "--", "true")
    assert done.returncode == 2 and "no job profile 'nobody'" in done.stderr
    assert up.run("submit", "--job-profile", "stream", "--wait", "--", "true").returncode == 0
