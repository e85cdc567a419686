"""What a node says of itself: a program of a second, as a job of Slurm's on that node alone."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from scheduler.engines.slurm.admin.allocation import environment
from scheduler.engines.slurm.client.parse import SlurmNode
from scheduler.engines.slurm.client.tools import step_command


def ask(
    node: SlurmNode,
    program: Sequence[str],
    limit_s: float,
    partition: str = "",
    memory_mb: int = 64,
    gres: str = "",
) -> subprocess.CompletedProcess[str] | None:
    """How the program ended there, with what it wrote; None: it did not within ``limit_s``.

    Args:
        partition: empty: the node's first.
        gres: generic resources that it takes, as ``--gres`` has them.
    """
    command = step_command([node.name], partition or node.partitions[0], program, memory_mb, gres)
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env=environment(),
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
