"""Checks of the commands of jobs, before the jobs are accepted: slips by which a command can never run.

Otherwise a program need not be there yet: it is looked for when its job starts.
"""

from __future__ import annotations

import os
import resource
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from profiles.errors import BadInput
from scheduler.jobs.specs import LONGEST_ARGUMENT, JobRefused, JobSpec

OF_TENBIN = 8192  # bytes of variables that the job gets besides


def check_commands(specs: Sequence[JobSpec], environment: Mapping[str, str], *, script: bool) -> None:
    """Check the commands of jobs that are submitted together.

    Args:
        environment: of their commands.
        script: the first words are names of a script, which takes their place.

    Raises:
        BadInput: names the job and the word.
    """
    checked: set[tuple[str, str]] = set()
    room = longest_together() - OF_TENBIN - _bytes(f"{name}={value}" for name, value in environment.items())
    for place, spec in enumerate(specs):
        try:
            check_lengths(spec, room)
            if not script and (spec.command[0], spec.folder) not in checked:
                path = spec.env.get("PATH") or environment.get("PATH")
                check_program(spec.command[0], spec.folder, path)
                checked.add((spec.command[0], spec.folder))
        except BadInput as error:
            raise JobRefused(error, place, len(specs)) from error


def check_program(word: str, folder: str, path: str | None) -> None:
    """Refuse a whole command line where a program should stand.

    Args:
        folder: where a relative file is. path: folders of programs, with colons.

    Raises:
        BadInput: the word is empty, or has blanks and there is no such program.
    """
    if not word.strip():
        raise BadInput("the name of the program is empty", "name one: tenbin submit -- CMD...")
    if len(word.split()) < 2:
        return
    first = word.split(maxsplit=1)[0]
    if "/" in first and not Path(folder, first).exists():
        return  # all of it may be a path, of what an earlier job makes or another node has
    if not (Path(folder, word).exists() if "/" in word else shutil.which(word, path=path)):
        raise BadInput(
            f"there is no program {word[:100]!r}, with the blanks in its name",
            f"give its words one by one: {word[:100]}; or to a shell: sh -c {shlex.quote(word[:100])}",
        )


def check_lengths(spec: JobSpec, room: int) -> None:
    """Refuse texts that the kernel hands on to no program.

    Args:
        room: bytes for the arguments and variables of the job.

    Raises:
        BadInput: names one.
    """
    for number, word in enumerate(spec.command):
        check_length(f"argument {number}", word)
    for name, value in spec.env.items():
        check_length(f"env {name[:100]}", f"{name}={value}")
    size = _bytes(spec.command) + _bytes(f"{name}={value}" for name, value in spec.env.items())
    if size > room:
        raise BadInput(
            f"arguments and variables have {size - room:,} bytes more than a program takes on this machine",
            "put them into a file, or have the coordinator started under a larger ulimit -s",
        )


def longest_together() -> int:
    """Return how many bytes of arguments and variables a program can have (execve(2))."""
    stack, _ = resource.getrlimit(resource.RLIMIT_STACK)
    most = 6 << 20
    return max(LONGEST_ARGUMENT, most if stack == resource.RLIM_INFINITY else min(stack // 4, most))


def _bytes(texts: Iterable[str]) -> int:
    """Count what the kernel does: each text with its end and a pointer."""
    return sum(len(os.fsencode(text)) + 9 for text in texts)


def check_length(what: str, text: str) -> None:
    """Refuse a text that is too long for one argument, or one variable with its name, of a program.

    Raises:
        BadInput: it is; the message begins with ``what``.
    """
    if len(text) * 4 >= LONGEST_ARGUMENT and len(os.fsencode(text)) >= LONGEST_ARGUMENT:
        raise BadInput(
            f"{what} has {len(os.fsencode(text)):,} bytes, a program takes {LONGEST_ARGUMENT - 1:,}",
            "put it into a file",
        )
