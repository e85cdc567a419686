"""Where the agent keeps what is not a profile."""

from __future__ import annotations

import os
from pathlib import Path


def state_dir() -> Path:
    """``$XDG_STATE_HOME/tenbin`` or ``~/.local/state/tenbin``: the restore journal."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "tenbin"


def default_storage() -> Path:
    """``$XDG_CACHE_HOME/tenbin`` or ``~/.cache/tenbin``: the checkpoint folder when none is named."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tenbin"
