"""The policies that can schedule a cluster: those that a simulation of a job runs on it."""

from __future__ import annotations

import pytest

from profiles.errors import BadInput
from scheduler.model.clusters import parse_cluster
from scheduler.policies.registry import POLICIES, create
from scheduler.simulator.simulator import Simulator, suitable
from scheduler.simulator.trace import SimulationSettings

CLUSTERS = ("16", "8xgpu+8xcpu", "8xnode[cpu=1,memory=1]", "8xnode[cores=4]", "4xa[cpu=1]+4xb[gpu=1]")


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_the_others_cannot_be_simulated(cluster: str) -> None:
    machine, able = parse_cluster(cluster), set()
    for name in POLICIES:
        try:
            Simulator(machine, (), create(name)).run()
            able.add(name)
        except BadInput:
            pass
    assert set(suitable(machine, SimulationSettings())) == able


def test_who_suits_what() -> None:
    nodes = suitable(parse_cluster("8xnode[cores=4]"), SimulationSettings())
    assert {"exclusive", "pair", "match", "las", "easy", "conservative"} <= set(nodes)
    assert not {"regions", "mct"} & set(nodes)
    classes = suitable(parse_cluster("8xgpu+8xcpu"), SimulationSettings())
    assert {"easy", "mctbm", "las"} <= set(classes) and not {"regions", "pair", "parm"} & set(classes)
