"""tenbin's own kernels (those of the node profile) as jobs: the same work in every run, as long as wanted."""

from __future__ import annotations

import json
import math
import subprocess
import sys

from profiles.errors import TenbinError

KERNELS = {"ep": "W", "cg": "W", "ft": "W", "mg": "W", "lu": "W"}  # and their classes


def command(kernel: str, letter: str, least_s: float, ranks: int = 1) -> tuple[str, ...]:
    """A kernel of that class, the same number of times in every run, for about ``least_s`` on this machine.

    Args:
        ranks: it is started as so many, by mpiexec; several, or one of a varying number (0): it uses MPI.

    Raises:
        TenbinError: it does not run here.
    """
    alone = [sys.executable, "-P", "-m", "probes.loads", f"{kernel}:{letter}"]
    done = subprocess.run([*alone, "--repeat", "3"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise TenbinError(f"kernel {kernel} did not run: {done.stderr.strip()[-200:]}")
    once_s = min(json.loads(line)["time_s"] for line in done.stdout.splitlines())
    count = max(math.ceil(least_s * max(ranks, 1) / once_s), 1)
    rank = ["-m", "mpi4py"] if ranks != 1 else []
    return (*alone[:2], *rank, *alone[2:], "--repeat", str(count))
