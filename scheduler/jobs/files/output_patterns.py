"""Patterns in the names of output files: ``%j``, ``%A``, ``%a``, ``%x``, ``%N``, as sbatch has them."""

from __future__ import annotations

import platform
import re

from scheduler.jobs.entry import Entry

WIDEST = 10  # digits


def expand(pattern: str, job: Entry) -> str:
    """Put the job's numbers and name into a file name; ``%4j`` has four digits at least.

    ``%j``: the job. ``%A``: its array, else the job. ``%a``: its index there, else 0. ``%x``: its name.
    ``%N``: its first node. ``%%``: a percent sign. Other letters stay as they are.
    """
    if "%" not in pattern:
        return pattern
    node = job.hosts[0] if job.hosts else platform.node()
    numbers = {"j": job.id, "A": job.array or job.id, "a": job.array_index or 0}

    def replace(found: re.Match[str]) -> str:
        width, letter = min(int(found[1] or 0), WIDEST), found[2]
        if letter in numbers:
            return f"{numbers[letter]:0{width}d}"
        if letter == "x":
            return job.spec.name.replace("/", "_")
        return "%" if letter == "%" else node.partition(".")[0]

    return re.sub(r"%(\d{0,3})([jAaxN%])", replace, pattern)
