"""Nodes held for a while, and steps on them: everything ends with whoever holds them, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from profiles.errors import Unavailable
from scheduler.engines.slurm.client.node_programs import clean_environment
from scheduler.engines.slurm.client.parse import SlurmNode
from scheduler.engines.slurm.client.tools import Slurm, error_of

GRANT_S = 20  # nodes that were idle a moment ago
ENDS_S = 10.0


@dataclass(frozen=True)
class Allocation:
    """Whole nodes that are ours."""

    job: int
    nodes: tuple[SlurmNode, ...]
    slurm: Slurm

    def step(self, nodes: Sequence[SlurmNode], program: Sequence[str], mpi: str = "none") -> list[str]:
        """The command line that starts ``program`` once on each of the nodes, free to use all of it."""
        return [
            *("srun", f"--jobid={self.job}", "--overlap", "--mem=0", "--input=none", "--cpu-bind=none"),
            *(f"--immediate={GRANT_S}", "--kill-on-bad-exit=1", "--chdir=/", f"--mpi={mpi}", "--quiet"),
            *(f"--nodes={len(nodes)}", f"--ntasks={len(nodes)}", "--ntasks-per-node=1"),
            *(f"--cpus-per-task={min(node.cpus for node in nodes)}",),
            *(f"--nodelist={','.join(node.name for node in nodes)}", *program),
        ]

    def interrupt(self) -> None:
        """SIGINT for every step: it ends early, with what it has."""
        with suppress(Unavailable):
            self.slurm.call("scancel", "--signal=INT", str(self.job))


@contextmanager
def held(slurm: Slurm, nodes: Sequence[SlurmNode], partition: str, limit_s: float) -> Iterator[Allocation]:
    """Hold the nodes, all of each; Slurm takes them back when this process is gone, and after ``limit_s``.

    An account, a reservation, a quality of service: as salloc takes them from SALLOC_ACCOUNT and the like.

    Raises:
        Unavailable: they are not to be had now.
    """
    names = ",".join(node.name for node in nodes)
    command = [
        *("salloc", f"--partition={partition}", f"--nodelist={names}", f"--nodes={len(nodes)}"),
        *("--exclusive", "--mem=0", "--no-kill", f"--immediate={GRANT_S}", "--job-name=tenbin-profile"),
        *(f"--time={int(limit_s // 60) + 1}", "sh", "-c", "echo $SLURM_JOB_ID; exec cat"),
    ]
    # Its end of our pipe: when we are killed, cat ends, and with it the allocation.
    holder = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(),
        start_new_session=True,
    )
    assert holder.stdin and holder.stdout and holder.stderr
    said = ""
    try:
        said = holder.stdout.readline().strip()
        if not said.isdecimal():
            raise error_of(["salloc"], holder.stderr.read(), holder.wait())
        yield Allocation(int(said), tuple(nodes), slurm)
    finally:
        with suppress(OSError):
            holder.stdin.close()
        _end(holder, said, slurm)


def _end(holder: subprocess.Popen[str], job: str, slurm: Slurm) -> None:
    """It ends by itself, and the allocation with it; else both are ended."""
    with suppress(subprocess.TimeoutExpired):
        holder.wait(timeout=ENDS_S)
    if holder.returncode is None:
        if job.isdecimal():
            with suppress(Unavailable):
                slurm.cancel(int(job))
        with suppress(ProcessLookupError):
            os.killpg(holder.pid, signal.SIGKILL)
        holder.wait()
    for stream in (holder.stdout, holder.stderr):
        if stream:
            stream.close()
