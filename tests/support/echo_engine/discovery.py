"""The nodes of the echo engine: as many as its user says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scheduler.engines.protocol import Machine
from scheduler.engines.registry import UpRequest
from scheduler.jobs.sizes import Unit
from scheduler.model.jobs import Cluster, Pool
from tests.support.echo_engine.engine import EchoEngine


class EchoMachine(Machine):
    """Nodes that nobody has found."""

    def engine(self, store: Path, reports: Path) -> EchoEngine:
        return EchoEngine(self.cluster)


@contextmanager
def find(asked: UpRequest) -> Iterator[EchoMachine]:
    """Make the nodes."""
    pool = Pool("node", asked.own["echoes"], resources=("cores", "memory_mb"), capacity=(1.0, 1e3))
    yield EchoMachine(Cluster((pool,)), unit=Unit(node=True, cores=1))
