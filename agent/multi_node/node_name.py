"""The node that this process is on."""

from __future__ import annotations

import os


def node_name() -> str:
    """Its name, as Slurm calls it where that has started us."""
    return os.environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]
