"""OpenCL jobs moved between the nodes of a Slurm cluster: predicted beside measured cost of each move.

The cluster is the lab of the tests, with real PoCL on each node. A profile is measured in the same run, and
given to ``tenbin up``; how long Slurm takes to start a job is learned from move to move.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler.coordinator.journal.journal import predictions_of
from tests.benchmarks import amount
from tests.benchmarks.checkpoint_costs import store_costs
from tests.benchmarks.jobs.test_migration_cost import move_about, shown, told
from tests.support.coordinator import Up
from tests.support.labs.components import require
from tests.support.labs.slurm_lab import SlurmLab
from tests.support.programs import opencl_devices

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(1800)]
CELLS, MOVES = amount(((724, 1448, 2896), 6), ((724,), 2), ((724,), 2))  # 8, 34, 134 MB


@pytest.fixture
def up(lab: SlurmLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Up]:
    monkeypatch.setenv("POCL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TENBIN_STORE", str(tmp_path / "store"))
    one = Up(tmp_path / "home")
    yield one
    one.sweep()


def test_moves_between_nodes(lab: SlurmLab, up: Up) -> None:
    require(len(opencl_devices()) == 1, "one OpenCL device (PoCL)")
    up.home.mkdir(mode=0o700)
    store_costs(up.home)
    up.start("--engine", "slurm", "--devices", "--policy", "fcfs", "--profile", "last")
    print(f"\nload average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")

    def next_node(job: dict[str, Any]) -> str:
        (node,) = job["hosts"]
        return lab.nodes[(lab.nodes.index(node) + 1) % len(lab.nodes)]

    for cells in CELLS:
        move_about(up, cells, next_node, MOVES)
    up.kill(signal.SIGTERM)
    moves = shown(predictions_of(up.home))
    told("moves between nodes", moves)
    first = min(one.number for one in moves)
    told("all but the first of all", [one for one in moves if one.number != first])
    assert sum(one.measured is not None for one in moves) == MOVES * len(CELLS)
