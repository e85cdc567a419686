"""Allocations of whole nodes, and commands of job steps on them.

An allocation and its steps end with this process, however the process ends.
"""

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
