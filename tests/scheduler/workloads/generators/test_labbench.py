"""Workloads of a laboratory: the load as asked, every table that of a measured program, and who may share."""

from __future__ import annotations

import csv
import gzip
import json
import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

import tenbin
from profiles.errors import BadInput
from scheduler.model.clusters import parse_cluster
from scheduler.model.interference import PACKED, SPREAD
from scheduler.model.jobs import Cluster, Placement, Pool
from scheduler.model.speeds import TabulatedSpeed
from scheduler.policies.registry import create
from scheduler.simulator.simulator import Simulator
from scheduler.simulator.trace import Arrival, OutcomeRecorder
from scheduler.workloads import Workload, load
from scheduler.workloads.arrivals import offered_load
from scheduler.workloads.generators.labbench import (
    LIKE,
    SIZES,
    SharedGpus,
    family,
    pair_speeds,
    rate,
    tables,
)
from tests.support.paths import SHARED_DATA

pytestmark = pytest.mark.computes
NODES = "2xv100[cores=32,memory_mb=131072,gpu=4]+4xp100[cores=16,memory_mb=65536,gpu=2]"
CAPS_W = (100.0, 125.0, 150.0, 175.0, 200.0, 225.0, 250.0)


def generate(cluster: str | Cluster, text: str = "", seed: int = 1) -> tuple[Workload, list[Arrival]]:
    machine = parse_cluster(cluster) if isinstance(cluster, str) else cluster
    workload = load(f"generator:labbench,{text or 'jobs=400'}", machine, seed)
    assert isinstance(workload.arrivals, Iterable)
    return workload, list(workload.arrivals)


@pytest.mark.parametrize("wish", [0.5, 0.9, 1.2])
def test_the_load_is_as_asked(wish: float) -> None:
    """On one class as ``offered_load`` has it; on two, jobs are spread so that they end together."""
    _, counted = generate("16xv100", f"jobs=400,load={wish}")
    assert offered_load(counted, parse_cluster("16xv100")) == pytest.approx(wish, rel=1e-6)
    _, two = generate(NODES, f"jobs=400,load={wish}")
    span = two[-1].job.submit_s - two[0].job.submit_s
    work = sum(a.job.units / (8 / a.runs_s["v100"] + 8 / a.runs_s["p100"]) for a in two)
    assert work / span == pytest.approx(wish, rel=1e-6)
    submits = [arrival.job.submit_s for arrival in two]
    assert submits == sorted(submits) and submits[0] == 0


def test_a_seed_is_a_workload() -> None:
    assert generate(NODES, seed=3)[1] == generate(NODES, seed=3)[1] != generate(NODES, seed=4)[1]


def test_every_table_is_a_measured_program() -> None:
    _, arrivals = generate("16xv100+16xp100", "jobs=400,sizes=moldable")
    for job, _, runs_s, *_ in arrivals:
        measured = tables()["throughputs"][job.program]
        assert str(job.units) in measured["v100"] and str(job.units) in measured["p100"]
        ratio = measured["v100"][str(job.units)] / measured["p100"][str(job.units)]
        assert runs_s["p100"] / runs_s["v100"] == pytest.approx(ratio)
        assert isinstance(job.speed, TabulatedSpeed)
        for gpus in (size for size in SIZES if str(size) in measured["v100"] and size >= job.units):
            gain = measured["v100"][str(gpus)] / measured["v100"][str(job.units)]
            assert job.speed(gpus, None) == pytest.approx(gain)
        most = job.max_units or job.units
        assert job.speed(most, None) == max(job.speed(gpus, None) for gpus in range(job.units, 9))


def test_fixed_sizes_are_multiples_of_the_least_up_to_the_fastest() -> None:
    sized = [generate("8xv100+8xp100", f"jobs=200,{text}")[1] for text in ("sizes=moldable", "times=4")]
    for moldable, fixed in zip(*sized, strict=True):
        job, most = moldable.job, moldable.job.max_units or moldable.job.units
        assert fixed.job.units == min(4 * job.units, most) and fixed.job.submit_s == job.submit_s
        assert job.speed is not None and fixed.job.speed is None
        for pool in ("v100", "p100"):
            whole_s = job.estimate_on(pool, fixed.job.units)
            assert fixed.runs_s[pool] == fixed.job.estimates_s[pool] == pytest.approx(whole_s)


def test_caps_are_those_of_the_likest_network() -> None:
    pool = Pool("v100", 8, base_w=60.0, peak_w=250.0, caps_w=CAPS_W)
    _, arrivals = generate(Cluster((pool,), 1200.0))
    for job, run_s, *_ in arrivals:
        rows = {cap: row for cap, *row in tables()["caps"]["v100"][LIKE[family(job.program)]]}
        assert job.speed is not None and job.power is not None
        for cap in CAPS_W:
            assert job.speed(job.units, cap) == pytest.approx(rows[100][0] / rows[int(cap)][0])
            watts = max(row[1] for under, row in rows.items() if under <= cap)
            assert job.power(job.units, cap) == pytest.approx(job.units * watts)
            assert watts <= rows[int(cap)][1] * 1.04  # so little is it where more is drawn under a lower cap
        assert job.estimate_on("v100", cap_w=100.0) == pytest.approx(run_s)
    assert offered_load(
        [a._replace(run_s=a.job.estimate_on("v100", cap_w=250.0)) for a in arrivals], Cluster((pool,))
    ) == pytest.approx(0.9, rel=1e-6)


def test_jobs_on_nodes_take_what_they_need() -> None:
    _, arrivals = generate(NODES, "jobs=400,shared=0.5")
    halves = [arrival.job for arrival in arrivals if arrival.job.demand[2] == 0.5]
    assert 0.25 < len(halves) / len(arrivals) < 0.45  # half of 70 %
    assert {job.demand for job in halves} == {(2.0, 8192.0, 0.5)}
    assert all(a.job.demand == (4.0, 16384.0, 1.0) for a in arrivals if a.job not in halves)
    sharing = {a for a, _ in pair_speeds("v100")} & {a for a, _ in pair_speeds("p100")}
    assert {job.program for job in halves} <= sharing and len(sharing) >= 15


@pytest.mark.parametrize("kind", ["v100", "p100", "k80"])
def test_pairs_are_complete(kind: str) -> None:
    speeds = pair_speeds(kind)
    names = {a for a, _ in speeds}
    assert len(speeds) == len(names) ** 2 and len(names) >= 15
    assert all(0 < speed <= 1.01 for speed in speeds.values())


def test_two_jobs_share_a_gpu() -> None:
    _, arrivals = generate(NODES, "jobs=400,shared=1")
    a, b, c = [arrival.job for arrival in arrivals if arrival.job.demand[2] < 1][:3]
    place = Placement("v100", 1, ((0, 1),))
    slowed, speeds = SharedGpus(2), pair_speeds("v100")
    assert slowed(a, place, []) == 1.0
    assert slowed(a, place, [(b, place)]) == 1 / speeds[a.program, b.program]
    assert slowed(b, place, [(c, place), (a, place)]) == 1 / speeds[b.program, a.program]
    assert slowed(c, place, [(a, place), (b, place)]) == 1.0


def test_pairs_of_each_kind_are_known_and_counted_gpus_have_the_same_jobs() -> None:
    workload, arrivals = generate("8xv100[gpu=1]+8xp100[gpu=1]", "jobs=200,shared=1,knowledge=pairs")
    for kind in ("v100", "p100"):
        speeds, known = pair_speeds(kind), workload.settings.slowdowns.on(kind)
        for a, b in list(speeds)[:50]:
            assert known.factor(a, SPREAD, (b,)) == 1 / speeds[a, b] and known.factor(a, PACKED, (b,)) == 1
    _, counted = generate("8xv100+8xp100", "jobs=200,shared=1")
    assert [a._replace(job=replace(a.job, demand=())) for a in arrivals] == counted


@pytest.mark.parametrize(
    ("policy", "cluster", "more"),
    [
        ("easy", NODES, "shared=0.5"),
        ("conservative", NODES, "shared=1"),
        ("weigh", "16xv100+16xp100", "estimate=none"),
        ("mctbm-priced", "16xv100+16xp100", "load=1"),
        ("weigh", "16xv100", "sizes=malleable"),
        ("weigh", "8xv100+8xp100", "sizes=moldable"),
        ("weigh", "8xv100[gpu=1]+8xp100[gpu=1]", "shared=1,knowledge=pairs"),
        ("match", "8xv100[gpu=1]+8xp100[gpu=1]", "shared=1,knowledge=pairs"),
    ],
)
def test_all_jobs_end(policy: str, cluster: str, more: str) -> None:
    workload, arrivals = generate(cluster, f"jobs=120,{more}")
    record = OutcomeRecorder()
    Simulator(parse_cluster(cluster), arrivals, create(policy), workload.settings, sinks=[record]).run()
    assert len(record.outcomes) == 120 and all(outcome.how == "done" for outcome in record.outcomes)


def test_simulate_knows_it() -> None:
    [result] = tenbin.simulate(["easy"], "generator:labbench,jobs=50,shared=0.5", NODES, seed=1)
    assert result["policy"] == "easy"


@pytest.mark.parametrize(
    ("cluster", "more", "words"),
    [
        ("16xnode", "jobs=9", "classes node"),
        ("4xv100[cores=4]", "jobs=9", "nodes without GPUs"),
        (NODES, "shared=1,knowledge=pairs", "is of nodes with one GPU"),
        ("16xv100", "times=0", "times must be at least 1"),
        ("4xv100[gpu=4]", "sizes=moldable", "needs counted GPUs"),
        ("16xv100", "jobs=1", "at least 2"),
        ("16xv100", "load=0", "above 0"),
        ("16xv100", "cores=-1", "negative"),
        ("16xv100", "shared=2", "0 to 1"),
    ],
)
def test_what_cannot_be_is_refused(cluster: str, more: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        generate(cluster, more)


def path(name: str) -> Path:
    if not (SHARED_DATA / name).exists():
        pytest.skip(f"{name} is not in {SHARED_DATA}")
    return SHARED_DATA / name


def test_the_tables_are_those_published() -> None:
    gavel = json.loads(gzip.decompress(path("gavel-simulation_throughputs.json.gz").read_bytes()))
    for name, kinds in tables()["throughputs"].items():
        words = f"{family(name)} (batch size {name.rpartition('-')[2]})" if name not in LIKE else name
        for kind, by_gpus in kinds.items():
            for gpus, steps in by_gpus.items():
                assert steps == pytest.approx(gavel[kind][str((words, int(gpus)))]["null"], rel=1e-3)
                assert rate(name, kind, int(gpus)) == steps
    for kind, networks in tables()["caps"].items():
        with path(f"zeus-summary_power_{kind}.csv").open(encoding="utf-8", newline="") as lines:
            columns = "power_limit", "time_per_epoch", "average_power"
            published = {tuple(float(row[name]) for name in columns) for row in csv.DictReader(lines)}
        for rows in networks.values():
            for ours in rows:
                assert any(
                    all(math.isclose(a, b, rel_tol=1e-3) for a, b in zip(ours, theirs, strict=True))
                    for theirs in published
                )
