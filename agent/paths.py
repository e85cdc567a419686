"""The folders of the agent's state other than profiles."""

from __future__ import annotations

from pathlib import Path

from profiles.files.safe_files import user_folder


def state_dir() -> Path:
    """``$XDG_STATE_HOME/tenbin`` or ``~/.local/state/tenbin``: the restore journal."""
    return user_folder("XDG_STATE_HOME", ".local/state") / "tenbin"


def node_states() -> Path:
    """Return the folder with a folder for each node, because nodes share home folders."""
    return state_dir() / "nodes"


def node_journal(states: Path, node: str) -> Path:
    """Return the restore journal of a node of a cluster."""
    return states / node / "tenbin" / "journal"


def default_storage() -> Path:
    """``$XDG_CACHE_HOME/tenbin`` or ``~/.cache/tenbin``: the checkpoint folder when none is named."""
    return user_folder("XDG_CACHE_HOME", ".cache") / "tenbin"
