"""Where the agent keeps what is not a profile."""

from __future__ import annotations

import os
from pathlib import Path


def state_dir() -> Path:
    """``$XDG_STATE_HOME/tenbin`` or ``~/.local/state/tenbin``: the restore journal."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "tenbin"


def node_states() -> Path:
    """What nodes keep of their own where they share their homes: a folder for each, by name."""
    return state_dir() / "nodes"


def node_journal(states: Path, node: str) -> Path:
    """The restore journal of a node of a cluster: what is to be put back there is nobody else's business."""
    return states / node / "tenbin" / "journal"


def default_storage() -> Path:
    """``$XDG_CACHE_HOME/tenbin`` or ``~/.cache/tenbin``: the checkpoint folder when none is named."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tenbin"
