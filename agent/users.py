"""Users: their names, which not all have, and the folders of the agent's state other than profiles."""

from __future__ import annotations

import getpass
import os
import pwd
from pathlib import Path

from profiles.files.safe_files import user_folder


def user_name(uid: int | None = None) -> str:
    """Return the name of a user (None: of this process, as its environment says), else the number.

    A container may be given any user number.
    """
    try:
        return getpass.getuser() if uid is None else pwd.getpwuid(uid).pw_name
    except (KeyError, OSError):
        return str(os.getuid() if uid is None else uid)


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
