"""Checks of the commands of jobs, before the jobs are accepted: slips by which a command can never run.

Otherwise a program need not be there yet: it is looked for when its job starts.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from profiles.errors import BadInput
from scheduler.jobs.specs import LONGEST_ARGUMENT, JobRefused, JobSpec


def check_commands(specs: Sequence[JobSpec], environment: Mapping[str, str], *, script: bool) -> None:
    """Check the commands of jobs that are submitted together.

    Args:
        environment: of their commands.
        script: the first words are names of a script, which takes their place.

    Raises:
        BadInput: names the job and the word.
    """
    checked: set[tuple[str, str]] = set()
    for place, spec in enumerate(specs):
        try:
            check_lengths(spec)
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


def check_lengths(spec: JobSpec) -> None:
    """Refuse texts that the kernel hands on to no program.

    Raises:
        BadInput: names one.
    """
    for number, word in enumerate(spec.command):
        check_length(f"argument {number}", word)
    for name, value in spec.env.items():
        check_length(f"env {name[:100]}", f"{name}={value}")


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
