"""Slurm jobs of this coordinator that belong to no attempt any more.

A slurmctld that was killed may have forgotten a cancellation, and a lost node may come back with a job.
Only a job in two snapshots counts, because one snapshot may be older than the end of an attempt.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from scheduler.engines.slurm.client.parse import SlurmJob


class OrphanedJobs:
    """The orphaned jobs in the last snapshot.

    Attributes:
        mark: how the comments of this coordinator's jobs begin. seen: numbers of the orphaned jobs.
    """

    def __init__(self, mark: str) -> None:
        self.mark = mark
        self.seen: set[int] = set()

    def find(self, jobs: Iterable[SlurmJob], known: Collection[str]) -> list[SlurmJob]:
        """Find the jobs to be cancelled, again in each snapshot until they are gone.

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
