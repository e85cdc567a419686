"""The name of the node that this process is on."""

from __future__ import annotations

import os


def node_name() -> str:
    """Return the node's name, that of Slurm if Slurm has started this process."""
    return os.environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]
