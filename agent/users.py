"""Names of users, which not all have: a container may be given any user number."""

from __future__ import annotations

import getpass
import os
import pwd


def user_name(uid: int | None = None) -> str:
    """Return the name of a user (None: of this process, as its environment says), else the number."""
    try:
        return getpass.getuser() if uid is None else pwd.getpwuid(uid).pw_name
    except (KeyError, OSError):
        return str(os.getuid() if uid is None else uid)
