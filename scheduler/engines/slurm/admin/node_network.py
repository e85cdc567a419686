"""The network between the nodes of an allocation: all-to-all among all nodes, then between pairs, by srun.

Pairs are measured in the rounds of a tournament. In a round each node is in at most one pair, and all pairs
run side by side. All pairs of n nodes take n - 1 rounds, or n if n is odd. Beyond ``MOST_ROUNDS``, rounds are
left out at random.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from probes.mpi.runner import run_ranks
from probes.network.probe import GRACE_S, SIZES, Listener
from probes.network.rank import MessagePlan
from probes.run import Event, Run
from profiles.errors import Unavailable, UserError
from profiles.records import Settings
from scheduler.engines.slurm.admin.allocation import Allocation
from scheduler.engines.slurm.client.node_programs import clean_environment
from scheduler.engines.slurm.client.parse import SlurmNode

MOST_ROUNDS = 31
START_S = 3.0  # of a step and of its ranks
BUDGET_S = {True: (5.0, 2.0), False: (30.0, 8.0)}  # quick or full: among all, of a pair


@dataclass(frozen=True)
class SrunLauncher:
    """Launcher of one rank on each node of an allocation, for ``probes.mpi.runner.run_ranks``."""

    allocation: Allocation
    nodes: tuple[SlurmNode, ...]
    pmi: str  # by which ranks find each other, as srun --mpi takes it

    def command(
        self, ranks: int, program: Sequence[str], hosts: Sequence[str] = (), cores: object = None
    ) -> list[str]:
        guarded = [sys.executable, "-P", "-m", "probes.mpi.rank_guard", *program]
        return self.allocation.step(self.nodes, guarded, mpi=self.pmi)

    def environment(self, timeout_s: float) -> dict[str, str]:
        return {"PYTHONUNBUFFERED": ""}


def pmi_of(library: str) -> str:
    """Return the process management interface of an MPI: Open MPI knows PMIx only, all others PMI 2."""
    return "pmix" if library.startswith("Open MPI") else "pmi2"


def rounds(count: int, seed: int = 1) -> list[list[tuple[int, int]]]:
    """Return the rounds of a tournament: every pair once, every player at most once in a round.

    By the circle method, the first player stands still and the others walk around.
    """
    players: list[int | None] = [*range(count), *([None] if count % 2 else [])]
    half, tournament = len(players) // 2, []
    for _ in range(len(players) - 1):
        facing = zip(players[:half], reversed(players[half:]), strict=True)
        tournament.append([(min(a, b), max(a, b)) for a, b in facing if a is not None and b is not None])
        players = [players[0], players[-1], *players[1:-1]]
    chosen = np.random.default_rng(seed).permutation(len(tournament))[:MOST_ROUNDS]
    return [tournament[i] for i in chosen]


def expected_s(count: int, quick: bool) -> float:
    """Estimate the time of the all-to-alls among ``count`` nodes."""
    if count < 2:
        return 0.0
    among_all, pair = BUDGET_S[quick]
    return len(rounds(count)) * (pair + START_S) + (among_all + START_S) * (count > 2)


@dataclass(frozen=True)
class NodeNetwork:
    """All-to-alls between nodes of an allocation.

    Attributes:
        library: the MPI of the nodes.
        emit: is called with events (sample, absent, progress) by several threads.
        stopped: says if the measurement has to end early.
    """

    allocation: Allocation
    library: str
    settings: Settings
    emit: Callable[[Event], None]
    stopped: Callable[[], bool]

    def measure(self, nodes: Sequence[SlurmNode]) -> None:
        """Measure among all nodes, then between pairs."""
        among_all_s, pair_s = BUDGET_S[self.settings.quick]
        if len(nodes) > 2:
            self._attempt(nodes, among_all_s)
        tournament = rounds(len(nodes), self.settings.seed)
        if len(tournament) == MOST_ROUNDS and len(nodes) > MOST_ROUNDS + 1:
            run = Run("network", self.settings, self.emit)
            run.absent("some pairs of nodes", f"each node was paired with about {MOST_ROUNDS} others", "")
        for pairs in tournament:
            if self.stopped():
                return
            with ThreadPoolExecutor(len(pairs)) as pool:
                list(pool.map(lambda pair: self._attempt([nodes[i] for i in pair], pair_s), pairs))

    def _attempt(self, nodes: Sequence[SlurmNode], budget_s: float) -> None:
        """Measure one all-to-all; its failure is reported and does not cost the others."""
        names = [node.name for node in nodes]
        what = f"all-to-all over {', '.join(names)}"
        run = Run("network", self.settings.model_copy(update={"budget_s": budget_s}), self.emit)
        run.progress(what)
        listener = Listener(run, what, ranks=len(nodes), hosts=names, library=self.library)
        limit_s = budget_s + GRACE_S
        plan = MessagePlan(
            ranks=len(nodes),
            sizes=SIZES,
            budget_s=budget_s,
            limit_s=round(limit_s),
            seed=int(run.rng.integers(2**31)),
            hosts=True,
        )
        program = [sys.executable, "-P", "-m", "mpi4py", "-m", "probes.network.rank", plan.to_json()]
        launcher = SrunLauncher(self.allocation, tuple(nodes), pmi_of(self.library))

        def hear(line: str) -> None:
            if line.startswith('{"event": "world"'):
                raise Unavailable(
                    f"srun --mpi={launcher.pmi} started {len(nodes)} ranks of {self.library}, each alone",
                    f"install Slurm's {launcher.pmi} plugin and the MPI's side of it; see: srun --mpi=list",
                )
            listener.line(line)

        try:
            run_ranks(launcher, program, len(nodes), timeout_s=limit_s, on_line=hear, env=clean_environment())
            listener.ended()
        except UserError as error:
            if not self.stopped():
                run.absent(what, error.what, error.remedy)
