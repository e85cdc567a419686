"""The Slurm engine: what the coordinator asks for becomes calls of Slurm's, what is seen becomes reports.

What lies in an attempt's folder, on the shared disk, is believed before what Slurm says: the claim, so that
it runs at most once however often Slurm starts it; the request, and what was done of it; the result.
"""

from __future__ import annotations

import json
import logging
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from agent.attempts.records import Request, Want
from profiles.errors import Unavailable
from profiles.files.safe_files import write_whole
from scheduler.engines.common.job_folders import NO_ROOM, JobFolders, job_errors_logged, revoked
from scheduler.engines.common.supervisor_orders import Orders
from scheduler.engines.protocol import DeviceMoves, Engine, JobChecks, Nodes, PowerCaps, Regions, Report
from scheduler.engines.slurm.attempt_driver import AttemptDriver, SlurmExternalJobs
from scheduler.engines.slurm.attempt_step import SlurmAttempt, look_anew
from scheduler.engines.slurm.batch_jobs import BatchWriter, NodeLayers, passed_on_to
from scheduler.engines.slurm.node_inventory import Devices, NodeInventory, Site
from scheduler.engines.slurm.node_states import NodeStates, Partitions, Sent
from scheduler.engines.slurm.poller import ClusterSnapshot, Key, Outcome, SlurmPoller
from scheduler.engines.slurm.power_budget import PowerBudget
from scheduler.jobs.entry import Entry
from scheduler.jobs.sizes import CORE, Unit
from scheduler.jobs.specs import JobSpec
from scheduler.model.jobs import Cluster, Placement, Region

NOT_TAKEN = "it was taken over from sbatch; go on with: tenbin up --engine slurm --take-over FILE"
log = logging.getLogger("tenbin")


class SlurmChecks(JobChecks):
    """Looks for an MPI; paths are those of the nodes: a job that misses its own says so when it starts."""

    def __init__(self, orders: Orders, devices: Devices | None) -> None:
        self._orders, self._devices = orders, devices

    def prepare(self, specs: Sequence[JobSpec]) -> None:
        if self._devices is not None and any(spec.tasks > 1 or spec.mpi for spec in specs):
            raise Unavailable("a job has one device of the cluster", "ask for one task (-n 1), without --mpi")
        self._orders.prepare(specs)


class SlurmNodes(Nodes):
    """The nodes of the inventory."""

    named = True

    def __init__(
        self, site: Site, hindrance: Callable[[Entry], str], others: Callable[[], dict[str, int]]
    ) -> None:
        self._inventory, self._devices, self._threads = site.inventory, site.devices, site.threads
        self._hindrance, self._others = hindrance, others

    def absent(self) -> dict[int, str]:
        return self._inventory.away

    def names(self) -> Sequence[str]:
        return [host.name for host in self._inventory.hosts]

    def others(self) -> dict[int, int]:
        number = self._inventory.number
        return {
            number[name]: -(-cpus // self._threads) for name, cpus in self._others().items() if name in number
        }

    def out_of_service(self, pool: str) -> int:
        devices = self._devices
        return self._inventory.out_of_service() if devices is None else devices.out_of_service(pool)

    def where(self, job: Entry) -> list[str]:
        node_of = self._inventory.node_of
        return list(self._inventory.shares(core for core in job.cores if core in node_of))

    def have_room(self, job: Entry) -> bool:
        return self._devices is not None or self._inventory.have_room(job.cores)

    def hindrance(self, job: Entry) -> str:
        return self._hindrance(job)


class SlurmRegions(Regions):
    """Regions of the inventory, and their partitions."""

    def __init__(self, inventory: NodeInventory, partitions: Partitions, poller: SlurmPoller) -> None:
        self._inventory, self._partitions, self._poller = inventory, partitions, poller

    def cut(self, pool: str, regions: Sequence[Region]) -> None:
        if self._inventory.fences is not None:
            self._inventory.fences.cut(regions)
            if self._partitions.prefix:
                self._poller.look()  # partitions follow the snapshot; recovered jobs are known by then

    def places(self) -> dict[str, dict[str, int]]:
        return self._inventory.regions()


class SlurmCaps(PowerCaps):
    """Caps of nodes, shared by the engine."""

    def __init__(self, rest_w: float, cap: Callable[[Sequence[Entry], bool], None]) -> None:
        self._rest_w, self._cap = rest_w, cap

    def cap(self, jobs: Sequence[Entry], lower: bool) -> None:
        self._cap(jobs, lower)

    def rest_w(self) -> float:
        return self._rest_w


class SlurmEngine(Engine):
    """Runs jobs on the nodes of a Slurm cluster.

    Args:
        store: folder of the coordinator, at the same path on all nodes; job 7 has ``store/jobs/7``.
        unit: what one unit of a pool of nodes is.
    """

    extends = False  # Slurm ends a batch job at the limit with which it was submitted

    def __init__(self, store: Path, cluster: Cluster, site: Site, unit: Unit = CORE) -> None:
        self.store, self.cluster, self.site, self.unit = store, cluster, site, unit
        self.folders = JobFolders(store)
        self.inventory, self.devices = site.inventory, site.devices
        self.layers = NodeLayers(site, site.devices, store) if site.devices is not None else None
        self.device_moves = self.layers or DeviceMoves()
        orders = Orders(store, unit, self.inventory.node_of, pins=False)
        self.batches = BatchWriter(site, orders, self.layers)
        self._later: dict[Key, tuple[Entry, Callable[[], None]]] = {}  # requests to go on, by attempt
        self.poller = SlurmPoller(site.slurm, site.lease_s, site.sbatch)
        self._external: SlurmExternalJobs | None = None
        if site.sbatch is not None:
            counted = cluster.pools[0].counted
            self._external = self.external_jobs = SlurmExternalJobs(
                site.sbatch, self.poller, self.inventory, counted
            )
        self.silent = ""  # why Slurm does not answer
        if cluster.pools[0].counted and site.devices is None:
            self.inventory.fence(store)
        self.node_states = NodeStates(
            self.inventory, self.poller, set_down=site.set_down, fitness=site.fitness
        )
        self.partitions = Partitions(store, site.partitions, site.partition, self.poller)
        self._mark = f"tenbin:{_own_name(store / 'slurm.json')}:"
        self.driver = AttemptDriver(
            site, self.poller, self.partitions, self.node_states, external=self._external, mark=self._mark
        )
        self.budget: PowerBudget | None = None
        if site.power is not None and cluster.budget_w is not None:
            self.budget = PowerBudget(cluster.pools[0], cluster.budget_w, self.driver.wake)
            self.driver.budget = self.budget
        self.checks = SlurmChecks(orders, site.devices)
        self.nodes = SlurmNodes(site, self._hindrance, self.driver.others)
        self.regions = SlurmRegions(self.inventory, self.partitions, self.poller)
        self.caps = SlurmCaps(0.0 if site.power is None else site.power.rest_w, self._cap)
        self.poller.begin()

    # -- nodes ----------------------------------------------------------------------------------------

    def place(self, job: Entry, placement: Placement) -> None:
        if self.devices is not None:
            job.devices, job.cores = self.devices.place(job, placement)
        else:
            job.cores = self.inventory.place(job, placement, self.cluster[placement.pool])

    def occupy(self, job: Entry) -> None:
        self.inventory.hold(job)
        if self.devices is not None:
            self.devices.occupy(job)

    def free(self, job: Entry) -> None:
        self.inventory.release(job)
        if self.devices is not None:
            self.devices.free(job)

    def _hindrance(self, job: Entry) -> str:
        if job.spec.external is not None and self._external is None:
            return NOT_TAKEN
        attempt = self.driver.attempts.get((job.id, job.attempt))
        if attempt is not None and attempt.key in self._later:
            return f"waits for its device on {attempt.where}, which another job has"
        if attempt is not None and not attempt.external and self.silent:
            return f"Slurm does not answer: {self.silent}"
        return "" if attempt is None else attempt.hindrance(self.site.lease_s)

    # -- attempts -------------------------------------------------------------------------------------

    def start(self, jobs: Sequence[tuple[Entry, dict[str, str]]]) -> None:
        placed = []
        for job, environment in jobs:
            if job.spec.external is not None:
                if self._external is not None:
                    self.driver.reuse.dismiss(self.nodes.where(job))
                    self.driver.start_external(self._watch(job).key)
                continue
            attempt = self._watch(job)
            try:
                placed.append(self._write_order(job, environment, attempt))
                continue
            except Unavailable as error:
                trouble = str(error)
            except OSError as error:
                if error.errno in NO_ROOM:
                    raise  # nothing is lost: it is started when there is room
                trouble = f"{error.filename or attempt.files.path}: {error.strerror}"
            self.driver.report(attempt, Report(*attempt.key, "never", time.time(), trouble=trouble))
        if self.partitions.prefix:
            self.partitions.follow(self.inventory.regions(), self._sent())
        for attempt in placed:
            reused = self.driver.reuse.take(attempt) if self.budget is None else None
            if reused is not None:
                self.driver.attempts[attempt.key] = reused
                continue
            self.driver.reuse.dismiss(attempt.cpus)
            # Until it is submitted, a snapshot without its Slurm job says nothing.
            self.driver.attempts[attempt.key] = replace(attempt, calling=True)
            if self.budget is None:
                self.driver.submit(attempt.key)
            else:
                self.budget.when_it_fits(attempt.key, partial(self.driver.submit, attempt.key))
        self._share_power()

    def _write_order(self, job: Entry, environment: dict[str, str], attempt: SlurmAttempt) -> SlurmAttempt:
        batch = self.batches.write(job, environment, attempt, self.folders.files(job))
        if self.budget is not None:
            self.budget.enter(attempt, self._cap_w(job))
        return replace(attempt, batch=batch)

    def ask(self, job: Entry, want: Want) -> None:
        attempt = self.driver.attempts.get((job.id, job.attempt))
        if attempt is None:
            return
        places = () if attempt.external else self.batches.places(job)
        order = Request(job.request, want, places, time_limit_s=job.way.time_s or 0.0)
        request = partial(self.driver.request, attempt.key, order)
        self._later.pop(attempt.key, None)
        # A request for a checkpoint may overtake that to run.
        goes_on = want == "run" or (want == "checkpoint" and attempt.want == "pause")
        if goes_on and self._device_is_taken(job, attempt):
            self._later[attempt.key] = job, request
        elif self.budget is None or attempt.external or want == "limit":
            request()
        elif goes_on:
            self.budget.decide(attempt, self._cap_w(job))
            self.budget.when_it_fits(attempt.key, request)
            self._share_power()
        else:
            self.budget.wait_no_more(attempt.key)
            request()

    def _device_is_taken(self, job: Entry, attempt: SlurmAttempt) -> bool:
        """Tell if a job that is to go on has to wait for its device; a repeated request has not."""
        before = attempt.files.request() if self.devices is not None and self.devices.shared(job) else None
        return before is not None and before.number < job.request

    def _go_on_later(self) -> None:
        """Let attempts go on whose devices are free by now, in the order in which they asked."""
        for key, (job, request) in list(self._later.items()):
            waiting = [job_id for job_id, _ in self._later]
            if key not in self.driver.attempts:
                del self._later[key]
            elif self.devices is not None and not self.devices.shared(job, waiting):
                request()
                del self._later[key]

    def _cap(self, jobs: Sequence[Entry], lower: bool) -> None:
        """Lower caps; only once a lower cap is confirmed, another is raised, or a job starts."""
        if self.budget is not None and lower:
            for job in jobs:
                attempt = self.driver.attempts.get((job.id, job.attempt))
                if attempt is not None:
                    self.budget.decide(attempt, self._cap_w(job))
            self._share_power()

    def _cap_w(self, job: Entry) -> float:
        assert job.placement is not None
        cap_w = job.placement.cap_w
        return self.cluster.pools[0].caps_w[-1] if cap_w is None else cap_w

    def _share_power(self) -> None:
        """Share the budget; what cannot be written now is written the next time."""
        if self.budget is not None:
            try:
                self.budget.advance(self.driver.attempts)
            except OSError as error:
                log.error("a power cap cannot be written: %s", error)

    def recover(self, job: Entry) -> None:
        if job.spec.external is not None:
            if self._external is not None:
                self._watch(job)
            return
        if self.devices is not None and not job.stage.placed:
            self.devices.free(job)
        attempt = self._watch(job, self._shares_at_start(job))
        if not attempt.files.path.exists():
            self.driver.report(attempt, Report(*attempt.key, "never", time.time()))
            return
        if other := passed_on_to(attempt.files, self._mark):
            attempt = replace(attempt, comment=other, passed_on=True)
        attempt = replace(attempt, started=attempt.files.state() is not None)
        self.driver.attempts[attempt.key] = attempt
        if self.budget is not None:
            self.budget.recover(attempt, self._cap_w(job))
        with job_errors_logged(job.id):
            look_anew(attempt.files.path)
            fenced = attempt.files.fenced()
            if fenced:
                revoked(attempt.files)
            if attempt.files.claimed() and not attempt.files.begun():  # the coordinator before took it back
                attempt.files.fence_off()
                self.driver.report(attempt, Report(*attempt.key, "never", time.time()))
            elif fenced:
                self.driver.give_up(attempt.key, "its node was lost")

    def _shares_at_start(self, job: Entry) -> dict[str, int]:
        """Return the cores that an attempt has in Slurm, even if its job, once paused, counts elsewhere."""
        try:
            order = self.folders.attempt(job).order()
            return self.inventory.shares(json.loads(order.journalled["cores"]))
        except (OSError, ValueError, KeyError, TypeError):
            return self.inventory.shares(job.cores)  # an older tenbin began it, or its folder is gone

    def _watch(self, job: Entry, shares: dict[str, int] | None = None) -> SlurmAttempt:
        shares = shares or self.inventory.shares(job.cores)
        if job.spec.external is not None:
            attempt = SlurmAttempt(
                job_id=job.id, number=job.attempt, cpus=shares, external=job.spec.external.id
            )
        else:
            region = job.placement.region if job.placement else ""
            attempt = SlurmAttempt(
                job_id=job.id,
                number=job.attempt,
                cpus={name: n * self.site.threads for name, n in shares.items()},
                folder=self.folders.attempt(job),
                comment=f"{self._mark}{job.id}:{job.attempt}",
                grace_s=job.spec.grace_s,
                partition=self.partitions.name_of(region),
                since=time.monotonic(),
            )
        return self.driver.watch(attempt)

    def _sent(self) -> Iterator[Sent]:
        for attempt in self.driver.attempts.values():
            yield attempt.partition, attempt.cpus

    # -- what happens ---------------------------------------------------------------------------------

    def fileno(self) -> int:
        return self.poller.fileno()

    def urgent(self) -> bool:
        return bool(self.driver.reports)

    def poll(self) -> list[Report]:
        self.poller.heard()
        while not self.poller.news.empty():
            news = self.poller.news.get()
            if isinstance(news, ClusterSnapshot):
                self._see(news)
            elif isinstance(news, Outcome):
                if not self.partitions.settle(news):
                    self.driver.settle(news)
            elif str(news) != self.silent:
                self.silent = str(news)
                log.error("%s", news)
        for key in list(self.driver.attempts):
            self.driver.look(key)
        self._go_on_later()
        self._share_power()
        reports, self.driver.reports = self.driver.reports, []
        return reports

    def _see(self, snapshot: ClusterSnapshot) -> None:
        if self.silent:
            log.warning("Slurm answers again")
        self.silent = ""
        self.node_states.see(snapshot)
        self.partitions.see(snapshot.nodes, self.inventory.regions(), self._sent())
        if self._external is not None and snapshot.external_jobs is not None:
            self._external.see(snapshot.external_jobs)
        self.driver.see(snapshot)
        self.node_states.set_dead_down(snapshot.nodes, snapshot.answers)

    def close(self) -> None:
        if self.layers is not None:
            self.layers.close()
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
