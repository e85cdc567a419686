"""External jobs for the coordinator, and the release of those that wait."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from scheduler.engines.external_jobs import ExternalJob
from scheduler.engines.slurm.client.heartbeats import NOBODY
from scheduler.engines.slurm.client.poller import SlurmPoller
from scheduler.engines.slurm.client.sbatch_jobs import SbatchJob, SeenJob, result_of
from scheduler.engines.slurm.external.sbatch_queue import SbatchQueue
from scheduler.engines.slurm.nodes.node_inventory import NodeInventory
from scheduler.model.jobs import Placement


class SlurmExternalJobs:
    """The external jobs of a partition in the last snapshot.

    Args:
        counted: policies count nodes, or parts of them, and do not name them.

    Attributes:
        put_back: for jobs that wait anew, by name and count of restarts: since when (monotonic).
    """

    scheduler, command = "Slurm", "sbatch"

    def __init__(
        self, sbatch: SbatchQueue, poller: SlurmPoller, inventory: NodeInventory, counted: bool
    ) -> None:
        self.sbatch, self.poller, self.inventory, self.counted = sbatch, poller, inventory, counted
        self.jobs: Mapping[str, SbatchJob] = {}
        self.put_back: dict[tuple[str, int], float] = {}
        self._seen: list[SeenJob] = []
        self._news = False
        self._refused: dict[str, str] = {}

    def look(self) -> list[ExternalJob] | None:
        if not self._news:
            return None
        self._news = False
        return [self._external_job(seen) for seen in self._seen]

    def let_go(self, key: str, remark: str) -> None:
        self._refused.pop(key, None)
        self.poller.do(NOBODY, "let go", lambda: self.sbatch.let_go(key, remark))

    def has_room(self, placement: Placement) -> bool:
        free = self.inventory.free_units
        return not self.counted or all(free(node) >= units for node, units in placement.nodes)

    def drop(self, key: str) -> None:
        self.poller.do(NOBODY, "cancel", lambda: self.sbatch.slurm.call("scancel", key))

    # -- what the engine notes ------------------------------------------------------------------------

    def see(self, found: Sequence[SeenJob]) -> None:
        """Note a snapshot."""
        self._seen, self._news = list(found), True
        self.jobs = {seen.job.key: seen.job for seen in found}
        again = [(job.key, job.restarts) for job in self.jobs.values() if job.pending and job.restarts]
        now = time.monotonic()
        self.put_back = {which: self.put_back.get(which, now) for which in again}

    def refuse(self, key: str, why: str) -> None:
        """Note that Slurm does not start a job where tenbin wants."""
        self._refused[key] = why

    def wait_again(self, key: str) -> None:
        """Forget the needs of a job that waits for tenbin again: tenbin itself had named its nodes."""
        self._seen = [
            seen._replace(needs=None, unclear="") if seen.job.key == key else seen for seen in self._seen
        ]

    def ended(self) -> None:
        """Note that an attempt is over: the coordinator looks again."""
        self._news = bool(self._seen)

    def _external_job(self, seen: SeenJob) -> ExternalJob:
        job, now = seen.job, time.time()
        numbers = [self.inventory.number.get(name) for name in job.nodes]
        known = tuple(number for number in numbers if number is not None)
        return ExternalJob(
            key=job.key,
            state="waiting" if job.pending else "ended" if job.final else "running",
            submitted_s=job.submitted_s,
            restarts=job.restarts,
            blocked=job.blocked(now),
            limit_s=job.limit_s,
            needs=seen.needs,
            unclear=self._refused.get(job.key, seen.unclear) if job.pending else "",
            nodes=known if known and len(known) == len(numbers) else None,
            result=result_of(job, now) if job.final else None,
        )
