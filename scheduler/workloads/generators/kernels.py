"""Streams of programs whose interference was measured in pairs: by default the five kernels of Konishi et al.

Each job is a program of the table, chosen by chance; it has ``tasks`` processes of one core. Its run time is
that of the program on whole nodes, or as many runs in a row as make all jobs as long, or any length. The
simulated world slows jobs down as the table says, and the policy knows the table (or the pressures alone).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, inf
from typing import Literal

import numpy as np

from profiles.errors import BadInput
from scheduler.model.interference import PairTable, PressureModel, SharedNodeInterference, load_pairs
from scheduler.model.jobs import Cluster, EstimateKind, Job, instant
from scheduler.simulator.trace import Arrival, SimulationSettings
from scheduler.workloads import Workload


@dataclass(frozen=True)
class Kernels:
    """The jobs to generate.

    Attributes:
        jobs: how many.
        table: of pairs: a built-in one, or a TOML file.
        load: work on whole nodes that is submitted / what the cluster can do; None: all at 0 s.
        mix: programs by "chance", or "even" (as many of each in every round, in an order by chance).
        lengths: "table" (the program's run time), "equal" (all as long as the mean program), or "chance"
            (between a quarter of the program's run time and four times as much).
        tasks: processes of a job, of one core each.
        estimate: whether policies are told the run time on whole nodes.
        knowledge: what policies know: the "pairs", the "pressures" alone, or "nothing".
    """

    jobs: int = 1000
    table: str = "konishi2008"
    load: float | None = None
    mix: Literal["chance", "even"] = "chance"
    lengths: Literal["table", "equal", "chance"] = "table"
    tasks: int = 8
    estimate: bool = True
    knowledge: Literal["pairs", "pressures", "nothing"] = "pairs"

    def __post_init__(self) -> None:
        if self.jobs < 1 or self.tasks < 1:
            raise ValueError("jobs and tasks must be at least 1")
        if self.load is not None and not 0 < self.load < inf:
            raise ValueError("load must be above 0")

    def generate(self, cluster: Cluster, seed: int = 0) -> Workload:
        """Generate a stream of jobs."""
        pool = cluster.pools[0]
        if len(cluster.pools) != 1 or len(pool.capacity) != 1:
            raise BadInput(
                "generator kernels: jobs share the cores of one pool of equal nodes", "write 16xnode[cores=4]"
            )
        table = load_pairs(self.table)
        settings = SimulationSettings(interference=SharedNodeInterference(table))
        if self.knowledge != "nothing":
            known = table if self.knowledge == "pairs" else PressureModel.fit(table)
            settings = SimulationSettings(interference=SharedNodeInterference(table), slowdowns=known)
        at_once = pool.units / ceil(self.tasks / pool.capacity[0])  # jobs on whole nodes
        return Workload(
            _arrivals(self, table, at_once, seed),
            f"{self.jobs} jobs of {', '.join(table.programs)} ({self.table}), seed {seed}",
            settings=settings,
            note="run times beside others from measured pairs; alone on shared nodes a program runs as "
            f"beside {table.alone_like}",
        )


def _arrivals(parameters: Kernels, table: PairTable, at_once: float, seed: int) -> Iterator[Arrival]:
    rng = np.random.default_rng(seed)
    names = table.programs
    mean_s = float(np.mean(list(table.base_s.values())))
    now, deck = 0.0, list[int]()
    for number in range(1, parameters.jobs + 1):
        if not deck:
            deck = rng.permutation(len(names)).tolist()
        program = names[deck.pop() if parameters.mix == "even" else rng.integers(len(names))]
        run_s = table.base_s[program]
        if parameters.lengths == "equal":
            run_s = mean_s
        elif parameters.lengths == "chance":
            run_s *= float(np.exp2(rng.uniform(-2.0, 2.0)))
        job = Job(
            number,
            instant(now),
            parameters.tasks,
            run_s if parameters.estimate else None,
            estimate_kind=EstimateKind.PREDICTED,
            demand=(1.0,),
            program=program,
        )
        yield Arrival(job, run_s)
        if parameters.load is not None:
            now += float(rng.exponential(mean_s / at_once / parameters.load))
