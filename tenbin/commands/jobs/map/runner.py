"""The script that every member of an array of ``tenbin map`` runs: one line for each member's command."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable

from profiles.errors import BadInput
from scheduler.jobs.files import check_length

LARGEST = 4 << 20  # bytes, of a script
NEWLINE = "TENBIN_NEWLINE"
HEAD = f"""#!/bin/sh
# Written by tenbin map. Each line from 8 on is the command of one job; TENBIN_ARRAY_INDEX counts them from 1.
{NEWLINE}='
'
eval "$(LC_ALL=C sed -n "$((TENBIN_ARRAY_INDEX + 7)){{p;q;}}" "$0")"
exit 126

"""


def script_of(commands: Iterable[list[str]]) -> bytes:
    """Write the script; its arguments come to each command as they are, whatever their bytes.

    Raises:
        BadInput: a command cannot be started so, or all are too long together.
    """
    script = b"".join([HEAD.encode(), *map(_line, commands)])
    if len(script) > LARGEST:
        raise BadInput(f"the commands have more than {LARGEST >> 20} MiB together", "submit them in parts")
    return script


def _line(command: list[str]) -> bytes:
    if not command[0] or command[0].startswith("-"):
        raise BadInput(f"{command[0]!r} is no program", "give its name, or its path")
    for word in command:
        check_length(f"{word[:40]!r}...", word)
    words = (f'"${NEWLINE}"'.join(map(shlex.quote, word.split("\n"))) for word in command)
    return os.fsencode(f"exec {' '.join(words)}\n")
