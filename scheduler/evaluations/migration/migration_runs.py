"""The simulations behind the evaluation of paper A: cases, what came out, and both by seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scheduler.evaluations import Estimate, changes
from scheduler.model.clusters import parse_cluster
from scheduler.policies.registry import create
from scheduler.simulator.breakdown import WaitBreakdown
from scheduler.simulator.metrics import Accumulator
from scheduler.simulator.simulator import Simulator
from scheduler.workloads import load

CLUSTER = parse_cluster("512xhigh+512xlow")


class SizeMix(NamedTuple):
    """A distribution of the sizes, what the load counts, and whether fewer jobs will do."""

    label: str
    mix: str
    per: str
    short: bool = False


@dataclass(frozen=True)
class MigrationCase:
    """One simulation."""

    mix: SizeMix
    policy: str
    seed: int
    jobs: int
    factor: float = 1.0
    offered: float = 0.9

    def __str__(self) -> str:
        return (
            f"{self.mix.mix} {self.policy}, load {self.offered:g}, costs x{self.factor:g}, seed {self.seed}"
        )

    def text(self) -> str:
        """Describe the workload."""
        kind = f"jobs={self.jobs},mix={self.mix.mix},per={self.mix.per}"
        return f"generator:migration,{kind},load={self.offered},factor={self.factor}"


class MigrationResult(NamedTuple):
    """Means over the jobs of one simulation, in seconds; the first is the sum of the next four."""

    turnaround_s: float
    run_s: float
    cost_s: float
    wait_a_s: float
    wait_b_s: float
    migrations: int


def simulate(case: MigrationCase) -> MigrationResult:
    """Run one case."""
    workload = load(case.text(), CLUSTER, case.seed)
    metrics, waits = Accumulator(CLUSTER), WaitBreakdown(CLUSTER)
    Simulator(
        CLUSTER, workload.arrivals, create(case.policy), workload.settings, sinks=[metrics, waits]
    ).run()
    found = metrics.metrics()
    assert found.mean_turnaround_s is not None and found.mean_run_s is not None
    assert found.mean_overhead_s is not None
    return MigrationResult(
        found.mean_turnaround_s, found.mean_run_s, found.mean_overhead_s, *waits.means(), found.migrations
    )


class MigrationResults:
    """All results, over the seeds."""

    def __init__(self, cases: Sequence[MigrationCase], results: Sequence[MigrationResult]) -> None:
        self._columns: dict[tuple[SizeMix, str, float, float], list[MigrationResult]] = {}
        for case, result in zip(cases, results, strict=True):  # by seed, because the cases are
            key = (case.mix, case.policy, case.factor, case.offered)
            self._columns.setdefault(key, []).append(result)

    def column(
        self, mix: SizeMix, policy: str, factor: float = 1.0, offered: float = 0.9
    ) -> list[MigrationResult]:
        """Return one result for each seed."""
        return self._columns[mix, policy, factor, offered]

    def turnarounds(
        self, mix: SizeMix, policy: str, factor: float = 1.0, offered: float = 0.9
    ) -> list[float]:
        return [result.turnaround_s for result in self.column(mix, policy, factor, offered)]

    def change(self, mix: SizeMix, policy: str, base: str = "mct", factor: float = 1.0) -> Estimate:
        """Compare the mean turnaround with that of a base with true costs."""
        return changes(self.turnarounds(mix, policy, factor), self.turnarounds(mix, base))
