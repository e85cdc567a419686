"""Folders of a user: those that the environment names, else those below the home."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

from profiles.errors import BadInput


class NoFolder(BadInput):
    """A folder of the user that is not known, or cannot be used."""


def user_folder(variable: str, below_home: str) -> Path:
    """Return the folder that an environment variable names, else one below the user's home.

    Raises:
        NoFolder: it names none, and this user has no home, as in a container with any user number; or the
            name is not UTF-8.
    """
    if named := named_folder(variable):
        return named
    try:
        home = os.environ.get("HOME") or pwd.getpwuid(os.getuid()).pw_dir  # empty: as if it were not set
    except KeyError:
        what = f"no home folder: HOME is not set, and user {os.getuid()} is not known here"
        raise NoFolder(what, f"set HOME, or {variable}") from None
    return in_utf8(Path(home), "HOME") / below_home


def named_folder(variable: str) -> Path | None:
    """Return the folder that an environment variable names; None: it names none. NoFolder: as ``in_utf8``."""
    named = os.environ.get(variable)
    return in_utf8(Path(named), variable) if named else None


def in_utf8(folder: Path, source: str) -> Path:
    """Refuse, by NoFolder, a folder whose name is not UTF-8, because files and answers name it."""
    try:
        str(folder).encode()
    except UnicodeEncodeError:
        raise NoFolder(f"{source} {os.fsencode(folder)!r} is not UTF-8", "name another folder") from None
    return folder
