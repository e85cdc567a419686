"""Messages between two ranks: timing, pairs, fits and pictures, on this node and between hosts."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.mpi.runner import MpiInstall, RanksFailed, run_ranks
from probes.network import MESSAGE_SIZES, measure_messages
from probes.run import collect
from probes.topology import core_pairs, read_topology
from profiles.fits import fit_samples
from profiles.fits.network import fit_messages
from profiles.records import Settings
from tenbin.report.probes.network import MESSAGES_EXPLANATION, message_figures
from tests.probes.test_memory_plan import machine
from tests.support.labs.components import require
from tests.support.labs.network_lab import netlab, require_netlab

LINK_MBIT = 400


@pytest.mark.slow
def test_this_node(mpi: MpiInstall, monkeypatch: pytest.MonkeyPatch) -> None:
    require(len(os.sched_getaffinity(0)) > 1, "two cores")
    sizes = (MESSAGE_SIZES[0], 4 << 10, MESSAGE_SIZES[-1])
    monkeypatch.setattr("probes.network.MESSAGE_SIZES", sizes)
    for budget_s in (1.5, 12, 48):  # a busy machine needs more time to see every size a few times
        samples, absent = collect("messages", Settings(quick=True, budget_s=budget_s), measure_messages)
        if not absent and samples["repetition"].max() > 1:
            break
    assert absent == []
    assert (samples["message_s"] > 0).all() and (samples["ranks"] == 2).all()
    seen = samples.groupby("pattern")["message_bytes"].agg(set)
    assert seen["latency"] == seen["bandwidth"] == set(sizes)
    fastest = samples.groupby(["pattern", "message_bytes"])["message_s"].min()
    assert fastest["latency", sizes[0]] < fastest["latency", sizes[-1]]
    assert fastest["bandwidth", sizes[0]] < fastest["latency", sizes[0]]  # many on their way hide the latency
    models = {model.quantity: model for model in fit_samples("messages", samples)}
    assert set(models) == {"message_latency_s", "message_bandwidth_gbs"}
    assert models["message_latency_s"].labels["size"] == "8 B"
    assert len(message_figures(samples, list(models.values()))) == 2 and MESSAGES_EXPLANATION


@pytest.mark.measures
def test_a_shaped_link(mpi: MpiInstall, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bandwidth of one direction is the link's, less the heads of packets.

    A machine that others use is slower than its link, never faster: the fastest window counts there.
    """
    require_netlab()
    with netlab(tmp_path) as lab:
        lab.shape(LINK_MBIT, "htb")
        for name, value in lab.env.items():
            monkeypatch.setenv(name, value)
        hosts = tuple(lab.hosts[:2])
        monkeypatch.setattr("probes.network.core_pairs", lambda topology: iter(()))
        monkeypatch.setattr("probes.network.MESSAGE_SIZES", (8, 64 << 10))
        for budget_s in (3, 12, 48):
            samples, absent = collect("messages", Settings(budget_s=budget_s, hosts=hosts), measure_messages)
            if len(absent) == 1:
                fastest_s = samples.groupby(["pattern", "message_bytes"])["message_s"].min()
                mbit = (64 << 10) * 8 / 1e6 / fastest_s["bandwidth", 64 << 10]
                if mbit > 0.85 * LINK_MBIT:
                    break
    assert [record.what for record in absent] == ["messages between cores"]
    assert set(samples["hosts"]) == {",".join(hosts)} and set(samples["scope"]) == {"hosts"}
    values = {model.quantity: model.coefficients[0].value for model in fit_messages(samples)}
    assert mbit > 0.85 * LINK_MBIT and values["message_bandwidth_gbs"] * 8e3 < 1.05 * LINK_MBIT
    assert values["message_latency_s"] > 5e-6 and fastest_s["latency", 8] < 5e-3


def test_pairs_are_of_each_kind_once(tmp_path: Path) -> None:
    topology = read_topology(machine(tmp_path, sockets=2, caches=2, cores=4, threads=2), set(range(64)))
    pairs = list(core_pairs(topology))
    assert [kind for kind, _, _ in pairs] == ["smt", "same-cache", "other-cache", "other-socket"]
    assert {first for _, first, _ in pairs} == {topology.cpus[0]}
    assert list(core_pairs(read_topology(machine(tmp_path / "one", cores=1), {0}))) == []


@pytest.mark.parametrize("pattern", ["RoundTrip", "Windows"])
def test_wrong_data_is_noticed(mpi: MpiInstall, pattern: str) -> None:
    code = (
        "from mpi4py import MPI; from probes import network_rank\n"
        f"exchange = network_rank.{pattern}(MPI.COMM_WORLD, 64)\n"
        "rank, buffer = MPI.COMM_WORLD.rank, exchange.buffer\n"
        "exchange.timed = lambda size, iterations: None if rank == 0 else buffer.fill(7)\n"
        "exchange.check(64)"
    )
    program = [sys.executable, "-P", "-m", "mpi4py", "-c", code]
    with pytest.raises(RanksFailed, match="a message of 64 bytes arrived wrong on rank 1"):
        run_ranks(mpi, program, 2, timeout_s=60, on_line=lambda _: None)


def synthetic(latency_s: float, gbs: float, repetitions: int = 12) -> pd.DataFrame:
    """Messages that take latency + bytes / bandwidth; in a window the latency is hidden."""
    axes = {"pattern": ["latency", "bandwidth"], "round": [0], "repetition": range(repetitions)}
    axes |= {"message_bytes": MESSAGE_SIZES, "iteration": range(5)}
    rows = pd.MultiIndex.from_product(axes.values(), names=axes).to_frame(index=False)
    wire_s = rows["message_bytes"] / gbs / 1e9
    rows["message_s"] = np.where(rows["pattern"] == "latency", latency_s + wire_s, wire_s)
    return rows.assign(emulated=False, scope="node", hosts="", cpus="0,1", pair_kind="smt", batch=1)


@settings(max_examples=10)
@given(latency_us=st.floats(0.5, 100), gbs=st.floats(0.01, 50))
def test_the_fit_finds_the_truth(latency_us: float, gbs: float) -> None:
    models = {model.quantity: model for model in fit_messages(synthetic(latency_us * 1e-6, gbs))}
    latency, bandwidth = models["message_latency_s"], models["message_bandwidth_gbs"]
    assert latency["latency"].value == pytest.approx(latency_us * 1e-6 + 8 / gbs / 1e9)
    assert bandwidth["bandwidth"].value == pytest.approx(gbs) and bandwidth["bandwidth"].n == 12
    assert bandwidth.labels == {"scope": "node", "pair_kind": "smt", "cpus": "0,1", "size": "4 MiB"}


def test_partial_and_emulated_samples() -> None:
    whole = synthetic(1e-6, 1.0)
    assert (
        fit_messages(pd.DataFrame())
        == fit_messages(whole.drop(columns="message_s"))
        == message_figures(pd.DataFrame(), [])
        == []
    )
    part = whole[(whole["pattern"] == "latency") & (whole["repetition"] == 0)]
    assert [model.quantity for model in fit_messages(part)] == ["message_latency_s"]
    assert len(message_figures(part, [])) == 2
    emulated = whole.assign(emulated=True)
    assert all(model.emulated for model in fit_samples("messages", emulated))
    assert all("emulated" in str(figure.layout.title.text) for figure in message_figures(emulated, []))
