"""The Slurm engine: what the coordinator asks for becomes calls of Slurm's, what is seen becomes reports.

What lies in an attempt's folder, on the shared disk, is believed before what Slurm says: the claim, so that
it runs at most once however often Slurm starts it; the request, and what was done of it; the result.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import uuid
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from agent.attempts.records import Request, Want
from profiles.errors import Unavailable
from profiles.files import write_whole
from scheduler.engines.common import spoiled
from scheduler.engines.common.job_folders import JobFolders
from scheduler.engines.common.supervisor_orders import Orders
from scheduler.engines.protocol import Engine, Report
from scheduler.engines.slurm.attempts import attempt_state
from scheduler.engines.slurm.attempts.allocation_reuse import AllocationReuse, passed_on_to
from scheduler.engines.slurm.attempts.attempt import SlurmAttempt
from scheduler.engines.slurm.attempts.batch_script import BatchWriter
from scheduler.engines.slurm.attempts.orphaned_jobs import OrphanedJobs
from scheduler.engines.slurm.attempts.signals import Steering
from scheduler.engines.slurm.client.heartbeats import NOBODY, Key
from scheduler.engines.slurm.client.poller import BUSY_S, ClusterSnapshot, Outcome, SlurmPoller
from scheduler.engines.slurm.client.tools import SlurmSilent
from scheduler.engines.slurm.external.external_jobs import ExternalAttempts
from scheduler.engines.slurm.nodes import node_failures
from scheduler.engines.slurm.nodes.partitions import Partitions
from scheduler.engines.slurm.nodes.power_budget import PowerBudget
from scheduler.engines.slurm.site import Site
from scheduler.jobs.entry import Entry
from scheduler.jobs.sizes import CORE, Unit
from scheduler.jobs.specs import JobSpec
from scheduler.model.jobs import Cluster, Placement, Region

NOT_TAKEN = "it was taken over from sbatch; go on with: tenbin up --engine slurm --take-over FILE"
log = logging.getLogger("tenbin")


class SlurmEngine(Engine):
    """Runs jobs on the nodes of a Slurm cluster.

    Args:
        store: folder of the coordinator, at the same path on all nodes; job 7 has ``store/jobs/7``.
        unit: what one unit of a pool of nodes is.
    """

    def __init__(self, store: Path, cluster: Cluster, site: Site, unit: Unit = CORE) -> None:
        self.store, self.cluster, self.site, self.unit = store, cluster, site, unit
        self.checks = self.nodes = self.regions = self
        self.caps = self if site.power is not None else None
        self.folders = JobFolders(store)
        self.inventory, self.slurm, self.devices = site.inventory, site.slurm, site.devices
        self.batches = BatchWriter(site, Orders(store, unit, self.inventory.node_of, pins=False))
        self.watched: dict[tuple[int, int], SlurmAttempt] = {}
        self.reports: list[Report] = []
        self.poller = SlurmPoller(site.slurm, site.lease_s, site.sbatch)
        self.external_jobs: ExternalAttempts | None = None
        if site.sbatch is not None:
            self.external_jobs = ExternalAttempts(
                site.sbatch, self.poller, self.inventory, cluster.pools[0].counted
            )
        self.steering, self.reuse = Steering(self.poller), AllocationReuse()
        self.budget: PowerBudget | None = None
        if site.power is not None and cluster.budget_w is not None:
            self.budget = PowerBudget(cluster.pools[0], cluster.budget_w)
        self.silent = ""  # why Slurm does not answer
        self.lost: dict[str, str] = {}  # nodes that Slurm has given up, and why
        if cluster.pools[0].counted and site.devices is None:
            self.inventory.fence(store)
        self.gone: frozenset[str] = frozenset()  # those, and nodes that do not answer
        self._mark = f"tenbin:{_own_name(store / 'slurm.json')}:"
        self.orphans = OrphanedJobs(self._mark)
        self.partitions = Partitions(store, site.partitions, site.partition, self.poller)
        self.poller.begin()

    # -- nodes ----------------------------------------------------------------------------------------

    def prepare(self, specs: Sequence[JobSpec]) -> None:
        if self.devices is not None and any(spec.tasks > 1 or spec.mpi for spec in specs):
            raise Unavailable("a job has one device of the cluster", "ask for one task (-n 1), without --mpi")
        self.batches.orders.prepare(specs)

    def check_paths(self, spec: JobSpec) -> None:
        """Accept all: paths are those of the nodes, and a job that misses its own says so when it starts."""

    def place(self, job: Entry, placement: Placement) -> None:
        if self.devices is not None:
            job.devices, job.cores = self.devices.place(placement)
        else:
            job.cores = self.inventory.place(job, placement, self.cluster[placement.pool])

    def occupy(self, job: Entry) -> None:
        self.inventory.hold(job)
        if self.devices is not None:
            self.devices.occupy(job.devices)

    def free(self, job: Entry) -> None:
        self.inventory.release(job)
        if self.devices is not None:
            self.devices.free(job.devices)

    def cut(self, pool: str, regions: Sequence[Region]) -> None:
        if self.inventory.fences is not None:
            self.inventory.fences.cut(regions)
            if self.partitions.prefix:
                self.poller.look()  # partitions follow the snapshot; recovered jobs are known by then

    def places(self) -> dict[str, dict[str, int]]:
        return self.inventory.regions()

    def absent(self) -> dict[int, str]:
        return self.inventory.away

    def names(self) -> Sequence[str]:
        return [host.name for host in self.inventory.hosts]

    def out_of_service(self, pool: str) -> int:
        return self.inventory.out_of_service() if self.devices is None else self.devices.out_of_service(pool)

    def where(self, job: Entry) -> list[str]:
        return list(self.inventory.shares(core for core in job.cores if core in self.inventory.node_of))

    def hindrance(self, job: Entry) -> str:
        if job.spec.external is not None:
            return self.external_jobs.hindrance(job) if self.external_jobs else NOT_TAKEN
        watched = self.watched.get((job.id, job.attempt))
        if watched is None or self.silent:
            return f"Slurm does not answer: {self.silent}" if watched is not None else ""
        if watched.fenced_at is not None:
            return f"{watched.trouble}; it may still run there, for {self.site.lease_s:g} s at most"
        seen = watched.seen
        if seen is not None and seen.state == "PENDING":
            return f"waits in Slurm (job {seen.id}): {seen.reason}"
        if seen is not None and seen.state == "SUSPENDED" and watched.want != "pause":
            return f"suspended in Slurm by somebody else; go on with: scontrol resume {seen.id}"
        return ""

    # -- attempts -------------------------------------------------------------------------------------

    def start(self, jobs: Sequence[tuple[Entry, dict[str, str]]]) -> None:
        placed = []
        for job, environment in jobs:
            if job.spec.external is not None:
                if self.external_jobs is not None:
                    self.reuse.dismiss(self.where(job))
                    self.external_jobs.start(job)
                continue
            watched = self._watch(job)
            try:
                self._write_order(job, environment, watched)
                placed.append(watched)
            except Unavailable as error:
                self.end(watched, Report(*watched.key, "never", time.time(), trouble=str(error)))
            except OSError as error:
                if error.errno in spoiled.NO_ROOM:
                    raise  # nothing is lost: it is started when there is room
                trouble = f"{error.filename or watched.attempt.path}: {error.strerror}"
                self.end(watched, Report(*watched.key, "never", time.time(), trouble=trouble))
        if self.partitions.prefix:
            self.partitions.follow(self.inventory.regions(), self.watched.values())
        for watched in placed:
            if self.budget is None and self.reuse.take(watched):
                continue
            self.reuse.dismiss(watched.cpus)
            watched.calling = True
            if self.budget is None:
                self._submit(watched)
            else:
                self.budget.when_it_fits(watched.key, partial(self._submit, watched))
        self._share_watts()

    def _submit(self, watched: SlurmAttempt) -> None:
        batch = watched.batch
        assert batch is not None
        self.poller.do(watched.key, "submit", lambda: self.partitions.submit(batch))

    def _write_order(self, job: Entry, environment: dict[str, str], watched: SlurmAttempt) -> None:
        self.batches.write(job, environment, watched, self.folders.files(job))
        if self.budget is not None:
            self.budget.enter(watched, self._cap_w(job))

    def ask(self, job: Entry, want: Want) -> None:
        if self.external_jobs is not None:
            self.external_jobs.ask(job, want)
        watched = self.watched.get((job.id, job.attempt))
        if watched is None:
            return
        request = partial(self._request, watched, Request(job.request, want, self.batches.places(job)))
        if self.budget is None:
            request()
        elif want == "run":
            self.budget.decide(watched, self._cap_w(job))
            self.budget.when_it_fits(watched.key, request)
            self._share_watts()
        else:
            self.budget.wait_no_more(watched.key)
            request()

    def _request(self, watched: SlurmAttempt, request: Request) -> None:
        with spoiled.of_one(watched.job_id, room=False):
            watched.attempt.write_request(request)
        watched.want, watched.request = request.want, request.number
        watched.asked_at, watched.wake_at = time.monotonic(), 0.0
        self._look(watched)

    def cap(self, jobs: Sequence[Entry], lower: bool) -> None:
        """What is lowered here is so when it is confirmed; only then anything is raised, or starts."""
        if self.budget is not None and lower:
            for job in jobs:
                watched = self.watched.get((job.id, job.attempt))
                if watched is not None:
                    self.budget.decide(watched, self._cap_w(job))
            self._share_watts()

    def _cap_w(self, job: Entry) -> float:
        assert job.placement is not None
        cap_w = job.placement.cap_w
        return self.cluster.pools[0].caps_w[-1] if cap_w is None else cap_w

    def _share_watts(self) -> None:
        """What cannot be written now is the next time."""
        if self.budget is not None:
            try:
                self.budget.advance(self.watched)
            except OSError as error:
                log.error("a power cap cannot be written: %s", error)

    def rest_w(self) -> float:
        return 0.0 if self.site.power is None else self.site.power.rest_w

    def put_back(self, watched: SlurmAttempt) -> None:
        """Its supervisor was killed: the caps that it left are put back on its nodes, if they are free."""
        power = self.site.power
        if power is not None:
            program = [sys.executable, "-P", "-m", "agent.power.node_power", power.sysfs, str(power.states)]
            nodes, partition = tuple(watched.cpus), self.site.partition
            self.poller.do(watched.key, "put back", lambda: self.slurm.run_on(nodes, partition, program))

    def recover(self, job: Entry) -> None:
        if job.spec.external is not None:
            if self.external_jobs is not None:
                self.external_jobs.recover(job)
            return
        watched = self._watch(job)
        if not watched.attempt.path.exists():
            self.end(watched, Report(*watched.key, "never", time.time()))
            return
        if other := passed_on_to(watched.attempt, self._mark):
            watched.comment, watched.passed_on = other, True
        watched.started = watched.attempt.state() is not None
        if self.budget is not None:
            self.budget.recover(watched, self._cap_w(job))
        with spoiled.of_one(job.id):
            if watched.attempt.fenced():
                self.give_up(watched, "its node was lost")

    def _watch(self, job: Entry) -> SlurmAttempt:
        attempt = self.folders.attempt(job)
        cpus = {name: n * self.site.threads for name, n in self.inventory.shares(job.cores).items()}
        comment = self._comment((job.id, job.attempt))
        watched = SlurmAttempt(job.id, job.attempt, attempt, comment, cpus, job.spec.grace_s)
        watched.partition = self.partitions.name_of(job.placement.region if job.placement else "")
        self.watched[watched.key] = watched
        self.poller.folders[watched.key] = attempt.path
        self.poller.heartbeats.watch(watched.key, attempt.path, watched.cpus)
        return watched

    def _comment(self, key: Key) -> str:
        return f"{self._mark}{key[0]}:{key[1]}"

    # -- what happens ---------------------------------------------------------------------------------

    def fileno(self) -> int:
        return self.poller.fileno()

    def urgent(self) -> bool:
        return bool(self.reports or (self.external_jobs and self.external_jobs.reports))

    def poll(self) -> list[Report]:
        self.poller.heard()
        while not self.poller.news.empty():
            news = self.poller.news.get()
            if isinstance(news, ClusterSnapshot):
                self._see(news)
            elif isinstance(news, Outcome):
                self._settle(news)
            elif str(news) != self.silent:
                self.silent = str(news)
                log.error("%s", news)
        for watched in list(self.watched.values()):
            self._look(watched)
        self._share_watts()
        reports, self.reports = self.reports, []
        if self.external_jobs is not None:
            reports += self.external_jobs.reports
            self.external_jobs.reports.clear()
        return reports

    def _see(self, snapshot: ClusterSnapshot) -> None:
        if self.silent:
            log.warning("Slurm answers again")
        self.silent = ""
        node_failures.see_nodes(self, snapshot)
        self.partitions.see(snapshot.nodes, self.inventory.regions(), self.watched.values())
        if self.external_jobs is not None and snapshot.external_jobs is not None:
            self.external_jobs.see(snapshot.external_jobs)
        ours = {job.comment: job for job in snapshot.jobs}
        for watched in list(self.watched.values()):
            with spoiled.of_one(watched.job_id):
                if not (watched.calling and watched.slurm is None):  # else it may not be there yet
                    watched.snapshots += 1
                    attempt_state.see(self, watched, ours.get(watched.comment))
                node_failures.see_place(self, watched, snapshot)
        known = {watched.comment for watched in self.watched.values()} | self.reuse.comments()
        for stray in self.orphans.find(snapshot.jobs, known):
            log.warning("Slurm job %d is of no attempt any more: cancelled (%s)", stray.id, stray.comment)
            self.steering.cancel(NOBODY, stray.id, stray.comment)
        if self.orphans.seen:
            self.poller.look(BUSY_S)

    def _settle(self, outcome: Outcome) -> None:
        """A call was made."""
        if self.partitions.settle(outcome):
            return
        watched, error = self.watched.get(outcome.key), outcome.error
        if self.external_jobs is not None and self.external_jobs.settle(outcome):
            watched = None
        if outcome.what == "submit":
            self._submitted(watched, outcome)
        elif watched is not None:
            watched.calling = False
            self.steering.settle(watched, outcome)
        if error is not None and not isinstance(error, SlurmSilent):
            whose = f"job {outcome.key[0]}: " if outcome.key[0] else ""
            log.error("%s%s: %s", whose, outcome.what, error)

    def _submitted(self, watched: SlurmAttempt | None, outcome: Outcome) -> None:
        if watched is None:  # it was revoked meanwhile
            if isinstance(outcome.value, int):
                self.steering.cancel(outcome.key, outcome.value, self._comment(outcome.key))
            return
        watched.calling = False
        if isinstance(outcome.value, int):
            watched.slurm = outcome.value
            self.poller.look(BUSY_S)  # where nothing else ran the next snapshot may be later
        elif isinstance(outcome.error, SlurmSilent):
            self.poller.look()  # it may be there all the same: the next snapshot tells
        elif not watched.started and spoiled.revoked(watched.attempt):
            here = "node" not in str(outcome.error)  # else other nodes may do
            trouble = f"Slurm refused it: {outcome.error}"
            self.end(watched, Report(*watched.key, "never" if here else "lost", time.time(), trouble=trouble))

    def _look(self, watched: SlurmAttempt) -> None:
        """Look at an attempt; what cannot be looked at now is the next time."""
        with spoiled.of_one(watched.job_id):
            attempt_state.look(self, watched)

    def give_up(self, watched: SlurmAttempt, trouble: str) -> None:
        """Its node is lost: what may run there must end before it runs elsewhere."""
        if watched.fenced_at is None:
            with spoiled.of_one(watched.job_id):  # where no fence can be put up its lease is over as well
                watched.attempt.fence_off()
            watched.fenced_at, watched.trouble = time.monotonic(), trouble
            if watched.slurm is not None:
                self.steering.cancel(watched.key, watched.slurm, watched.comment)
                watched.cancelled = True

    def revoke(self, watched: SlurmAttempt, report: Report) -> None:
        """It has not begun and never will: the caller has claimed it."""
        if watched.slurm is not None:
            self.steering.cancel(watched.key, watched.slurm, watched.comment)
        self.end(watched, report)

    def end(self, watched: SlurmAttempt, report: Report) -> None:
        self.reports.append(report)
        if report.result is not None and watched.key in self.watched:
            self.reuse.offer(watched, report.result)
        self.watched.pop(watched.key, None)
        self.poller.folders.pop(watched.key, None)
        self.poller.heartbeats.forget(watched.key)
        if self.budget is not None:
            self.budget.leave(watched.key)

    def close(self) -> None:
        self.poller.close()
        self.partitions.close()
        if self.site.sbatch is not None:
            self.site.sbatch.close()


def _own_name(file: Path) -> str:
    """Tells this coordinator's jobs from those of others, for as long as there is the store."""
    try:
        return str(json.loads(file.read_text())["name"])
    except (OSError, ValueError, KeyError, TypeError):
        name = f"{os.getuid()}-{uuid.uuid4().hex[:12]}"
        write_whole(file, json.dumps({"name": name}))
        return name
