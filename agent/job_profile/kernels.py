"""tenbin's own kernels (those of the node profile) as jobs: the same work in every run, as long as wanted."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence

from agent.job_profile.start import Start, plain
from profiles.errors import UserError

KERNELS = {"ep": "W", "cg": "W", "ft": "W", "mg": "W", "lu": "W"}  # and their classes


def command(
    kernel: str,
    letter: str,
    least_s: float,
    ranks: int = 1,
    start: Callable[[Sequence[str]], Start] | None = None,
) -> tuple[str, ...]:
    """A kernel of that class, the same number of times in every run, for about ``least_s`` on this machine.

    Args:
        ranks: it is started as so many, by mpiexec; several, or one of a varying number (0): it uses MPI.
        start: how its ranks are started, to time them so; None: as if they took none of each other's time.

    Raises:
        UserError: it does not run here.
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
