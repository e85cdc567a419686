"""Reuse of allocations: the next job of the same size on the same node runs in the Slurm job of the last one.

``agent.supervisor.allocation_reuse`` waits there for it. Such an attempt has no Slurm job of its own. Before
it is passed on, the comment of the other Slurm job is written into its folder.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from agent.attempts import checked
from agent.attempts.checked import Broken
from agent.attempts.folder import Attempt
from agent.attempts.records import Result
from agent.supervisor import allocation_reuse
from scheduler.engines.slurm.attempts.attempt import SlurmAttempt
from scheduler.engines.slurm.client.tools import Batch

BY = "relay"  # file in the folder of an attempt: the comment of the Slurm job that it was passed on to
OLDEST_S = 45.0  # the limit of time that Slurm was told is a minute more than a job's own


class AllocationReuse:
    """The allocations that may still wait for a job."""

    def __init__(self) -> None:
        self._open: list[tuple[SlurmAttempt, float]] = []

    def offer(self, attempt: SlurmAttempt, result: Result) -> None:
        """Keep the allocation of an attempt that has ended, unless a call for it may still be under way."""
        plain = attempt.request == 0 and not attempt.calling and not attempt.cancelled
        if (
            plain
            and len(attempt.cpus) == 1
            and attempt.slurm is not None
            and attempt.batch is not None
            and allocation_reuse.suits(result.how, result.usage.wall_s)
        ):
            self._open.append((attempt, time.monotonic() + allocation_reuse.STAYS_S))

    def take(self, attempt: SlurmAttempt) -> SlurmAttempt | None:
        """Pass an attempt on, whose order is written; None: it takes a Slurm job of its own.

        Raises:
            OSError: its folder cannot be written.
        """
        now, file = time.monotonic(), attempt.files.path / BY
        self._open = [(before, until) for before, until in self._open if until > now]
        for before, _ in self._open:
            if now - before.since < OLDEST_S and _size(before.batch) == _size(attempt.batch):
                self._open = [one for one in self._open if one[0] is not before]
                file.write_text(before.comment)
                if allocation_reuse.pass_on(before.files.path, attempt.files.path):
                    return replace(
                        attempt,
                        passed_on=True,
                        comment=before.comment,
                        slurm=before.slurm,
                        since=before.since,
                    )
                file.unlink()
                return self.take(attempt)
        return None

    def comments(self) -> set[str]:
        """List the comments of their Slurm jobs."""
        return {before.comment for before, _ in self._open}

    def dismiss(self, nodes: Collection[str]) -> None:
        """End those on these nodes at once: their place is needed."""
        for before, _ in self._open:
            if not before.cpus.keys().isdisjoint(nodes):
                with suppress(OSError):  # then it leaves a moment later
                    allocation_reuse.pass_on(before.files.path, "")
        self._open = [one for one in self._open if one[0].cpus.keys().isdisjoint(nodes)]


def passed_on_to(attempt: Attempt, mark: str) -> str:
    """Read after a restart the comment of the Slurm job that was reused; "" if the attempt has its own.

    Args:
        mark: how it begins.
    """
    with suppress(Broken):
        said = checked.text(attempt.path / BY) or ""
        return said if re.fullmatch(re.escape(mark) + r"\d+:\d+", said) else ""
    return ""


def _size(batch: Batch | None) -> Batch | None:
    """Return what Slurm holds for a batch job."""
    return None if batch is None else replace(batch, script="", name="", comment="", output=Path())
