"""Runs of pairs of programs side by side, against which predicted slow-downs are compared.

One repetition runs each program twice alone, because all of its pairs are compared with that, and each pair,
in random order. In a pair both start together, and each is started again when it ends, until each has had a
whole run beside the other. A program beside itself would stay in step with itself, so one instance starts at
a random time of the other's run, and counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from agent.job_profile.trial import CommandFailed, RunOutcome, Start, Trial, as_ranks, plain
from agent.measured_node import node_lock
from probes.mpi.runner import MpiInstall
from probes.visits import Point, Visits
from profiles.jobs import Clock, JobProfile

POLL_S = 0.02
RUNS_ALONE = 2  # in a repetition


class Program(NamedTuple):
    """A program to run.

    Attributes:
        cores: number of its cores, on each host.
        mpi: starts the program as ``ranks`` ranks. hosts: their hosts, with ``host_cores`` to choose from.
        run_s: run time alone; 0: unknown.
    """

    name: str
    command: tuple[str, ...]
    folder: str
    cores: int
    mpi: MpiInstall | None = None
    ranks: int = 1
    hosts: tuple[str, ...] = ()
    host_cores: tuple[tuple[int, ...], ...] = ()
    run_s: float = 0.0

    def start(self, cpus: Sequence[int], first: int, limit_s: float) -> Start:
        """Return the start from the ``first`` of ``cpus`` on, over hosts of each host's cores."""
        mine = slice(first, first + self.cores)
        if self.mpi is None:
            return plain(self.command, cpus[mine])
        of_hosts = [core for cores in self.host_cores for core in cores[mine]]
        cores = (of_hosts if self.hosts else list(cpus[mine]))[: self.ranks]
        return as_ranks(self.mpi, self.command, cores, limit_s=limit_s, hosts=self.hosts)


@dataclass
class Times:
    """Seconds of each run, by repetition: run time and CPU time of each program alone and beside another.

    Attributes:
        alone: ``RUNS_ALONE`` in each repetition.
    """

    alone: dict[str, list[dict[Clock, float]]] = field(default_factory=dict)
    beside: dict[tuple[str, str], list[dict[Clock, float]]] = field(default_factory=dict)
    interrupted: bool = False

    def add(self, later: Times) -> None:
        """Add the repetitions of a later session of the same programs."""
        for program, runs in later.alone.items():
            self.alone.setdefault(program, []).extend(runs)
        for pair, runs in later.beside.items():
            self.beside.setdefault(pair, []).extend(runs)
        self.interrupted = self.interrupted or later.interrupted

    def slowdowns(self, program: str, beside: str, clock: Clock) -> list[float]:
        """Time beside / mean time alone of each complete repetition."""
        alone = [run[clock] for run in self.alone.get(program, ())]
        complete = range(RUNS_ALONE, len(alone) + 1, RUNS_ALONE)
        means = [sum(alone[end - RUNS_ALONE : end]) / RUNS_ALONE for end in complete]
        there = [run[clock] for run in self.beside.get((program, beside), ())]
        return [beside_s / mean_s for beside_s, mean_s in zip(there, means, strict=False) if mean_s > 0]

    def noise(self, program: str, clock: Clock) -> float:
        """Median change between two runs alone that follow each other: no prediction can be better."""
        times = [run[clock] for run in self.alone.get(program, ())]
        changes = [abs(b / a - 1) for a, b in pairwise(times) if a > 0]
        return float(np.median(changes)) if changes else 0.0


def program_of(
    job: JobProfile, mpi: MpiInstall | None = None, host_cores: tuple[tuple[int, ...], ...] = ()
) -> Program:
    """Return the program of a job profile; ``mpi`` and ``host_cores`` if it was started as ranks."""
    run = job.need("run_s")
    ranks = job.ranks or 1
    run_s = run.value if run else 0.0
    return Program(
        name=job.name,
        command=job.command,
        folder=job.folder,
        cores=job.cores,
        mpi=mpi,
        ranks=ranks,
        hosts=job.hosts,
        host_cores=host_cores,
        run_s=run_s,
    )


def run_pairs(
    programs: Sequence[Program],
    pairs: Iterable[tuple[int, int]],
    cpus: Sequence[int],
    repetitions: int,
    *,
    limit_s: float,
    tell: Callable[[str], None] = lambda doing: None,
    seed: int = 1,
) -> Times:
    """Run all of it; Ctrl-C ends it early with what was measured.

    Args:
        pairs: places in ``programs``; a program beside itself is a pair as well.
        cpus: a CPU of each core; the first program of a pair gets the first of them.

    Raises:
        CommandFailed: a program fails, or takes longer than ``limit_s``.
        Busy: another profile is measuring this node.
    """
    times, rng = Times(), np.random.default_rng(seed)
    alone = [(i,) for i in range(len(programs)) for _ in range(RUNS_ALONE)]
    work: list[tuple[int, ...]] = [*alone, *pairs]
    with node_lock():
        try:
            for visit in Visits([Point(places, most=repetitions) for places in work], rng):
                members = [programs[i] for i in visit.key]
                names = [program.name for program in members]
                what = " beside ".join(names) if len(names) > 1 else f"{names[0]} alone"
                tell(f"repetition {visit.count} of {repetitions}: {what}")
                twins = len(set(visit.key)) < len(members)
                ahead_s = rng.uniform(0, members[0].run_s) if twins else 0.0
                _note(times, names, _together(members, cpus, limit_s, ahead_s))
        except KeyboardInterrupt:
            times.interrupted = True
    return times


def _note(times: Times, names: Sequence[str], runs: Sequence[Sequence[RunOutcome]]) -> None:
    """Note the first run of each program; beside itself only that of the first instance."""
    first = [_by_clock(of_one[0]) for of_one in runs[: len(set(names))]]
    if len(names) == 1:
        times.alone.setdefault(names[0], []).append(first[0])
        return
    a, b = names
    times.beside.setdefault((a, b), []).append(first[0])
    if a != b:
        times.beside.setdefault((b, a), []).append(first[1])


def _by_clock(ended: RunOutcome) -> dict[Clock, float]:
    return {"wall": ended.wall_s, "cpu": ended.cpu_s}


def _together(
    programs: Sequence[Program], cpus: Sequence[int], limit_s: float, ahead_s: float = 0.0
) -> list[list[RunOutcome]]:
    """Run programs side by side; return the complete runs of each, during which all others were at work.

    Args:
        ahead_s: the last program starts so long before the others, and its own runs are not awaited.
    """
    runs: list[list[RunOutcome]] = [[] for _ in programs]
    awaited = runs[:-1] if ahead_s else runs
    with ExitStack() as stack:
        firsts = [sum(program.cores for program in programs[:i]) for i in range(len(programs))]
        starts = [
            program.start(cpus, first, limit_s) for program, first in zip(programs, firsts, strict=True)
        ]

        def start(i: int) -> Trial:
            how, member = starts[i], programs[i]
            own = not member.hosts
            trial = Trial(
                how.command, member.folder, how.cpus, limit_s=limit_s, variables=how.variables, own_folder=own
            )
            return stack.enter_context(trial)

        running = {len(programs) - 1: start(len(programs) - 1)} if ahead_s else {}
        others_from = time.monotonic() + ahead_s
        while not all(awaited):
            if len(running) < len(programs) and time.monotonic() >= others_from:
                running |= {i: start(i) for i in range(len(programs)) if i not in running}
            for i, trial in running.items():
                ended = trial.ended()
                if ended is None:
                    continue
                _check(programs[i], ended)
                runs[i].append(ended)
                if not all(awaited):
                    running[i] = start(i)
            time.sleep(POLL_S)
    return runs


def _check(program: Program, ended: RunOutcome) -> None:
    if ended.trouble or ended.code or ended.overdue or ended.left:
        why = ended.trouble or ended.last_words or f"code {ended.code}"
        why = "it took too long" if ended.overdue else why
        raise CommandFailed(
            f"{program.name}: the command of its job profile did not succeed ({why})",
            f"measure it again: tenbin program profile {program.name} -- CMD...",
        )
