"""Commands and files that jobs name: checks before the jobs are accepted, and patterns of output files."""

from __future__ import annotations

import os
import platform
import re
import resource
import shlex
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from profiles.errors import BadInput
from scheduler.jobs.dependencies import WaitsByPlace, named
from scheduler.jobs.entry import Entry
from scheduler.jobs.specs import LONGEST_ARGUMENT, JobRefused, JobSpec

WIDEST = 10  # digits of a number in the name of an output file
OF_TENBIN = 8192  # bytes of variables that the job gets besides


def check_commands(specs: Sequence[JobSpec], environment: Mapping[str, str], *, script: bool) -> None:
    """Check the commands of jobs that are submitted together for slips by which they can never run.

    Otherwise a program need not be there yet: it is looked for when its job starts.

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
        raise BadInput("the name of the program is empty", "name one after --")
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


def check_paths(
    check: Callable[[JobSpec, str | None], None],
    specs: Sequence[JobSpec],
    environment: Mapping[str, str],
    waits_for: WaitsByPlace,
) -> None:
    """Check the paths of all jobs but those that wait for others, which may make what they need.

    The arguments are those of ``Coordinator.submit``.

    Raises:
        BadInput: names the job and the path.
    """
    seen: set[tuple[str | None, ...]] = set()
    for place, spec in enumerate(specs):
        path = spec.env.get("PATH") or environment.get("PATH")
        paths = spec.folder, spec.stdout, spec.stderr, spec.command[0], path
        if paths in seen or named(spec) or waits_for.get(place):
            continue
        seen.add(paths)
        try:
            check(spec, path)
        except BadInput as error:
            raise JobRefused(error, place, len(specs)) from error


def expand(pattern: str, job: Entry) -> str:
    """Put the job's numbers and name into a file name, as sbatch does; ``%4j`` has four digits at least.

    ``%j``: the job. ``%A``: its array, else the job. ``%a``: its index there, else 0. ``%x``: its name.
    ``%N``: its first node. ``%%``: a percent sign. Other letters stay as they are.
    """
    if "%" not in pattern:
        return pattern
    node = job.hosts[0] if job.hosts else platform.node()
    numbers = {"j": job.id, "A": job.array or job.id, "a": job.array_index or 0}

    def replace(mark: re.Match[str]) -> str:
        width, letter = min(int(mark[1] or 0), WIDEST), mark[2]
        if letter in numbers:
            return f"{numbers[letter]:0{width}d}"
        if letter == "x":
            return job.spec.name.replace("/", "_")
        return "%" if letter == "%" else node.partition(".")[0]

    return re.sub(r"%(\d{0,3})([jAaxN%])", replace, pattern)
