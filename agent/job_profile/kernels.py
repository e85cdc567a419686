"""The kernels of the node profile as jobs of any length, with the same work in every run."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence

from agent.job_profile.trial import Start, plain
from profiles.errors import UserError

KERNELS = {"ep": "W", "cg": "W", "ft": "W", "mg": "W", "lu": "W"}  # and their classes


def command(
    kernel: str,
    letter: str,
    least_s: float,
    *,
    ranks: int = 1,
    start: Callable[[Sequence[str]], Start] | None = None,
) -> tuple[str, ...]:
    """Build a command that repeats a kernel so often that it runs for about ``least_s`` on this machine.

    Args:
        ranks: number of ranks; the kernel uses MPI for several, or a varying number (0).
        start: starts the ranks for the timing; None: time one process, and share its work.

    Raises:
        UserError: the kernel does not run here.
    """
    load = "-m", "probes.loads", f"{kernel}:{letter}", "--repeat"
    alone = sys.executable, "-P", *load
    by_ranks = (sys.executable, "-P", "-m", "mpi4py", *load) if ranks != 1 else alone
    timed = plain((*alone, "3"), ()) if start is None else start((*by_ranks, "3"))
    environment = {**os.environ, **timed.variables}
    done = subprocess.run(timed.command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"kernel {kernel} did not run: {done.stderr.strip()[-200:]}")
    once_s = min(json.loads(line)["time_s"] for line in done.stdout.splitlines())
    share = 1 if start else max(ranks, 1)
    return (*by_ranks, str(max(math.ceil(least_s * share / once_s), 1)))
