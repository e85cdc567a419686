"""Slurm jobs of this coordinator's that belong to no attempt any more.

slurmctld that was killed may have forgotten that a job was cancelled, or a node that was lost come back with
one. What is seen twice is one: a snapshot may be older than the end of an attempt.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from scheduler.engines.slurm.client.parse import SlurmJob


class OrphanedJobs:
    """Finds them.

    Attributes:
        mark: how the comments of this coordinator's jobs begin. seen: those of the last snapshot.
    """

    def __init__(self, mark: str) -> None:
        self.mark = mark
        self.seen: set[int] = set()

    def find(self, jobs: Iterable[SlurmJob], known: Collection[str]) -> list[SlurmJob]:
        """Those to be cancelled, in a snapshot; again in the next one, until they are gone.

        Args:
            known: comments of the attempts that there are.
        """
        found = [
            job
            for job in jobs
            if job.comment.startswith(self.mark)
            and job.comment not in known
            and not (job.final or job.state == "COMPLETING")
        ]
        before, self.seen = self.seen, {job.id for job in found}
        return [job for job in found if job.id in before]
