"""Measurement of a cluster: nodes side by side, then the network between them.

A failure costs its own part only. A node that cannot be measured is named with the reason.
"""

from __future__ import annotations

import base64
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import numpy as np
import pandas as pd

from agent.node_profile.profiler import plan
from probes.mpi.runner import GUARD, run_ranks
from probes.network import GRACE_S, SIZES, Listener
from probes.network_rank import MessagePlan
from probes.run import Event, Run
from profiles.clusters import Refused, Survey
from profiles.errors import BadInput, Unavailable, UserError
from profiles.files.store import id_at, read_table
from profiles.fits import fit_samples
from profiles.records import Absent, Profile, Settings
from scheduler.engines.slurm.slurm_commands import (
    Slurm,
    SlurmNode,
    clean_environment,
    error_of,
    parse_hosts,
    step_failure,
)

# -- allocations -------------------------------------------------------------------------------------------
#
# An allocation and its steps end with this process, however the process ends.


GRANT_S = 20  # nodes that were idle a moment ago
ENDS_S = 10.0


@dataclass(frozen=True)
class Allocation:
    """A job of this process that has whole nodes."""

    job: int
    slurm: Slurm

    def step(self, nodes: Sequence[SlurmNode], program: Sequence[str], mpi: str = "none") -> list[str]:
        """Return the command that starts ``program`` once on each node, with all of the node to use."""
        return [
            *("srun", f"--jobid={self.job}", "--overlap", "--mem=0", "--input=none", "--cpu-bind=none"),
            *(f"--immediate={GRANT_S}", "--kill-on-bad-exit=1", "--chdir=/", f"--mpi={mpi}", "--quiet"),
            *(f"--nodes={len(nodes)}", f"--ntasks={len(nodes)}", "--ntasks-per-node=1"),
            *(f"--cpus-per-task={min(node.cpus for node in nodes)}",),
            *(f"--nodelist={','.join(node.name for node in nodes)}", *program),
        ]

    def interrupt(self) -> None:
        """Send SIGINT to every step, which then ends early with the results so far."""
        with suppress(Unavailable):
            self.slurm.call("scancel", "--signal=INT", str(self.job))


@contextmanager
def allocate(
    slurm: Slurm, nodes: Sequence[SlurmNode], partition: str, limit_s: float
) -> Iterator[Allocation]:
    """Allocate whole nodes; Slurm takes them back when this process ends, or after ``limit_s``.

    salloc takes account, reservation and quality of service from SALLOC_ACCOUNT and the like.

    Raises:
        Unavailable: Slurm cannot give the nodes now.
    """
    names = ",".join(node.name for node in nodes)
    command = [
        *("salloc", f"--partition={partition}", f"--nodelist={names}", f"--nodes={len(nodes)}"),
        *("--exclusive", "--mem=0", "--no-kill", f"--immediate={GRANT_S}", "--job-name=tenbin-profile"),
        *(f"--time={int(limit_s // 60) + 1}", "sh", "-c", "echo $SLURM_JOB_ID; exec cat"),
    ]
    # When this process is killed its pipe closes, so cat ends, and the allocation with it.
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(),
        start_new_session=True,
    ) as salloc:
        assert salloc.stdin and salloc.stdout and salloc.stderr
        job = ""
        try:
            job = salloc.stdout.readline().strip()
            if not job.isdecimal():
                raise error_of(["salloc"], salloc.stderr.read(), salloc.wait())
            yield Allocation(int(job), slurm)
        finally:
            with suppress(OSError):
                salloc.stdin.close()
            _release(salloc, job, slurm)


def _release(salloc: subprocess.Popen[str], job: str, slurm: Slurm) -> None:
    """Wait until salloc ends, and with it the allocation; cancel and kill them if they are late."""
    with suppress(subprocess.TimeoutExpired):
        salloc.wait(timeout=ENDS_S)
    if salloc.returncode is None:
        if job.isdecimal():
            with suppress(Unavailable):
                slurm.cancel(int(job))
        with suppress(ProcessLookupError):
            os.killpg(salloc.pid, signal.SIGKILL)


# -- network between nodes ---------------------------------------------------------------------------------
#
# Pairs are measured in the rounds of a tournament. In a round each node is in at most one pair, and all
# pairs run side by side. All pairs of n nodes take n - 1 rounds, or n if n is odd. Beyond ``MOST_ROUNDS``,
# rounds are left out at random.


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
        return self.allocation.step(self.nodes, [*GUARD, *program], mpi=self.pmi)

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
            preflight=True,
        )
        program = [sys.executable, "-P", "-m", "mpi4py", "-m", "probes.network_rank", plan.to_json()]
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


# -- selection of nodes ------------------------------------------------------------------------------------


Partitions = Mapping[str, Mapping[str, str]]


def select_nodes(text: str, nodes: Sequence[SlurmNode], partitions: Partitions) -> list[SlurmNode]:
    """Return the nodes that ``all``, a list (``node[1-3],x``) or a partition's name stands for, each once.

    Raises:
        BadInput: a name is neither a node nor a partition.
    """
    known = {node.name: node for node in nodes}
    if text == "all":
        return list(known.values())
    selected: dict[str, SlurmNode] = {}
    for name in parse_hosts(text):
        if name in known:
            selected[name] = known[name]
        elif name in partitions:
            selected |= {node.name: node for node in nodes if name in node.partitions}
        else:
            remedy = f"see: sinfo -N; partitions: {', '.join(partitions) or 'none'}"
            raise BadInput(f"--nodes: there is no node or partition '{name}'", remedy)
    if not selected:
        raise BadInput(f"--nodes: {text!r} names no node", "write all, a list as node[1-3], or a partition")
    return list(selected.values())


def split_free(nodes: Sequence[SlurmNode]) -> tuple[list[SlurmNode], list[Refused]]:
    """Split nodes into those that are free, and the others with the reason."""
    free, refused = [], []
    for node in nodes:
        if not node.usable:
            why = f"it is {node.state}" + (f" ({node.reason})" if node.reason else "")
            remedy = f"see: scontrol show node {node.name}"
        elif node.cpus_used:
            why = f"it runs jobs ({node.cpus_used} of {node.cpus} CPUs)"
            remedy = f"measure it when it is quiet: tenbin profile --nodes {node.name}"
        elif not node.partitions:
            why, remedy = "it is in no partition", "add it to one"
        else:
            free.append(node)
            continue
        refused.append(Refused(node=node.name, reason=why, remedy=remedy))
    return free, refused


def group_by_partition(
    nodes: Sequence[SlurmNode], partitions: Partitions
) -> list[tuple[str, list[SlurmNode]]]:
    """Return as few partitions as have all the nodes, with the nodes of each.

    Each time the partition with most of the nodes left is taken; the default one wins a tie.
    """
    left, groups = list(nodes), []
    usable = {name: words for name, words in partitions.items() if words.get("State", "UP") == "UP"}

    def worth(name: str) -> tuple[int, bool]:
        return sum(name in node.partitions for node in left), usable[name].get("Default") == "YES"

    while left and usable:
        best = max(usable, key=worth)
        group = [node for node in left if best in node.partitions]
        if not group:
            break
        groups.append((best, group))
        left = [node for node in left if best not in node.partitions]
    return groups


# -- the measurement ---------------------------------------------------------------------------------------


END_S = 30.0  # that nodes may take to end early
Tell = Callable[[str], None]


class ClusterMeasurement:
    """One measurement of a cluster, with its results so far.

    Args:
        settings: those of one node's profile.
        machine: emulated hardware of which each node measures the power; empty for the real hardware.
        tell: is called with a line of progress.

    Attributes:
        profiles, samples: results of the nodes by name; samples by probe.
        network_samples: rows of the all-to-alls between nodes.
    """

    def __init__(self, slurm: Slurm, settings: Settings, *, machine: str, tell: Tell) -> None:
        self.slurm, self.settings, self.machine, self.tell = slurm, settings, machine, tell
        self.profiles: dict[str, Profile] = {}
        self.samples: dict[str, dict[str, pd.DataFrame]] = {}
        self.network_samples: list[dict[str, Any]] = []
        self._refused: list[Refused] = []
        self._absent: list[Absent] = []
        self._tried: set[str] = set()  # names of nodes that were measured or refused
        self._interrupted = False

    def measure(self, nodes: Sequence[SlurmNode], partitions: Partitions) -> Survey:
        """Measure the nodes; Ctrl-C ends the measurement early with the results so far.

        Raises:
            Unavailable: Slurm does not answer.
        """
        created, start_s = datetime.now(UTC), time.monotonic()
        free, self._refused = split_free(nodes)
        cluster = self.slurm.config()["ClusterName"]
        for partition, group in group_by_partition(free, partitions):
            if self._interrupted:
                break
            self.tell(f"{len(group)} node{'s' * (len(group) != 1)} of partition {partition}")
            self._measure_group(partition, group)
        why = "interrupted before it was measured" if self._interrupted else "no partition that is up has it"
        self._refuse(free, Unavailable(why))
        rows = self.network_samples
        return Survey(
            id=id_at(created),
            cluster=cluster,
            created=created,
            duration_s=round(time.monotonic() - start_s, 1),
            tenbin_version=version("tenbin"),
            nodes={name: self.profiles[name].id for name in sorted(self.profiles)},
            refused=tuple(sorted(self._refused, key=lambda refused: refused.node)),
            models=tuple(fit_samples("network", pd.DataFrame(rows)) if rows else ()),
            absent=tuple(self._absent),
            interrupted=self._interrupted,
            emulated=bool(self.machine),
        )

    def _measure_group(self, partition: str, nodes: list[SlurmNode]) -> None:
        """Measure the nodes of one partition, in one allocation."""
        only = self.settings.only
        network = len(nodes) > 1 and not self.machine and (not only or "network" in only)
        limit_s = sum(step.limit_s for step in plan(self.settings))
        allocation_s = limit_s + 4 * expected_s(len(nodes), self.settings.quick) + 120
        try:
            with allocate(self.slurm, nodes, partition, allocation_s) as allocation:
                running = [
                    NodeMeasurement(allocation, node, self.settings, machine=self.machine, tell=self.tell)
                    for node in nodes
                ]
                self._wait([visit.thread for visit in running], allocation, limit_s)
                for visit in running:
                    self._collect(visit)
                known = {name: profile.inventory.mpi for name, profile in self.profiles.items()}
                with_mpi = [node for node in nodes if known.get(node.name)]
                if network and len(with_mpi) > 1 and not self._interrupted:
                    self._measure_network(allocation, with_mpi)
        except Unavailable as error:
            self._refuse(nodes, error)

    def _measure_network(self, allocation: Allocation, nodes: list[SlurmNode]) -> None:
        mpi = self.profiles[nodes[0].name].inventory.mpi
        assert mpi
        duration_s = expected_s(len(nodes), self.settings.quick)
        self.tell(f"all-to-all between {len(nodes)} nodes (about {duration_s:.0f} s)")
        network = NodeNetwork(
            allocation, mpi.library, self.settings, emit=self._hear, stopped=lambda: self._interrupted
        )
        thread = threading.Thread(target=network.measure, args=[nodes], daemon=True)
        thread.start()
        self._wait([thread], allocation, 4 * duration_s + 120)

    def _hear(self, event: Event) -> None:
        """Keep the samples of the network and what is absent; called by several threads."""
        if event["event"] == "sample":
            self.network_samples.append(event["row"])
        elif event["event"] == "absent":
            self._absent.append(Absent(**event["absent"]))

    def _wait(self, threads: list[threading.Thread], allocation: Allocation, limit_s: float) -> None:
        """Wait for threads; Ctrl-C interrupts their steps, and a second Ctrl-C ends the wait."""
        deadline = time.monotonic() + limit_s
        while any(thread.is_alive() for thread in threads) and time.monotonic() < deadline:
            try:
                for thread in threads:
                    thread.join(timeout=0.1)
            except KeyboardInterrupt:
                if self._interrupted:
                    return
                self._interrupted = True
                allocation.interrupt()
                deadline = min(deadline, time.monotonic() + END_S)

    def _collect(self, measured: NodeMeasurement) -> None:
        """Keep the results of a node, and end its measurement if that still runs."""
        late = measured.end()
        profile, node = measured.profile, measured.node
        if profile is None or not profile.samples:
            failure = measured.failure or Unavailable("nothing could be measured there")
            self._refuse([node], Unavailable("it did not end in time", failure.remedy) if late else failure)
            return
        self._tried.add(node.name)
        emulated = profile.settings.emulated
        name = node.name + (f"+emulated-{emulated}" if emulated else "")
        self.profiles[name] = profile.model_copy(update={"node": name})
        self.samples[name] = measured.samples

    def _refuse(self, nodes: Sequence[SlurmNode], failure: Unavailable) -> None:
        """Name the nodes that were not tried yet, with the reason."""
        names = [node.name for node in nodes if node.name not in self._tried]
        self._tried.update(names)
        self._refused += [Refused(node=name, reason=failure.what, remedy=failure.remedy) for name in names]


class NodeMeasurement:
    """The measurement of one node, by ``agent.node_profile.profiler`` on that node."""

    def __init__(
        self, allocation: Allocation, node: SlurmNode, settings: Settings, *, machine: str, tell: Tell
    ) -> None:
        self.node, self.tell = node, tell
        self.profile: Profile | None = None
        self.samples: dict[str, pd.DataFrame] = {}
        self.failure: Unavailable | None = None
        self._started: set[str] = set()  # probes
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed by the thread)
        module = ["-m", "agent.node_profile.profiler", settings.model_dump_json(), machine]
        self._process = subprocess.Popen(
            allocation.step([node], [sys.executable, "-P", *module]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            errors="replace",
            env=clean_environment(),
            start_new_session=True,  # because Ctrl-C reaches the node through Slurm
        )
        self.thread = threading.Thread(target=self._listen, daemon=True)
        self.thread.start()

    def _listen(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            if line.startswith('{"event": ') and line.endswith("\n"):
                self._hear(json.loads(line))
        code = self._process.wait()
        with self._errors as file:
            file.seek(0)
            errors = file.read().decode(errors="replace").splitlines()[-60:]
        if self.profile is None and self.failure is None:
            self.failure = step_failure(errors, code)

    def _hear(self, event: Event) -> None:
        match event["event"]:
            case "progress" if event["probe"] not in self._started:
                self._started.add(event["probe"])
                self.tell(f"{self.node.name}: {event['probe']} ({event['left_s']:.0f} s left)")
            case "samples":
                packed = io.BytesIO(base64.b64decode(event["parquet"]))
                self.samples[event["probe"]] = read_table(packed)
            case "profile":
                self.profile = Profile.model_validate(event["profile"])
            case "error":
                self.failure = Unavailable(event["what"], event["remedy"])

    def end(self) -> bool:
        """Kill the measurement if it still runs; return if it did."""
        late = self.thread.is_alive()
        if late:
            self._process.kill()
            self.thread.join(timeout=5.0)
        return late
